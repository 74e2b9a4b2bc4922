//! The ring's thread: takes operations, submits them, takes completions. Owns: the ring and all it works on.
//! Must not know: the books; what happens after an operation is over.

use super::super::core::{Core, PoisonOnPanic};
use super::super::finish::{FinishQueue, Finished};
use super::super::fixed::Fixed;
use super::super::format::encode_extent;
use super::super::operation::{Failure, Operation, Work};
use super::super::ring_error::RingError;
use super::super::schedule::Schedule;
use super::buffers::Buffers;
use super::flight::{Flight, Flights, Part, PartOutcome, Progress};
use super::inbox::{Inbox, Message};
use crate::limits::{
    BLOCK, INFLIGHT_OPS_MAX, REFUSE_PAUSE, RETRIES_MAX, RING_BACKOFF, RING_BUFFERS_MAX, RING_ENTRIES,
};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use turnkv_transfer::{HugePages, PageMut, Region, RegionOptions};

/// Places in the table of registered buffers: the blocks for headers, the bounce buffers, then the slabs.
const STAGING: usize = 0;
const BOUNCES: usize = 1;
const FIRST_SLAB: usize = 2;

/// Names the completion of the wake-up poll.
const WAKE: u64 = u64::MAX;

/// What the thread gets from whoever starts it.
pub(super) struct Parts {
    pub(super) core: Arc<Core>,
    pub(super) finish: Arc<FinishQueue>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) inflight_bytes: u64,
}

/// The thread's own state. The ring is the first field, so it is dropped first: what it was given outlives
/// it.
pub(super) struct Worker {
    ring: IoUring,
    flights: Flights,
    buffers: Buffers,
    /// Free blocks for headers: as many as there may be writes in flight.
    staging: Vec<PageMut>,
    /// Files registered with the ring, by the number of the file; empty if the kernel has no sparse tables.
    files: Vec<bool>,
    /// A poll of the eventfd is in flight. It has no memory of ours, so it may outlive this thread.
    wake_armed: bool,
    schedule: Schedule<Operation>,
    over: Vec<Finished>,
    stopping: bool,
    parts: Parts,
}

impl Worker {
    /// Makes the ring and registers everything. On the thread that will run it.
    pub(super) fn new(parts: Parts, fixed: Fixed) -> Result<(Worker, Vec<String>), RingError> {
        let ring = build().map_err(RingError::Setup)?;
        let mut warnings = Vec::new();
        let (staging_region, staging) = staging()?;
        let largest =
            fixed.slabs.iter().chain(&fixed.bounces).map(|region| region.len()).max().unwrap_or(BLOCK);
        // As many places as the kernel allows: DRAM may grow.
        let buffers = Buffers::new(&ring, RING_BUFFERS_MAX, largest).unwrap_or_else(|error| {
            warnings.push(format!(
                "this kernel cannot register buffers ({error}): reads and writes cost more CPU"
            ));
            Buffers::empty()
        });
        let file_count = parts.core.device.files() as usize;
        let files = match ring.submitter().register_files_sparse(file_count as u32) {
            Ok(()) => vec![false; file_count],
            Err(_) => Vec::new(),
        };
        let mut worker = Worker {
            ring,
            flights: Flights::new(INFLIGHT_OPS_MAX),
            buffers,
            staging,
            files,
            wake_armed: false,
            schedule: Schedule::new(parts.inflight_bytes),
            over: Vec::new(),
            stopping: false,
            parts,
        };
        worker.register_all(staging_region, fixed, &mut warnings);
        worker.publish();
        Ok((worker, warnings))
    }

