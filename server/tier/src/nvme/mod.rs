//! The NVMe tier: a log of segments on a directory or a block device.
//!
//! Owns: its public face and the life of its threads. Must not know: DRAM slabs' accounting, sessions,
//! leases.
//!
//! A write takes the next place in the open segment and goes to the engine; when it has landed it is alive. A
//! full segment gets a footer. Reclaim hands out a segment that pays, its owner saves what is worth it and
//! releases it.
//!
//! - `config`: what is asked for and what opening says
//! - `format`: every byte on the device
//! - `descriptors`: file descriptors that it needs
//! - `device`: directory or block device, the lock, whole-block I/O of the control plane
//! - `superblock`: its two copies, and what one or none of them good means
//! - `segment`, `bits`, `log`: the books; pure
//! - `notes`: what is known of extents that their bytes do not tell, across restarts
//! - `recover`: reading the books back
//! - `core`: what the threads share: admission, poison, the end of an operation
//! - `operation`, `schedule`: reads and writes on their way; `placer`: where a write goes, and which waits
//! - `engine`, `ring`, `blocking`, `simulated_engine`: how they reach the device
//! - `finish`, `flush`, `keeper`: the threads beside the engine
//! - `buffer`: aligned memory for the control plane
//! - `storage`, `time`: the seam to files, clock and randomness, real or simulated; `segment_file`,
//!   `open_mode`: what they share
//! - `simulated_disk`: a disk that fails as it is told; `simulation`: the tier on it without threads (feature
//!   `simulation`)

mod bits;
mod blocking;
mod bounce;
mod buffer;
mod choice;
mod config;
mod core;
mod descriptors;
mod device;
mod engine;
mod finish;
mod fixed;
mod flush;
mod format;
mod keeper;
mod lock;
mod log;
mod notes;
mod open_mode;
mod operation;
mod packed;
mod packing;
mod placer;
mod rate;
mod reclaim;
mod recover;
mod ring;
mod ring_error;
mod schedule;
mod segment;
mod segment_file;
#[cfg(feature = "simulation")]
mod simulated_disk;
#[cfg(feature = "simulation")]
mod simulated_engine;
#[cfg(feature = "simulation")]
pub mod simulation;

mod storage;
mod superblock;
mod threads;
mod time;

use crate::limits::{CLOSE_POLL, CLOSE_WAIT, PAYLOAD_BYTES_MAX};
use crate::tier::{Done, ExtentMeta, Location, TierError, Usage};
use bounce::{Bounce, BounceBuffers};
use core::{Core, Pending, Stop};
use device::Device;
use engine::Driver;
use finish::FinishQueue;
use fixed::Fixed;
use flush::Flushes;
use format::padded;
use log::Log;
use operation::{Operation, PackedRead, Work, padded_slot};
use packing::Packer;
use parking_lot::Mutex;
use placer::Placer;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;
use turnkv_transfer::{Region, Slot};

pub use config::{
    Candidate, Engine, NvmeConfig, OpenError, OpenReport, Packing, Peeked, Recovered, SealedSegment, TierId,
};
pub use log::SegmentNote;
pub use ring_error::RingError;
pub use turnkv_codec::Codec;

/// The tier. Dropping it without [`NvmeTier::shutdown`] leaves the device as a crash would, after what is in
/// flight.
pub struct NvmeTier {
    placer: Arc<Placer>,
    finish: Arc<FinishQueue>,
    flushes: Arc<Flushes>,
    threads: Mutex<Threads>,
}

/// A place that is this process's, and was not read yet.
pub struct Claimed {
    device: Device,
    config: NvmeConfig,
    report: OpenReport,
}

impl Claimed {
    /// Which tier it has.
    pub fn id(&self) -> TierId {
        TierId(self.device.id)
    }

    /// Whether it was empty.
    pub fn is_new(&self) -> bool {
        self.device.is_new
    }

