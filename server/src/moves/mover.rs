//! Passes over the sessions at home here, until none is left or nobody takes one. Owns: their order in time, and how many bytes a
//! second leave. Must not know: what a member makes of an offer.

use crate::cluster::Cluster;
use crate::engine::Engine;
use crate::engine::leaving::LeavingSession;
use crate::engine::moves::MovedOne;
use crate::limits::{MOVE_PAUSE, MOVES_MAX, MOVES_SETTLE};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

/// Has other members take sessions over.
pub(crate) struct Mover {
    pub(super) engine: Arc<Engine>,
    pub(super) cluster: Arc<Cluster>,
}

impl Mover {
    /// For an engine of this cluster.
    pub(crate) fn new(engine: &Arc<Engine>, cluster: &Arc<Cluster>) -> Arc<Mover> {
        Arc::new(Mover { engine: Arc::clone(engine), cluster: Arc::clone(cluster) })
    }

    /// Goes on for as long as it is polled.
    pub(crate) async fn run(self: Arc<Self>) -> Result<(), Infallible> {
        loop {
            self.engine.moves.bell.notified().await;
            // Members place nothing here from the round on in which they hear that this one is being emptied.
            sleep(MOVES_SETTLE).await;
            while self.pass().await > 0 {
                sleep(MOVE_PAUSE).await;
            }
            self.engine.moves.ended(self.cluster.homes() as u64);
        }
    }

    /// Offers every session at home here once. Returns how many were taken.
    async fn pass(self: &Arc<Self>) -> u64 {
        let leaving = self.engine.sessions_to_move(&self.cluster);
        self.engine.moves.pass_began(leaving.len() as u64);
        let (mut offers, mut taken, mut may_leave_at) = (JoinSet::new(), 0, Instant::now());
        for session in leaving {
            sleep_until(may_leave_at.into()).await;
            if !self.engine.is_draining() {
                break; // it was taken back
            }
            may_leave_at = may_leave_at.max(Instant::now()) + self.time_of(&session);
            if offers.len() >= MOVES_MAX {
                taken += offers.join_next().await.map_or(0, |ended| u64::from(matches!(ended, Ok(true))));
            }
            offers.spawn(Arc::clone(self).offer_and_note(session));
        }
        while let Some(ended) = offers.join_next().await {
            taken += u64::from(matches!(ended, Ok(true)));
        }
        taken
    }

    /// How long so many bytes take at the pace that was asked for.
    fn time_of(&self, session: &LeavingSession) -> Duration {
        let pace = self.engine.moves.standing().bytes_per_s.max(1);
        Duration::from_secs_f64(session.bytes as f64 / pace as f64)
    }

    /// Whether it was taken.
    async fn offer_and_note(self: Arc<Self>, session: LeavingSession) -> bool {
        let outcome = self.offer(&session).await;
        let is_taken = matches!(outcome, MovedOne::Taken { .. });
        self.engine.moves.note(&outcome);
        is_taken
    }
}
