//! Who holds the longest part of a prefix: a lookup that names no session. Owns: one such search, round by round. Must not know:
//! how a question travels.
//!
//! ```text
//! hint --half of it is to be had there--> decided
//!      --else--> all (few members): a sample to each, then only to those that can still be the best --settled--> decided
//!            \-> posts (many): who holds the n-th signpost? a few a round --settled--> at its holder --settled--> decided
//! any  --LOOKUP_MS over--> decided: the best so far
//! ```

use crate::effects::{Decision, Held};
use crate::ids::{Life, MemberId, Now, PrefixKey};
use crate::limits::{ASK_ALL_MAX, ASK_MS, LOOKUP_MS, POST_EVERY, POST_PROBES_MAX, SAMPLE_MAX};
use crate::search::Search;
use crate::view::View;
use std::collections::BTreeMap;

/// One search.
pub(crate) struct Lookup {
    own: MemberId,
    total: usize,
    /// Pages that are to be had anyway: here, or at the best so far.
    floor: usize,
    best: Option<Held>,
    stage: Stage,
    searches: BTreeMap<MemberId, Search>,
    waiting: BTreeMap<MemberId, Vec<usize>>,
    posts: PostSearch,
    until: Now,
    deadline: Now,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Hint,
    All,
    Posts,
    AtHolder,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Pages that are named.
    pub(crate) total: usize,
    /// Leading ones that are here.
    pub(crate) local: usize,
    /// Every so many of these is a signpost.
    pub(crate) post_every: usize,
    /// Who may have it.
    pub(crate) hint: Option<MemberId>,
}

/// The search over signposts.
struct PostSearch {
    every: usize,
    search: Search,
    sample: Vec<usize>,
    unanswered: usize,
    deepest: Option<(usize, Life)>,
}

/// What a search wants next.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LookupNext {
    /// Members, each with counts of leading pages: is the last of so many there?
    pub(crate) probes: Vec<(MemberId, Vec<usize>)>,
    /// Signposts to ask for, as counts of pages.
    pub(crate) posts: Vec<usize>,
    /// It is over.
    pub(crate) decided: Option<Decision>,
}

impl Lookup {
    /// The view is that of whoever asks, without itself.
    pub(crate) fn begin(own: MemberId, wanted: Wanted, view: &View, now: Now) -> (Lookup, LookupNext) {
        let Wanted { total, local, post_every: every, hint } = wanted;
        let posts = PostSearch {
            every,
            search: Search { known: local / every, possible: total / every },
            sample: Vec::new(),
            unanswered: 0,
            deepest: None,
        };
        let (searches, waiting) = (BTreeMap::new(), BTreeMap::new());
        let (until, deadline) = (now, now.saturating_add(LOOKUP_MS));
        let (stage, floor, best) = (Stage::Hint, local, None);
        let mut lookup = Lookup { own, total, floor, best, stage, searches, waiting, posts, until, deadline };
        if let Some(hint) = hint.filter(|hint| *hint != own && view.get(*hint).is_some()) {
            lookup.searches.insert(hint, Search { known: local, possible: total });
        }
        let next = lookup.go_on(view, now);
        (lookup, next)
    }

    /// When it wants to be asked again.
    pub(crate) fn until(&self) -> Now {
        self.until.min(self.deadline)
    }

    /// A member has so many leading ones of what it was asked about; none: it did not answer.
    pub(crate) fn counted(
        &mut self,
        member: MemberId,
        present: Option<usize>,
        view: &View,
        now: Now,
    ) -> LookupNext {
        let Some(sample) = self.waiting.remove(&member) else { return LookupNext::default() };
        match (present, self.searches.get_mut(&member)) {
            (Some(present), Some(search)) => {
                search.narrow(&sample, present);
                if present > 0 && search.known > self.floor {
                    self.floor = search.known;
                    self.best = Some(Held { member, pages: search.known });
                }
            }
            _ => drop(self.searches.remove(&member)),
        }
        if self.waiting.is_empty() { self.go_on(view, now) } else { LookupNext::default() }
    }

    /// An authority names the holders that it knows of, by counts of pages.
    pub(crate) fn posts_held(&mut self, held: &[(usize, Life)], view: &View, now: Now) -> LookupNext {
        if self.stage != Stage::Posts || self.posts.unanswered == 0 {
            return LookupNext::default();
        }
        let deeper = held.iter().filter(|(_, holder)| holder.member != self.own);
        self.posts.deepest = deeper.copied().chain(self.posts.deepest).max();
        self.posts.unanswered -= 1;
        if self.posts.unanswered == 0 { self.go_on(view, now) } else { LookupNext::default() }
    }

