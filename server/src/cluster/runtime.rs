//! The cluster as this server takes part in it: its decisions under one lock, and what follows from them carried out after. Owns:
//! that lock, who waits for which decision, the names behind keys. Must not know: what is decided, and why; how members are
//! known; the pool.
//!
//! ```text
//!   a turn, a lookup, a message, a tick --lock--> ClusterMember --unlock--> queues of members | questions | whoever waits | the pool
//! ```
//! Nothing waits for another member while the lock is held.

use super::card::MemberCard;
use super::counts::{ClusterCounts, FoundAt};
use super::membership::Membership;
use super::nowhere::NowherePages;
use super::peers::OtherMembers;
use crate::clock::Clock;
use crate::limits::{HOMES_BEFORE_MAX, NAMED_MAX, PROBES_MAX};
use crate::seldom::Seldom;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use turnkv_cluster::limits::{ASK_ALL_MAX, FIND_MS, LOOKUP_MS};
use turnkv_cluster::{
    CallId, ClusterMember, Decision, Effects, Envelope, Incarnation, Kept, MemberId, Message, Notice, Now,
    PrefixAsk, Probe, SessionKey, Tip, Whose,
};
use turnkv_proto::{BlockHash, Error, NamespaceId, SessionId};

/// What a cluster asks of the pool that takes part in it.
pub(crate) trait HoldsPages: Send + Sync {
    /// A session lives elsewhere now: its copy here goes first.
    fn goes_first(&self, namespace: &NamespaceId, session: &SessionId);

    /// Whether nothing new is to be placed here.
    fn is_leaving(&self) -> bool;

    /// Which of these are not here any more, by their places.
    fn lacks(&self, sessions: &[(NamespaceId, SessionId)]) -> Vec<usize>;
}

/// Where a session's last turn ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Where {
    /// Here.
    Here,
    /// At another member, which is asked for it.
    Home {
        /// Who, and how it is reached.
        member: Arc<MemberCard>,
        /// What is to be had there.
        tip: Tip,
    },
    /// Nobody says: the archive may have it, else it is computed.
    Nowhere,
    /// At a member that is gone: so many turns of it have ended.
    Lost(u32),
}

/// The members as others are told of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberList {
    /// A hash of the set.
    pub(crate) epoch: u64,
    /// Each of them, by number.
    pub(crate) members: Vec<Arc<MemberCard>>,
    /// The name of the one that says so.
    pub(crate) own: String,
}

/// This server's part in the cluster.
pub(crate) struct Cluster {
    pub(super) me: Weak<Cluster>,
    pub(super) state: Mutex<ClusterState>,
    pub(super) peers: OtherMembers,
    pub(super) membership: Membership,
    pub(super) counts: Arc<ClusterCounts>,
    pub(super) list: watch::Sender<Arc<MemberList>>,
    pub(super) clock: Clock,
    pub(super) nowhere: NowherePages,
    /// The latest life of this member that was heard of and is not this one; 0: none.
    pub(super) superseded_by: AtomicU64,
    /// Whether whoever knows the members could be asked.
    pub(super) reached: AtomicU64,
    /// Rung when a call is under way.
    pub(super) calls_bell: Notify,
    pub(super) said_held: Seldom,
    pub(super) said_empty: Seldom,
    pool: OnceLock<Weak<dyn HoldsPages>>,
    runtime: Handle,
    probes: Arc<Semaphore>,
    said_full: Seldom,
    said_fenced: Seldom,
    said_twice: Seldom,
    /// The member as which two servers spoke last, and when that was told.
    pub(super) twice: Mutex<Option<(MemberId, Instant)>>,
}

/// What the one lock guards.
pub(super) struct ClusterState {
    pub(super) member: ClusterMember,
    /// Who waits for which decision. No more than there are calls.
    waiting: HashMap<CallId, oneshot::Sender<Decision>>,
    /// The names of sessions at home here.
    pub(super) named: HashMap<SessionKey, (NamespaceId, SessionId)>,
    /// Where sessions were at home whose turns run here now.
    pub(super) before: HashMap<SessionKey, Tip>,
}

/// What a cluster is put together from.
pub(super) struct ClusterParts {
    pub(super) member: ClusterMember,
    pub(super) peers: OtherMembers,
    pub(super) membership: Membership,
    pub(super) counts: Arc<ClusterCounts>,
    pub(super) runtime: Handle,
}

