//! One member's part of the cluster. Owns: its view, its directory, what it is home of, the calls under way. Must not know: the
//! pool, sockets, etcd; whoever embeds it hands in what happened and carries out what is returned.

use crate::directory::Directory;
use crate::effects::{Decision, Effects, Notice};
use crate::find::Find;
use crate::guard::{Observation, ViewGuard, Viewed};
use crate::health::Hysteresis;
use crate::homes::{Home, Homes};
use crate::ids::{CallId, Incarnation, Life, MemberId, Now, PrefixKey, SessionKey, Tip};
use crate::limits::{APART_ROUNDS, ASK_ALL_MAX, GENERATION_ROUNDS, HURRY_ROUNDS, MOVED_MAX, PUBLISH_MAX};
use crate::lookup::{Lookup, posts_of};
use crate::message::{Envelope, Message};
use crate::placement::{authorities, ranked};
use crate::recent::Recent;
use crate::twice::HeardLives;
use crate::view::{Member, MemberState, View};
use std::collections::BTreeMap;
use turnkv_proto::{BlockHash, NamespaceId};

/// What a member is, for its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Itself, in this life.
    pub own: Life,
    /// Its part of the directory against that of others; 0: none.
    pub weight: u32,
    /// The cluster's hash seed: the same for all members.
    pub seed: u64,
}

/// What a turn left in this member's pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept<'a> {
    /// The session's.
    pub session: SessionKey,
    /// Turns that have ended, this one included.
    pub turn: u32,
    /// The namespace.
    pub namespace: NamespaceId,
    /// The session's pages that are here, in order.
    pub hashes: &'a [BlockHash],
}

/// A prefix that is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixAsk {
    /// The namespace.
    pub namespace: NamespaceId,
    /// Its pages, in order.
    pub hashes: Vec<BlockHash>,
    /// These are no others than those that may be signposts: pages at multiples of `limits::POST_EVERY`.
    pub only_posts: bool,
    /// Leading ones that are here.
    pub local: usize,
    /// A member that a router, or the session's tip, names.
    pub hint: Option<MemberId>,
}

/// Whose a session is, as far as can be said without asking anybody: what a client without a pool of its own is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This member's.
    Here,
    /// Another one's: NOT_HOME, with its home.
    Elsewhere(Tip),
    /// Its authority has to be asked.
    Unknown,
}

/// One member's part.
pub struct ClusterMember {
    pub(crate) config: ClusterConfig,
    pub(crate) guard: ViewGuard,
    pub(crate) directory: Directory,
    pub(crate) calls: BTreeMap<CallId, Call>,
    pub(crate) next_call: u64,
    pub(crate) lives: HeardLives,
    health: Hysteresis,
    draining: bool,
    homes: Homes,
    moved: Recent<SessionKey, Tip>,
    rounds: u64,
    /// The last round in which the view differed.
    changed: u64,
    /// The last round without its peers, once it had had one with them.
    apart: Option<u64>,
    was_with_peers: bool,
}

/// A call under way.
pub(crate) enum Call {
    Find(Find),
    Lookup(Lookup, PrefixAsk),
}

impl ClusterMember {
    /// A member that begins a life: it knows nobody, and has nothing.
    pub fn new(config: ClusterConfig) -> ClusterMember {
        ClusterMember {
            config,
            guard: ViewGuard::default(),
            directory: Directory::default(),
            calls: BTreeMap::new(),
            // Numbers of an earlier life are not used again: its answers may still come.
            next_call: config.own.incarnation.0 << 40,
            lives: HeardLives::default(),
            health: Hysteresis::default(),
            draining: false,
            homes: Homes::default(),
            moved: Recent::new(MOVED_MAX),
            rounds: 0,
            changed: 0,
            apart: None,
            was_with_peers: false,
        }
    }

    /// The members, as far as they are believed.
    pub fn view(&self) -> &View {
        self.guard.view()
    }

