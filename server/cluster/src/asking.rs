//! Turns and lookups that begin here: whom to ask, and what comes of it. Owns: the calls' way from a question to a decision.
//! Must not know: how one search goes on.

use crate::effects::{Decision, Effects, Probe};
use crate::find::{Asked, Find, FindNext};
use crate::ids::{CallId, Life, MemberId, Now, PrefixKey, SessionKey, Tip};
use crate::limits::{CALLS_MAX, POST_EVERY, REDIRECTS_MAX};
use crate::lookup::{Lookup, LookupNext, Wanted};
use crate::member::{Call, ClusterMember, PrefixAsk};
use crate::message::Message;
use std::collections::BTreeMap;

/// Why a pull did not bring what it should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullError {
    /// It is not there: NOT_HOME, with its home if that is known.
    NotHome(Option<Tip>),
    /// Nobody answered in time.
    Unreachable,
}

impl ClusterMember {
    /// A turn begins here. `told`: turns of the session that are known to have ended, 0: unknown. Decided within
    /// `limits::FIND_MS`, at once where the session is at home here and this member was not apart from the others.
    pub fn turn_began(&mut self, session: SessionKey, told: u32, now: Now) -> (CallId, Effects) {
        let (call, mut effects) = (self.new_call(), Effects::default());
        let mut authorities = self.authorities(&session.0);
        let authorities = std::array::from_fn(|_| authorities.next());
        let (asks_all, here) = (self.is_settling(), self.home_tip(&session));
        let doubts_here = here.is_some() && self.was_apart();
        let asked = Asked { session, told, asks_all, doubts_here };
        let (find, next) = Find::begin(asked, authorities, here, now);
        if self.admit(call, Call::Find(find), &mut effects) {
            self.find_next(call, next, &mut effects);
            self.deliver_own(&mut effects, now);
        }
        (call, effects)
    }

    /// A lookup that names no session, or the rest of one. Decided within `limits::LOOKUP_MS`.
    pub fn lookup(&mut self, ask: PrefixAsk, now: Now) -> (CallId, Effects) {
        let (call, mut effects) = (self.new_call(), Effects::default());
        let post_every = if ask.only_posts { 1 } else { POST_EVERY };
        let wanted = Wanted { total: ask.hashes.len(), local: ask.local, post_every, hint: ask.hint };
        let (lookup, next) = Lookup::begin(self.config.own.member, wanted, self.view(), now);
        if self.admit(call, Call::Lookup(lookup, ask), &mut effects) {
            self.lookup_next(call, next, &mut effects);
            self.deliver_own(&mut effects, now);
        }
        (call, effects)
    }

    /// The answer to a [`Probe`]: so many leading ones are there; none: no answer.
    pub fn counted(&mut self, call: CallId, member: MemberId, present: Option<usize>, now: Now) -> Effects {
        let mut effects = Effects::default();
        if let Some(Call::Lookup(lookup, _)) = self.calls.get_mut(&call) {
            let next = lookup.counted(member, present, self.guard.view(), now);
            self.lookup_next(call, next, &mut effects);
            self.deliver_own(&mut effects, now);
        }
        effects
    }

    /// A pull failed: where to go on, the `redirects`-th time. Whoever is told of a home that has nothing tells its authorities.
    pub fn pull_failed(
        &mut self,
        session: SessionKey,
        tip: Tip,
        error: PullError,
        redirects: u32,
        now: Now,
    ) -> (Decision, Effects) {
        let mut effects = Effects::default();
        let PullError::NotHome(named) = error else { return (Decision::Nowhere, effects) };
        self.withdraw(session, tip.home, tip.turn, &mut effects);
        self.deliver_own(&mut effects, now);
        let named = named.filter(|named| named.beats(&tip) && named.home.member != self.config.own.member);
        let decision = named.filter(|_| redirects < REDIRECTS_MAX).map_or(Decision::Nowhere, Decision::Pull);
        (decision, effects)
    }

    /// When [`tick`](ClusterMember::tick) is due; none: nothing is under way.
    pub fn next_due(&self) -> Option<Now> {
        self.calls.values().map(Call::until).min()
    }

    /// Goes on with calls whose time has come.
    pub fn tick(&mut self, now: Now) -> Effects {
        let mut effects = Effects::default();
        let due = self.calls.iter().filter(|(_, call)| call.until() <= now).map(|(call, _)| *call);
        for call in due.collect::<Vec<CallId>>() {
            match self.calls.get_mut(&call) {
                Some(Call::Find(find)) => {
                    let next = find.tick(now);
                    self.find_next(call, next, &mut effects);
                }
                Some(Call::Lookup(lookup, _)) => {
                    let next = lookup.tick(self.guard.view(), now);
                    self.lookup_next(call, next, &mut effects);
                }
                None => {}
            }
        }
        self.deliver_own(&mut effects, now);
        effects
    }