impl Cluster {
    /// Puts it together. It does nothing yet but answer.
    pub(super) fn assemble(parts: ClusterParts) -> Arc<Cluster> {
        let ClusterParts { member, peers, membership, counts, runtime } = parts;
        let own = peers.own.card.read().name.clone();
        let state =
            ClusterState { member, waiting: HashMap::new(), named: HashMap::new(), before: HashMap::new() };
        Arc::new_cyclic(|me| Cluster {
            me: Weak::clone(me),
            state: Mutex::new(state),
            peers,
            membership,
            counts,
            list: watch::Sender::new(Arc::new(MemberList { epoch: 0, members: Vec::new(), own })),
            clock: Clock::system(),
            nowhere: NowherePages::new(),
            superseded_by: AtomicU64::new(0),
            reached: AtomicU64::new(0),
            calls_bell: Notify::new(),
            said_held: Seldom::new(),
            said_empty: Seldom::new(),
            pool: OnceLock::new(),
            runtime,
            probes: Arc::new(Semaphore::new(PROBES_MAX)),
            said_full: Seldom::new(),
            said_fenced: Seldom::new(),
            said_twice: Seldom::new(),
            twice: Mutex::default(),
        })
    }

    /// The pool that takes part. Said once, before members are heard.
    pub(crate) fn is_of(&self, pool: Weak<dyn HoldsPages>) {
        if self.pool.set(pool).is_err() {
            tracing::error!("two pools take part in a cluster as one member: the first one does");
        }
    }

    /// Where a session's last turn ended, within `FIND_MS`; at once where that is here. `turns_known`: turns that the asker knows
    /// have ended; 0: none.
    pub(crate) async fn whereabouts(
        &self,
        namespace: &NamespaceId,
        session: &SessionId,
        turns_known: u32,
    ) -> Where {
        let (key, began) = (SessionKey::of(namespace, session), Instant::now());
        let decided = self.call(|member, now| member.turn_began(key, turns_known, now));
        let decision = self.decided(decided, FIND_MS).await;
        let found = self.place_of(key, decision);
        let at = match &found {
            Where::Here => FoundAt::Here,
            Where::Home { .. } => FoundAt::Elsewhere,
            Where::Nowhere | Where::Lost(_) => FoundAt::Nowhere,
        };
        self.counts.found(at, began.elapsed());
        found
    }

    /// A turn ended here, or what a session had was brought back here: this member is its home. `hashes`: those of its pages that
    /// are here, in order.
    pub(crate) fn turn_ended(
        &self,
        namespace: &NamespaceId,
        session: &SessionId,
        turn: u32,
        hashes: &[BlockHash],
    ) {
        let key = SessionKey::of(namespace, session);
        let kept = Kept { session: key, turn, namespace: *namespace, hashes };
        self.act(|state, now| {
            let before = state.before.remove(&key);
            let effects = state.member.turn_ended(kept, before, now);
            for gone in &effects.unpublished {
                state.named.remove(gone);
            }
            if state.named.len() < NAMED_MAX || state.named.contains_key(&key) {
                state.named.insert(key, (*namespace, session.clone()));
            }
            ((), effects)
        });
    }

    /// Nothing of a session is here any more, or no turn of it will follow.
    pub(crate) fn session_left(&self, namespace: &NamespaceId, session: &SessionId) {
        let key = SessionKey::of(namespace, session);
        self.act(|state, now| {
            state.named.remove(&key);
            ((), state.member.session_left(key, now))
        });
    }

    /// Looks whether the pool is being emptied, and for some of the sessions at home here in it; lets the others know of those that it lost: evicted, expired, or of
    /// a namespace that is not open any more.
    pub(super) fn look_at_pool(&self) {
        let Some(pool) = self.pool.get().and_then(Weak::upgrade) else { return };
        let is_leaving = pool.is_leaving();
        let mut state = self.state.lock();
        state.member.drain(is_leaving);
        let checked = state.member.homes_to_check().into_iter();
        let named = checked.filter_map(|(key, turn)| Some(((key, turn), state.named.get(&key)?.clone())));
        let (checked, names): (Vec<_>, Vec<_>) = named.unzip();
        drop(state);
        for (key, turn) in pool.lacks(&names).into_iter().filter_map(|at| checked.get(at).copied()) {
            self.counts.lost_homes.increment(1);
            self.act(|state, now| {
                let effects = state.member.session_lost(key, turn, now);
                if state.member.home_tip(&key).is_none() {
                    state.named.remove(&key);
                }
                ((), effects)
            });
        }
    }

    /// Whether a lookup asks every other member: there are no more than that.
    pub(crate) fn asks_all(&self) -> bool {
        self.state.lock().member.view().members().len() <= ASK_ALL_MAX
    }