    /// Reads back what is there and starts the threads. `fixed`: the slabs, in order of their numbers.
    pub fn open(self, fixed: Vec<Arc<Region>>) -> Result<(NvmeTier, Vec<Recovered>, OpenReport), OpenError> {
        let Claimed { device, config, mut report } = self;
        let (core, recovered) = read_back(device, &config, &mut report)?;
        let finish = Arc::new(FinishQueue::default());
        let packer = packer(&config, &core, false)?;
        let bounces = packer.bounces().map(|bounces| Arc::clone(bounces.region()));
        let fixed = Fixed { slabs: fixed, bounces };
        let driver = Driver::start(&config, &core, &finish, fixed, &mut report)?;
        let tier = NvmeTier::new(core, driver, finish, packer);
        let threads =
            |source| OpenError::Io { what: "cannot start threads for", path: config.path.clone(), source };
        tier.start_threads().map_err(threads)?;
        Ok((tier, recovered, report))
    }
}

#[derive(Default)]
struct Threads {
    keeper: Option<JoinHandle<()>>,
    flusher: Option<JoinHandle<()>>,
    finishers: Vec<JoinHandle<()>>,
    packers: Vec<JoinHandle<()>>,
    closed: bool,
}

impl NvmeTier {
    /// [`NvmeTier::claim`] and [`Claimed::open`] in one.
    pub fn open(
        config: NvmeConfig,
        fixed: Vec<Arc<Region>>,
    ) -> Result<(NvmeTier, Vec<Recovered>, OpenReport), OpenError> {
        NvmeTier::claim(config)?.open(fixed)
    }

    /// Takes the place for this process, and finds out which tier it has. Nothing of what the tier holds is
    /// touched.
    pub fn claim(config: NvmeConfig) -> Result<Claimed, OpenError> {
        let mut report = OpenReport::default();
        let device = Device::open(&config, &mut report.warnings)?;
        Ok(Claimed { device, config, report })
    }

    /// What a place holds, where that can be read without taking it.
    pub fn peek(path: &Path) -> Option<Peeked> {
        superblock::peek(path)
    }

    /// Which tier this is.
    pub fn id(&self) -> TierId {
        TierId(self.placer.core.device.id)
    }

    /// Whether its place was empty when it was opened.
    pub fn is_new(&self) -> bool {
        self.placer.core.device.is_new
    }

    fn new(core: Arc<Core>, driver: Driver, finish: Arc<FinishQueue>, packer: Arc<Packer>) -> NvmeTier {
        let placer = Arc::new(Placer { core, engine: driver, packer });
        let flushes = Arc::new(Flushes::default());
        NvmeTier { placer, finish, flushes, threads: Mutex::new(Threads::default()) }
    }

    fn start_threads(&self) -> io::Result<()> {
        let mut threads = self.threads.lock();
        threads.finishers = finish::start(&self.placer.core, &self.finish)?;
        let placer = Arc::clone(&self.placer);
        let keeper = std::thread::Builder::new().name("nvme-keeper".to_owned());
        threads.keeper = Some(keeper.spawn(move || keeper::run(&placer))?);
        let (core, flushes) = (Arc::clone(&self.placer.core), Arc::clone(&self.flushes));
        let flusher = std::thread::Builder::new().name("nvme-flush".to_owned());
        threads.flusher = Some(flusher.spawn(move || flushes.run(&core))?);
        let placer = Arc::clone(&self.placer);
        let hand_on = move |pending| placer.packed(pending);
        threads.packers = packing::start(&self.placer.core, &self.placer.packer, hand_on)?;
        Ok(())
    }

    /// A slab was renewed: its new memory takes the old one's place among the registered buffers. Never
    /// blocks.
    pub fn register(&self, index: usize, region: Arc<Region>) {
        self.placer.engine.register(index, region);
    }

