//! The cluster's rounds: who is there, that this one is, and what was decided to be said again. Owns: when. Must not know: what is
//! decided.

use super::card::MemberCard;
use super::counts::ClusterCounts;
use super::membership::Membership;
use super::peer::OwnCard;
use super::peers::OtherMembers;
use super::runtime::{Cluster, ClusterParts, MemberList};
use super::seen::{NewLife, SeenMembers};
use crate::clock::Clock;
use crate::config::ClusterSettings;
use crate::limits::{CLUSTER_ROUND, CLUSTER_TICK, LIVES_ROUNDS_MIN};
use parking_lot::RwLock;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval, sleep};
use turnkv_cluster::{
    ClusterConfig, ClusterMember, Incarnation, Life, Member, MemberId, MemberState, Observation, View,
};

/// The largest number that a gauge holds exactly.
const GAUGE_BITS: u32 = 52;

impl Cluster {
    /// This server's part in a cluster, on the runtime of the caller. Nothing is asked or told before it [runs](Cluster::run).
    pub(crate) fn new(settings: &ClusterSettings) -> anyhow::Result<Arc<Cluster>> {
        let (own, counts) = (&settings.own, Arc::new(ClusterCounts::new()));
        let membership = Membership::new(settings, Clock::system().unix_ms()).map_err(anyhow::Error::msg)?;
        let life = Life { member: MemberId::of(&own.id), incarnation: Incarnation(0) };
        let state = MemberState::Serving;
        let card = MemberCard {
            name: own.id.clone(),
            endpoint: own.endpoint.clone(),
            zone: own.zone.clone(),
            member: Member { id: life.member, incarnation: life.incarnation, weight: own.weight, state },
        };
        // It takes part when its first life begins.
        let member = ClusterMember::new(ClusterConfig { own: life, weight: own.weight, seed: 0 });
        let own = Arc::new(OwnCard { cluster: settings.name.clone(), card: RwLock::new(Arc::new(card)) });
        let runtime = Handle::current();
        let peers = OtherMembers::new(
            own,
            runtime.clone(),
            settings.tls.clone().or_environment(),
            Arc::clone(&counts),
        );
        Ok(Cluster::assemble(ClusterParts { member, peers, membership, counts, runtime }))
    }

    /// Goes on for as long as it is polled.
    pub(crate) async fn run(self: Arc<Self>) -> Result<(), Infallible> {
        tokio::join!(self.rounds(), self.ticks(), self.membership.run());
        Ok(())
    }

    async fn rounds(&self) {
        let mut rounds = interval(CLUSTER_ROUND);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut number, mut last_life) = (0u64, None);
        loop {
            rounds.tick().await;
            number += 1;
            let may_begin = last_life.is_none_or(|last| number - last >= LIVES_ROUNDS_MIN);
            if may_begin && self.begin_life(last_life.is_none()) {
                last_life = Some(number);
            }
            if last_life.is_some() {
                self.round();
            }
        }
    }

    /// Calls of the directory go on when their time has come.
    async fn ticks(&self) {
        loop {
            if self.state.lock().member.calls() == 0 {
                self.calls_bell.notified().await;
            }
            sleep(CLUSTER_TICK).await;
            self.act(|state, now| ((), state.member.tick(now)));
        }
    }

    /// Begins a life: the first one of this process, or one after another process, or this one before its marks were lost, was
    /// heard of in a later one. False: this one goes on, or whoever knows the members cannot say yet which.
    fn begin_life(&self, is_first: bool) -> bool {
        let latest = Incarnation(self.superseded_by.load(Ordering::Relaxed));
        let current = Some(self.own().member.incarnation).filter(|_| !is_first);
        let Some(life) = self.membership.next_life(current, latest, self.clock.unix_ms()) else {
            return false;
        };
        let NewLife { incarnation, seed } = life;
        if !is_first {
            self.counts.lives.increment(1);
            tracing::warn!(
                latest = latest.0,
                incarnation = incarnation.0,
                "a later life of this member was heard of: another one begins (does another server have its cluster.id?)"
            );
        }
        let mut own = self.peers.own.card.write();
        let mut card = MemberCard::clone(&own);
        card.member.incarnation = incarnation;
        *own = Arc::new(card);
        drop(own);
        self.act(|state, _| ((), state.member.begin_again(incarnation, seed)));
        true
    }

    fn round(&self) {
        let own = Arc::clone(&self.peers.own.card.read());
        let SeenMembers { observation, cards } = self.membership.look(&own);
        self.reached.store(u64::from(observation != Observation::Unreachable), Ordering::Relaxed);
        let believed = self.state.lock().member.view().clone();
        self.peers.follow(cards, &believed);
        let reached = self.reaches_most(&believed);
        self.look_at_pool();
        let put = self.act(|state, now| {
            let mut effects = state.member.round(observation, reached, now);
            (effects.put_own.take(), effects)
        });
        if let Some(member) = put {
            let card = MemberCard { member, ..MemberCard::clone(&own) };
            self.membership.put(&card);
            *self.peers.own.card.write() = Arc::new(card);
        }
        drop(self.peers.greet());
        self.tell_list();
        self.tell_gauges();
    }

    /// Whether most of the members that are believed to be there answered this one lately; of a large cluster, of those that it
    /// greets.
    fn reaches_most(&self, believed: &View) -> bool {
        let own = self.peers.own.card.read().member.id;
        let others = believed.members().iter().filter(|member| member.id != own);
        let known: Vec<bool> =
            others.filter_map(|member| Some(self.peers.get(member.id)?.peer.has_answered())).collect();
        2 * known.iter().filter(|answers| **answers).count() >= known.len()
    }

    /// Whoever watches the members is told where they differ.
    fn tell_list(&self) {
        let view = self.state.lock().member.view().clone();
        let named = |member: &Member| {
            let card = self.card(member.id)?;
            // What is believed of it may not be what it said last.
            let believed = MemberCard { member: *member, ..MemberCard::clone(&card) };
            Some(if *card == believed { card } else { Arc::new(believed) })
        };
        let members: Vec<Arc<MemberCard>> = view.members().iter().filter_map(named).collect();
        self.list.send_if_modified(|list| {
            let differs = list.epoch != view.epoch() || list.members != members;
            if differs {
                *list = Arc::new(MemberList { epoch: view.epoch(), members, own: list.own.clone() });
            }
            differs
        });
    }

    fn tell_gauges(&self) {
        let state = self.state.lock();
        let (member, counts) = (&state.member, &self.counts);
        counts.members.set(member.view().members().len() as f64);
        counts.epoch.set((member.view().epoch() & ((1 << GAUGE_BITS) - 1)) as f64);
        counts.homes.set(member.homes() as f64);
        counts.tips.set(member.directory().tips() as f64);
        counts.posts.set(member.directory().posts() as f64);
        counts.directory_bytes.set(member.directory().bytes() as f64);
        counts.calls.set(member.calls() as f64);
        drop(state);
        let waiting: usize = self.peers.all().iter().map(|known| known.peer.waiting()).sum();
        counts.waiting.set(waiting as f64);
        counts.nowhere.set(self.nowhere.age() as f64);
        counts.reached.set(self.reached.load(Ordering::Relaxed) as f64);
    }
}

#[cfg(test)]
mod tests;
