//! What a device does once, before its first copy. Owns: a stream and some memory for that, the first launch of every kernel.
//! Must not know: lanes, plans, slots.
//!
//! - `calibrate`: what a kernel copies faster than the copy engines
//!
//! CUDA's driver loads a function when it is first launched, and holds the context's lock until all queues have drained: an
//! engine's launches would wait for it, and for good where a kernel of the engine's waits for a later one. So it is all done
//! here, where the engine does not work yet.

mod calibrate;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::device::buffer::Scratch;
use crate::device::driver::{
    DeviceError, DeviceErrorKind, Driver, Kernel, PagePieces, Piece, Priority, Stream,
};
use crate::device::flight::OwnedEvent;
use crate::device::staging::{Ring, Taken};
use crate::limits::{CHECKSUM_WARP_PIECES_MIN, OPENING_SPIN, OPENING_WAIT, POLL_PAUSE_MAX};

pub(crate) use calibrate::speeds;

/// Bytes of a piece that a kernel's first launch works on.
const PIECE_BYTES: usize = 8;
/// Pieces of the largest first launch.
const PIECES: usize = CHECKSUM_WARP_PIECES_MIN as usize;
const SHA256_BYTES: usize = 32;

/// A stream of the opening's own, and what its work needs.
#[derive(Debug)]
pub(crate) struct Opening {
    driver: Arc<dyn Driver>,
    stream: Stream,
    event: OwnedEvent,
    host: Ring,
    device: Scratch,
}

impl Opening {
    /// With so much pinned memory, and so much of the device's.
    ///
    /// # Errors
    /// As the driver says; nothing is kept.
    pub(crate) fn new(
        driver: &Arc<dyn Driver>,
        host_bytes: usize,
        device_bytes: usize,
    ) -> Result<Self, DeviceError> {
        let (event, device) = (OwnedEvent::new(driver)?, Scratch::new(driver, device_bytes)?);
        let host = Ring::new(Arc::clone(driver), host_bytes)?;
        let stream = driver.new_stream(Priority::High)?;
        Ok(Self { driver: Arc::clone(driver), stream, event, host, device })
    }

    /// How long something takes, from its first call until the device is done with it.
    ///
    /// # Errors
    /// As the driver says. `Broken`: it does not end; the memory is lost.
    pub(crate) fn timed(
        &mut self,
        enqueue: impl FnOnce(&dyn Driver, Stream) -> Result<(), DeviceError>,
    ) -> Result<Duration, DeviceError> {
        let started = Instant::now();
        let enqueued = enqueue(&*self.driver, self.stream);
        // What came before a call that failed is waited for all the same: it uses the memory.
        let waited = self.event.record(self.stream).and_then(|()| self.wait(started));
        if waited.is_err() {
            self.host.lose();
            self.device.lose();
        }
        enqueued.and(waited).map(|()| started.elapsed())
    }

    fn wait(&self, started: Instant) -> Result<(), DeviceError> {
        while !self.event.passed()? {
            let waited = started.elapsed();
            if waited > OPENING_WAIT {
                let text = format!(
                    "the device has not ended our first work within {OPENING_WAIT:?}: open it before an engine works on it"
                );
                return Err(DeviceError::new(DeviceErrorKind::Broken, text));
            }
            if waited < OPENING_SPIN {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(POLL_PAUSE_MAX);
            }
        }
        Ok(())
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        // SAFETY: the stream is ours, and nobody uses it after this.
        unsafe { self.driver.end_stream(self.stream) };
    }
}

/// Launches every kernel once. Whether this device runs them.
///
/// # Errors
/// As the driver says, but for kernels that it does not run.
pub(crate) fn load_kernels(driver: &Arc<dyn Driver>) -> Result<bool, DeviceError> {
    let host_bytes = 2 * PIECES * (size_of::<Piece>() + size_of::<PagePieces>() + SHA256_BYTES);
    let mut opening = Opening::new(driver, host_bytes, 3 * PIECES * PIECE_BYTES)?;
    for kernel in first_launches(&mut opening)? {
        // SAFETY: the tables name memory of the opening's own, which stays until its work is done or is lost.
        match opening.timed(|driver, stream| unsafe { driver.launch(kernel, stream) }) {
            Ok(_) => {}
            Err(error) if error.kind == DeviceErrorKind::Unsupported => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// A launch for every function: pieces from one part of the device's memory to another, sums in a third.
fn first_launches(opening: &mut Opening) -> Result<[Kernel; 4], DeviceError> {
    let source = opening.device.address();
    let (target, scratch) =
        (source + (PIECES * PIECE_BYTES) as u64, source + (2 * PIECES * PIECE_BYTES) as u64);
    let piece = |at: usize| {
        let offset = (at * PIECE_BYTES) as u64;
        Piece { target: target + offset, source: source + offset, bytes: PIECE_BYTES as u64 }
    };
    let pieces: Vec<Piece> = (0..PIECES).map(piece).collect();
    let pieces = table(&mut opening.host, &pieces)?.address();
    let few = table(&mut opening.host, &[PagePieces { first: 0, count: 1 }])?.address();
    let many = table(&mut opening.host, &[PagePieces { first: 0, count: PIECES as u32 }])?.address();
    let output = table(&mut opening.host, &[[0_u8; SHA256_BYTES]])?.address();
    let checksum = |count: usize, pages| Kernel::Checksum {
        pieces,
        count: count as u32,
        pages,
        page_count: 1,
        scratch,
        output,
    };
    Ok([
        Kernel::Copy { pieces, count: 1, blocks: 1 },
        checksum(1, few),
        checksum(PIECES, many),
        Kernel::Sha256 { pieces, count: 1, output },
    ])
}

/// Puts a table where kernels read it.
pub(crate) fn table<T: Copy>(ring: &mut Ring, entries: &[T]) -> Result<Taken, DeviceError> {
    let none = || DeviceError::new(DeviceErrorKind::NoMemory, "no room for a table of the opening's");
    let taken = ring.take(size_of_val(entries)).ok_or_else(none)?;
    // SAFETY: the piece was just taken, is as long as the table and aligned for it (rings align to more).
    unsafe { std::ptr::copy_nonoverlapping(entries.as_ptr(), taken.memory.cast(), entries.len()) };
    Ok(taken)
}
