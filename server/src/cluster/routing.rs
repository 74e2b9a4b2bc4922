//! What the others know of engines that a router names. Owns: whom to ask of what. Must not know: how engines are ranked.

use super::engines_known::{EnginesAsk, EnginesKnown};
use super::runtime::Cluster;
use futures_util::future::join_all;
use turnkv_cluster::MemberId;

impl Cluster {
    /// Asks the others, all at once and each for a short while: the one that has most of the prompt, else the session, of its pages, and in
    /// a cluster that is small enough everybody of the engines' load.
    pub(crate) async fn look_at_engines(
        &self,
        ask: &EnginesAsk<'_>,
        holder: Option<MemberId>,
    ) -> Vec<EnginesKnown> {
        let asks_all = self.asks_all();
        let asked =
            self.peers.all().into_iter().filter(|known| asks_all || Some(known.card.member.id) == holder);
        let asked: Vec<_> = asked.collect();
        let answers = asked.iter().map(|known| {
            let is_holder = Some(known.card.member.id) == holder;
            known.peer.look_at_engines(ask, is_holder)
        });
        join_all(answers).await.into_iter().flatten().collect()
    }
}