    /// A slab's memory goes: the kernel lets go of it. Never blocks.
    pub fn unregister(&self, index: usize) {
        self.placer.engine.unregister(index);
    }

    /// Slab bytes registered with the kernel now.
    pub fn registered_bytes(&self) -> u64 {
        self.placer.engine.registered_bytes()
    }

    /// File descriptors that this tier holds from its opening to its end, and will not need more of: what a
    /// limit of the process's must leave to it.
    pub fn descriptors(&self) -> u64 {
        self.placer.core.device.descriptors()
    }

    /// [`NvmeTier::write`] for extents that reclaim moves: may also take the segment that is kept in reserve for
    /// them.
    pub fn rewrite(&self, meta: ExtentMeta, source: Slot, done: Done<Location>) {
        self.accept(Pending { meta, source, reserve: true, done });
    }

    /// Why the device is out of service, if it is.
    pub fn poisoned(&self) -> Option<String> {
        self.placer.core.poisoned().map(str::to_owned)
    }

    /// Finishes what was accepted, seals the open segment, brings everything to stable storage and ends the
    /// threads. Bounded: a device that does not answer is left behind with what it holds, and that is the
    /// error.
    pub fn shutdown(&self) -> Result<(), TierError> {
        self.close(Stop::Seal)
    }

    fn accept(&self, pending: Pending) {
        if let Err(error) = self.placer.core.admit() {
            return core::call(pending.done, Err(error));
        }
        match check_write(&self.placer.core, &pending) {
            Ok(source) => self.placer.place(Pending { source, ..pending }),
            Err(error) => {
                self.placer.core.retire();
                core::call(pending.done, Err(error));
            }
        }
    }

    /// Changes the books so that a segment may become free.
    fn end_extent(&self, end: impl FnOnce(&mut Log)) {
        let mut books = self.placer.core.books.lock();
        end(&mut books.log);
        let vacated = books.log.has_vacant();
        drop(books);
        if vacated {
            self.placer.core.chore.notify_one();
        }
    }

    fn close(&self, stop: Stop) -> Result<(), TierError> {
        let mut threads = self.threads.lock();
        if std::mem::replace(&mut threads.closed, true) {
            return Ok(());
        }
        let core = &self.placer.core;
        let deadline = core.now() + CLOSE_WAIT;
        core.close();
        let mut in_time = self.wait_until(deadline, || core.ops() == 0);
        core.books.lock().stop = Some(if in_time { stop } else { Stop::Now });
        core.chore.notify_all();
        self.placer.packer.stop();
        in_time &= self.join(deadline, std::mem::take(&mut threads.packers));
        in_time &= self.join(deadline, threads.keeper.take());
        self.flushes.stop();
        in_time &= self.join(deadline, threads.flusher.take());
        #[cfg(feature = "simulation")]
        self.step_without_threads();
        let synced = if in_time && stop == Stop::Seal { flush::sync(core) } else { Ok(()) };
        in_time &= self.join(deadline, self.placer.engine.stop());
        self.finish.stop();
        in_time &= self.join(deadline, std::mem::take(&mut threads.finishers));
        if in_time { synced } else { Err(TierError::Io("the device did not finish in time".to_owned())) }
    }

    fn wait_until(&self, deadline: Instant, done: impl Fn() -> bool) -> bool {
        while !done() {
            if self.placer.core.now() >= deadline {
                return false;
            }
            #[cfg(feature = "simulation")]
            self.step_without_threads();
            self.placer.core.device.clock.sleep(CLOSE_POLL);
        }
        true
    }

    /// Joins threads that end in time; the others keep what they own.
    fn join(&self, deadline: Instant, threads: impl IntoIterator<Item = JoinHandle<()>>) -> bool {
        threads.into_iter().all(|thread| {
            self.wait_until(deadline, || thread.is_finished())
                && thread
                    .join()
                    .inspect_err(|_| tracing::error!("a thread of the NVMe tier panicked"))
                    .is_ok()
        })
    }
}

