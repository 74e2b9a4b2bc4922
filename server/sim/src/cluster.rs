//! Many hosts, each with a pool, as a cluster: a turn pulls what another host holds, and the host that ran it becomes its
//! session's home. Owns: the hosts' clock and wire. Must not know: how a member decides (turnkv-cluster does), how a pool
//! evicts (each is one played by `drive`).
//!
//! What members tell one another arrives at once, nothing fails, and every page that is pulled is kept where it is pulled to.

use crate::account::percent;
use crate::derive::derive_sessions;
use crate::drive::{PoolModel, Replay, SimError, hash_of, session_id};
use crate::history::History;
use crate::limits::CLUSTER_STEPS_MAX;
use crate::policy::Policy;
use crate::routing::{Routing, assign, imbalance, model_of, outcome};
use crate::trace::Trace;
use std::collections::HashMap;
use std::fmt::Write;
use turnkv_cluster::{
    CallId, ClusterConfig, ClusterMember, Decision, Effects, Incarnation, Kept, Life, Member, MemberId,
    MemberState, Observation, PrefixAsk, PullError, SessionKey, Tip,
};
use turnkv_pool::FromElsewhere;
use turnkv_proto::{BlockHash, NamespaceId};

#[cfg(test)]
mod tests;

const NAMESPACE: NamespaceId = NamespaceId([1; 32]);

/// What came of one way to route.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterOutcome {
    /// Which.
    pub routing: Routing,
    /// Blocks found where every host has a pool of its own and knows of no other, of the blocks sent.
    pub private_percent: f64,
    /// Blocks found by the same pools as a cluster, those pulled included.
    pub cluster_percent: f64,
    /// Blocks found by one pool of all their pages.
    pub one_pool_percent: f64,
    /// Blocks pulled for a request, the mean.
    pub pulled: f64,
    /// Blocks that the host with most of them sent and received.
    pub busiest_link: u64,
    /// The same against the mean of all hosts.
    pub busiest: f64,
    /// Questions and messages between members for a request, the mean.
    pub messages: f64,
}

/// Plays a trace on so many hosts of so many pages each, routed in every way.
pub fn compare(
    mut trace: Trace,
    hosts: u32,
    pages_each: u64,
    policy: Policy,
) -> Result<Vec<ClusterOutcome>, SimError> {
    derive_sessions(&mut trace);
    let one = vec![0; trace.requests.len()];
    let pages = pages_each * u64::from(hosts);
    let one_pool = outcome(&trace, 1, pages, policy, Routing::RoundRobin, &one)?.hit_percent;
    let all = Routing::ALL.iter().map(|routing| {
        let ran = assign(&trace, hosts, pages_each, *routing)?;
        let private_percent = outcome(&trace, hosts, pages_each, policy, *routing, &ran)?.hit_percent;
        let stream: Vec<u32> = (0..trace.requests.len() as u32).collect();
        let history = History::of(&trace, &stream);
        let model = model_of(pages_each, policy);
        let mut cluster = Cluster::new(&trace, &stream, &history, hosts, &model)?;
        for (position, host) in ran.iter().enumerate() {
            cluster.request(position, *host as usize)?;
        }
        Ok(cluster.outcome(*routing, private_percent, one_pool))
    });
    all.collect()
}

/// The comparison as a table; with the bytes of a block, what went over wires is told in GB.
pub fn table(
    trace: &str,
    hosts: u32,
    pages_each: u64,
    block_bytes: Option<u64>,
    outcomes: &[ClusterOutcome],
) -> String {
    let unit = if block_bytes.is_some() { "GB" } else { "blocks" };
    let scale = block_bytes.map_or(1.0, |bytes| bytes as f64 / 1e9);
    let mut text = format!("{trace}, {hosts} hosts of {pages_each} blocks\n\n");
    let head = "| routing | private hits % | cluster hits % | one pool hits % |";
    writeln!(
        text,
        "{head} pulled a turn, {unit} | busiest link, {unit} | busiest link / mean | messages a turn |"
    )
    .unwrap_or_default();
    text += "|---|---|---|---|---|---|---|---|\n";
    for one in outcomes {
        let (name, private, cluster) = (one.routing.name(), one.private_percent, one.cluster_percent);
        let (pool, pulled, link) =
            (one.one_pool_percent, one.pulled * scale, one.busiest_link as f64 * scale);
        let (busiest, messages) = (one.busiest, one.messages);
        let hits = format!("{private:.1} | {cluster:.1} | {pool:.1}");
        writeln!(text, "| {name} | {hits} | {pulled:.2} | {link:.0} | {busiest:.2} | {messages:.1} |")
            .unwrap_or_default();
    }
    text
}

