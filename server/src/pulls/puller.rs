//! Pulls beside one another. Owns: that each ends, and what is made of one that failed. Must not know: how pages come.

use super::asked::AskedBytes;
use super::counts::PullCounts;
use super::fault::PullFault;
use super::peers::PullPeers;
use crate::cluster::Cluster;
use crate::engine::Engine;
use crate::engine::afar::Pull;
use crate::limits::PULL_LOOK;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use tokio::task::JoinSet;
use tokio::time::sleep;
use turnkv_cluster::PullError;

/// Brings pages of other pools.
pub(crate) struct Puller {
    pub(super) engine: Arc<Engine>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) peers: PullPeers,
    pub(super) asked: AskedBytes,
    pub(super) counts: PullCounts,
}

/// A pull under way; it is over when this is dropped.
struct PullUnderWay {
    puller: Arc<Puller>,
    pull: Pull,
}

impl Drop for PullUnderWay {
    fn drop(&mut self) {
        self.puller.engine.afar.ended(&self.pull);
    }
}

impl Puller {
    /// For an engine of this cluster.
    pub(crate) fn new(engine: &Arc<Engine>, cluster: &Arc<Cluster>) -> Arc<Puller> {
        Arc::new(Puller {
            engine: Arc::clone(engine),
            cluster: Arc::clone(cluster),
            peers: PullPeers::new(cluster.tls()),
            asked: AskedBytes::new(),
            counts: PullCounts::new(),
        })
    }

    /// Goes on for as long as it is polled.
    pub(crate) async fn run(self: Arc<Self>) -> Result<(), Infallible> {
        tokio::join!(self.pull_all(), self.tell_gauges());
        Ok(())
    }

    async fn pull_all(self: &Arc<Self>) {
        let mut running = JoinSet::new();
        loop {
            while let Some(pull) = self.engine.afar.next() {
                let under_way = PullUnderWay { puller: Arc::clone(self), pull };
                running.spawn(Arc::clone(self).pull(under_way));
            }
            tokio::select! {
                () = self.engine.afar.bell.notified() => {}
                Some(ended) = running.join_next() => {
                    if let Err(error) = ended {
                        tracing::warn!(%error, "a pull from another pool ended early");
                    }
                }
            }
        }
    }

    /// Brings gauges up to date, whatever else is under way.
    async fn tell_gauges(&self) {
        loop {
            self.counts.look(&self.engine, self.asked.bytes());
            sleep(PULL_LOOK).await;
        }
    }

    async fn pull(self: Arc<Self>, under_way: PullUnderWay) {
        let (pull, began) = (&under_way.pull, Instant::now());
        let mut at = pull.here;
        match self.bring(pull, &mut at).await {
            Ok(()) => self.counts.done(began.elapsed()),
            Err(fault) => {
                self.counts.failed(fault);
                let lacks_room = matches!(fault, PullFault::Room | PullFault::Outranked);
                pull.lacks_room.store(lacks_room, Ordering::Relaxed);
                let (member, came, asked) =
                    (&pull.member.name, at - pull.here, pull.hashes.len() - pull.here);
                tracing::info!(%member, fault = fault.name(), came, asked, "not all pages of another pool came");
                self.tell_cluster(pull, fault, at);
            }
        }
    }

    /// A home that has nothing, or does not answer, is told to whoever names it.
    fn tell_cluster(&self, pull: &Pull, fault: PullFault, at: usize) {
        let (Some(session), Some(tip)) = (&pull.session, pull.tip) else { return };
        let error = match fault {
            PullFault::Absent if at == 0 => PullError::NotHome(None),
            PullFault::Unreachable => PullError::Unreachable,
            _ => return,
        };
        // Where it goes on, if anywhere, the next turn finds.
        drop(self.cluster.pull_failed(&pull.namespace, session, tip, error, pull.redirects));
    }
}
