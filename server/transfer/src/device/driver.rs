//! The seam to whoever runs copies and kernels. Owns: the words of that, and what each must do. Must not know: pages of a
//! pool, slots, leases, plans.
//!
//! One driver is a GPU through CUDA's driver library, loaded at run time; the other is memory and threads of this process,
//! so that every plan, ordering and failure is tested without a GPU. Both obey CUDA's rules: what one stream is given runs in
//! order; streams run beside each other, ordered by events alone; a call returns before its work is done.
//!
//! ```text
//!   copy, copy_batch, launch, record, wait  --enqueue-->  stream  --in order-->  done; events pass on the way
//! ```

use std::fmt::Debug;
use std::os::fd::OwnedFd;

use thiserror::Error;

/// An address that a device can use: of its own memory, or of host memory that is registered or pinned (the same number on
/// both sides). Never dereferenced by the CPU.
pub type DeviceAddress = u64;

/// A stream: one of this driver's own, or the raw handle of an engine's (CUDA: `CUstream`; 0 is the legacy default stream).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub(crate) u64);

impl Stream {
    /// Names an engine's stream by its raw handle.
    ///
    /// # Safety
    /// It is a stream of the primary context of the device that it is used with, and stays one as long as it is used.
    #[must_use]
    pub const unsafe fn from_raw(handle: u64) -> Self {
        Self(handle)
    }

    /// The raw handle.
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// An event of this driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event(pub u64);

/// How urgent a stream's work is where several want the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Gives way to the engine: offloads.
    Low,
    /// Someone waits for it: reloads.
    High,
}

/// What to do about a failed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceErrorKind {
    /// No driver, no such device, or a driver too old: go on without a GPU.
    Absent,
    /// Not enough device memory, pinned memory or locked-memory limit: nothing was begun.
    NoMemory,
    /// This driver cannot do that: use the other way.
    Unsupported,
    /// The caller's fault.
    Invalid,
    /// Its starter took it back: it never began, or what had begun of it is done.
    Cancelled,
    /// The device or its context is broken: nothing that was begun may be taken for done.
    Broken,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct DeviceError {
    /// What to do about it.
    pub kind: DeviceErrorKind,
    /// What was tried, what the driver said, and what to change.
    pub message: String,
}

impl DeviceError {
    /// An error of this kind.
    pub fn new(kind: DeviceErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

/// Memory of a device in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Not in use by anyone.
    pub free_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

/// One contiguous copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRequest {
    /// Where to.
    pub target: DeviceAddress,
    /// Where from.
    pub source: DeviceAddress,
    /// How many, at least 1.
    pub bytes: usize,
}

/// One piece of a kernel's work, as it lies in a table that the device reads.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where to; ignored where nothing is written.
    pub target: DeviceAddress,
    /// Where from; 0 where so many zeros are meant (the gap of a partial page: checksums only).
    pub source: DeviceAddress,
    /// How many, at least 1.
    pub bytes: u64,
}

/// The pieces of one page in a table of pieces, in slot order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagePieces {
    /// Position of the page's first piece.
    pub first: u32,
    /// How many it has, at least 1.
    pub count: u32,
}

const _: () = assert!(size_of::<Piece>() == 24 && size_of::<PagePieces>() == 8, "kernels read these tables");

/// Work for the device's processors. Tables and outputs are addresses of device memory, or of pinned host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Copies `count` pieces, spread over `blocks` thread blocks and no more, so that the rest of the device stays with its
    /// owner. Any alignment; pieces whose ends are 16-byte aligned go fastest.
    Copy {
        /// Of [`Piece`].
        pieces: DeviceAddress,
        /// How many.
        count: u32,
        /// Thread blocks.
        blocks: u32,
    },
    /// CRC-64/NVME of each of `pages` pages, over its pieces one after another: the same number as
    /// [`crate::checksum`](fn@crate::checksum) of those bytes.
    Checksum {
        /// Of [`Piece`]; targets are not used.
        pieces: DeviceAddress,
        /// How many pieces.
        count: u32,
        /// Of [`PagePieces`].
        pages: DeviceAddress,
        /// How many pages.
        page_count: u32,
        /// Room for one u64 a piece, device memory.
        scratch: DeviceAddress,
        /// One u64 a page.
        output: DeviceAddress,
    },
    /// SHA-256 of each piece.
    Sha256 {
        /// Of [`Piece`]; targets are not used, sources are never 0.
        pieces: DeviceAddress,
        /// How many pieces.
        count: u32,
        /// 32 bytes a piece.
        output: DeviceAddress,
    },
}

/// Runs copies and kernels on one device. Every call may be made from any thread, and none waits for enqueued work except
/// where it says so.
///
/// # Safety
/// Whoever implements this must do what each method says and nothing else with the addresses it is given, in stream order,
/// and must have finished with them once an event recorded behind the work has passed.
pub unsafe trait Driver: Debug + Send + Sync {
    /// Its name and kind, for people.
    fn name(&self) -> String;

    /// Names what its speed depends on: the device, and its driver's version. None: its times mean nothing.
    fn speed_key(&self) -> Option<String>;

    /// Which NUMA node of the host is nearest, if that is known.
    fn numa_node(&self) -> Option<u32>;

    /// How much memory is free now.
    ///
    /// # Errors
    /// The device is broken.
    fn memory(&self) -> Result<DeviceMemory, DeviceError>;

    /// Takes device memory, 256-byte aligned. Its bytes are undefined.
    ///
    /// # Errors
    /// `NoMemory`: nothing was taken.
    fn allocate(&self, bytes: usize) -> Result<DeviceAddress, DeviceError>;

