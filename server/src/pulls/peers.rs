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
            known.peers.remove(&member.member.id);
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
        // A client refuses certificates that it would not use, and these may be those of the whole environment.
        let is_tls = member.endpoint.starts_with("tls://");
        let config = ClientConfig {
            connect_ms: PULL_CONNECT_MS,
            breaker: BreakerConfig { failures: PULL_FAILURES_MAX, cooldown_ms: PULL_PAUSE_MS },
            tls: if is_tls { self.tls.clone() } else { TlsConfig::default() },
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

#[cfg(test)]
mod tests {
    use super::*;
    use turnkv_cluster::{Incarnation, Member, MemberState};

    fn card(number: u64, port: u16) -> MemberCard {
        let (id, state) = (MemberId(number), MemberState::Serving);
        let member = Member { id, incarnation: Incarnation(1), weight: 1, state };
        let (name, endpoint) = (format!("pool-{number}"), format!("tcp://127.0.0.1:{port}"));
        MemberCard { name, endpoint, zone: String::new(), member }
    }

    #[tokio::test]
    async fn no_more_members_are_known_than_may_be_and_the_one_of_long_ago_goes() {
        let (peers, namespace) = (PullPeers::new(TlsConfig::default()), NamespaceId([1; 32]));
        let most = PULL_PEERS_MAX as u64;
        let ask = |number| peers.client(&card(number, 9), &namespace).map(|_| ()).unwrap();
        let is_known = |number| peers.known.lock().peers.contains_key(&MemberId(number));
        (0..most).for_each(ask);
        ask(0); // asked again: it is not the one of long ago any more
        (most..most + 3).for_each(ask);
        assert_eq!(peers.known.lock().peers.len(), PULL_PEERS_MAX);
        assert!(is_known(0) && !is_known(1) && !is_known(3) && is_known(4) && is_known(most + 2));
        // One that is elsewhere now is reached there, and takes the place that it had.
        assert!(peers.client(&card(4, 10), &namespace).is_ok());
        assert_eq!(peers.known.lock().peers.len(), PULL_PEERS_MAX);
        assert_eq!(peers.known.lock().peers[&MemberId(4)].endpoint, "tcp://127.0.0.1:10");
    }

    #[tokio::test]
    async fn certificates_of_the_environment_keep_nobody_from_a_member_without_tls() {
        let tls = TlsConfig { ca: Some("/etc/turnkv/ca.pem".into()), ..TlsConfig::default() };
        let (peers, namespace) = (PullPeers::new(tls), NamespaceId([1; 32]));
        assert!(peers.client(&card(1, 9), &namespace).is_ok());
        let encrypted = MemberCard { endpoint: "tls://127.0.0.1:9".to_owned(), ..card(2, 9) };
        assert!(peers.client(&encrypted, &namespace).is_ok());
    }
}
