//! A device that is none: a driver whose streams and link are clocks. Copies take the time that an H200 took for such copies and move no
//! byte, and each call keeps the calling thread for as long as CUDA's own calls are said to. Owns: that model. Must not know: who calls it.
//!
//! What a call through the client takes beside its copies is work of the CPU: threads that wake each other, tables, messages to the
//! server. That is what this shows on any machine; what a GPU does it does not show.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use turnkv_transfer::device::{
    CopyRequest, DeviceAddress, DeviceError, DeviceErrorKind, DeviceMemory, Driver, Event, Kernel,
    PagePieces, Piece, Priority, Stream,
};

/// Bytes a second over the link, each way: what one plain copy reached on an H200.
pub(crate) const LINK: f64 = 54.5e9;
/// Bytes a second that kernels copy within the device, and that checksums are taken of.
const WITHIN: f64 = 280e9;
/// The share of the link that a kernel reaches.
const KERNEL_SHARE: f64 = 0.91;
/// Device time of one copy call beside its bytes.
const COPY_TIME: Duration = Duration::from_nanos(2_600);
/// The least that a piece of a batch takes, however small it is.
const BATCH_PIECE_TIME_MIN: Duration = Duration::from_nanos(850);
/// Device time of a kernel beside its bytes.
const KERNEL_TIME: Duration = Duration::from_micros(4);
/// For how long calls keep their thread: one that enqueues work, a piece of a batch, one about an event.
const CALL: Duration = Duration::from_nanos(2_500);
/// See [`CALL`].
const BATCH_PIECE_CALL: Duration = Duration::from_nanos(100);
/// See [`CALL`].
const EVENT_CALL: Duration = Duration::from_nanos(600);
/// Where its memory begins: an address that no host memory has.
const BASE: DeviceAddress = 1 << 56;
/// What it says that it has.
const BYTES: u64 = 139 << 30;

/// The model.
#[derive(Debug)]
pub(crate) struct Modelled {
    clocks: Mutex<Clocks>,
}

#[derive(Debug)]
struct Clocks {
    next: u64,
    /// Until when each stream is at work, and the link each way.
    streams: HashMap<u64, Instant>,
    link: [Instant; 2],
    events: HashMap<u64, Instant>,
    /// From where tables were copied to the device.
    tables: BTreeMap<DeviceAddress, DeviceAddress>,
    /// Pinned memory of the host: where it begins, and its words.
    pinned: BTreeMap<usize, usize>,
}

impl Modelled {
    /// An idle one.
    pub(crate) fn new() -> Modelled {
        let now = Instant::now();
        let clocks = Clocks {
            next: BASE,
            streams: HashMap::new(),
            link: [now; 2],
            events: HashMap::new(),
            tables: BTreeMap::new(),
            pinned: BTreeMap::new(),
        };
        Modelled { clocks: Mutex::new(clocks) }
    }

    fn clocks(&self) -> std::sync::MutexGuard<'_, Clocks> {
        self.clocks.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        let mut clocks = self.clocks();
        clocks.next += 1;
        clocks.next
    }
}

impl Clocks {
    /// Work in a stream that takes so long; over the link, where it is none within the device.
    fn work(&mut self, stream: Stream, over: Option<bool>, takes: Duration) {
        let now = Instant::now();
        let mut from = self.streams.get(&stream.raw()).map_or(now, |&free| free.max(now));
        if let Some(to_device) = over {
            let link = &mut self.link[usize::from(to_device)];
            from = from.max(*link);
            *link = from + takes;
        }
        self.streams.insert(stream.raw(), from + takes);
    }

    /// The entries of a table of pieces, wherever it was copied to.
    ///
    /// # Safety
    /// As for a launch: the table is there, in pinned memory of the host.
    unsafe fn table<T: Copy>(&self, at: DeviceAddress, count: u32) -> Vec<T> {
        let at = if is_device(at) { self.source(at) } else { at };
        let entries = std::ptr::with_exposed_provenance::<T>(at as usize);
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(entries, count as usize) }.to_vec()
    }

    /// Where what is at an address of the device was copied from: tables are copied as a whole, and read from their start or from within.
    fn source(&self, at: DeviceAddress) -> DeviceAddress {
        let table = self.tables.range(..=at).next_back();
        table.map_or(at, |(begin, source)| source + (at - begin))
    }

    fn is_pinned(&self, at: DeviceAddress) -> bool {
        let memory = self.pinned.range(..=at as usize).next_back();
        memory.is_some_and(|(begin, words)| at as usize - begin < words * 8)
    }
}

fn is_device(address: DeviceAddress) -> bool {
    address >= BASE
}

/// Which way over the link, if over it at all: to the device or from it.
fn over(target: DeviceAddress, source: DeviceAddress) -> Option<bool> {
    (is_device(target) != is_device(source)).then(|| is_device(target))
}

fn time(bytes: f64, rate: f64) -> Duration {
    Duration::from_secs_f64(bytes / rate)
}

/// Keeps the thread, as a call into a driver does.
fn keep(takes: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < takes {
        std::hint::spin_loop();
    }
}

// SAFETY: it does nothing with the addresses it is given but read kernels' tables and write their sums within the call.
unsafe impl Driver for Modelled {
    fn name(&self) -> String {
        "no device: a model of one, with an H200's times".to_owned()
    }

    fn speed_key(&self) -> Option<String> {
        Some(self.name())
    }

    fn numa_node(&self) -> Option<u32> {
        None
    }

    fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        Ok(DeviceMemory { free_bytes: BYTES, total_bytes: BYTES })
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceAddress, DeviceError> {
        let mut clocks = self.clocks();
        let at = clocks.next.next_multiple_of(256);
        clocks.next = at + bytes as u64;
        Ok(at)
    }

    fn allocate_exported(&self, _: usize) -> Result<(DeviceAddress, OwnedFd), DeviceError> {
        Err(DeviceError::new(DeviceErrorKind::Unsupported, "a model has no memory"))
    }

    fn flush_nic_writes(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn free(&self, _: DeviceAddress) -> Result<(), DeviceError> {
        Ok(())
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        let memory = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        let at = Box::into_raw(memory).cast::<u8>();
        self.clocks().pinned.insert(at.expose_provenance(), bytes.div_ceil(8));
        Ok(at)
    }

    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<(), DeviceError> {
        if let Some(words) = self.clocks().pinned.remove(&memory.addr()) {
            let memory = std::ptr::slice_from_raw_parts_mut(memory.cast::<u64>(), words);
            // SAFETY: the box of `allocate_pinned`, taken back once.
            drop(unsafe { Box::from_raw(memory) });
        }
        Ok(())
    }

    unsafe fn register(&self, _: *mut u8, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    unsafe fn unregister(&self, _: *mut u8) -> Result<(), DeviceError> {
        Ok(())
    }

    fn new_stream(&self, _: Priority) -> Result<Stream, DeviceError> {
        // SAFETY: a stream of this driver.
        Ok(unsafe { Stream::from_raw(self.number()) })
    }

    unsafe fn end_stream(&self, stream: Stream) {
        self.clocks().streams.remove(&stream.raw());
    }

    fn new_event(&self) -> Result<Event, DeviceError> {
        keep(EVENT_CALL);
        Ok(Event(self.number()))
    }

    unsafe fn end_event(&self, event: Event) {
        keep(EVENT_CALL);
        self.clocks().events.remove(&event.0);
    }

    fn is_capturing(&self, _: Stream) -> Result<bool, DeviceError> {
        Ok(false)
    }

    unsafe fn record(&self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        keep(EVENT_CALL);
        let mut clocks = self.clocks();
        let at = clocks.streams.get(&stream.raw()).copied().unwrap_or_else(Instant::now);
        clocks.events.insert(event.0, at);
        Ok(())
    }

    unsafe fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        keep(EVENT_CALL);
        let mut clocks = self.clocks();
        if let Some(&at) = clocks.events.get(&event.0) {
            let free = clocks.streams.entry(stream.raw()).or_insert(at);
            *free = at.max(*free);
        }
        Ok(())
    }

    fn passed(&self, event: Event) -> Result<bool, DeviceError> {
        keep(EVENT_CALL);
        Ok(self.clocks().events.get(&event.0).is_none_or(|&at| at <= Instant::now()))
    }

    unsafe fn copy(&self, request: CopyRequest, stream: Stream) -> Result<(), DeviceError> {
        keep(CALL);
        let mut clocks = self.clocks();
        let CopyRequest { target, source, bytes } = request;
        let takes = COPY_TIME + time(bytes as f64, LINK);
        if is_device(target) && clocks.is_pinned(source) {
            // A table that waits for its stream keeps nobody else from the link, and takes next to nothing of it.
            clocks.tables.insert(target, source);
            clocks.work(stream, None, takes);
            return Ok(());
        }
        clocks.work(stream, over(target, source), takes);
        Ok(())
    }

    unsafe fn copy_batch(&self, requests: &[CopyRequest], stream: Stream) -> Result<(), DeviceError> {
        keep(CALL + BATCH_PIECE_CALL * requests.len() as u32);
        let mut clocks = self.clocks();
        for &CopyRequest { target, source, bytes } in requests {
            let takes = time(bytes as f64, LINK).max(BATCH_PIECE_TIME_MIN);
            clocks.work(stream, over(target, source), takes);
        }
        Ok(())
    }

    unsafe fn launch(&self, kernel: Kernel, stream: Stream) -> Result<(), DeviceError> {
        keep(CALL);
        let mut clocks = self.clocks();
        match kernel {
            Kernel::Copy { pieces, count, .. } => {
                // SAFETY: the caller's promise.
                let pieces = unsafe { clocks.table::<Piece>(pieces, count) };
                let bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
                let over = pieces.first().and_then(|piece| over(piece.target, piece.source));
                let rate = if over.is_some() { KERNEL_SHARE * LINK } else { WITHIN };
                clocks.work(stream, over, KERNEL_TIME + time(bytes as f64, rate));
            }
            Kernel::Checksum { pieces, count, pages, page_count, output, .. } => {
                keep(CALL); // two launches
                // SAFETY: the caller's promise.
                let pieces = unsafe { clocks.table::<Piece>(pieces, count) };
                // SAFETY: the same.
                let pages = unsafe { clocks.table::<PagePieces>(pages, page_count) };
                let bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
                let sums = std::ptr::with_exposed_provenance_mut::<u64>(output as usize);
                // SAFETY: the caller's promise: one sum a page, in pinned memory. All are alike, since no byte ever moved.
                unsafe { std::ptr::write_bytes(sums, 0, pages.len()) };
                clocks.work(stream, None, KERNEL_TIME * 2 + time(bytes as f64, WITHIN));
            }
            // Launched once, when a device is opened.
            Kernel::Sha256 { .. } => clocks.work(stream, None, KERNEL_TIME),
        }
        Ok(())
    }
}