    /// Takes device memory that NICs can be told of, and the dma-buf that names it. It begins and ends on a page of the
    /// host; `bytes` are a multiple of [`crate::limits::EXPORT_STEP_BYTES`].
    ///
    /// # Errors
    /// `NoMemory`, or `Unsupported`, which says why not: nothing was taken, memory of the host does instead.
    fn allocate_exported(&self, bytes: usize) -> Result<(DeviceAddress, OwnedFd), DeviceError>;

    /// Sees to it that work enqueued after this call reads what NICs have written to device memory before it. Waits for
    /// these writes only. A driver that cannot do it exports no memory.
    ///
    /// # Errors
    /// Nobody can say what such work would read.
    fn flush_nic_writes(&self) -> Result<(), DeviceError>;

    /// Gives device memory back. May wait for the device.
    ///
    /// # Safety
    /// `address` came from [`Driver::allocate`] or [`Driver::allocate_exported`], is given back once, and no enqueued work
    /// uses it.
    ///
    /// # Errors
    /// The device is broken; the memory is gone for good.
    unsafe fn free(&self, address: DeviceAddress) -> Result<(), DeviceError>;

    /// Takes host memory that copies can use directly and the CPU reads at full speed (never write-combined), page aligned.
    ///
    /// # Errors
    /// `NoMemory`: nothing was taken.
    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, DeviceError>;

    /// Gives pinned memory back.
    ///
    /// # Safety
    /// As [`Driver::free`].
    ///
    /// # Errors
    /// As [`Driver::free`].
    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<(), DeviceError>;

    /// Pins mapped host memory, so that copies and kernels can use it directly. Slow (it walks every page): never on an
    /// engine's thread.
    ///
    /// # Safety
    /// `[base, base + bytes)` is mapped, page aligned, and stays so until [`Driver::unregister`].
    ///
    /// # Errors
    /// `NoMemory` (the locked-memory limit), `Unsupported`: copies of it must be staged.
    unsafe fn register(&self, base: *mut u8, bytes: usize) -> Result<(), DeviceError>;

    /// Ends a registration. May wait for the device.
    ///
    /// # Safety
    /// `base` was registered, and no enqueued work uses the memory.
    ///
    /// # Errors
    /// The device is broken; the memory must stay mapped.
    unsafe fn unregister(&self, base: *mut u8) -> Result<(), DeviceError>;

    /// Makes a stream that does not wait for the legacy default stream.
    ///
    /// # Errors
    /// As the driver says.
    fn new_stream(&self, priority: Priority) -> Result<Stream, DeviceError>;

    /// Ends a stream of [`Driver::new_stream`]; what it was given still runs.
    ///
    /// # Safety
    /// It is not used again.
    unsafe fn end_stream(&self, stream: Stream);

    /// Makes an event without timing.
    ///
    /// # Errors
    /// As the driver says.
    fn new_event(&self) -> Result<Event, DeviceError>;

    /// Ends an event.
    ///
    /// # Safety
    /// It is not used again.
    unsafe fn end_event(&self, event: Event);

    /// Whether the stream is being captured into a graph: nothing of ours may be recorded there, nor be waited for.
    ///
    /// # Errors
    /// `Invalid`: it is the legacy default stream, and another one is being captured.
    fn is_capturing(&self, stream: Stream) -> Result<bool, DeviceError>;

    /// The event passes when all that the stream was given so far is done. An event recorded again forgets the first time.
    ///
    /// # Safety
    /// Both are valid; the stream belongs to this driver's context.
    ///
    /// # Errors
    /// As the driver says.
    unsafe fn record(&self, event: Event, stream: Stream) -> Result<(), DeviceError>;

    /// What the stream is given from here on waits for the event's last record. The caller does not wait. An event never
    /// recorded has passed.
    ///
    /// # Safety
    /// As [`Driver::record`].
    ///
    /// # Errors
    /// As the driver says.
    unsafe fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError>;

    /// Whether the event's last record has passed. Does not wait.
    ///
    /// # Errors
    /// `Broken`: work before it failed, and nobody can say whether the device still uses its memory.
    fn passed(&self, event: Event) -> Result<bool, DeviceError>;

    /// Enqueues a copy, in whichever direction the addresses say.
    ///
    /// # Safety
    /// Both ranges are valid for the device until the copy is done, do not overlap, and are ordered against all other uses
    /// by streams and events. Host memory must be registered or pinned: from other memory a driver may copy before it
    /// returns.
    ///
    /// # Errors
    /// Nothing was enqueued.
    unsafe fn copy(&self, request: CopyRequest, stream: Stream) -> Result<(), DeviceError>;

    /// Enqueues many copies as one batch, in any order among themselves.
    ///
    /// # Safety
    /// As [`Driver::copy`], for each.
    ///
    /// # Errors
    /// `Unsupported`: nothing was enqueued, enqueue them one by one. Otherwise some may have been.
    unsafe fn copy_batch(&self, requests: &[CopyRequest], stream: Stream) -> Result<(), DeviceError>;

    /// Enqueues a kernel.
    ///
    /// # Safety
    /// As [`Driver::copy`], for every range that the kernel's tables name, and for the tables themselves.
    ///
    /// # Errors
    /// `Unsupported`: this device cannot run our kernels. Nothing was enqueued.
    unsafe fn launch(&self, kernel: Kernel, stream: Stream) -> Result<(), DeviceError>;
}
