//! How the cluster stands, for operators. Owns: what is told of it. Must not know: in which form.

use super::card::MemberCard;
use super::peer::PeerReport;
use super::runtime::{Cluster, MemberList};
use crate::limits::TWICE_TOLD_MAX;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use turnkv_proto::Error;

/// How this member's part in the cluster stands.
pub(crate) struct ClusterReport {
    /// The cluster's name.
    pub(crate) cluster: String,
    /// Who is there.
    pub(crate) list: Arc<MemberList>,
    /// How members are known: `static` or `etcd`.
    pub(crate) membership: &'static str,
    /// Whether whoever knows them could be asked in the last round.
    pub(crate) reached: bool,
    /// Sessions at home here.
    pub(crate) homes: usize,
    /// Sessions known as an authority.
    pub(crate) tips: usize,
    /// Signposts, likewise.
    pub(crate) posts: usize,
    /// Turns and lookups that wait.
    pub(crate) calls: usize,
    /// The name as which two servers spoke lately, if any do.
    pub(crate) twice: Option<String>,
    /// The other members that are known.
    pub(crate) peers: Vec<PeerAt>,
}

/// How another member answers.
pub(crate) struct PeerAt {
    /// Who it is.
    pub(crate) card: Arc<MemberCard>,
    /// How it answers.
    pub(crate) report: PeerReport,
}

impl Cluster {
    /// A member is gone for good: nothing is known of it any more. Whether something was.
    pub(crate) async fn forget(&self, name: &str) -> Result<bool, Error> {
        self.membership.forget(name).await
    }

    /// How it stands.
    pub(crate) fn report(&self) -> ClusterReport {
        let state = self.state.lock();
        let (directory, homes, calls) =
            (state.member.directory(), state.member.homes(), state.member.calls());
        let (tips, posts) = (directory.tips(), directory.posts());
        drop(state);
        let at = |known: super::peers::KnownMember| PeerAt { card: known.card, report: known.peer.report() };
        ClusterReport {
            cluster: self.peers.own.cluster.clone(),
            list: Arc::clone(&self.watch().borrow()),
            membership: self.membership.name(),
            reached: self.reached.load(Ordering::Relaxed) > 0,
            homes,
            tips,
            posts,
            calls,
            twice: self.spoken_twice(),
            peers: self.peers.all().into_iter().map(at).collect(),
        }
    }

    fn spoken_twice(&self) -> Option<String> {
        let (member, _) = (*self.twice.lock()).filter(|(_, told)| told.elapsed() <= TWICE_TOLD_MAX)?;
        self.card(member).map(|card| card.name.clone())
    }
}
