//! Taking a session over from a member that is being emptied: its pages are pulled, and this pool is its home then. Owns: that order, and
//! what is answered. Must not know: the directory, how pages travel.

use super::Engine;
use super::brought::CameFrom;
use super::session::SessionKey;
use super::waits::Waits;
use crate::cluster::{Cluster, MemberCard, NameAsk, Takeover};
use crate::limits::{PEER_NAME_MAX, TAKE_LOOK, TAKE_WAIT};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use turnkv_cluster::{PullError, Tip};
use turnkv_proto::CheckedSpec;

impl Engine {
    /// Takes a session over: all of its pages, or nothing is said of it. Bounded in time.
    pub(crate) async fn take_session(
        self: &Arc<Self>,
        spec: &CheckedSpec,
        of: &SessionKey,
        (home, tip): (Arc<MemberCard>, Tip),
    ) -> Takeover {
        let Some(cluster) = self.cluster() else { return Takeover::Failed("it is in no cluster".to_owned()) };
        let _takes = Waits::begin(&self.moves.taking);
        if self.is_draining() {
            return Takeover::Failed("it is drained itself".to_owned());
        }
        // Its home does not know yet that there was a later turn, here.
        if let Some(mine) = cluster.home_tip(&of.namespace, &of.session).filter(|mine| mine.beats(&tip)) {
            return Takeover::Done(mine);
        }
        let (engine, opened) = (Arc::clone(self), spec.clone());
        let opened = tokio::task::spawn_blocking(move || engine.open_namespace(&opened)).await;
        match opened {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Takeover::Failed(error.to_string()),
            Err(error) => return Takeover::Failed(error.to_string()),
        }
        self.pull_over(cluster, of, (home, tip)).await
    }

    async fn pull_over(
        &self,
        cluster: &Cluster,
        of: &SessionKey,
        (home, tip): (Arc<MemberCard>, Tip),
    ) -> Takeover {
        let SessionKey { namespace, session } = of;
        let Ok(ns) = self.find_namespace(namespace) else {
            return Takeover::Failed("its namespace is not open".to_owned());
        };
        let ask = NameAsk { namespace, session, turn_begins: false };
        let named = match cluster.name_session(home.member.id, ask, PEER_NAME_MAX).await {
            Ok(named) => named,
            Err(PullError::NotHome(_)) => return Takeover::Gone,
            Err(PullError::Unreachable) => return Takeover::Failed("it does not reach its home".to_owned()),
        };
        // The turns of the tip: one that runs at its home now is its home's to end.
        self.goes_on_here(
            ns,
            session,
            CameFrom { turns: tip.turn, waited_ms: 0, begins: false },
            &named.hashes,
        );
        let pull = self.pull_of(of, (home, tip), named.hashes.clone(), named.tail_tokens);
        let lacks_room = Arc::clone(&pull.lacks_room);
        if self.pull(pull).is_none() {
            return Takeover::NoRoom;
        }
        let until = Instant::now() + TAKE_WAIT;
        while self.afar.pages_of(namespace, session).is_some() {
            if Instant::now() > until {
                return Takeover::Failed("its pages did not come in time".to_owned());
            }
            tokio::time::sleep(TAKE_LOOK).await;
        }
        let here = self.present_pages(namespace, &named.hashes).unwrap_or(0);
        if here < named.hashes.len() {
            return match lacks_room.load(Ordering::Relaxed) {
                true => Takeover::NoRoom,
                false => Takeover::Failed(format!("{here} of its {} pages came", named.hashes.len())),
            };
        }
        cluster.comes_from(namespace, session, tip);
        self.tell_home(ns, of);
        cluster.home_tip(namespace, session).map_or(Takeover::Gone, Takeover::Done)
    }
}