    /// Stops at the first refusal: the rest would be refused too.
    fn register_all(&mut self, staging: Arc<Region>, fixed: Fixed, warnings: &mut Vec<String>) {
        let count = fixed.slabs.len();
        let bounces = fixed.bounces.map(|region| (BOUNCES, region));
        let slabs = fixed.slabs.into_iter().enumerate().map(|(index, region)| (FIRST_SLAB + index, region));
        for (index, region) in [(STAGING, staging)].into_iter().chain(bounces).chain(slabs) {
            if let Err(error) = self.buffers.set(&self.ring, index, region) {
                let left = count - index.saturating_sub(FIRST_SLAB);
                warnings.push(format!(
                    "{left} of {count} slabs cannot be registered with the ring ({error}): raise the locked-memory limit \
                     (LimitMEMLOCK=, ulimit -l); until then reads and writes cost more CPU"
                ));
                return;
            }
        }
    }

    /// Works until told to stop and nothing is left.
    pub(super) fn run(mut self) {
        let _guard = PoisonOnPanic::new(&self.parts.core, "the ring thread");
        while let Err(why) = self.serve() {
            // The ring itself failed. What it has in flight stays with it; everything else is refused.
            self.parts.core.poison(&format!("io_uring: {why}"));
            if self.refuse() {
                return;
            }
        }
        // The ring itself goes some time after it is closed; files and slabs should not wait for that.
        let files = self.ring.submitter().unregister_files();
        let buffers = self.ring.submitter().unregister_buffers();
        tracing::debug!(?files, ?buffers, "the ring thread ends");
    }

    fn serve(&mut self) -> Result<(), RingError> {
        loop {
            self.take_messages();
            self.start_queued()?;
            self.hand_over();
            if self.stopping && self.flights.is_empty() && self.schedule.is_empty() {
                return Ok(());
            }
            self.arm()?;
            self.wait()?;
            self.reap()?;
            self.hand_over();
        }
    }

    fn take_messages(&mut self) {
        while let Some(message) = self.parts.inbox.messages.pop() {
            match message {
                Message::Start(operation) => self.schedule.push(operation),
                Message::Register(index, region) => {
                    if let Err(error) = self.buffers.set(&self.ring, index.saturating_add(FIRST_SLAB), region)
                    {
                        tracing::warn!(index, %error, "a renewed slab cannot be registered with the ring");
                    }
                    self.publish();
                }
                Message::Unregister(index) => {
                    if let Err(error) = self.buffers.clear(&self.ring, index.saturating_add(FIRST_SLAB)) {
                        tracing::warn!(index, %error, "a slab that left stays with the ring: its memory goes when the server does");
                    }
                    self.publish();
                }
                Message::Stop => self.stopping = true,
            }
        }
    }

    fn publish(&self) {
        let bytes = self.buffers.registered_bytes();
        self.parts.inbox.registered_bytes.store(bytes, Ordering::Relaxed);
    }

    fn start_queued(&mut self) -> Result<(), RingError> {
        while let Some(operation) = self.schedule.next() {
            if self.parts.core.poisoned().is_some() {
                self.end(operation, Err(Failure::Poisoned));
                continue;
            }
            self.register_file(&operation);
            self.start(operation)?;
        }
        self.publish_inflight();
        Ok(())
    }

    fn publish_inflight(&self) {
        self.parts.core.counters.inflight_bytes.store(self.schedule.inflight_bytes(), Ordering::Relaxed);
    }

    fn start(&mut self, operation: Operation) -> Result<(), RingError> {
        let payload = Progress::of(operation.slot().len());
        let mut flight = Flight {
            operation,
            payload,
            header: Progress::default(),
            pending: 1,
            failure: None,
            staging: None,
        };
        if let Work::Write { record, nonce, .. } = &flight.operation.work {
            // There are as many staging blocks as there may be operations in flight.
            let mut staging = self.staging.pop().ok_or(RingError::NoStaging)?;
            let mut block = [0; BLOCK];
            encode_extent(record, flight.operation.at.segment.into(), nonce, &mut block);
            staging.fill_at(0, &block);
            flight.staging = Some(staging);
            flight.header = Progress::of(BLOCK);
            flight.pending = 2;
        }
        let is_write = flight.staging.is_some();
        let number = match self.flights.add(flight) {
            Ok(number) => number,
            Err(flight) => {
                self.end(flight.operation, Err(Failure::Closed));
                return Err(RingError::TooManyInFlight);
            }
        };
        if is_write {
            self.submit(number, Part::Header)?;
        }
        self.submit(number, Part::Payload)
    }

