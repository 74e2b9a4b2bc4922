//! What an NVMe tier is asked for and what opening it says. Owns: plain data. Must not know: files, threads.

use super::ring_error::RingError;
use crate::limits::{
    BLOCK_BYTES, INFLIGHT_BYTES_DEFAULT, QUEUE_OPS_DEFAULT, SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN, SEGMENTS_MAX, SEGMENTS_MIN,
};
use crate::tier::{ExtentMeta, Location};
use std::path::{Path, PathBuf};
use std::time::Duration;
use turnkv_codec::Codec;

/// How operations reach the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring if the kernel allows it, else threads, with a warning.
    #[default]
    Auto,
    /// io_uring, or no tier.
    Ring,
    /// A few threads with pread and pwrite.
    Blocking,
}

/// Whether pages are made smaller on their way to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// By the codec that is worth most on this device, as measured on pages of each namespace; those that do not shrink are stored
    /// as they are.
    #[default]
    Auto,
    /// They are stored as they are. What was packed before stays readable.
    Off,
    /// By this codec, where it makes them smaller, however fast the device is.
    Always(Codec),
}

/// Where the tier is and how much it may hold.
#[derive(Clone, Debug)]
pub struct NvmeConfig {
    /// A directory (made if absent), a block device, or a file of a fixed size used like a block device.
    pub path: PathBuf,
    /// The most its segments may take together; a multiple of `segment_bytes` wastes nothing. A directory
    /// also holds three files of one block.
    pub capacity_bytes: u64,
    /// Size of a segment: a multiple of 4 KiB. What is on the device already keeps the size it was made with.
    pub segment_bytes: u64,
    /// How operations reach the device.
    pub engine: Engine,
    /// Bytes in flight to the device at once; a larger single operation runs alone.
    pub inflight_bytes: u64,
    /// Operations accepted and not finished; more are refused with `Busy`.
    pub queue_ops_max: usize,
    /// Whether pages are made smaller.
    pub packing: Packing,
}

impl NvmeConfig {
    /// Defaults for a place and a capacity.
    pub fn new(path: impl Into<PathBuf>, capacity_bytes: u64) -> NvmeConfig {
        NvmeConfig {
            path: path.into(),
            capacity_bytes,
            segment_bytes: NvmeConfig::segment_bytes_for(capacity_bytes),
            engine: Engine::Auto,
            inflight_bytes: INFLIGHT_BYTES_DEFAULT,
            queue_ops_max: QUEUE_OPS_DEFAULT,
            packing: Packing::default(),
        }
    }

    /// The segment size that suits a capacity: 256 MiB, or less so that there are 16 segments and more.
    pub fn segment_bytes_for(capacity_bytes: u64) -> u64 {
        let share = (capacity_bytes / 16).max(1);
        let power = 1u64 << share.ilog2();
        power.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_DEFAULT)
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let bytes = self.segment_bytes;
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&bytes) || !bytes.is_multiple_of(BLOCK_BYTES) {
            let rule = format!("a multiple of 4096 from {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}");
            return Err(OpenError::Config(format!("segment_bytes is {bytes}; it must be {rule}")));
        }
        if self.inflight_bytes == 0 || self.queue_ops_max == 0 {
            return Err(OpenError::Config("inflight_bytes and queue_ops_max must be above 0".to_owned()));
        }
        Ok(())
    }

    /// How many segments of a size the capacity holds. `is_new`: a place may be given segments of another
    /// size.
    pub(crate) fn segments(&self, segment_bytes: u64, is_new: bool) -> Result<u32, OpenError> {
        let count = self.capacity_bytes / segment_bytes;
        if (SEGMENTS_MIN..=SEGMENTS_MAX).contains(&count) {
            return Ok(count as u32);
        }
        let (capacity, path) = (self.capacity_bytes, self.path.display());
        let (least, most) = (SEGMENTS_MIN * segment_bytes, SEGMENTS_MAX * segment_bytes);
        let todo = match is_new {
            true => "change the capacity or segment_bytes".to_owned(),
            false => format!(
                "those of {path} stay as they were made, so its capacity is from {least} to {most} bytes; for another one give \
                 the tier another place, or empty this one"
            ),
        };
        Err(OpenError::Config(format!(
            "a capacity of {capacity} bytes is {count} segments of {segment_bytes} bytes; \
             {SEGMENTS_MIN} to {SEGMENTS_MAX} are possible: {todo}"
        )))
    }
}