    /// The signposts that are asked for, as counts of pages.
    pub(crate) fn open_posts(&self) -> Vec<usize> {
        self.posts.sample.iter().map(|post| post * self.posts.every).collect()
    }

    /// So many authorities were asked for the signposts that were wanted.
    pub(crate) fn posts_asked(&mut self, authorities: usize) {
        self.posts.unanswered = authorities;
    }

    pub(crate) fn tick(&mut self, view: &View, now: Now) -> LookupNext {
        if now >= self.deadline {
            return self.decide();
        }
        if now < self.until {
            return LookupNext::default();
        }
        for member in std::mem::take(&mut self.waiting).into_keys() {
            self.searches.remove(&member);
        }
        self.posts.unanswered = 0;
        self.go_on(view, now)
    }

    /// Every question of the round is answered, or late.
    fn go_on(&mut self, view: &View, now: Now) -> LookupNext {
        self.until = now.saturating_add(ASK_MS);
        loop {
            let floor = self.floor;
            self.searches.retain(|_, search| {
                search.known = search.known.max(floor);
                !search.is_settled()
            });
            if !self.searches.is_empty() {
                let samples =
                    self.searches.iter().map(|(member, search)| (*member, search.sample(SAMPLE_MAX)));
                self.waiting = samples.collect();
                let probes = self.waiting.iter().map(|(member, sample)| (*member, sample.clone())).collect();
                return LookupNext { probes, ..LookupNext::default() };
            }
            match self.stage {
                // What is here is no answer to who has the rest: a chat that comes back has most of its pages here, not its last turn.
                Stage::Hint if self.best.is_none() || 2 * self.floor < self.total => self.leave_hint(view),
                Stage::Posts => {
                    self.next_posts();
                    let posts = self.open_posts();
                    if !posts.is_empty() {
                        return LookupNext { posts, ..LookupNext::default() };
                    }
                    self.go_to_holder(view);
                }
                Stage::Hint | Stage::All | Stage::AtHolder => return self.decide(),
            }
        }
    }

    fn leave_hint(&mut self, view: &View) {
        if view.members().len() > ASK_ALL_MAX {
            self.stage = Stage::Posts;
            return;
        }
        self.stage = Stage::All;
        let hinted = self.best.map(|best| best.member);
        let open = Search { known: self.floor, possible: self.total };
        let peers = view.members().iter().map(|member| member.id);
        let asked = peers.filter(|id| *id != self.own && Some(*id) != hinted);
        self.searches = asked.map(|id| (id, open)).collect();
    }

    /// Takes in what the last round found, and says what the next one asks about: nothing if that settled it.
    fn next_posts(&mut self) {
        let found = self.posts.deepest.map_or(0, |(count, _)| count / self.posts.every);
        let sample = std::mem::take(&mut self.posts.sample);
        // A signpost that is lost hides nothing: the deepest one says that all before it are there.
        let present = sample.iter().rposition(|post| *post <= found).map_or(0, |last| last + 1);
        self.posts.search.narrow(&sample, present);
        self.posts.sample = self.posts.search.sample(POST_PROBES_MAX);
    }

    fn go_to_holder(&mut self, view: &View) {
        self.stage = Stage::AtHolder;
        let Some((count, holder)) = self.posts.deepest else { return };
        if view.get(holder.member).is_some() && count > self.floor {
            // That the signpost stands is no proof: the holder is asked for its page, too.
            let possible = self.total.min(count + self.posts.every - 1);
            let known = self.floor.max(count - 1);
            self.searches.insert(holder.member, Search { known, possible });
        }
    }

    fn decide(&self) -> LookupNext {
        let decided = self.best.map_or(Decision::Nowhere, Decision::Holds);
        LookupNext { decided: Some(decided), ..LookupNext::default() }
    }
}

/// The signposts of a chain: the key of every so many pages.
pub(crate) fn posts_of(pages: usize, key: impl Fn(usize) -> PrefixKey) -> Vec<PrefixKey> {
    (1..=pages / POST_EVERY).map(|post| key(post * POST_EVERY - 1)).collect()
}
