//! The engine of a simulation: operations wait here until they are told to go on. No threads.
//!
//! Owns: the schedule, what is in flight and why it waits. Must not know: the books, how an operation ends.

use super::blocking::transfer;
use super::buffer::AlignedBuffer;
use super::core::Core;
use super::finish::FinishQueue;
use super::operation::{Failure, Operation};
use super::schedule::Schedule;
use super::simulated_disk::{Fate, SimulatedDisk};
use crate::limits::BLOCK;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The engine.
pub(crate) struct SimulatedDriver {
    core: Arc<Core>,
    finish: Arc<FinishQueue>,
    disk: SimulatedDisk,
    state: Mutex<SimulatedQueue>,
    /// The keeper or the flusher is at work: there is one of each, and one of the two syncs a file at a time.
    pub(super) controlling: AtomicBool,
}

struct SimulatedQueue {
    schedule: Schedule<Operation>,
    inflight: Vec<(Operation, Fate)>,
}

impl SimulatedDriver {
    pub(super) fn new(
        core: &Arc<Core>,
        finish: &Arc<FinishQueue>,
        inflight_bytes: u64,
        disk: SimulatedDisk,
    ) -> SimulatedDriver {
        let state = SimulatedQueue { schedule: Schedule::new(inflight_bytes), inflight: Vec::new() };
        let (core, finish) = (Arc::clone(core), Arc::clone(finish));
        let controlling = AtomicBool::new(false);
        SimulatedDriver { core, finish, disk, state: Mutex::new(state), controlling }
    }

    /// Queues an operation.
    pub(crate) fn submit(&self, operation: Operation) {
        self.state.lock().schedule.push(operation);
    }

    /// Starts what there is room for, and carries out one operation in flight, whichever the seed says;
    /// `false` if none can go on.
    pub(super) fn carry(&self) -> bool {
        let Some(mut operation) = self.next() else { return false };
        let result = match self.core.poisoned() {
            Some(_) => Err(Failure::Poisoned),
            None => transfer(&mut operation, &mut AlignedBuffer::new(BLOCK)),
        };
        let mut state = self.state.lock();
        state.schedule.ended(&operation);
        self.core.counters.inflight_bytes.store(state.schedule.inflight_bytes(), Ordering::Relaxed);
        drop(state);
        self.finish.push_all(&mut vec![(operation, result)]);
        true
    }

    fn next(&self) -> Option<Operation> {
        let mut state = self.state.lock();
        while let Some(operation) = state.schedule.next() {
            let fate = self.disk.start();
            state.inflight.push((operation, fate));
        }
        self.core.counters.inflight_bytes.store(state.schedule.inflight_bytes(), Ordering::Relaxed);
        let due = |(index, (_, fate)): (usize, &(Operation, Fate))| self.disk.is_due(*fate).then_some(index);
        let due: Vec<usize> = state.inflight.iter().enumerate().filter_map(due).collect();
        let chosen = *due.get(self.disk.choose(due.len()))?;
        Some(state.inflight.swap_remove(chosen).0)
    }
}
