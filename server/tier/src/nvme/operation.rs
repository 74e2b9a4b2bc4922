//! One read or write on its way. Owns: its slot, its file, its call-back, until the device is done with them.
//! Must not know: which engine carries it.

use super::bounce::Bounce;
use super::format::{Nonce, Record, padded};
use super::segment_file::SegmentFile;
use crate::errno::ErrnoClass;
use crate::limits::BLOCK_BYTES;
use crate::tier::{Done, Location, TierError};
use rustix::io::Errno;
use std::sync::Arc;
use turnkv_transfer::{PageMut, Slot};

/// What is to be done.
pub(crate) enum Work {
    /// Payload from the device into the slot, which covers the padding: at once, or by way of other memory where it is packed.
    /// Nobody else in this process writes the slot until the device is done.
    Read { target: PageMut, packed: Option<PackedRead>, bytes: u32, checksum: u64, done: Done<()> },
    /// Header and payload to the device.
    Write { source: Source, record: Box<Record>, nonce: Nonce, done: Done<Location> },
}

/// Where packed bytes come to from the device, padding included.
pub(crate) struct PackedRead {
    pub(crate) target: PageMut,
    pub(crate) stored_bytes: u32,
    /// Its memory; dropped after `target`.
    pub(crate) bounce: Bounce,
}

/// Where the bytes of a write are, padding included.
pub(crate) enum Source {
    /// In the page's own slot.
    Page(Slot),
    /// Packed.
    Packed(Bounce),
}

/// A read or write, with everything it uses.
pub(crate) struct Operation {
    pub(crate) file: Arc<SegmentFile>,
    pub(crate) at: Location,
    pub(crate) work: Work,
}

/// Why the device did not do it.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The device failed in a write, in these words: nothing on it can be trusted to be kept.
    Io(String),
    /// The device cannot read these bytes, for this reason; what is elsewhere may be well.
    Unreadable(String),
    /// The system was short of something for too long, in these words; the device is well.
    Short(String),
    /// There was no space where it was to be written; the device is well.
    Full,
    /// The bytes of the source are not those of its checksum: what was written is void.
    Changed,
    /// It was not tried: the device failed before.
    Poisoned,
    /// It was not tried: the engine is gone.
    Closed,
}

impl Failure {
    /// A call gave this errno, and was not to be made again or was made often enough.
    pub(crate) fn of(is_read: bool, errno: Errno) -> Failure {
        match ErrnoClass::of(errno) {
            ErrnoClass::Interrupted | ErrnoClass::Short => {
                Failure::Short(format!("{}: {errno}", verb(is_read)))
            }
            ErrnoClass::Full if !is_read => Failure::Full,
            ErrnoClass::Full | ErrnoClass::Device => Failure::device(is_read, &errno.to_string()),
        }
    }

    /// The device did not do it: only a failed write says that nothing on it is to be trusted.
    pub(crate) fn device(is_read: bool, why: &str) -> Failure {
        let why = format!("{}: {why}", verb(is_read));
        if is_read { Failure::Unreadable(why) } else { Failure::Io(why) }
    }

    /// As the caller of an operation at this place sees it.
    pub(crate) fn into_error(self, at: Location) -> TierError {
        match self {
            Failure::Io(why) => TierError::Io(why),
            Failure::Unreadable(_) => TierError::Unreadable(at),
            Failure::Short(_) => TierError::Busy,
            Failure::Full => TierError::Full,
            Failure::Changed => TierError::Changed,
            Failure::Poisoned => TierError::Poisoned,
            Failure::Closed => TierError::Closed,
        }
    }
}

fn verb(is_read: bool) -> &'static str {
    if is_read { "read" } else { "write" }
}

impl Source {
    pub(crate) fn slot(&self) -> &Slot {
        match self {
            Source::Page(slot) => slot,
            Source::Packed(bounce) => bounce.slot(),
        }
    }
}

impl Operation {
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.work, Work::Read { .. })
    }

    /// The memory that its payload goes to or comes from, padding included.
    pub(crate) fn slot(&self) -> &Slot {
        match &self.work {
            Work::Read { packed: Some(packed), .. } => packed.bounce.slot(),
            Work::Read { target, packed: None, .. } => target.slot(),
            Work::Write { source, .. } => source.slot(),
        }
    }

    /// Bytes that go over the device's bus.
    pub(crate) fn device_bytes(&self) -> u64 {
        let header = if self.is_read() { 0 } else { BLOCK_BYTES };
        header + self.slot().len() as u64
    }

    /// Where its header is in the file; the payload follows.
    pub(crate) fn header_offset(&self) -> u64 {
        self.file.offset(self.at.block)
    }

    /// Where its payload is in the file.
    pub(crate) fn payload_offset(&self) -> u64 {
        self.header_offset() + BLOCK_BYTES
    }
}

/// The slot's memory for a payload with its padding, if the slot is fit for the device.
pub(crate) fn padded_slot(slot: &Slot, payload_bytes: u32) -> Result<Slot, TierError> {
    if !(slot.as_ptr() as usize).is_multiple_of(BLOCK_BYTES as usize) {
        return Err(TierError::Invalid("a slot starts at a multiple of 4 KiB"));
    }
    if slot.len() < payload_bytes as usize {
        return Err(TierError::Invalid("the slot is smaller than the payload"));
    }
    let bytes = padded(payload_bytes) as usize;
    let padded = slot.region().slot(slot.offset(), bytes);
    padded.ok_or(TierError::Invalid("the slot's padding to 4 KiB ends outside its slab"))
}