impl Drop for NvmeTier {
    fn drop(&mut self) {
        if let Err(error) = self.close(Stop::Now) {
            tracing::error!(%error, "the NVMe tier was not closed cleanly");
        }
    }
}

/// Extents. No call blocks; every outcome comes through [`Done`]. An operation accepted owns its [`Slot`]: it is
/// released when the device is done with it, whatever becomes of the caller.
impl NvmeTier {
    /// Writes one extent. The slot starts at a multiple of 4 KiB, and its bytes up to the next such multiple after
    /// the payload belong to it. Done when it would survive the process, not yet power loss: that is
    /// [`NvmeTier::flush`]. The source is verified once it was written: bytes that somebody changed meanwhile are
    /// void.
    pub fn write(&self, meta: ExtentMeta, source: Slot, done: Done<Location>) {
        self.accept(Pending { meta, source, reserve: false, done });
    }

    /// Reads one extent's payload of `bytes` into `target` (aligned and padded as for a write) and verifies it.
    pub fn read(&self, at: Location, bytes: u32, checksum: u64, target: Slot, done: Done<()>) {
        let core = &self.placer.core;
        if let Err(error) = core.admit() {
            return core::call(done, Err(error));
        }
        let target = check_payload(bytes).and_then(|()| padded_slot(&target, bytes)).and_then(|slot| {
            slot.claim().map_err(|_| TierError::Invalid("the slot is being written by somebody else"))
        });
        let begun = target.and_then(|target| {
            let begun = core.books.lock().log.begin_read(at, bytes);
            begun.map(|(file, stored_bytes)| (file, stored_bytes, target)).ok_or(TierError::Stale(at))
        });
        match begun {
            Ok((file, stored_bytes, target)) if stored_bytes == bytes => {
                let work = Work::Read { target, packed: None, bytes, checksum, done };
                self.placer.begin(Operation { file, at, work });
            }
            Ok((file, stored_bytes, target)) => {
                let work = move |packed| Work::Read { target, packed, bytes, checksum, done };
                self.read_packed(stored_bytes, move |packed| Operation { file, at, work: work(packed) });
            }
            Err(error) => {
                core.retire();
                core::call(done, Err(error));
            }
        }
    }

    /// Reads by way of other memory, when there is some.
    fn read_packed(
        &self,
        stored_bytes: u32,
        operation: impl FnOnce(Option<PackedRead>) -> Operation + Send + 'static,
    ) {
        // Where anything is packed there is memory for it.
        let Some(bounces) = self.placer.packer.bounces() else {
            return self.placer.core.finish_unbegun(operation(None));
        };
        let placer = Arc::clone(&self.placer);
        let go_on = move |bounce: Bounce| match bounce.slot().claim() {
            Ok(target) => {
                let operation = operation(Some(PackedRead { target, stored_bytes, bounce }));
                placer.begin(operation);
            }
            Err(_) => placer.core.finish_unbegun(operation(None)),
        };
        bounces.when_free(padded(stored_bytes) as usize, Box::new(go_on));
    }

    /// Done when everything whose write was done before this call is on stable storage.
    pub fn flush(&self, done: Done<()>) {
        if let Err(error) = self.placer.core.check_open() {
            return core::call(done, Err(error));
        }
        if let Err((done, error)) = self.flushes.push(done) {
            core::call(done, Err(error));
        }
    }

    /// The extent is dead. Reads of it that have begun end well. An unknown extent is ignored.
    pub fn forget(&self, at: Location, payload_bytes: u32) {
        self.end_extent(|log| log.forget(at, payload_bytes));
    }

