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
use super::segment_file::SegmentFile;
use crate::errno::{ErrnoClass, Rereads};
use crate::limits::{BLOCK, BLOCKING_THREADS, RETRIES_MAX, SHORT_PAUSE};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use turnkv_transfer::Page;

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
        while let Some(mut operation) = self.next() {
            let result = match self.core.poisoned() {
                Some(_) => Err(Failure::Poisoned),
                None => transfer(&mut operation, &mut header),
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
pub(super) fn transfer(operation: &mut Operation, header: &mut AlignedBuffer) -> Result<(), Failure> {
    let (header_offset, payload_offset) = (operation.header_offset(), operation.payload_offset());
    let Operation { file, at, work } = operation;
    match work {
        Work::Read { target, packed, .. } => {
            let target = packed.as_mut().map_or(target, |packed| &mut packed.target);
            resume(true, target.slot().len(), |done| {
                file.storage().read_into(target, done, payload_offset + done as u64)
            })
        }
        Work::Write { source, record, nonce, .. } => {
            if let Some(block) = header.first_chunk_mut() {
                encode_extent(record, at.segment.into(), nonce, block);
            }
            write(file, header_offset, header, &source.slot().page())
        }
    }
}

/// Header, then payload. A process that still maps the slot and writes there is found out by the checksum
/// afterwards (`Core::verify_source`).
fn write(file: &SegmentFile, offset: u64, header: &[u8], payload: &Page) -> Result<(), Failure> {
    resume(false, BLOCK + payload.slot().len(), |done| {
        let (header, from) = if done == 0 { (header, 0) } else { (&[][..], done - BLOCK) };
        file.storage().write_from(header, payload, from, offset + done as u64)
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
