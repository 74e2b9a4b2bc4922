//! The members that pages come from. Owns: a client of each, and the namespaces that are open there. Must not know: pages.

use super::fault::PullFault;
use crate::cluster::MemberCard;
use crate::limits::{PULL_CONNECT_MS, PULL_FAILURES_MAX, PULL_PAUSE_MS, PULL_PEERS_MAX};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use turnkv_client::{BreakerConfig, Client, ClientConfig, Namespace, NamespaceId, TlsConfig};
use turnkv_cluster::MemberId;
use turnkv_proto::CheckedSpec;

/// Members that pages were asked of lately.
pub(super) struct PullPeers {
    tls: TlsConfig,
    known: Mutex<KnownPullPeers>,
}

#[derive(Default)]
struct KnownPullPeers {
    /// Counts what was asked.
    asked: u64,
    peers: BTreeMap<MemberId, PullPeer>,
}

struct PullPeer {
    endpoint: String,
    client: Client,
    namespaces: BTreeMap<NamespaceId, Namespace>,
    /// When it was asked last, by that count.
    asked: u64,
}

impl PullPeers {
    /// None yet; with these certificates.
    pub(super) fn new(tls: TlsConfig) -> PullPeers {
        PullPeers { tls, known: Mutex::default() }
    }

    /// A namespace of a member, open there. It is the same one there as here: its id is of all that it is.
    pub(super) async fn namespace(
        &self,
        member: &MemberCard,
        spec: &CheckedSpec,
    ) -> Result<Namespace, PullFault> {
        let (client, open) = self.client(member, &spec.id())?;
        if let Some(open) = open {
            return Ok(open);
        }
        let opened = client.open_namespace(spec.spec().clone()).await?;
        if let Some(peer) = self.known.lock().peers.get_mut(&member.member.id) {
            peer.namespaces.insert(spec.id(), opened.clone());
        }
        Ok(opened)
    }

    fn client(
        &self,
        member: &MemberCard,
        namespace: &NamespaceId,
    ) -> Result<(Client, Option<Namespace>), PullFault> {
        let mut known = self.known.lock();
        known.asked += 1;
        let asked = known.asked;
        if known.peers.get(&member.member.id).is_none_or(|peer| peer.endpoint != member.endpoint) {
            known.make_room();
            let client = self.connect(member)?;
            let (endpoint, namespaces) = (member.endpoint.clone(), BTreeMap::new());
            known.peers.insert(member.member.id, PullPeer { endpoint, client, namespaces, asked });
        }
        let peer = known.peers.get_mut(&member.member.id).ok_or(PullFault::Other)?;
        peer.asked = asked;
        Ok((peer.client.clone(), peer.namespaces.get(namespace).cloned()))
    }

    fn connect(&self, member: &MemberCard) -> Result<Client, PullFault> {
        let config = ClientConfig {
            connect_ms: PULL_CONNECT_MS,
            breaker: BreakerConfig { failures: PULL_FAILURES_MAX, cooldown_ms: PULL_PAUSE_MS },
            tls: self.tls.clone(),
            ..ClientConfig::at(member.endpoint.clone())
        };
        Client::new(config).map_err(|error| {
            tracing::warn!(member = %member.name, %error, "pages cannot be pulled from a member");
            PullFault::Other
        })
    }
}

impl KnownPullPeers {
    /// Lets go of the one that was asked longest ago, where there are as many as may be.
    fn make_room(&mut self) {
        let longest = self.peers.iter().min_by_key(|(_, peer)| peer.asked).map(|(id, _)| *id);
        if let Some(longest) = longest.filter(|_| self.peers.len() >= PULL_PEERS_MAX) {
            self.peers.remove(&longest);
        }
    }
}
