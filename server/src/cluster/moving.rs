//! Sessions that go from one member to another because a host is emptied. Owns: who could take one, and what both ends note of it. Must
//! not know: pages, which sessions go.

use super::card::MemberCard;
use super::runtime::Cluster;
use super::takeover::Takeover;
use crate::limits::TAKERS_MAX;
use std::sync::Arc;
use turnkv_cluster::{MemberId, SessionKey, Tip};
use turnkv_proto::{CheckedSpec, Error, NamespaceId, SessionId};

impl Cluster {
    /// A member of this cluster that asks for something.
    ///
    /// # Errors
    /// It is of another cluster, or not known.
    pub(crate) fn member_of(&self, cluster: &str, id: MemberId) -> Result<Arc<MemberCard>, Error> {
        if cluster != self.peers.own.cluster {
            return Err(Error::invalid("this member is of another cluster"));
        }
        let known = self.peers.get(id).ok_or_else(|| Error::invalid("nobody of this cluster says that"))?;
        Ok(known.card)
    }

    /// Members that could take a session over, the first in rank first.
    pub(crate) fn takers(&self, namespace: &NamespaceId, session: &SessionId) -> Vec<MemberId> {
        let mut takers = self.state.lock().member.takers(&SessionKey::of(namespace, session));
        takers.truncate(TAKERS_MAX);
        takers
    }

    /// Offers a session at home here to a member, and waits until it has it.
    pub(crate) async fn offer_session(
        &self,
        member: MemberId,
        spec: &CheckedSpec,
        session: &SessionId,
        tip: Tip,
    ) -> Takeover {
        let Some(known) = self.peers.get(member) else {
            return Takeover::Failed("it is not known any more".to_owned());
        };
        let offered = known.peer.offer_session(&self.peers.own.cluster, (spec, session, tip)).await;
        offered.unwrap_or_else(|fault| Takeover::Failed(format!("{}: {fault}", known.card.name)))
    }

    /// A session is at home elsewhere now, where all its pages are: its copy here goes first.
    pub(crate) fn moved_away(&self, namespace: &NamespaceId, session: &SessionId, to: Tip) {
        let key = SessionKey::of(namespace, session);
        self.act(|state, _| ((), state.member.moved_away(key, to)));
    }

    /// A session that is about to be at home here was at home there.
    pub(crate) fn comes_from(&self, namespace: &NamespaceId, session: &SessionId, tip: Tip) {
        self.note_before(SessionKey::of(namespace, session), tip);
    }

    /// Some of the sessions at home here, by name.
    pub(crate) fn homes_named(&self, most: usize) -> Vec<(NamespaceId, SessionId, Tip)> {
        let state = self.state.lock();
        let named = state.named.iter().filter_map(|(key, (namespace, session))| {
            Some((*namespace, session.clone(), state.member.home_tip(key)?))
        });
        named.take(most).collect()
    }

    /// Sessions at home here.
    pub(crate) fn homes(&self) -> usize {
        self.state.lock().member.homes()
    }
}
