//! What all threads of one tier share: the device, the books, poison, counters, and how an operation ends.
//!
//! Owns: admission (bounded, closed, poisoned), the end of every operation. Must not know: how the bytes are
//! carried.
//!
//! Locks: `books` is held for bookkeeping only, never across I/O or a call-back.

use super::device::Device;
use super::log::Log;
use super::operation::{Failure, Operation, PackedRead, Source, Work};
use super::rate::Rate;
use super::segment_file::SegmentFile;
use crate::limits::BLOCK_BYTES;
use crate::tier::{Done, ExtentMeta, Location, TierError};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use turnkv_codec::{Decoder, DeviceRates, Path};
use turnkv_transfer::{Checksum, PageMut, Slot};

/// A write without a place yet: the next segment is being prepared.
pub(crate) struct Pending {
    pub(crate) meta: ExtentMeta,
    pub(crate) source: Slot,
    pub(crate) reserve: bool,
    pub(crate) done: Done<Location>,
}

/// How the keeper is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Seal what is open first.
    Seal,
    /// At once, as after a crash.
    Now,
}

/// The books and what waits for them.
pub(crate) struct Books {
    pub(crate) log: Log,
    /// Writes that wait for a segment: those that reclaim moves first, then the others, each oldest first.
    /// Bounded by admission.
    pub(crate) waiting: VecDeque<Pending>,
    pub(crate) stop: Option<Stop>,
}

/// Counters since start, and gauges the engines keep.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) stored_bytes: AtomicU64,
    pub(crate) device_written_bytes: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) release_syncs: AtomicU64,
    pub(crate) unreadable_extents: AtomicU64,
    pub(crate) damaged_segments: AtomicU64,
    pub(crate) checksum_failures: AtomicU64,
    pub(crate) changed_writes: AtomicU64,
    pub(crate) shortages: AtomicU64,
    pub(crate) inflight_bytes: AtomicU64,
}

/// What the threads share.
pub(crate) struct Core {
    pub(crate) device: Device,
    pub(crate) books: Mutex<Books>,
    /// Wakes the keeper: there is a chore, or a stop.
    pub(crate) chore: Condvar,
    pub(crate) counters: Counters,
    read_rate: Mutex<Rate>,
    write_rate: Mutex<Rate>,
    decoders: Mutex<Vec<Decoder>>,
    poison: OnceLock<String>,
    closed: AtomicBool,
    short: AtomicBool,
    /// Held while a file is synced: the kernel tells a failed write-back to one caller only.
    syncing: Mutex<()>,
    ops: AtomicUsize,
    ops_max: usize,
}

impl Core {
    pub(crate) fn new(device: Device, log: Log, ops_max: usize) -> Core {
        Core {
            device,
            books: Mutex::new(Books { log, waiting: VecDeque::new(), stop: None }),
            chore: Condvar::new(),
            counters: Counters::default(),
            read_rate: Mutex::new(Rate::new()),
            write_rate: Mutex::new(Rate::new()),
            decoders: Mutex::default(),
            poison: OnceLock::new(),
            closed: AtomicBool::new(false),
            short: AtomicBool::new(false),
            syncing: Mutex::new(()),
            ops: AtomicUsize::new(0),
            ops_max,
        }
    }

    /// Now, by the device's clock.
    pub(crate) fn now(&self) -> Instant {
        self.device.clock.now()
    }

    /// Takes the device out of service, once.
    pub(crate) fn poison(&self, why: &str) {
        if self.poison.set(why.to_owned()).is_ok() {
            tracing::error!(why, "the NVMe tier is out of service; the pool goes on without it");
            // With the lock, so that the keeper is either before its check or already waiting.
            let books = self.books.lock();
            self.chore.notify_all();
            drop(books);
        }
    }

    /// Why the device is out of service, if it is.
    pub(crate) fn poisoned(&self) -> Option<&str> {
        self.poison.get().map(String::as_str)
    }

    /// The system was short of something for the tier. Said once, until something succeeds again.
    pub(crate) fn ran_short(&self, why: &str) {
        self.counters.shortages.fetch_add(1, Ordering::Relaxed);
        if !self.short.swap(true, Ordering::Relaxed) {
            tracing::warn!(why, "the NVMe tier waits for memory or descriptors: what waits is tried again");
        }
    }

