//! Passes over the sessions at home here, until none is left or nobody takes one. Owns: their order in time, and how many bytes a
//! second leave. Must not know: what a member makes of an offer.

use super::counts::MoveCounts;
use super::pace::LeavingPace;
use crate::cluster::Cluster;
use crate::engine::Engine;
use crate::engine::leaving::LeavingSession;
use crate::engine::moves::MovedOne;
use crate::limits::{MOVE_LOOK, MOVE_PAUSE, MOVES_MAX, MOVES_SETTLE};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

/// Has other members take sessions over.
pub(crate) struct Mover {
    pub(super) engine: Arc<Engine>,
    pub(super) cluster: Arc<Cluster>,
    counts: MoveCounts,
}

impl Mover {
    /// For an engine of this cluster.
    pub(crate) fn new(engine: &Arc<Engine>, cluster: &Arc<Cluster>) -> Arc<Mover> {
        Arc::new(Mover {
            engine: Arc::clone(engine),
            cluster: Arc::clone(cluster),
            counts: MoveCounts::new(),
        })
    }

    /// Goes on for as long as it is polled.
    pub(crate) async fn run(self: Arc<Self>) -> Result<(), Infallible> {
        tokio::join!(self.move_all(), self.tell_gauges());
        Ok(())
    }

    /// Brings gauges up to date, whatever else is under way.
    async fn tell_gauges(&self) {
        loop {
            self.counts.look(&self.engine);
            sleep(MOVE_LOOK).await;
        }
    }

    async fn move_all(self: &Arc<Self>) {
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
        let (engine, cluster) = (Arc::clone(&self.engine), Arc::clone(&self.cluster));
        // It looks at every session: not on an async thread.
        let looked = spawn_blocking(move || engine.sessions_to_move(&cluster)).await;
        let leaving = looked.unwrap_or_else(|error| {
            tracing::error!(%error, "sessions that are to leave could not be looked for");
            Vec::new()
        });
        self.engine.moves.pass_began(leaving.len() as u64);
        let (mut offers, mut taken) = (JoinSet::new(), 0);
        let (mut pace, mut since) = (LeavingPace::default(), Instant::now());
        for session in leaving {
            if !self.may_leave(&mut pace, &mut since).await {
                break; // it was taken back
            }
            pace.leave(session.bytes);
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

    /// Waits until the next session may leave; `since`: what time was counted up to. False: none is to leave any more.
    async fn may_leave(&self, pace: &mut LeavingPace, since: &mut Instant) -> bool {
        while self.engine.is_draining() {
            let passed = since.elapsed();
            *since += passed;
            let Some(wait) = pace.wait(passed, self.engine.moves.standing().bytes_per_s) else { return true };
            sleep(wait).await;
        }
        false
    }

    /// Whether it was taken.
    async fn offer_and_note(self: Arc<Self>, session: LeavingSession) -> bool {
        self.counts.offered();
        let outcome = self.offer(&session).await;
        self.counts.ended(&outcome);
        let is_taken = matches!(outcome, MovedOne::Taken { .. });
        self.engine.moves.note(&outcome);
        is_taken
    }
}
