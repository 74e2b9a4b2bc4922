//! Members as they are known by name and place, and how each is reached. Owns: the table. Must not know: who is believed to be
//! there, what is told to them.

use super::card::MemberCard;
use super::counts::ClusterCounts;
use super::link::MemberLink;
use super::peer::{OtherMember, OwnCard};
use crate::limits::GREETED_MAX;
use crate::seldom::Seldom;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use tokio::runtime::Handle;
use turnkv_cluster::{MemberId, View};
use turnkv_transfer::tls::TlsConfig;

/// Every other member that is known.
pub(super) struct OtherMembers {
    pub(super) own: Arc<OwnCard>,
    runtime: Handle,
    tls: TlsConfig,
    counts: Arc<ClusterCounts>,
    known: RwLock<BTreeMap<MemberId, KnownMember>>,
    said: Seldom,
}

/// One of them. Bounded by what a view is bounded by.
#[derive(Clone)]
pub(super) struct KnownMember {
    /// What it said of itself last.
    pub(super) card: Arc<MemberCard>,
    /// How it is reached.
    pub(super) peer: Arc<OtherMember>,
}

impl OtherMembers {
    /// Nobody is known yet.
    pub(super) fn new(
        own: Arc<OwnCard>,
        runtime: Handle,
        tls: TlsConfig,
        counts: Arc<ClusterCounts>,
    ) -> OtherMembers {
        OtherMembers { own, runtime, tls, counts, known: RwLock::default(), said: Seldom::new() }
    }

    /// What is shown to members.
    pub(super) fn tls(&self) -> &TlsConfig {
        &self.tls
    }

    /// One of them.
    pub(super) fn get(&self, id: MemberId) -> Option<KnownMember> {
        self.known.read().get(&id).cloned()
    }

    /// All of them, by number.
    pub(super) fn all(&self) -> Vec<KnownMember> {
        self.known.read().values().cloned().collect()
    }

    /// Takes in who was seen. Whoever was not, and is not believed to be there, is not known any more.
    pub(super) fn follow(&self, seen: Vec<MemberCard>, believed: &View) {
        let own = self.own.card.read().member.id;
        let mut known = self.known.write();
        known.retain(|id, _| believed.get(*id).is_some() || seen.iter().any(|card| card.member.id == *id));
        for card in seen.into_iter().filter(|card| card.member.id != own) {
            let id = card.member.id;
            match known.get_mut(&id).filter(|known| known.peer.endpoint() == card.endpoint) {
                Some(known) if *known.card == card => {}
                Some(known) => known.card = Arc::new(card),
                None => {
                    if let Some(peer) = self.begin(&card) {
                        known.insert(id, KnownMember { card: Arc::new(card), peer });
                    }
                }
            }
        }
    }

    /// Says to members that this one is there: to all of a small cluster, else to those that follow it in order. Returns who
    /// they are.
    pub(super) fn greet(&self) -> Vec<Arc<OtherMember>> {
        let own = self.own.card.read().member.id;
        let known = self.known.read();
        let after = known.range((Excluded(own), Unbounded)).chain(known.range(..own));
        let greeted: Vec<Arc<OtherMember>> =
            after.take(GREETED_MAX).map(|(_, known)| Arc::clone(&known.peer)).collect();
        greeted.iter().for_each(|peer| peer.greet());
        greeted
    }

    fn begin(&self, card: &MemberCard) -> Option<Arc<OtherMember>> {
        match MemberLink::new(&card.endpoint, &self.tls) {
            Ok(link) => {
                let place = (card.endpoint.as_str(), link);
                Some(OtherMember::start(&self.runtime, card.member.id, place, &self.own, &self.counts))
            }
            Err(fault) => {
                if let Some(unsaid) = self.said.may_say() {
                    tracing::warn!(member = card.name, %fault, unsaid, "a member says that it is nowhere");
                }
                None
            }
        }
    }
}