    /// What this member knows as an authority.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Sessions at home here.
    pub fn homes(&self) -> usize {
        self.homes.len()
    }

    /// Turns and lookups under way.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Whether nothing new is to be placed here from now on.
    pub fn drain(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// This member's life is over: another one begins, with what it is home of, by the seed that holds now. Calls under way are decided; all sessions are
    /// published again.
    pub fn begin_again(&mut self, incarnation: Incarnation, seed: u64) -> Effects {
        let mut effects = Effects::default();
        let decided = std::mem::take(&mut self.calls).into_keys().map(|call| (call, Decision::Nowhere));
        effects.decided.extend(decided);
        (self.config.own.incarnation, self.config.seed) = (incarnation, seed);
        self.next_call = incarnation.0 << 40;
        self.homes.hurry();
        effects
    }

    /// Once a second: what was seen of the members, and whether this one reaches most of its peers.
    pub fn round(&mut self, observation: Observation, reached: bool, now: Now) -> Effects {
        let mut effects = Effects::default();
        let away = self.health.note(reached);
        self.was_with_peers |= reached;
        if self.was_with_peers && !reached {
            self.apart = Some(self.rounds);
        }
        let state = match (away, self.draining) {
            (true, _) => MemberState::Away,
            (false, true) => MemberState::Draining,
            (false, false) => MemberState::Serving,
        };
        let (Life { member: id, incarnation }, weight) = (self.config.own, self.config.weight);
        effects.put_own = Some(Member { id, incarnation, weight, state });
        match self.guard.observe(observation) {
            Viewed::Same => {}
            Viewed::Held(rounds) => effects.notices.push(Notice::ViewHeld(rounds)),
            Viewed::Changed => {
                self.homes.hurry();
                self.changed = self.rounds;
                effects.notices.push(Notice::ViewChanged(self.view().epoch()));
            }
        }
        for life in self.guard.over() {
            self.tell(life.member, Message::Over { latest: life.incarnation }, &mut effects);
        }
        if let Some(later) = self.guard.fence(self.config.own) {
            effects.notices.push(Notice::Superseded(later));
        }
        if self.view().members().is_empty() {
            effects.notices.push(Notice::EmptyView);
        }
        self.rounds += 1;
        if self.rounds.is_multiple_of(GENERATION_ROUNDS) {
            self.directory.age();
        }
        let sessions = self.homes.next();
        self.publish(&sessions, &mut effects);
        self.deliver_own(&mut effects, now);
        effects
    }

    /// A turn ended here, or pages of one were pulled: this member is the session's home. `before`: where it was.
    pub fn turn_ended(&mut self, kept: Kept<'_>, before: Option<Tip>, now: Now) -> Effects {
        let mut effects = Effects::default();
        let key = |at: usize| PrefixKey::of(&kept.namespace, &kept.hashes[at]);
        let posts = posts_of(kept.hashes.len(), key);
        let new_posts = self.new_posts(&kept, &posts);
        let pages = u32::try_from(kept.hashes.len()).unwrap_or(u32::MAX);
        let moves = self.moves_of(&kept, before);
        if let Some((gone, turn)) = self.homes.put(kept.session, (kept.turn, moves), pages, posts) {
            effects.notices.push(Notice::HomesFull);
            self.withdraw(gone, self.config.own, turn, &mut effects);
            effects.unpublished.push(gone);
        }
        self.moved.remove(&kept.session);
        self.publish(&[kept.session], &mut effects);
        self.say_what_is_new(&new_posts, &mut effects);
        if let (Some(before), Some(tip)) = (before, self.home_tip(&kept.session))
            && before.home.member != self.config.own.member
        {
            let outdone = Message::Outdone { session: kept.session, tip };
            self.tell(before.home.member, outdone, &mut effects);
        }
        self.deliver_own(&mut effects, now);
        effects
    }

    /// Some of the sessions at home here, the next ones each round, with their turns: whoever embeds this looks for them in its pool,
    /// which does not tell what it evicts, and says which it does not have.
    pub fn homes_to_check(&mut self) -> Vec<(SessionKey, u32)> {
        self.homes.next_to_check()
    }

    /// A session that was looked for at this turn is not in the pool; one that has ended another turn since is.
    pub fn session_lost(&mut self, session: SessionKey, turn: u32, now: Now) -> Effects {
        match self.homes.get(&session) {
            Some(home) if home.turn == turn => self.session_left(session, now),
            _ => Effects::default(),
        }
    }

    /// The pool does not have a session any more: closed, or of a turn that was its last one.
    pub fn session_left(&mut self, session: SessionKey, now: Now) -> Effects {
        let mut effects = Effects::default();
        if let Some(Home { turn, .. }) = self.homes.remove(&session) {
            self.withdraw(session, self.config.own, turn, &mut effects);
            self.deliver_own(&mut effects, now);
        }
        effects
    }

    /// Whose a session is, without asking.
    pub fn whose(&self, session: &SessionKey) -> Whose {
        if self.homes.get(session).is_some() {
            return Whose::Here;
        }
        let moved = self.moved.get(session).copied().filter(|tip| self.view().admits(tip.home));
        let published = self.directory.tip(session, self.view());
        let published = published.filter(|tip| tip.home.member != self.config.own.member);
        let later = |one: Tip, two: Tip| if two.beats(&one) { two } else { one };
        moved.into_iter().chain(published).reduce(later).map_or(Whose::Unknown, Whose::Elsewhere)
    }

    /// The tip of a session at home here.
    pub fn home_tip(&self, session: &SessionKey) -> Option<Tip> {
        let home = self.homes.get(session)?;
        Some(Tip { home: self.config.own, turn: home.turn, moves: home.moves, pages: home.pages })
    }

    /// Another member has a later turn of it: this one is not its home any more, and its copy goes first.
    pub(crate) fn outdone(&mut self, session: SessionKey, tip: Tip, effects: &mut Effects) {
        let mine = self.home_tip(&session);
        if mine.is_some_and(|mine| tip.beats(&mine)) && tip.home.member != self.config.own.member {
            self.homes.remove(&session);
            self.moved.put(session, tip);
            effects.demote.push(session);
        }
    }

    /// Whether an authority may not have been told of all yet: the view has just changed.
    pub(crate) fn is_settling(&self) -> bool {
        self.rounds - self.changed <= HURRY_ROUNDS + 1
    }

    /// Whether this member reaches its peers again, and may not have heard yet of what went on elsewhere meanwhile.
    pub(crate) fn was_apart(&self) -> bool {
        // The round of which it was said last is the one before this.
        self.apart.is_some_and(|apart| (2..=APART_ROUNDS).contains(&(self.rounds - apart)))
    }

    pub(crate) fn withdraw(&self, session: SessionKey, home: Life, turn: u32, effects: &mut Effects) {
        for authority in self.authorities(&session.0) {
            self.tell(authority, Message::Withdraw { session, home, turn }, effects);
        }
    }

    pub(crate) fn authorities(&self, key: &[u8; 16]) -> impl Iterator<Item = MemberId> + use<> {
        authorities(self.view(), self.config.seed, key).into_iter().flatten()
    }

    pub(crate) fn tell(&self, to: MemberId, message: Message, effects: &mut Effects) {
        effects.send.push(Envelope { from: self.config.own, to, message });
    }

    /// What this member says to itself is heard at once.
    pub(crate) fn deliver_own(&mut self, effects: &mut Effects, now: Now) {
        let own = self.config.own.member;
        loop {
            let to_self = effects.send.iter().position(|envelope| envelope.to == own);
            let Some(at) = to_self else { return };
            let envelope = effects.send.remove(at);
            self.hear(envelope, effects, now);
        }
    }

    /// How often a session has moved since its last turn: once more than it had, where it comes from another home without one.
    fn moves_of(&self, kept: &Kept<'_>, before: Option<Tip>) -> u32 {
        let known = self.homes.get(&kept.session).filter(|home| home.turn == kept.turn);
        let elsewhere = |tip: &Tip| tip.turn == kept.turn && tip.home.member != self.config.own.member;
        let moved = before.filter(elsewhere).map(|tip| tip.moves.saturating_add(1));
        known.map(|home| home.moves).max(moved).unwrap_or(0)
    }

    /// Members that could take a session over from here, the first in rank first.
    pub fn takers(&self, session: &SessionKey) -> Vec<MemberId> {
        self.others_in_rank(&session.0)
    }

    /// Who could hold a second copy of a prefix, likewise.
    pub fn holders(&self, prefix: &PrefixKey) -> Vec<MemberId> {
        self.others_in_rank(&prefix.0)
    }

    fn others_in_rank(&self, key: &[u8; 16]) -> Vec<MemberId> {
        let mut others = ranked(self.view(), self.config.seed, key);
        others.retain(|other| *other != self.config.own.member);
        others
    }

    /// A session is at home elsewhere, because it was taken over from here.
    pub fn moved_away(&mut self, session: SessionKey, to: Tip) -> Effects {
        let mut effects = Effects::default();
        self.outdone(session, to, &mut effects);
        effects
    }

    /// The signposts of a turn's pages that were not there after the one before, and its last page.
    fn new_posts(&self, kept: &Kept<'_>, posts: &[PrefixKey]) -> Vec<PrefixKey> {
        let known = self.homes.get(&kept.session).map_or(&[][..], |home| &home.posts);
        let same = known.iter().zip(posts).take_while(|(one, two)| one == two).count();
        let last = kept.hashes.last().map(|last| PrefixKey::of(&kept.namespace, last));
        posts[same..].iter().copied().chain(last).collect()
    }

    /// In a small cluster everybody is told which pages are new: whoever asked for them a moment ago, and heard that nobody has them,
    /// asks again. In a large one their authorities know.
    fn say_what_is_new(&self, posts: &[PrefixKey], effects: &mut Effects) {
        let members = self.view().members();
        if members.len() > ASK_ALL_MAX {
            return;
        }
        for other in members.iter().filter(|other| other.id != self.config.own.member) {
            for posts in posts.chunks(PUBLISH_MAX) {
                self.tell(other.id, Message::Publish { tips: Vec::new(), posts: posts.to_vec() }, effects);
            }
        }
    }

    /// Tells the authorities of some sessions what is here of them, in as few messages as they fit.
    fn publish(&self, sessions: &[SessionKey], effects: &mut Effects) {
        let mut tips: BTreeMap<MemberId, Vec<(SessionKey, Tip)>> = BTreeMap::new();
        let mut posts: BTreeMap<MemberId, Vec<PrefixKey>> = BTreeMap::new();
        for session in sessions {
            let (Some(tip), Some(home)) = (self.home_tip(session), self.homes.get(session)) else { continue };
            for authority in self.authorities(&session.0) {
                tips.entry(authority).or_default().push((*session, tip));
            }
            if self.view().members().len() <= ASK_ALL_MAX {
                continue; // nobody would ask for signposts
            }
            for post in &home.posts {
                for authority in self.authorities(&post.0) {
                    posts.entry(authority).or_default().push(*post);
                }
            }
        }
        for (authority, tips) in tips {
            for tips in tips.chunks(PUBLISH_MAX) {
                let message = Message::Publish { tips: tips.to_vec(), posts: Vec::new() };
                self.tell(authority, message, effects);
            }
        }
        for (authority, posts) in posts {
            for posts in posts.chunks(PUBLISH_MAX) {
                let message = Message::Publish { tips: Vec::new(), posts: posts.to_vec() };
                self.tell(authority, message, effects);
            }
        }
    }
}
