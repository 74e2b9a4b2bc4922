//! What is looked after beside the doors, a few times a second. Owns: when. Must not know: how.

use crate::connections::Connections;
use crate::doors::framed::FramedDoor;
use crate::doors::grpc::Standing;
use crate::doors::grpc::answers::Answers;
use crate::doors::grpc::budget::Budget;
use crate::doors::local::LocalDoor;
use crate::engine::Engine;
use crate::limits::{HEAP_FREE_BYTES_MAX, SWEEP_MS};
use metrics::{describe_gauge, gauge};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use turnkv_transfer::{free_heap_bytes, trim_heap};

/// What it looks after.
pub(super) struct Caretaker {
    pub(super) engine: Arc<Engine>,
    pub(super) connections: Arc<Connections>,
    pub(super) local: Arc<LocalDoor>,
    pub(super) framed: Arc<FramedDoor>,
    pub(super) budget: Arc<Budget>,
    pub(super) answers: Arc<Answers>,
    pub(super) standing: Standing,
}

impl Caretaker {
    /// Looks after it for as long as it is polled.
    pub(super) async fn run(self) -> Result<(), Infallible> {
        let mut serving = None;
        describe_gauge!(
            "turnkv_server_heap_free_bytes",
            "Memory of the server's heap that nobody uses, about twice a second"
        );
        let free = gauge!("turnkv_server_heap_free_bytes");
        let mut ticks = tokio::time::interval(Duration::from_millis(SWEEP_MS));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.connections.sweep();
            self.local.sweep();
            self.framed.sweep();
            // Each is asked: to ask is what brings its gauge up to date.
            let passed = [
                self.local.burst_has_passed(),
                self.framed.burst_has_passed(),
                self.connections.burst_has_passed(),
                self.budget.burst_has_passed(),
                self.answers.burst_has_passed(),
            ];
            let free_bytes = free_heap_bytes();
            free.set(free_bytes as f64);
            if passed.contains(&true) || free_bytes > HEAP_FREE_BYTES_MAX {
                // Takes milliseconds: not on an async thread.
                let trimmed = tokio::task::spawn_blocking(trim_heap).await;
                tracing::debug!(worked = trimmed.is_ok(), "free memory went back");
            }
            let now = !self.engine.is_draining();
            if serving != Some(now) {
                serving = Some(now);
                self.standing.report(now).await; // as /healthz says it
            }
        }
    }
}
