//! What a kernel copies faster than the copy engines, on this device with this driver. Owns: measuring it in bounded time, once a
//! process. Must not know: what the choice does with it.
//!
//! The pieces are the smallest that anyone plans and twice as large each time; where a kernel is no longer faster, it stays so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Opening;
use crate::device::choose::Speeds;
use crate::device::driver::{
    CopyRequest, DeviceAddress, DeviceError, DeviceErrorKind, Driver, Kernel, Piece, Stream,
};
use crate::device::staging::Taken;
use crate::limits::{
    CALIBRATION_MAX, CALIBRATION_PIECE_BYTES_MAX, CALIBRATION_PIECE_BYTES_MIN, CALIBRATION_PIECES,
    CALIBRATION_ROUNDS, KERNEL_TIME_PERCENT_MAX, RING_ALIGN, SPEEDS_KNOWN_MAX,
};

/// By device, driver and thread blocks.
static KNOWN: Mutex<Option<HashMap<String, Speeds>>> = Mutex::new(None);

const TABLE_BYTES: usize = (CALIBRATION_PIECES * size_of::<Piece>()).next_multiple_of(RING_ALIGN);
const COPIED_BYTES: usize = CALIBRATION_PIECES * CALIBRATION_PIECE_BYTES_MAX;
/// Pieces of this size show whether a table is better copied to the device first.
const TABLE_TRIAL_BYTES: usize = 4 << 10;

/// What a kernel of so many blocks copies faster: as measured in this process before, or now. A device whose times mean nothing,
/// or that has no room to measure, gets what is usual.
///
/// # Errors
/// `Broken`: the device is.
pub(crate) fn speeds(driver: &Arc<dyn Driver>, blocks: u32) -> Result<Speeds, DeviceError> {
    let Some(key) = driver.speed_key() else { return Ok(Speeds::default()) };
    let key = format!("{key}, {blocks} blocks");
    if let Some(known) = KNOWN.lock().as_ref().and_then(|known| known.get(&key)) {
        return Ok(*known);
    }
    match Calibration::new(driver, blocks).and_then(Calibration::measure) {
        Ok(speeds) => {
            let mut known = KNOWN.lock();
            let known = known.get_or_insert_default();
            if known.len() < SPEEDS_KNOWN_MAX {
                known.insert(key, speeds);
            }
            Ok(speeds)
        }
        Err(error) if error.kind == DeviceErrorKind::Broken => Err(error),
        Err(_) => Ok(Speeds::default()),
    }
}

struct Calibration {
    opening: Opening,
    began: Instant,
    blocks: u32,
    batch: bool,
    table: Taken,
    host: DeviceAddress,
}

impl Calibration {
    fn new(driver: &Arc<dyn Driver>, blocks: u32) -> Result<Self, DeviceError> {
        let began = Instant::now();
        let mut opening = Opening::new(driver, TABLE_BYTES + COPIED_BYTES, TABLE_BYTES + COPIED_BYTES)?;
        let none = || DeviceError::new(DeviceErrorKind::NoMemory, "no room to measure in");
        let table = opening.host.take(TABLE_BYTES).ok_or_else(none)?;
        let host = opening.host.take(COPIED_BYTES).ok_or_else(none)?.address();
        Ok(Self { opening, began, blocks, batch: true, table, host })
    }

    fn measure(mut self) -> Result<Speeds, DeviceError> {
        let usual = Speeds::default();
        self.fill(TABLE_TRIAL_BYTES);
        let (mut read, mut uploaded) = (Duration::MAX, Duration::MAX);
        for _ in 0..CALIBRATION_ROUNDS {
            read = read.min(self.kernel(false)?);
            uploaded = uploaded.min(self.kernel(true)?);
        }
        let upload = uploaded <= read;
        let to_device = largest_faster(|bytes| self.both(bytes, upload))?;
        Ok(Speeds {
            to_device_bytes_max: to_device.unwrap_or(usual.to_device_bytes_max),
            upload_tables: upload,
        })
    }

