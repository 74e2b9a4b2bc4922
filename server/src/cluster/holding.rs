//! Prefixes of which another member is to have a second copy. Owns: who could, and how it is asked. Must not know: pins, pages.

use super::hold::{NotHeld, PrefixHold};
use super::runtime::Cluster;
use crate::limits::TAKERS_MAX;
use turnkv_cluster::{MemberId, PrefixKey};
use turnkv_proto::{BlockHash, NamespaceId};

impl Cluster {
    /// Members that could hold a second copy of what ends with this page, the first in rank first.
    pub(crate) fn holders(&self, namespace: &NamespaceId, last: &BlockHash) -> Vec<MemberId> {
        let mut holders = self.state.lock().member.holders(&PrefixKey::of(namespace, last));
        holders.truncate(TAKERS_MAX);
        holders
    }

    /// Has a member hold a prefix that is here, or let go of it, and waits until it does. Returns its name.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) async fn offer_prefix(&self, member: MemberId, hold: &PrefixHold) -> Result<String, NotHeld> {
        let not_held = |why: String, is_sure| NotHeld { why, is_sure };
        let known = self.peers.get(member);
        let known = known.ok_or_else(|| not_held("a member is not known any more".to_owned(), true))?;
        let name = &known.card.name;
        match known.peer.hold_prefix(&self.peers.own.cluster, self.own().member.id, hold).await {
            Ok(refused) if refused.is_empty() => Ok(name.clone()),
            Ok(refused) => Err(not_held(format!("{name}: {refused}"), true)),
            Err(fault) => Err(not_held(format!("{name}: {fault}"), fault.is_refusal)),
        }
    }
}