    /// The member that has the longest part of a prefix, if it has more than is here, and how many of the pages named; within `LOOKUP_MS`.
    pub(crate) async fn holder_of(&self, ask: PrefixAsk) -> Option<(Arc<MemberCard>, usize)> {
        let (namespace, local, hint) = (ask.namespace, ask.local, ask.hint);
        let hashes = ask.hashes.clone();
        // Where somebody may have it, he is asked.
        let asked = self.nowhere.moment();
        if hint.is_none() && self.nowhere.knows(&namespace, hashes.get(local..).unwrap_or_default()) {
            self.counts.lookups_remembered.increment(1);
            return None;
        }
        self.counts.lookups_asked.increment(1);
        let began = Instant::now();
        let decided = self.call(|member, now| member.lookup(ask, now));
        let decision = self.decided(decided, LOOKUP_MS).await;
        self.counts.looked_up(began.elapsed());
        let held = if let Decision::Holds(held) = decision { Some(held) } else { None };
        let pages = held.map_or(local, |held| held.pages);
        if let Some(next) = hashes.get(pages).filter(|_| hint.is_none()) {
            self.nowhere.note(&namespace, next, asked);
        }
        held.and_then(|held| self.card(held.member).map(|card| (card, held.pages)))
    }

    /// Whose a session is, as far as can be said without asking anybody.
    pub(crate) fn whose(&self, namespace: &NamespaceId, session: &SessionId) -> Whose {
        self.state.lock().member.whose(&SessionKey::of(namespace, session))
    }

    /// A member that is known, and how it is reached.
    pub(crate) fn card(&self, id: MemberId) -> Option<Arc<MemberCard>> {
        let own = self.own();
        if own.member.id == id { Some(own) } else { self.peers.get(id).map(|known| known.card) }
    }

    /// This member.
    pub(crate) fn own(&self) -> Arc<MemberCard> {
        Arc::clone(&self.peers.own.card.read())
    }

    /// The tip of a session at home here.
    pub(crate) fn home_tip(&self, namespace: &NamespaceId, session: &SessionId) -> Option<Tip> {
        self.state.lock().member.home_tip(&SessionKey::of(namespace, session))
    }

    /// The members, and each change of them.
    pub(crate) fn watch(&self) -> watch::Receiver<Arc<MemberList>> {
        self.list.subscribe()
    }

    /// A member tells this one some messages, in order.
    ///
    /// # Errors
    /// It is of another cluster, or not one of its members, or means somebody else.
    pub(crate) fn told(
        &self,
        cluster: &str,
        from: MemberCard,
        to: MemberId,
        messages: Vec<Message>,
    ) -> Result<(), Error> {
        let own = self.peers.own.card.read().member.id;
        if cluster != self.peers.own.cluster {
            let text =
                format!("this member is of the cluster `{}`, not of `{cluster}`", self.peers.own.cluster);
            return Err(Error::invalid(text));
        }
        if to != own {
            return Err(Error::invalid(
                "this is another member than the one that was meant: see its endpoint",
            ));
        }
        let life = from.life();
        self.membership.heard(from)?;
        self.counts.received.increment(messages.len() as u64);
        self.act(|state, now| ((), state.member.spoke(life, now)));
        for message in messages {
            let envelope = Envelope { from: life, to, message };
            self.act(|state, now| ((), state.member.receive(envelope, now)));
        }
        Ok(())
    }

    /// Has the member decide, and carries out what follows.
    pub(super) fn act<T>(&self, verb: impl FnOnce(&mut ClusterState, Now) -> (T, Effects)) -> T {
        let mut state = self.state.lock();
        let (result, mut effects) = verb(&mut state, self.now());
        let decided = std::mem::take(&mut effects.decided).into_iter();
        let decided = decided.filter_map(|(call, decision)| Some((state.waiting.remove(&call)?, decision)));
        let decided: Vec<_> = decided.collect();
        let demoted = std::mem::take(&mut effects.demote).into_iter();
        let demoted: Vec<_> = demoted.filter_map(|key| state.named.remove(&key)).collect();
        drop(state);
        self.nowhere.heard(std::mem::take(&mut effects.heard));
        for (waiting, decision) in decided {
            if waiting.send(decision).is_err() {
                tracing::trace!("whoever waited for a decision has gone");
            }
        }
        if let Some(pool) = self.pool.get().and_then(Weak::upgrade) {
            demoted.iter().for_each(|(namespace, session)| pool.goes_first(namespace, session));
        }
        self.carry_out(effects);
        result
    }

    /// Milliseconds since it began.
    pub(super) fn now(&self) -> Now {
        self.clock.now().as_millis() as Now
    }

