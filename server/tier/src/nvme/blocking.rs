//! The blocking engine: a few threads with pread and pwritev, for kernels without io_uring. Same order, same
//! bounds.
//!
//! Owns: its threads, the schedule they share. Must not know: the books.

use super::buffer::AlignedBuffer;
use super::core::{Core, PoisonOnPanic};
use super::finish::FinishQueue;
use super::format::encode_extent;
use super::operation::{Failure, Operation, Work};
use super::schedule::Schedule;
use crate::errno::{ErrnoClass, Rereads};
use crate::limits::{BLOCK, BLOCKING_THREADS, RETRIES_MAX, SHORT_PAUSE};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use turnkv_transfer::Slot;

/// The engine.
pub(crate) struct Blocking {
    shared: Arc<BlockingWork>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct BlockingWork {
    core: Arc<Core>,
    finish: Arc<FinishQueue>,
    state: Mutex<BlockingQueue>,
    wake: Condvar,
}

struct BlockingQueue {
    schedule: Schedule<Operation>,
    stop: bool,
}

impl Blocking {
    /// Starts the threads.
    pub(crate) fn start(
        core: &Arc<Core>,
        finish: &Arc<FinishQueue>,
        inflight_bytes: u64,
    ) -> io::Result<Blocking> {
        let state = Mutex::new(BlockingQueue { schedule: Schedule::new(inflight_bytes), stop: false });
        let (core, finish) = (Arc::clone(core), Arc::clone(finish));
        let shared = Arc::new(BlockingWork { core, finish, state, wake: Condvar::new() });
        let mut threads = Vec::with_capacity(BLOCKING_THREADS);
        for index in 0..BLOCKING_THREADS {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("nvme-block-{index}"));
            threads.push(thread.spawn(move || shared.run())?);
        }
        Ok(Blocking { shared, threads: Mutex::new(threads) })
    }

    /// Queues an operation.
    pub(crate) fn submit(&self, operation: Operation) {
        self.shared.state.lock().schedule.push(operation);
        self.shared.wake.notify_one();
    }

    /// Lets the threads end once nothing is queued; gives their handles.
    pub(crate) fn stop(&self) -> Vec<JoinHandle<()>> {
        self.shared.state.lock().stop = true;
        self.shared.wake.notify_all();
        std::mem::take(&mut *self.threads.lock())
    }
}

impl BlockingWork {
    fn run(&self) {
        let _guard = PoisonOnPanic::new(&self.core, "a thread of the blocking engine");
        let mut header = AlignedBuffer::new(BLOCK);
        let mut batch = Vec::with_capacity(1);
        while let Some(operation) = self.next() {
            let result = match self.core.poisoned() {
                Some(_) => Err(Failure::Poisoned),
                None => transfer(&operation, &mut header),
            };
            let mut state = self.state.lock();
            state.schedule.ended(&operation);
            self.core.counters.inflight_bytes.store(state.schedule.inflight_bytes(), Ordering::Relaxed);
            drop(state);
            self.wake.notify_one(); // room in flight: another thread may start what waits
            batch.push((operation, result));
            self.finish.push_all(&mut batch);
        }
    }

    fn next(&self) -> Option<Operation> {
        let mut state = self.state.lock();
        loop {
            if let Some(operation) = state.schedule.next() {
                self.core.counters.inflight_bytes.store(state.schedule.inflight_bytes(), Ordering::Relaxed);
                return Some(operation);
            }
            if state.stop && state.schedule.is_empty() {
                return None;
            }
            self.wake.wait(&mut state);
        }
    }
}

/// Carries an operation out, whatever it takes.
pub(super) fn transfer(operation: &Operation, header: &mut AlignedBuffer) -> Result<(), Failure> {
    match &operation.work {
        Work::Read { target, .. } => read(operation, target),
        Work::Write { source, record, nonce, .. } => {
            if let Some(block) = header.first_chunk_mut() {
                encode_extent(record, operation.at.segment.into(), nonce, block);
            }
            write(operation, header, source)
        }
    }
}

fn read(operation: &Operation, target: &Slot) -> Result<(), Failure> {
    let bytes = target.len();
    resume(true, bytes, |done| {
        // SAFETY: the range is inside the slot's mapping, which `target` keeps; that nobody else uses it
        // until the call-back is the caller's promise to `NvmeTier::read` (the pool's lease); bytes have no
        // invalid value.
        let rest = unsafe { std::slice::from_raw_parts_mut(target.as_ptr().add(done), bytes - done) };
        operation.file.storage().read_at(rest, operation.payload_offset() + done as u64)
    })
}

fn write(operation: &Operation, header: &[u8], source: &Slot) -> Result<(), Failure> {
    // SAFETY: who leased the slot for writing has committed it, and the pool grants it to nobody until this
    // write has ended; a process that still maps it and writes all the same is found out by the checksum
    // afterwards (`Core::verify_source`).
    let payload = unsafe { source.bytes() };
    resume(false, BLOCK + payload.len(), |done| {
        let offset = operation.header_offset() + done as u64;
        let pieces = if done == 0 { [header, payload] } else { [&payload[done - BLOCK..], &[]] };
        operation.file.storage().write_at(pieces, offset)
    })
}

/// Repeats a transfer until all `bytes` are through. A short one goes on from the last whole block, because
/// O_DIRECT cannot begin inside one: of 12,288 bytes 5,000 came, so the next call begins at 4,096.
fn resume(
    is_read: bool,
    bytes: usize,
    mut step: impl FnMut(usize) -> Result<usize, Errno>,
) -> Result<(), Failure> {
    let (mut done, mut rereads) = (0, Rereads::default());
    for tries in 0..=RETRIES_MAX {
        match step(done) {
            Ok(0) => return Err(Failure::device(is_read, "the file ends before the segment does")),
            Ok(count) if done + count >= bytes => return Ok(()),
            Ok(count) => done = (done + count) / BLOCK * BLOCK,
            Err(errno) => match ErrnoClass::of(errno) {
                ErrnoClass::Interrupted if tries < RETRIES_MAX => {}
                ErrnoClass::Short if tries < RETRIES_MAX => std::thread::sleep(SHORT_PAUSE),
                fault if tries < RETRIES_MAX && rereads.again(is_read, fault) => {}
                _ => return Err(Failure::of(is_read, errno)),
            },
        }
    }
    Err(Failure::device(is_read, &format!("no progress after {RETRIES_MAX} tries")))
}

#[cfg(test)]
mod tests;