    pub(crate) fn tip_is(
        &mut self,
        call: CallId,
        from: MemberId,
        tip: Option<Tip>,
        effects: &mut Effects,
        now: Now,
    ) {
        let Some(Call::Find(find)) = self.calls.get(&call) else { return };
        let session = find.asked.session;
        // A tip that names this member and what it does not have: told to whoever believes it.
        let own = tip.filter(|tip| tip.home == self.config.own);
        if let Some(lost) = own.filter(|tip| self.home_tip(&session) != Some(*tip)) {
            self.withdraw(session, lost.home, lost.turn, effects);
        }
        let tip = tip.filter(|tip| tip.home.member != self.config.own.member);
        let is_there = tip.as_ref().is_some_and(|tip| self.view().admits(tip.home));
        if let Some(Call::Find(find)) = self.calls.get_mut(&call) {
            let next = match tip {
                Some(gone) if !is_there => find.lost(from, gone, now),
                tip => find.answered(from, tip, now),
            };
            self.find_next(call, next, effects);
        }
    }

    pub(crate) fn posts_are(
        &mut self,
        call: CallId,
        held: &[(PrefixKey, Life)],
        effects: &mut Effects,
        now: Now,
    ) {
        let Some(Call::Lookup(lookup, ask)) = self.calls.get_mut(&call) else { return };
        let counts = lookup.open_posts().into_iter().map(|count| (count, post_key(ask, count)));
        let named = counts.filter_map(|(count, key)| {
            let (_, holder) = held.iter().find(|(post, _)| *post == key)?;
            Some((count, *holder))
        });
        let named: Vec<(usize, Life)> = named.collect();
        let next = lookup.posts_held(&named, self.guard.view(), now);
        self.lookup_next(call, next, effects);
    }

    fn new_call(&mut self) -> CallId {
        self.next_call += 1;
        CallId(self.next_call)
    }

    /// False: there are too many, and it is decided.
    fn admit(&mut self, id: CallId, call: Call, effects: &mut Effects) -> bool {
        let room = self.calls.len() < CALLS_MAX;
        if room {
            self.calls.insert(id, call);
        } else {
            effects.decided.push((id, Decision::Nowhere));
        }
        room
    }

    fn find_next(&mut self, call: CallId, next: FindNext, effects: &mut Effects) {
        match next {
            FindNext::Wait => {}
            FindNext::Ask(authority) => {
                if let Some(Call::Find(find)) = self.calls.get(&call) {
                    self.tell(authority, Message::AskTip { call, session: find.asked.session }, effects);
                }
            }
            FindNext::Decided(decision) => self.end(call, decision, effects),
        }
    }

    fn lookup_next(&mut self, call: CallId, next: LookupNext, effects: &mut Effects) {
        let Some(Call::Lookup(_, ask)) = self.calls.get(&call) else { return };
        for (member, counts) in next.probes {
            let hashes = counts.iter().map(|count| ask.hashes[count - 1]).collect();
            effects.probes.push(Probe { call, member, namespace: ask.namespace, hashes });
        }
        let mut asked: BTreeMap<MemberId, Vec<PrefixKey>> = BTreeMap::new();
        for count in next.posts {
            let post = post_key(ask, count);
            if let Some(authority) = self.authorities(&post.0).next() {
                asked.entry(authority).or_default().push(post);
            }
        }
        if !asked.is_empty()
            && let Some(Call::Lookup(lookup, _)) = self.calls.get_mut(&call)
        {
            lookup.posts_asked(asked.len());
        }
        for (authority, posts) in asked {
            self.tell(authority, Message::AskPosts { call, posts }, effects);
        }
        if let Some(decision) = next.decided {
            self.end(call, decision, effects);
        }
    }

    fn end(&mut self, call: CallId, decision: Decision, effects: &mut Effects) {
        self.calls.remove(&call);
        effects.decided.push((call, decision));
    }
}

impl Call {
    fn until(&self) -> Now {
        match self {
            Call::Find(find) => find.until(),
            Call::Lookup(lookup, _) => lookup.until(),
        }
    }
}

fn post_key(ask: &PrefixAsk, count: usize) -> PrefixKey {
    PrefixKey::of(&ask.namespace, &ask.hashes[count - 1])
}