    /// Registers a file at its first use; it stays until the ring goes, as the file's own descriptor does.
    fn register_file(&mut self, operation: &Operation) {
        let number = operation.file.file as usize;
        if self.files.get(number) == Some(&false) {
            let fd = [operation.file.fd().as_raw_fd()];
            let registered = self.ring.submitter().register_files_update(number as u32, &fd);
            if let Some(known) = self.files.get_mut(number) {
                *known = registered.is_ok();
            }
        }
    }

    fn submit(&mut self, number: usize, part: Part) -> Result<(), RingError> {
        let Some(flight) = self.flights.get(number) else { return Ok(()) };
        let operation = &flight.operation;
        let (slot, progress, offset) = match (part, &flight.staging) {
            (Part::Header, Some(staging)) => (staging.slot(), flight.header, operation.header_offset()),
            _ => (operation.slot(), flight.payload, operation.payload_offset()),
        };
        let target = Target {
            registered_file: self.files.get(operation.file.file as usize) == Some(&true),
            fd: operation.file.fd().as_raw_fd(),
            file: operation.file.file,
            buffer: self.buffers.find(slot),
            is_read: operation.is_read(),
        };
        let pointer = slot.as_ptr().wrapping_add(progress.done);
        let bytes = (progress.bytes - progress.done) as u32;
        let name = (number as u64) << 1 | u64::from(part == Part::Header);
        let entry = target.entry(pointer, bytes, offset + progress.done as u64).user_data(name);
        // SAFETY: the memory is the operation's slot or its staging block, the file is the operation's; all
        // stay in `flights` until the completion of this entry, and `Flights` leaks what never completes.
        unsafe { self.push(&entry) }
    }

    /// # Safety
    /// What the entry points to lives until its completion.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> Result<(), RingError> {
        for _ in 0..RETRIES_MAX {
            // SAFETY: the caller's promise.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.enter(0)?; // the queue is full: the kernel takes what is in it
        }
        Err(RingError::QueueFull)
    }

    /// Keeps one poll of the eventfd in flight, so that a caller can end the wait.
    fn arm(&mut self) -> Result<(), RingError> {
        if self.wake_armed {
            return Ok(());
        }
        let fd = types::Fd(self.parts.inbox.wake.as_raw_fd());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(WAKE);
        // SAFETY: a poll points to no memory; the eventfd is in the inbox, which the worker keeps, and the
        // kernel holds its own reference from the moment it takes the entry.
        unsafe { self.push(&entry)? };
        self.wake_armed = true;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), RingError> {
        let inbox = Arc::clone(&self.parts.inbox);
        inbox.asleep.store(true, Ordering::SeqCst);
        let want = usize::from(inbox.messages.is_empty());
        let entered = self.enter(want);
        inbox.asleep.store(false, Ordering::SeqCst);
        entered
    }

    fn enter(&mut self, want: usize) -> Result<(), RingError> {
        match self.ring.submitter().submit_and_wait(want) {
            Ok(_) => Ok(()),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR | Errno::TIME) => Ok(()),
                // The kernel wants completions taken first, or is short of memory: take them, then try again.
                Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                    if self.ring.completion().is_empty() {
                        std::thread::sleep(RING_BACKOFF);
                    }
                    Ok(())
                }
                _ => Err(RingError::Enter(error)),
            },
        }
    }

    fn reap(&mut self) -> Result<(), RingError> {
        loop {
            let next = self.ring.completion().next();
            let Some(entry) = next else { return Ok(()) };
            if entry.user_data() == WAKE {
                self.wake_armed = false;
                self.parts.inbox.awake()?;
            } else {
                self.complete(entry.user_data(), entry.result())?;
            }
        }
    }

    fn complete(&mut self, name: u64, result: i32) -> Result<(), RingError> {
        let number = (name >> 1) as usize;
        let part = if name & 1 == 1 { Part::Header } else { Part::Payload };
        let Some(flight) = self.flights.get(number) else {
            return Err(RingError::UnknownCompletion(name));
        };
        let progress = if part == Part::Header { &mut flight.header } else { &mut flight.payload };
        match progress.advance(flight.operation.is_read(), result) {
            PartOutcome::Again => return self.submit(number, part),
            PartOutcome::Later => {
                std::thread::sleep(RING_BACKOFF);
                return self.submit(number, part);
            }
            PartOutcome::Failed(failure) => flight.failure = Some(failure),
            PartOutcome::Over => {}
        }
        flight.pending -= 1;
        if flight.pending == 0
            && let Some(flight) = self.flights.remove(number)
        {
            self.staging.extend(flight.staging);
            self.end(flight.operation, flight.failure.map_or(Ok(()), Err));
        }
        Ok(())
    }

    fn end(&mut self, operation: Operation, result: Result<(), Failure>) {
        self.schedule.ended(&operation);
        self.over.push((operation, result));
    }

    fn hand_over(&mut self) {
        if !self.over.is_empty() {
            self.publish_inflight();
            self.parts.finish.push_all(&mut self.over);
        }
    }

    /// After the ring failed: refuses what comes, until told to stop. `true`: stop.
    fn refuse(&mut self) -> bool {
        loop {
            self.take_messages();
            self.over
                .extend(self.schedule.drain().into_iter().map(|queued| (queued, Err(Failure::Poisoned))));
            self.hand_over();
            if self.stopping {
                return true;
            }
            std::thread::sleep(REFUSE_PAUSE);
        }
    }
}