struct Cluster<'a> {
    trace: &'a Trace,
    hosts: Vec<Replay<'a>>,
    members: Vec<ClusterMember>,
    /// Turns of a session that have ended.
    turns: HashMap<u32, u32>,
    /// Blocks that each host sent and received.
    links: Vec<u64>,
    pulled: u64,
    messages: u64,
}

impl<'a> Cluster<'a> {
    fn new(
        trace: &'a Trace,
        stream: &'a [u32],
        history: &'a History,
        hosts: u32,
        model: &'a PoolModel,
    ) -> Result<Cluster<'a>, SimError> {
        let pools: Result<Vec<Replay<'a>>, SimError> =
            (0..hosts).map(|_| Replay::new(trace, stream, history, model)).collect();
        let life = |host: u32| Life { member: MemberId(u64::from(host)), incarnation: Incarnation(1) };
        let config = |host| ClusterConfig { own: life(host), weight: 1, seed: 0 };
        let members = (0..hosts).map(|host| ClusterMember::new(config(host))).collect();
        let (turns, links, pulled, messages) = (HashMap::new(), vec![0; hosts as usize], 0, 0);
        let mut cluster = Cluster { trace, hosts: pools?, members, turns, links, pulled, messages };
        let member = |host| Member {
            id: life(host).member,
            incarnation: life(host).incarnation,
            weight: 1,
            state: MemberState::Serving,
        };
        let all: Vec<Member> = (0..hosts).map(member).collect();
        for host in 0..cluster.members.len() {
            let effects = cluster.members[host].round(Observation::Members(all.clone()), true, 0);
            cluster.carry_out(host, effects, 0)?;
        }
        Ok(cluster)
    }

    /// A request, served by one host.
    fn request(&mut self, position: usize, host: usize) -> Result<(), SimError> {
        let request = &self.trace.requests[position];
        let now = request.at_ms;
        let hashes: Vec<BlockHash> = self.trace.blocks(request).iter().map(|block| hash_of(*block)).collect();
        let session = request.session;
        let key = session.map(|at| SessionKey::of(&NAMESPACE, &session_id('s', at as usize)));
        let local = self.hosts[host].present(&hashes, now)?;
        let told = session.and_then(|session| self.turns.get(&session).copied()).unwrap_or(0);
        let before = match key.filter(|_| told > 0) {
            Some(key) => self.find(host, key, told, now)?,
            None => None,
        };
        let elsewhere = before.filter(|tip| tip.home.member.0 != host as u64);
        if let (Some(session), Some(tip)) = (session, elsewhere) {
            let waited_ms = self.hosts[tip.home.member.0 as usize].begin_elsewhere(session, now);
            let from = FromElsewhere { turns: told, pages: tip.pages, waited_ms, begins: true, start: None };
            self.hosts[host].come(position, session, &from, &hashes, now)?;
        }
        // A session at home here whose pages are all here needs nobody.
        let wanted = before.map_or(hashes.len(), |tip| hashes.len().min(tip.pages as usize));
        if before.is_none_or(|tip| tip.home.member.0 != host as u64) || local < wanted {
            let hint = before.map(|tip| tip.home.member);
            self.pull(position, host, &hashes, local, hint, now)?;
        }
        self.hosts[host].arrive(position, now)?;
        if let (Some(session), Some(key)) = (session, key) {
            let here = self.hosts[host].present(&hashes, now)?;
            self.turns.insert(session, told + 1);
            let kept = Kept { session: key, turn: told + 1, namespace: NAMESPACE, hashes: &hashes[..here] };
            let effects = self.members[host].turn_ended(kept, before, now);
            self.carry_out(host, effects, now)?;
            if let Some(tip) = elsewhere {
                self.hosts[tip.home.member.0 as usize].end_elsewhere(session, now);
            }
        }
        Ok(())
    }

    /// Where the session's last turn ended.
    fn find(&mut self, host: usize, key: SessionKey, told: u32, now: u64) -> Result<Option<Tip>, SimError> {
        let (call, effects) = self.members[host].turn_began(key, told, now);
        match self.decided(host, call, effects, now)? {
            Decision::Here => Ok(self.members[host].home_tip(&key)),
            Decision::Pull(tip) => {
                // A home that lost the session says so, and who believed it is told.
                let home = tip.home.member.0 as usize;
                if self.members[home].home_tip(&key).is_none() {
                    let lost = PullError::NotHome(None);
                    let (_, effects) = self.members[host].pull_failed(key, tip, lost, 0, now);
                    self.carry_out(host, effects, now)?;
                    return Ok(None);
                }
                Ok(Some(tip))
            }
            Decision::Holds(_) | Decision::Nowhere | Decision::Lost(_) => Ok(None),
        }
    }

    /// Pulls what a peer holds of a prefix beyond what is here.
    fn pull(
        &mut self,
        position: usize,
        host: usize,
        hashes: &[BlockHash],
        local: usize,
        hint: Option<MemberId>,
        now: u64,
    ) -> Result<(), SimError> {
        let ask = PrefixAsk { namespace: NAMESPACE, hashes: hashes.to_vec(), only_posts: false, local, hint };
        let (call, effects) = self.members[host].lookup(ask, now);
        if let Decision::Holds(held) = self.decided(host, call, effects, now)? {
            let blocks = (held.pages - local) as u64;
            self.pulled += blocks;
            self.links[host] += blocks;
            self.links[held.member.0 as usize] += blocks;
            let name = self.hosts[host].name_of(position);
            self.hosts[host].take_in(position, &name, &hashes[..held.pages], local, now)?;
        }
        Ok(())
    }

    /// Carries everything out until a call is decided; nothing is late here.
    fn decided(
        &mut self,
        host: usize,
        call: CallId,
        effects: Effects,
        now: u64,
    ) -> Result<Decision, SimError> {
        let decisions = self.carry_out(host, effects, now)?;
        let own = decisions.into_iter().find(|(decided, _)| *decided == call);
        Ok(own.map_or(Decision::Nowhere, |(_, decision)| decision))
    }

    fn carry_out(
        &mut self,
        host: usize,
        effects: Effects,
        now: u64,
    ) -> Result<Vec<(CallId, Decision)>, SimError> {
        let mut open = vec![(host, effects)];
        let mut decisions = Vec::new();
        for _ in 0..CLUSTER_STEPS_MAX {
            let Some((host, effects)) = open.pop() else { return Ok(decisions) };
            decisions.extend(effects.decided);
            for envelope in effects.send {
                self.messages += 1;
                let to = envelope.to.0 as usize;
                open.push((to, self.members[to].receive(envelope, now)));
            }
            for probe in effects.probes {
                self.messages += 2;
                let present = self.hosts[probe.member.0 as usize].present(&probe.hashes, now)?;
                let counted = self.members[host].counted(probe.call, probe.member, Some(present), now);
                open.push((host, counted));
            }
        }
        Err(SimError::Endless)
    }

    fn outcome(&self, routing: Routing, private_percent: f64, one_pool_percent: f64) -> ClusterOutcome {
        let (mut blocks, mut hits) = (0, 0);
        for host in &self.hosts {
            (blocks, hits) = (blocks + host.counts.blocks, hits + host.counts.hits());
        }
        let requests = self.trace.requests.len().max(1) as f64;
        ClusterOutcome {
            routing,
            private_percent,
            cluster_percent: percent(hits, blocks),
            one_pool_percent,
            pulled: self.pulled as f64 / requests,
            busiest_link: self.links.iter().copied().max().unwrap_or(0),
            busiest: imbalance(&self.links).unwrap_or(1.0),
            messages: self.messages as f64 / requests,
        }
    }
}