/// Which tier a place has: the same as long as its superblock is, wherever it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierId(pub [u8; 16]);

impl std::fmt::Display for TierId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Enough to tell two apart that an operator sees side by side.
        self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a place holds, as its superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// Which tier.
    pub id: TierId,
    /// The size of its segments.
    pub segment_bytes: u64,
}

/// An extent found at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// What it holds.
    pub meta: ExtentMeta,
    /// Where.
    pub at: Location,
    /// When it was written, in the tier's own order.
    pub sequence: u64,
    /// It goes before others: known once the tier's notes were recalled.
    pub leaving: bool,
}

/// What opening found and what it got from the system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// The engine in use: `ring` or `blocking`.
    pub engine: &'static str,
    /// Whether the page cache is bypassed.
    pub direct: bool,
    /// Slab bytes registered as fixed buffers.
    pub registered_bytes: u64,
    /// Segments the tier may use.
    pub segments: u32,
    /// Their size.
    pub segment_bytes: u64,
    /// Extents recovered; the newest of each shard.
    pub extents: u64,
    /// Extents found that a newer one replaces.
    pub superseded: u64,
    /// Segments read by their footers.
    pub footers: u32,
    /// Segments read whole, because they have no valid footer.
    pub scanned: u32,
    /// Segments of which a part could not be read.
    pub unreadable: u32,
    /// Segments whose header or length was not as they were written.
    pub damaged: u32,
    /// Segments that are not written again: of these, and of things in a segment's place that are none.
    pub retired: u32,
    /// How long recovery took.
    pub elapsed: Duration,
    /// What an operator should know; empty when all is as asked.
    pub warnings: Vec<String>,
}

/// Why the tier cannot be opened, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The configuration is not possible.
    #[error("nvme: {0}")]
    Config(String),
    /// Another process has it.
    #[error(
        "nvme: {path} is in use by another process{holder}: stop that server, or give this one a place of its own"
    )]
    InUse {
        /// The place.
        path: PathBuf,
        /// Who, if it left its number.
        holder: String,
    },
    /// The device holds something that is not this tier's.
    #[error(
        "nvme: {path} holds data that is not TurnKV's; nothing was changed. If it may be lost, wipe the first MiB \
         (blkdiscard, or dd if=/dev/zero bs=1M count=1)"
    )]
    Foreign {
        /// The place.
        path: PathBuf,
    },
    /// Neither copy of the superblock verifies, and the segments do not agree on what it said.
    #[error(
        "nvme: the superblock of {path} is damaged or of another version; nothing was changed. Delete it, its copy and \
         the segments beside it to start empty"
    )]
    Superblock {
        /// The place.
        path: PathBuf,
    },
    /// The system refused.
    #[error("nvme: {what} {path}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The ring was asked for and the kernel refuses it.
    #[error("nvme: io_uring is not available ({0}): set engine to auto or blocking")]
    Ring(RingError),
}

/// An error of the system's while the place at `path` was opened.
pub(super) fn failed(what: &'static str, path: &Path, source: std::io::Error) -> OpenError {
    OpenError::Io { what, path: path.to_owned(), source }
}

/// A segment that could be reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedSegment {
    /// Which.
    pub segment: u16,
    /// Bytes of any segment.
    pub bytes: u64,
    /// Bytes of its live extents, headers and padding included.
    pub live_bytes: u64,
    /// Extents written since it was full, and one.
    pub age: u64,
}

impl SealedSegment {
    /// Bytes of it that nobody needs: what emptying it gains where all that is alive is written again.
    pub fn dead_bytes(&self) -> f64 {
        self.bytes.saturating_sub(self.live_bytes) as f64
    }
}

/// A segment worth reclaiming, and what is still alive in it. It stays claimed until it is released or kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub segment: u16,
    /// It is beyond the capacity: all of it moves or goes.
    pub surplus: bool,
    /// Bytes of its live extents, headers and padding included.
    pub live_bytes: u64,
    /// Its live extents.
    pub extents: Vec<(ExtentMeta, Location)>,
}
