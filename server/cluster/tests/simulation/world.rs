//! Members, the network between them, etcd, the archive and engines, in simulated time. Owns: hosts, events and their order.
//! Must not know: what is promised (`check` does), when something fails (`steps` does).

use crate::etcd::Etcd;
use crate::plan::Plan;
use crate::pool::{Page, PoolModel};
use crate::random::{Random, mix};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use turnkv_cluster::limits::SHRUNK_ROUNDS;
use turnkv_cluster::{
    CallId, ClusterConfig, ClusterMember, Effects, Envelope, Kept, Life, MemberId, Notice, Observation,
    Probe, SessionKey, Tip,
};
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

pub(crate) const NAMESPACE: NamespaceId = NamespaceId([7; 32]);
/// Milliseconds of a round.
pub(crate) const ROUND_MS: u64 = 1000;
/// Stands for etcd in the set of cut links.
pub(crate) const ETCD: usize = usize::MAX;

/// A host and the life on it.
pub(crate) struct Host {
    pub(crate) member: Option<ClusterMember>,
    pub(crate) life: Life,
    pub(crate) pool: PoolModel,
    /// How far its clock is ahead.
    pub(crate) skew: u64,
    /// Another life was heard of: a later one begins.
    pub(crate) superseded: bool,
    /// Rounds in a row that this life saw less than half of its view.
    shrunk_rounds: u32,
}

/// A session as its engines know it.
pub(crate) struct Session {
    pub(crate) key: SessionKey,
    pub(crate) turn: u32,
    pub(crate) hashes: Vec<BlockHash>,
    pub(crate) archived: Vec<Page>,
    pub(crate) busy: bool,
}

/// A turn under way.
pub(crate) struct Turn {
    pub(crate) session: usize,
    pub(crate) host: usize,
    pub(crate) began: u64,
    /// When the current call or pull began.
    pub(crate) since: u64,
    pub(crate) call: Option<CallId>,
    pub(crate) looked: bool,
    pub(crate) redirects: u32,
    pub(crate) from: Option<Tip>,
    pub(crate) got: Vec<Page>,
    /// It only looks: the session does not go on.
    pub(crate) probe: bool,
}

/// What is on its way.
#[derive(Clone, Hash)]
pub(crate) enum Event {
    Message(Envelope),
    Ask { from: usize, probe: Probe },
    Answer { to: usize, life: Life, call: CallId, member: MemberId, present: usize },
    PullAsk { turn: u64, to: usize, session: usize, of: Option<Life>, pages: usize },
    PullAnswer { turn: u64, pages: Vec<Page>, not_home: Option<Option<Tip>> },
    PullLate { turn: u64, redirects: u32 },
    Round(usize),
    Tick(usize, Life),
}

