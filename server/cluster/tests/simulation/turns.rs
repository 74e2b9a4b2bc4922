//! Turns of engines: begin, pull, look up, the archive, end. Owns: a turn's way through the cluster, and what an engine checks.
//! Must not know: what fails.

use crate::pool::{Page, content};
use crate::random::mix;
use crate::world::{Event, NAMESPACE, Turn, World};
use turnkv_cluster::limits::{FIND_MS, LOOKUP_MS, REDIRECTS_MAX};
use turnkv_cluster::{CallId, Decision, Life, PrefixAsk, PullError, Tip, Whose};
use turnkv_proto::BlockHash;

/// Milliseconds that a pull may take.
const PULL_MS: u64 = 300;
/// Milliseconds after which an engine has begun to compute, whatever happened.
const TURN_MS_MAX: u64 = FIND_MS + LOOKUP_MS + (REDIRECTS_MAX as u64 + 2) * PULL_MS;
/// Pages that all sessions begin with.
const SHARED_PAGES: usize = 3;

impl World {
    /// An engine begins a turn of a session on a host. `probe`: it only looks.
    pub(crate) fn begin_turn(&mut self, session: usize, host: usize, probe: bool) {
        if self.sessions[session].busy || self.hosts[host].member.is_none() {
            return;
        }
        self.sessions[session].busy = true;
        self.turn_number += 1;
        let (number, now) = (self.turn_number, self.now);
        let (key, told) = (self.sessions[session].key, self.sessions[session].turn);
        let turn = Turn {
            session,
            host,
            began: now,
            since: now,
            call: None,
            looked: false,
            redirects: 0,
            from: None,
            got: Vec::new(),
            probe,
        };
        self.turns.insert(number, turn);
        self.count("turns");
        self.call(number, |member, now| member.turn_began(key, told, now));
    }

    fn call(
        &mut self,
        number: u64,
        act: impl FnOnce(&mut turnkv_cluster::ClusterMember, u64) -> (CallId, turnkv_cluster::Effects),
    ) {
        let Some(host) = self.turns.get(&number).map(|turn| turn.host) else { return };
        let now = self.now + self.hosts[host].skew;
        let Some((call, effects)) = self.hosts[host].member.as_mut().map(|member| act(member, now)) else {
            return;
        };
        if let Some(turn) = self.turns.get_mut(&number) {
            (turn.call, turn.since) = (Some(call), self.now);
        }
        self.carry_out(host, effects);
    }

    pub(crate) fn decided(&mut self, host: usize, call: CallId, decision: Decision) {
        let found = self.turns.iter().find(|(_, turn)| turn.host == host && turn.call == Some(call));
        let Some((number, turn)) = found.map(|(number, turn)| (*number, turn)) else { return };
        let bound = if turn.looked { LOOKUP_MS } else { FIND_MS };
        assert!(
            self.now <= turn.since + bound + 1,
            "decided {} ms after it was asked",
            self.now - turn.since
        );
        self.go_on(number, decision);
    }