    /// Gauges and counters now.
    pub fn usage(&self) -> Usage {
        let core = &self.placer.core;
        let counters = &core.counters;
        let segment_bytes = core.device.segment_bytes;
        let books = core.books.lock();
        let (live_bytes, live_extents) = books.log.live();
        Usage {
            capacity_bytes: books.log.capacity_segments() * segment_bytes,
            used_bytes: books.log.used_segments() * segment_bytes,
            live_bytes,
            live_extents,
            free_segments: books.log.free_segments(),
            disk_full: books.log.disk_full(),
            surplus_segments: books.log.surplus_segments(),
            read_bytes: counters.read_bytes.load(Ordering::Relaxed),
            written_bytes: counters.written_bytes.load(Ordering::Relaxed),
            stored_bytes: counters.stored_bytes.load(Ordering::Relaxed),
            device_written_bytes: counters.device_written_bytes.load(Ordering::Relaxed),
            reads: counters.reads.load(Ordering::Relaxed),
            writes: counters.writes.load(Ordering::Relaxed),
            syncs: counters.syncs.load(Ordering::Relaxed),
            release_syncs: counters.release_syncs.load(Ordering::Relaxed),
            waiting_segments: books.log.waiting_segments(),
            unreadable_extents: counters.unreadable_extents.load(Ordering::Relaxed),
            retired_segments: books.log.worn_segments(),
            damaged_segments: counters.damaged_segments.load(Ordering::Relaxed),
            checksum_failures: counters.checksum_failures.load(Ordering::Relaxed),
            changed_writes: counters.changed_writes.load(Ordering::Relaxed),
            shortages: counters.shortages.load(Ordering::Relaxed),
            short: core.is_short(),
            inflight_bytes: counters.inflight_bytes.load(Ordering::Relaxed),
            queued_ops: core.ops() as u64,
            poisoned: core.poisoned().is_some(),
        }
    }
}

/// The core of a device, with the books as they are read back from it.
fn read_back(
    device: Device,
    config: &NvmeConfig,
    report: &mut OpenReport,
) -> Result<(Arc<Core>, Vec<Recovered>), OpenError> {
    let started = device.clock.now();
    report.direct = device.direct();
    report.segments = device.segments;
    report.segment_bytes = device.segment_bytes;
    let io = |source| OpenError::Io { what: "cannot recover", path: config.path.clone(), source };
    let (log, recovered) = recover::recover(&device, report).map_err(io)?;
    report.elapsed = device.clock.now() - started;
    let core = Core::new(device, log, config.queue_ops_max);
    core.counters.damaged_segments.store(u64::from(report.damaged), Ordering::Relaxed);
    Ok((Arc::new(core), recovered))
}

/// What packs pages: with memory for that if pages are to be packed, or some are.
fn packer(config: &NvmeConfig, core: &Core, inline: bool) -> Result<Arc<Packer>, OpenError> {
    let needed = config.packing != Packing::Off || core.books.lock().log.has_packed();
    let what = "there is no memory to pack pages for";
    let failed = |source| OpenError::Io { what, path: config.path.clone(), source };
    let bounces =
        needed.then(|| BounceBuffers::create(config.inflight_bytes, !inline)).transpose().map_err(failed)?;
    Ok(Arc::new(Packer::new(config.packing, bounces, inline)))
}

fn check_payload(bytes: u32) -> Result<(), TierError> {
    match bytes {
        0 => Err(TierError::Invalid("an empty payload")),
        1..=PAYLOAD_BYTES_MAX => Ok(()),
        _ => Err(TierError::Invalid("a payload of more than 64 MiB")),
    }
}

fn check_write(core: &Core, pending: &Pending) -> Result<Slot, TierError> {
    let meta = &pending.meta;
    check_payload(meta.payload_bytes)?;
    if meta.shard >= meta.shards {
        return Err(TierError::Invalid("a shard's number is below the number of shards"));
    }
    if !core.books.lock().log.fits(meta.payload_bytes) {
        return Err(TierError::Invalid("the payload is larger than a segment"));
    }
    padded_slot(&pending.source, meta.payload_bytes)
}