/// Everything.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) random: Random,
    pub(crate) now: u64,
    pub(crate) hosts: Vec<Host>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) turns: BTreeMap<u64, Turn>,
    pub(crate) turn_number: u64,
    pub(crate) etcd: Etcd,
    /// Links that carry nothing, from one to the other.
    pub(crate) cuts: BTreeSet<(usize, usize)>,
    pub(crate) archive_down: bool,
    /// What was said in lives that are over, to be heard again.
    pub(crate) old_words: Vec<Envelope>,
    events: BTreeMap<(u64, u64), Event>,
    event_number: u64,
    /// A hash of all that happened.
    pub(crate) traced: u64,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl World {
    pub(crate) fn new(plan: &Plan) -> World {
        let mut world = World {
            plan: plan.clone(),
            random: Random::new(plan.seed),
            now: 0,
            hosts: Vec::new(),
            sessions: Vec::new(),
            turns: BTreeMap::new(),
            turn_number: 0,
            etcd: Etcd::new(),
            cuts: BTreeSet::new(),
            archive_down: false,
            old_words: Vec::new(),
            events: BTreeMap::new(),
            event_number: 0,
            traced: 0,
            counts: BTreeMap::new(),
        };
        for host in 0..plan.members as usize {
            let id = MemberId(mix(host as u64 + 1));
            let life = Life { member: id, incarnation: turnkv_cluster::Incarnation(0) };
            world.hosts.push(Host {
                member: None,
                life,
                pool: PoolModel::default(),
                skew: 0,
                superseded: false,
                shrunk_rounds: 0,
            });
            world.start(host);
            world.schedule(host as u64 * 130, Event::Round(host));
        }
        for at in 0..plan.sessions {
            let id = SessionId::parse(&format!("s{at}")).expect("a session id");
            let key = SessionKey::of(&NAMESPACE, &id);
            let (hashes, archived) = (Vec::new(), Vec::new());
            world.sessions.push(Session { key, turn: 0, hashes, archived, busy: false });
        }
        world
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Begins a life on a host, with what its pool still has. Nobody joins while etcd is down.
    pub(crate) fn start(&mut self, host: usize) {
        let id = self.hosts[host].life.member;
        let Some(incarnation) = self.etcd.next_life(id) else { return };
        let own = Life { member: id, incarnation };
        self.hosts[host].life = own;
        (self.hosts[host].superseded, self.hosts[host].shrunk_rounds) = (false, 0);
        self.hosts[host].member =
            Some(ClusterMember::new(ClusterConfig { own, weight: 1 + host as u32 % 3, seed: 42 }));
        let kept: Vec<(usize, u32, Vec<BlockHash>)> = self.hosts[host]
            .pool
            .sessions()
            .map(|(session, turn, pages)| (session, turn, pages.iter().map(|page| page.0).collect()))
            .collect();
        for (session, turn, hashes) in kept {
            self.became_home(host, session, turn, &hashes, None);
        }
    }

    pub(crate) fn became_home(
        &mut self,
        host: usize,
        session: usize,
        turn: u32,
        hashes: &[BlockHash],
        before: Option<Tip>,
    ) {
        let kept = Kept { session: self.sessions[session].key, turn, namespace: NAMESPACE, hashes };
        self.at(host, |member, now| member.turn_ended(kept, before, now));
    }

    pub(crate) fn host_of(&self, id: MemberId) -> Option<usize> {
        self.hosts.iter().position(|host| host.life.member == id)
    }

    pub(crate) fn schedule(&mut self, at: u64, event: Event) {
        self.event_number += 1;
        self.events.insert((at, self.event_number), event);
    }

    /// Puts something on the wire: lost, doubled and late as the plan has it.
    pub(crate) fn send(&mut self, from: usize, to: usize, event: &Event) {
        if self.cuts.contains(&(from, to)) || self.random.chance(self.plan.lost) {
            return self.count("messages lost");
        }
        let copies = 1 + u64::from(self.random.chance(self.plan.doubled));
        for _ in 0..copies {
            let at = self.now + 1 + self.random.below(self.plan.delay_ms_max);
            self.schedule(at, event.clone());
        }
        self.count("messages");
    }

    /// Lets everything happen up to a moment.
    pub(crate) fn run_until(&mut self, until: u64) {
        while let Some(first) = self.events.first_entry().filter(|first| first.key().0 <= until) {
            let ((at, _), event) = first.remove_entry();
            self.now = at;
            let mut hasher = DefaultHasher::new();
            (self.traced, at, &event).hash(&mut hasher);
            self.traced = hasher.finish();
            self.happen(event);
        }
        self.now = until;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Message(envelope) => {
                if let Some(host) = self.host_of(envelope.to) {
                    self.at(host, |member, now| member.receive(envelope, now));
                }
            }
            Event::Ask { from, probe } => self.asked(from, probe),
            Event::Answer { to, life, call, member, present } if self.hosts[to].life == life => {
                self.at(to, |asker, now| asker.counted(call, member, Some(present), now));
            }
            Event::Answer { .. } => {}
            Event::PullAsk { turn, to, session, of, pages } => self.pull_asked(turn, to, session, of, pages),
            Event::PullAnswer { turn, pages, not_home } => self.pull_answered(turn, pages, not_home),
            Event::PullLate { turn, redirects } => self.pull_late(turn, redirects),
            Event::Round(host) => self.round(host),
            Event::Tick(host, life) if self.hosts[host].life == life => self.at(host, ClusterMember::tick),
            Event::Tick(..) => {}
        }
    }

    fn asked(&mut self, from: usize, probe: Probe) {
        let Some(to) = self.host_of(probe.member).filter(|to| self.hosts[*to].member.is_some()) else {
            return;
        };
        let present = self.hosts[to].pool.count(&probe.hashes);
        let life = self.hosts[from].life;
        let answer = Event::Answer { to: from, life, call: probe.call, member: probe.member, present };
        self.send(to, from, &answer);
    }

    fn round(&mut self, host: usize) {
        self.schedule(self.now + ROUND_MS, Event::Round(host));
        if self.hosts[host].superseded {
            self.crash(host);
            self.start(host);
        }
        let peers = (0..self.hosts.len()).filter(|peer| *peer != host);
        let open = |peer: &usize| !self.cuts.contains(&(host, *peer)) && !self.cuts.contains(&(*peer, host));
        let reached = 2 * peers.clone().filter(open).count() >= peers.count();
        let observation = match self.cuts.contains(&(host, ETCD)) {
            true => Observation::Unreachable,
            false => self.etcd.observe(self.now, &mut self.random),
        };
        self.check_homes(host);
        let before = self.viewed(host);
        if let Observation::Members(members) = &observation {
            let kept = before.iter().filter(|id| members.iter().any(|member| member.id == **id)).count();
            let shrunk_rounds = &mut self.hosts[host].shrunk_rounds;
            *shrunk_rounds = if 2 * kept < before.len() { *shrunk_rounds + 1 } else { 0 };
        }
        self.at(host, |member, now| member.round(observation, reached, now));
        let after = self.viewed(host);
        let kept = before.iter().filter(|id| after.contains(id)).count();
        if self.hosts[host].member.is_some() && 2 * kept < before.len() {
            assert!(self.hosts[host].shrunk_rounds >= SHRUNK_ROUNDS, "{before:?} is {after:?} too soon");
            self.hosts[host].shrunk_rounds = 0;
        }
    }

    /// A member looks for some of its sessions in its pool.
    fn check_homes(&mut self, host: usize) {
        let checked = self.hosts[host].member.as_mut().map(ClusterMember::homes_to_check);
        for (key, turn) in checked.unwrap_or_default() {
            let session = self.sessions.iter().position(|session| session.key == key);
            if session.is_some_and(|session| self.hosts[host].pool.get(session).is_none()) {
                self.count("sessions lost");
                self.at(host, |member, now| member.session_lost(key, turn, now));
            }
        }
    }

    fn viewed(&self, host: usize) -> Vec<MemberId> {
        let view = self.hosts[host].member.as_ref().map(ClusterMember::view);
        view.map_or_else(Vec::new, |view| view.members().iter().map(|member| member.id).collect())
    }

    /// A process is gone: with its calls, and the turns of the engine beside it.
    pub(crate) fn crash(&mut self, host: usize) {
        self.hosts[host].member = None;
        let gone: Vec<u64> =
            self.turns.iter().filter(|(_, turn)| turn.host == host).map(|(turn, _)| *turn).collect();
        for turn in gone.iter().filter_map(|turn| self.turns.remove(turn)) {
            self.sessions[turn.session].busy = false;
        }
    }

    /// Has a living member do something, and carries out what follows.
    pub(crate) fn at(&mut self, host: usize, act: impl FnOnce(&mut ClusterMember, u64) -> Effects) {
        let now = self.now + self.hosts[host].skew;
        if let Some(effects) = self.hosts[host].member.as_mut().map(|member| act(member, now)) {
            self.carry_out(host, effects);
        }
    }

    pub(crate) fn carry_out(&mut self, host: usize, effects: Effects) {
        for envelope in effects.send {
            if self.random.chance(20) && self.old_words.len() < 64 {
                self.old_words.push(envelope.clone());
            }
            if let Some(to) = self.host_of(envelope.to) {
                self.send(host, to, &Event::Message(envelope));
            }
        }
        for probe in effects.probes {
            if let Some(to) = self.host_of(probe.member) {
                self.send(host, to, &Event::Ask { from: host, probe });
            }
        }
        for key in effects.demote {
            let session = self.sessions.iter().position(|session| session.key == key);
            session.into_iter().for_each(|session| self.hosts[host].pool.demote(session));
        }
        if let Some(own) = effects.put_own.filter(|_| !self.cuts.contains(&(host, ETCD))) {
            self.etcd.put(own, self.now);
        }
        for notice in effects.notices {
            if let Notice::Superseded(latest) = notice {
                self.etcd.raise(self.hosts[host].life.member, latest);
                self.hosts[host].superseded = true;
            }
        }
        for (call, decision) in effects.decided {
            self.decided(host, call, decision);
        }
        let (life, skew) = (self.hosts[host].life, self.hosts[host].skew);
        let due = self.hosts[host].member.as_ref().and_then(ClusterMember::next_due);
        if let Some(due) = due {
            self.schedule(due.saturating_sub(skew).max(self.now + 1), Event::Tick(host, life));
        }
    }
}