    fn call(
        &self,
        verb: impl FnOnce(&mut ClusterMember, Now) -> (CallId, Effects),
    ) -> oneshot::Receiver<Decision> {
        let (decide, decided) = oneshot::channel();
        self.act(|state, now| {
            let (call, effects) = verb(&mut state.member, now);
            state.waiting.insert(call, decide);
            ((), effects)
        });
        self.calls_bell.notify_one();
        decided
    }

    async fn decided(&self, decided: oneshot::Receiver<Decision>, most_ms: u64) -> Decision {
        // The directory keeps this time itself; a server that is short of processors may not.
        let decided = tokio::time::timeout(Duration::from_millis(most_ms), decided).await;
        decided.ok().and_then(Result::ok).unwrap_or(Decision::Nowhere)
    }

    pub(super) fn place_of(&self, key: SessionKey, decision: Decision) -> Where {
        match decision {
            Decision::Here => Where::Here,
            Decision::Pull(tip) => match self.peers.get(tip.home.member) {
                Some(known) => {
                    self.note_before(key, tip);
                    Where::Home { member: known.card, tip }
                }
                None => Where::Nowhere,
            },
            Decision::Lost(turns) => Where::Lost(turns),
            Decision::Holds(_) | Decision::Nowhere => Where::Nowhere,
        }
    }

    /// A session that may come here was at home there.
    pub(super) fn note_before(&self, key: SessionKey, tip: Tip) {
        let before = &mut self.state.lock().before;
        if before.len() >= HOMES_BEFORE_MAX {
            before.clear();
        }
        before.insert(key, tip);
    }

    fn carry_out(&self, effects: Effects) {
        for envelope in effects.send {
            match self.peers.get(envelope.to) {
                Some(known) => known.peer.tell(envelope),
                None => self.counts.dropped.increment(1),
            }
        }
        effects.probes.into_iter().for_each(|probe| self.ask(probe));
        effects.notices.into_iter().for_each(|notice| self.notice(notice));
    }

    /// Asks a member for pages; its answer, or that there is none, is handed back.
    fn ask(&self, probe: Probe) {
        let (Some(cluster), known) = (self.me.upgrade(), self.peers.get(probe.member)) else { return };
        self.counts.questions.increment(1);
        let turn = Arc::clone(&self.probes).try_acquire_owned().ok();
        drop(self.runtime.spawn(async move {
            let present = match (known, &turn) {
                (Some(known), Some(_)) => known.peer.count_pages(&probe.namespace, &probe.hashes).await,
                _ => None,
            };
            cluster.act(|state, now| ((), state.member.counted(probe.call, probe.member, present, now)));
        }));
    }

    fn notice(&self, notice: Notice) {
        match notice {
            Notice::EmptyView => {
                if let Some(unsaid) = self.said_empty.may_say() {
                    tracing::warn!(
                        unsaid,
                        "no member of the cluster is in view: sessions are found on this host only"
                    );
                }
            }
            Notice::ViewHeld(rounds) => {
                self.counts.held_views.increment(1);
                if let Some(unsaid) = self.said_held.may_say() {
                    tracing::warn!(
                        rounds,
                        unsaid,
                        "less than half of the cluster's members were seen: the last view stays until that was so several times"
                    );
                }
            }
            Notice::ViewChanged(epoch) => {
                self.counts.views.increment(1);
                let members = self.state.lock().member.view().members().len();
                tracing::info!(members, epoch, "the members of the cluster changed");
            }
            Notice::Fenced(member) => {
                self.counts.fenced.increment(1);
                if let Some(unsaid) = self.said_fenced.may_say() {
                    let name = self.card(member).map(|card| card.name.clone()).unwrap_or_default();
                    tracing::info!(
                        member = name,
                        unsaid,
                        "a message of an earlier life of a member was not heard"
                    );
                }
            }
            Notice::Twice(member) => {
                self.counts.lives.increment(1);
                *self.twice.lock() = Some((member, Instant::now()));
                if let Some(unsaid) = self.said_twice.may_say() {
                    let name = self.card(member).map(|card| card.name.clone()).unwrap_or_default();
                    tracing::warn!(
                        member = name,
                        unsaid,
                        "two servers speak as one member of the cluster: each is to have a cluster.id of its own"
                    );
                }
            }
            Notice::Superseded(Incarnation(latest)) => {
                self.superseded_by.fetch_max(latest, Ordering::Relaxed);
            }
            Notice::HomesFull => {
                if let Some(unsaid) = self.said_full.may_say() {
                    tracing::warn!(
                        unsaid,
                        "more sessions are at home here than are published: one is found on this host only for each that is more"
                    );
                }
            }
        }
    }
}