    /// The shortest times of a kernel and of the copy engines. None: the time is up.
    fn both(&mut self, bytes: usize, upload: bool) -> Result<Option<(Duration, Duration)>, DeviceError> {
        let requests = self.fill(bytes);
        let (mut kernel, mut engine) = (Duration::MAX, Duration::MAX);
        for _ in 0..CALIBRATION_ROUNDS {
            if self.began.elapsed() > CALIBRATION_MAX {
                return Ok(None);
            }
            kernel = kernel.min(self.kernel(upload)?);
            engine = engine.min(self.engine(&requests)?);
        }
        Ok(Some((kernel, engine)))
    }

    /// Sets the table to pieces of this size, none of which continues another, and says what they are.
    fn fill(&mut self, bytes: usize) -> Vec<CopyRequest> {
        let target = self.opening.device.address() + TABLE_BYTES as u64;
        let source = self.host;
        let request = |at: usize| CopyRequest {
            target: target + (at * bytes) as u64,
            source: source + ((CALIBRATION_PIECES - 1 - at) * bytes) as u64,
            bytes,
        };
        let requests: Vec<_> = (0..CALIBRATION_PIECES).map(request).collect();
        let piece = |request: &CopyRequest| Piece {
            target: request.target,
            source: request.source,
            bytes: request.bytes as u64,
        };
        let pieces: Vec<Piece> = requests.iter().map(piece).collect();
        // SAFETY: as long as the table and aligned for it; all that was enqueued on it has been waited for.
        unsafe { std::ptr::copy_nonoverlapping(pieces.as_ptr(), self.table.memory.cast(), pieces.len()) };
        requests
    }

    fn kernel(&mut self, upload: bool) -> Result<Duration, DeviceError> {
        let (source, blocks) = (self.table.address(), self.blocks);
        let target = self.opening.device.address();
        let pieces = if upload { target } else { source };
        let launch = Kernel::Copy { pieces, count: CALIBRATION_PIECES as u32, blocks };
        // SAFETY: table and pieces are memory of the opening's own, which stays until this is done or is lost.
        self.opening.timed(|driver, stream| unsafe {
            if upload {
                driver.copy(CopyRequest { target, source, bytes: TABLE_BYTES }, stream)?;
            }
            driver.launch(launch, stream)
        })
    }

    /// In a batch, where the driver has them.
    fn engine(&mut self, requests: &[CopyRequest]) -> Result<Duration, DeviceError> {
        if self.batch {
            // SAFETY: as in `kernel`.
            match self.opening.timed(|driver, stream| unsafe { driver.copy_batch(requests, stream) }) {
                Err(error) if error.kind == DeviceErrorKind::Unsupported => self.batch = false,
                measured => return measured,
            }
        }
        let one_by_one = |driver: &dyn Driver, stream: Stream| {
            // SAFETY: as in `kernel`.
            requests.iter().try_for_each(|request| unsafe { driver.copy(*request, stream) })
        };
        self.opening.timed(one_by_one)
    }
}

/// The largest size up to which a kernel is faster, 0 where it never is; None: not even the smallest could be measured.
fn largest_faster(
    mut measure: impl FnMut(usize) -> Result<Option<(Duration, Duration)>, DeviceError>,
) -> Result<Option<usize>, DeviceError> {
    let (mut bytes, mut largest) = (CALIBRATION_PIECE_BYTES_MIN, None);
    while bytes <= CALIBRATION_PIECE_BYTES_MAX {
        let Some((kernel, engine)) = measure(bytes)? else { break };
        if kernel * 100 >= engine * KERNEL_TIME_PERCENT_MAX {
            return Ok(largest.or(Some(0)));
        }
        (largest, bytes) = (Some(bytes), bytes * 2);
    }
    Ok(largest)
}

#[cfg(test)]
mod tests;
