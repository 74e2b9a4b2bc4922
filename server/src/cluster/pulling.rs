//! What whoever pulls a session from its home asks of the cluster. Owns: what a pull begins with, and where one that failed goes on.
//! Must not know: how pages come.

use super::link::{NameAsk, Named, NamedSession};
use super::runtime::{Cluster, Where};
use crate::limits::PEER_NAME_MAX;
use std::time::Duration;
use turnkv_cluster::{MemberId, PullError, SessionKey, Tip};
use turnkv_proto::{BlockHash, NamespaceId, SessionId};
use turnkv_transfer::tls::TlsConfig;

impl Cluster {
    /// Which pages a member has of a session: what a pull begins with. It has so long to name them, and no longer than any.
    pub(crate) async fn name_session(
        &self,
        member: MemberId,
        ask: NameAsk<'_>,
        most: Duration,
    ) -> Result<NamedSession, PullError> {
        let known = self.peers.get(member).ok_or(PullError::Unreachable)?;
        match known.peer.name_session(ask, most.min(PEER_NAME_MAX)).await {
            Ok(Named::Home(named)) => Ok(named),
            Ok(Named::NotHome(next)) => Err(PullError::NotHome(next)),
            Err(fault) => {
                tracing::debug!(member = known.card.name, %fault, "a member does not name a session");
                Err(PullError::Unreachable)
            }
        }
    }

    /// The pages that end with this one, as a member has them, in order; none: it does not have it any more.
    pub(crate) async fn name_prefix(
        &self,
        member: MemberId,
        namespace: &NamespaceId,
        last: &BlockHash,
    ) -> Result<Vec<BlockHash>, PullError> {
        let known = self.peers.get(member).ok_or(PullError::Unreachable)?;
        known.peer.name_prefix(namespace, last, PEER_NAME_MAX).await.map_err(|fault| {
            tracing::debug!(member = known.card.name, %fault, "a member does not name a prefix");
            PullError::Unreachable
        })
    }

    /// A pull from the home of `tip` failed, the `redirects`-th time (from 0): where to go on. Two members at most name the next.
    pub(crate) fn pull_failed(
        &self,
        namespace: &NamespaceId,
        session: &SessionId,
        tip: Tip,
        error: PullError,
        redirects: u32,
    ) -> Where {
        let key = SessionKey::of(namespace, session);
        let decision = self.act(|state, now| {
            state.before.remove(&key);
            state.member.pull_failed(key, tip, error, redirects, now)
        });
        self.place_of(key, decision)
    }

    /// What is shown to members, for whoever reads pages from them.
    pub(crate) fn tls(&self) -> TlsConfig {
        self.peers.tls().clone()
    }
}