    fn go_on(&mut self, number: u64, decision: Decision) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        turn.call = None;
        let (session, host) = (turn.session, turn.host);
        match decision {
            Decision::Here => {
                self.count("turns at home");
                self.read_local(number);
            }
            Decision::Pull(tip) => {
                turn.from = Some(tip);
                let (to, pages) = (tip.home.member, tip.pages as usize);
                self.pull(number, to, session, Some(tip.home), pages);
            }
            Decision::Holds(held) => self.pull(number, held.member, session, None, held.pages),
            Decision::Nowhere | Decision::Lost(_) if !turn.looked => {
                turn.looked = true;
                turn.from = None;
                let hashes = self.sessions[session].hashes.clone();
                let local = self.hosts[host].pool.leading(&hashes).len();
                let hint =
                    self.random.chance(200).then(|| self.random.below(self.hosts.len() as u64) as usize);
                let hint = hint.map(|hint| self.hosts[hint].life.member);
                let ask = PrefixAsk { namespace: NAMESPACE, hashes, only_posts: false, local, hint };
                self.call(number, |member, now| member.lookup(ask, now));
            }
            Decision::Nowhere | Decision::Lost(_) => self.read_local(number),
        }
    }

    fn pull(
        &mut self,
        number: u64,
        to: turnkv_cluster::MemberId,
        session: usize,
        of: Option<Life>,
        pages: usize,
    ) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        let (host, redirects) = (turn.host, turn.redirects);
        turn.since = self.now;
        self.schedule(self.now + PULL_MS, Event::PullLate { turn: number, redirects });
        if let Some(to) = self.host_of(to) {
            self.send(host, to, &Event::PullAsk { turn: number, to, session, of, pages });
        }
    }

    /// The home's end of a pull: a client's reload, of a session or of a prefix.
    pub(crate) fn pull_asked(
        &mut self,
        number: u64,
        to: usize,
        session: usize,
        of: Option<Life>,
        pages: usize,
    ) {
        let Some(from) = self.turns.get(&number).map(|turn| turn.host) else { return };
        let Some(member) = self.hosts[to].member.as_ref() else { return };
        let key = self.sessions[session].key;
        let (mut found, mut not_home) = (Vec::new(), None);
        match member.whose(&key) {
            _ if of.is_none() => found = self.hosts[to].pool.leading(&self.sessions[session].hashes),
            Whose::Here => {
                found = self.hosts[to].pool.get(session).map_or_else(Vec::new, |(_, pages)| pages.to_vec())
            }
            Whose::Elsewhere(tip) => not_home = Some(Some(tip)),
            Whose::Unknown => not_home = Some(None),
        }
        if of.is_none() {
            found.truncate(pages);
        }
        for page in &mut found {
            if self.random.chance(self.plan.damaged) {
                page.1 ^= 1 << 17;
            }
        }
        self.send(to, from, &Event::PullAnswer { turn: number, pages: found, not_home });
    }

    pub(crate) fn pull_answered(&mut self, number: u64, pages: Vec<Page>, not_home: Option<Option<Tip>>) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        if let Some(named) = not_home {
            return self.pull_failed(number, PullError::NotHome(named));
        }
        // Checked as they land: what does not verify ends the pull there.
        turn.got = pages.into_iter().take_while(|(hash, bytes)| content(hash) == *bytes).collect();
        self.count("pulls");
        self.read_local(number);
    }

    pub(crate) fn pull_late(&mut self, number: u64, redirects: u32) {
        if self.turns.get(&number).is_some_and(|turn| turn.redirects == redirects && turn.call.is_none()) {
            self.count("pulls late");
            self.pull_failed(number, PullError::Unreachable);
        }
    }

    fn pull_failed(&mut self, number: u64, error: PullError) {
        let Some(turn) = self.turns.get_mut(&number) else { return };
        if turn.call.is_some() {
            return; // a doubled answer: it went on already
        }
        let (host, session, redirects) = (turn.host, turn.session, turn.redirects);
        turn.redirects += 1;
        let Some(tip) = turn.from else { return self.read_local(number) };
        let (key, now) = (self.sessions[session].key, self.now + self.hosts[host].skew);
        let Some(member) = self.hosts[host].member.as_mut() else { return };
        let (decision, effects) = member.pull_failed(key, tip, error, redirects, now);
        self.carry_out(host, effects);
        if matches!(decision, Decision::Pull(_)) {
            self.count("redirects");
        }
        self.go_on(number, decision);
    }

    /// All that could be had is here: the engine reads it, and computes the rest.
    fn read_local(&mut self, number: u64) {
        let Some(turn) = self.turns.remove(&number) else { return };
        let (session, host) = (turn.session, turn.host);
        let hashes = self.sessions[session].hashes.clone();
        let mut pages = self.hosts[host].pool.leading(&hashes);
        for others in [&turn.got, &self.sessions[session].archived] {
            let archived = std::ptr::eq(others, &self.sessions[session].archived);
            let usable = others.iter().zip(&hashes).take_while(|(page, hash)| page.0 == **hash).count();
            if usable > pages.len() && !(archived && self.archive_down) {
                pages = others[..usable].to_vec();
            }
        }
        for (hash, bytes) in &pages {
            assert_eq!(content(hash), *bytes, "an engine was handed a wrong page");
        }
        let took = self.now - turn.began;
        assert!(took <= TURN_MS_MAX + 8, "a turn began to compute after {took} ms");
        self.sessions[session].busy = false;
        if pages.len() == hashes.len() {
            self.count("turns found whole");
        }
        assert!(
            !self.plan.is_calm() || pages.len() == hashes.len(),
            "{} of {} pages, and nothing had failed",
            pages.len(),
            hashes.len()
        );
        if turn.probe {
            self.check_found(session, pages.len());
        } else {
            self.end_turn(&turn, hashes);
        }
    }

    fn end_turn(&mut self, turn: &Turn, mut hashes: Vec<BlockHash>) {
        let (session, host) = (turn.session, turn.host);
        for _ in 0..1 + self.random.below(6) {
            let owner = if hashes.len() < SHARED_PAGES { 0 } else { session as u32 + 1 };
            // A turn that is computed again has other tokens than the one that nobody saw the end of.
            let token = mix(self.random.next()) as u32;
            let token = if owner == 0 { 0 } else { token };
            hashes.push(BlockHash::chain(hashes.last(), &[owner, token]));
        }
        let pages: Vec<Page> = hashes.iter().map(|hash| (*hash, content(hash))).collect();
        let known = &mut self.sessions[session];
        known.turn += 1;
        known.hashes.clone_from(&hashes);
        let (number, pages_max) = (known.turn, self.plan.pool_pages);
        if !self.archive_down && self.random.chance(300) {
            self.sessions[session].archived.clone_from(&pages);
        }
        let left = self.hosts[host].pool.keep(session, number, pages, pages_max);
        self.became_home(host, session, number, &hashes, turn.from);
        // Of those that are evicted nobody tells: a round finds it out.
        for gone in left.into_iter().filter(|gone| gone % 2 == 0) {
            let key = self.sessions[gone].key;
            self.at(host, |member, now| member.session_left(key, now));
        }
        // An agent goes on at once, elsewhere, before what was said of its last turn has arrived.
        if self.random.chance(300) {
            let next = self.random.below(self.hosts.len() as u64) as usize;
            self.begin_turn(session, next, false);
        }
    }

    /// A session goes to another host because its own is emptied. Half of the homes do not hear the answer: others tell them.
    pub(crate) fn move_session(&mut self, session: usize, from: usize) {
        let key = self.sessions[session].key;
        let Some(member) = self.hosts[from].member.as_ref() else { return };
        let (Some(tip), Some(taker)) = (member.home_tip(&key), member.takers(&key).first().copied()) else {
            return;
        };
        let to = self.host_of(taker).filter(|to| self.hosts[*to].member.is_some() && !self.is_cut(from, *to));
        let pages = self.hosts[from].pool.get(session).map(|(_, pages)| pages.to_vec());
        let (Some(to), Some(pages)) = (to, pages) else { return };
        let at_home =
            |world: &World| world.hosts[to].member.as_ref().and_then(|member| member.home_tip(&key));
        // Who has a later turn of it already takes nothing, and says so.
        if at_home(self).is_none_or(|there| tip.beats(&there)) {
            let hashes: Vec<BlockHash> = pages.iter().map(|page| page.0).collect();
            self.hosts[to].pool.keep(session, tip.turn, pages, self.plan.pool_pages);
            self.became_home(to, session, tip.turn, &hashes, Some(tip));
            self.count("sessions moved");
        }
        let there = at_home(self);
        if let Some(there) = there.filter(|_| self.random.chance(500)) {
            self.at(from, |member, _| member.moved_away(key, there));
        }
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cuts.contains(&(one, other)) || self.cuts.contains(&(other, one))
    }
}