/// Where an entry goes.
struct Target {
    registered_file: bool,
    fd: RawFd,
    file: u32,
    buffer: Option<u16>,
    is_read: bool,
}

impl Target {
    fn entry(&self, pointer: *mut u8, bytes: u32, offset: u64) -> squeue::Entry {
        let (fd, fixed) = (types::Fd(self.fd), types::Fixed(self.file));
        match (self.registered_file, self.buffer, self.is_read) {
            (true, Some(buffer), true) => {
                opcode::ReadFixed::new(fixed, pointer, bytes, buffer).offset(offset).build()
            }
            (true, Some(buffer), false) => {
                opcode::WriteFixed::new(fixed, pointer, bytes, buffer).offset(offset).build()
            }
            (true, None, true) => opcode::Read::new(fixed, pointer, bytes).offset(offset).build(),
            (true, None, false) => opcode::Write::new(fixed, pointer, bytes).offset(offset).build(),
            (false, Some(buffer), true) => {
                opcode::ReadFixed::new(fd, pointer, bytes, buffer).offset(offset).build()
            }
            (false, Some(buffer), false) => {
                opcode::WriteFixed::new(fd, pointer, bytes, buffer).offset(offset).build()
            }
            (false, None, true) => opcode::Read::new(fd, pointer, bytes).offset(offset).build(),
            (false, None, false) => opcode::Write::new(fd, pointer, bytes).offset(offset).build(),
        }
    }
}

/// The best ring this kernel has: completions run when this thread asks for them (6.1), or at least without
/// interrupting it (5.19), or any way.
fn build() -> io::Result<IoUring> {
    let best = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(RING_ENTRIES);
    let good =
        best.or_else(|_| IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(RING_ENTRIES));
    good.or_else(|_| IoUring::builder().build(RING_ENTRIES))
}

/// One block for the header of every write in flight.
fn staging() -> Result<(Arc<Region>, Vec<PageMut>), RingError> {
    let options = RegionOptions {
        bytes: INFLIGHT_OPS_MAX * BLOCK,
        huge_pages: HugePages::Off,
        touch: true,
        lock: false,
        name: "turnkv-staging".to_owned(),
    };
    let (region, _) = Region::create(&options).map_err(RingError::Staging)?;
    let block = |index| region.slot(index * BLOCK, BLOCK)?.claim().ok();
    let blocks: Vec<PageMut> = (0..INFLIGHT_OPS_MAX).filter_map(block).collect();
    Ok((region, blocks))
}