    /// Something succeeded.
    pub(crate) fn went_well(&self) {
        if self.is_short() {
            self.short.store(false, Ordering::Relaxed);
            tracing::info!("the NVMe tier has what it needs again");
        }
    }

    /// Is the system short of something now?
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::Relaxed)
    }

    /// Brings a file to stable storage. Who hears of a failure poisons the device before anyone else can sync
    /// the same file and hear that all is well.
    pub(crate) fn sync_file(&self, file: &SegmentFile) -> io::Result<()> {
        let guard = self.syncing.lock();
        let synced = file.sync();
        if let Err(error) = &synced {
            self.poison(&format!("fdatasync: {error}"));
        }
        drop(guard);
        synced
    }

    /// No further operation is accepted.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// May anything be asked at all?
    pub(crate) fn check_open(&self) -> Result<(), TierError> {
        if self.poisoned().is_some() {
            return Err(TierError::Poisoned);
        }
        if self.closed.load(Ordering::SeqCst) { Err(TierError::Closed) } else { Ok(()) }
    }

    /// Accepts an operation: it must end in [`Core::retire`] before its call-back is called. Counted first
    /// and checked after, so that closing, which sets the flag and then waits for the count, overlooks none.
    pub(crate) fn admit(&self) -> Result<(), TierError> {
        let before = self.ops.fetch_add(1, Ordering::SeqCst);
        let answer = if before >= self.ops_max { Err(TierError::Busy) } else { self.check_open() };
        if answer.is_err() {
            self.retire();
        }
        answer
    }

    /// An accepted operation has ended.
    pub(crate) fn retire(&self) {
        let before = self.ops.fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "an operation ends once");
    }

    /// Operations accepted and not ended.
    pub(crate) fn ops(&self) -> usize {
        self.ops.load(Ordering::SeqCst)
    }

    /// An operation goes to the device.
    pub(crate) fn began(&self, is_read: bool) {
        self.rate(is_read).lock().began(self.now());
    }

    /// How fast the device is, as far as it has shown.
    pub(crate) fn rates(&self) -> DeviceRates {
        let read_bytes_per_s = self.read_rate.lock().bytes_per_s();
        DeviceRates { read_bytes_per_s, write_bytes_per_s: self.write_rate.lock().bytes_per_s() }
    }

    fn rate(&self, is_read: bool) -> &Mutex<Rate> {
        if is_read { &self.read_rate } else { &self.write_rate }
    }

    /// An operation could not even begin: there was no memory for it.
    pub(crate) fn finish_unbegun(&self, operation: Operation) {
        self.began(operation.is_read());
        self.finish(operation, Err(Failure::Short("no memory for packed bytes".to_owned())));
    }

    /// An operation is over: settles the books, releases its slot, tells its caller.
    pub(crate) fn finish(&self, operation: Operation, result: Result<(), Failure>) {
        self.rate(operation.is_read()).lock().ended(operation.device_bytes(), self.now());
        let Operation { at, work, file } = operation;
        drop(file);
        match &result {
            Ok(()) => self.went_well(),
            Err(Failure::Io(why)) => self.poison(why),
            Err(Failure::Short(why)) => self.ran_short(why),
            Err(
                Failure::Unreadable(_)
                | Failure::Full
                | Failure::Changed
                | Failure::Poisoned
                | Failure::Closed,
            ) => {}
        }
        match work {
            Work::Read { target, packed, bytes, checksum, done } => {
                let result = match packed {
                    None => self.verify(at, result, checksum, || target.seal().checksum_of(bytes as usize)),
                    Some(packed) => self.verify_packed(at, result, checksum, packed, target, bytes),
                };
                if result.is_ok() {
                    self.counters.reads.fetch_add(1, Ordering::Relaxed);
                    self.counters.read_bytes.fetch_add(u64::from(bytes), Ordering::Relaxed);
                }
                let mut books = self.books.lock();
                let worn = matches!(result, Err(TierError::Unreadable(_))) && books.log.unreadable(at, bytes);
                books.log.read_ended(at);
                let vacated = books.log.has_vacant();
                drop(books);
                if worn {
                    tracing::warn!(
                        segment = at.segment,
                        "several extents of this segment cannot be read: it is not written again; look at the device"
                    );
                }
                if vacated {
                    self.chore.notify_one();
                }
                self.retire();
                call(done, result);
            }
            Work::Write { source, record, done, .. } => {
                let written = source.slot().len() as u64 + BLOCK_BYTES;
                let result = result.and_then(|()| self.verify_source(&source, &record.meta));
                drop(source);
                let mut books = self.books.lock();
                books.log.written(at, record.meta.payload_bytes, result.is_ok());
                let sealable = books.log.has_full();
                drop(books);
                if sealable {
                    self.chore.notify_one();
                }
                if result.is_ok() {
                    self.counters.writes.fetch_add(1, Ordering::Relaxed);
                    self.counters.device_written_bytes.fetch_add(written, Ordering::Relaxed);
                    let payload = u64::from(record.meta.payload_bytes);
                    self.counters.written_bytes.fetch_add(payload, Ordering::Relaxed);
                    let stored = u64::from(record.stored_bytes);
                    self.counters.stored_bytes.fetch_add(stored, Ordering::Relaxed);
                }
                self.retire();
                call(done, result.map(|()| at).map_err(|failure| failure.into_error(at)));
            }
        }
    }

    /// Whether the bytes that were written are those of the checksum. Looked at after the device has read
    /// them, so that a process that still maps them and writes to them meanwhile is found out, too. What was
    /// packed was looked at when it was.
    fn verify_source(&self, source: &Source, meta: &ExtentMeta) -> Result<(), Failure> {
        let Source::Page(slot) = source else { return Ok(()) };
        if slot.page().checksum_of(meta.payload_bytes as usize) == meta.checksum {
            return Ok(());
        }
        self.counters.changed_writes.fetch_add(1, Ordering::Relaxed);
        Err(Failure::Changed)
    }

    fn verify(
        &self,
        at: Location,
        result: Result<(), Failure>,
        expected: u64,
        checksum: impl FnOnce() -> u64,
    ) -> Result<(), TierError> {
        if let Err(failure) = result {
            if let Failure::Unreadable(why) = &failure {
                self.counters.unreadable_extents.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(segment = at.segment, block = at.block, why, "an extent cannot be read");
            }
            return Err(failure.into_error(at));
        }
        if checksum() != expected {
            self.counters.checksum_failures.fetch_add(1, Ordering::Relaxed);
            return Err(TierError::Checksum(at));
        }
        Ok(())
    }

    /// Decodes into the page, and checks what it copies there.
    fn verify_packed(
        &self,
        at: Location,
        result: Result<(), Failure>,
        expected: u64,
        packed: PackedRead,
        mut page: PageMut,
        bytes: u32,
    ) -> Result<(), TierError> {
        if result.is_err() {
            return self.verify(at, result, expected, || expected);
        }
        let spare = self.decoders.lock().pop();
        let decoder = spare.map_or_else(|| Decoder::new(Path::best()), Ok);
        let Ok(mut decoder) = decoder else {
            self.ran_short("no memory to decode a page");
            return Err(TierError::Busy);
        };
        let encoded = packed.target.slot().page();
        let mut sum = Checksum::new();
        let read = |at: usize, piece: &mut [u8]| encoded.copy_to(at, piece);
        let write = |at: usize, piece: &[u8]| page.fill_part(at, piece, &mut sum);
        let decoded = decoder.decode(packed.stored_bytes as usize, bytes, read, write);
        self.decoders.lock().push(decoder);
        let sum = decoded.map(|()| sum.finish());
        // Whatever does not decode is not what was written.
        self.verify(at, Ok(()), expected, || sum.unwrap_or(!expected))
    }
}

/// A thread that others rely on takes the device out of service when it panics, instead of leaving them
/// waiting.
pub(crate) struct PoisonOnPanic {
    core: Arc<Core>,
    who: &'static str,
}

impl PoisonOnPanic {
    pub(crate) fn new(core: &Arc<Core>, who: &'static str) -> PoisonOnPanic {
        PoisonOnPanic { core: Arc::clone(core), who }
    }
}

impl Drop for PoisonOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.core.poison(&format!("{} panicked: this is a bug", self.who));
        }
    }
}

/// Calls back. A caller's panic is its own: it must not take a thread of the tier with it.
pub(crate) fn call<T>(done: Done<T>, result: Result<T, TierError>) {
    if catch_unwind(AssertUnwindSafe(|| done(result))).is_err() {
        tracing::error!("a call-back of the NVMe tier panicked");
    }
}
