//! `[nvme]`: the tier on a device. Owns: the section's keys, defaults and bounds. Must not know: the device.

use super::bounds::bad;
use super::bytes::Bytes;
use super::choices::{NvmeAdmit, NvmeCodec, NvmeEngine};
use super::error::ConfigError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// `[nvme]`
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NvmeFile {
    /// Directory, or raw block device, of the segments.
    pub(super) path: PathBuf,
    /// Limit of the segments on disk, at least four; superblocks, a lock and the catalog come on top.
    pub(super) bytes: Bytes,
    /// Bytes of a segment; default bytes / 256, but `32MiB` at least (less in a small tier) and `256MiB` at most.
    pub(super) segment_bytes: Option<Bytes>,
    /// `auto` (default), `ring` or `blocking`.
    pub(super) engine: Option<NvmeEngine>,
    /// How pages are made smaller on their way to the device, without losing a bit: `auto` (default) measures on pages of each
    /// namespace what is worth most on this device, `none` leaves them as they are; `codebook`, `huffman` or `zstd` is by that
    /// alone. What was written under another setting stays readable.
    pub(super) codec: Option<NvmeCodec>,
    /// Bytes in flight to the device; default `16MiB`.
    pub(super) inflight_bytes: Option<Bytes>,
    /// Directory of the catalog; default: `path`, which must then be a directory. It belongs to one `path`.
    pub(super) state_dir: Option<PathBuf>,
    /// Which new pages are written at once: `all` (default), or `reused`: those of sessions that came back or are
    /// expected. The others are written when they are used again, and are dropped if DRAM needs their room before.
    pub(super) admit: Option<NvmeAdmit>,
    /// Bytes that may be written in a day; default none: no bound. Durable pages and a drain are written even so, and
    /// count. A device of 4TB rated at 1 DWPD for its five years may have `4TB`, spelled in powers of two: `3.6TiB`.
    pub(super) write_bytes_per_day: Option<Bytes>,
}

/// Checked `[nvme]`.
#[derive(Debug, Clone)]
pub(crate) struct Nvme {
    /// Directory or device.
    pub(crate) path: PathBuf,
    /// Limit on disk, a multiple of `segment_bytes`.
    pub(crate) bytes: u64,
    /// Bytes of a segment.
    pub(crate) segment_bytes: u64,
    /// Engine.
    pub(crate) engine: NvmeEngine,
    /// How pages are made smaller.
    pub(crate) codec: NvmeCodec,
    /// Bytes in flight.
    pub(crate) inflight_bytes: u64,
    /// Directory of the catalog.
    pub(crate) state_dir: PathBuf,
    /// Which new pages are written at once.
    pub(crate) admit: NvmeAdmit,
    /// Bytes that may be written in a day; 0: no bound.
    pub(crate) write_bytes_per_day: u64,
}

impl Nvme {
    /// Checks the section.
    pub(super) fn check(file: NvmeFile) -> Result<Nvme, ConfigError> {
        let bytes = file.bytes.0;
        let segment_bytes = match file.segment_bytes {
            Some(segment) => segment.0,
            // Many, so that little is lost to those kept free; not so small that large pages leave gaps in them.
            None => (bytes / 256)
                .max(32 * MIB)
                .next_multiple_of(MIB)
                .min(bytes / 16 / MIB * MIB)
                .clamp(4 * MIB, 256 * MIB),
        };
        if !(4 * MIB..=4 * GIB - MIB).contains(&segment_bytes) || !segment_bytes.is_multiple_of(MIB) {
            let why = format!("{} must be a multiple of 1MiB from 4MiB to under 4GiB", Bytes(segment_bytes));
            return Err(bad("nvme.segment_bytes", why));
        }
        if bytes / segment_bytes < 4 {
            let why = format!("{} holds fewer than four segments of {}", Bytes(bytes), Bytes(segment_bytes));
            return Err(bad("nvme.bytes", why));
        }
        let inflight_bytes = file.inflight_bytes.map_or(16 * MIB, |bytes| bytes.0);
        if !(MIB..=GIB).contains(&inflight_bytes) {
            return Err(bad(
                "nvme.inflight_bytes",
                format!("{} is not within 1MiB..1GiB", Bytes(inflight_bytes)),
            ));
        }
        let write_bytes_per_day = file.write_bytes_per_day.map_or(0, |bytes| bytes.0);
        if file.write_bytes_per_day.is_some() && write_bytes_per_day < segment_bytes {
            let why = format!(
                "{} is less than a segment of {}: leave it out for no bound",
                Bytes(write_bytes_per_day),
                Bytes(segment_bytes)
            );
            return Err(bad("nvme.write_bytes_per_day", why));
        }
        let state_dir = file.state_dir.unwrap_or_else(|| file.path.clone());
        let engine = file.engine.unwrap_or(NvmeEngine::Auto);
        Ok(Nvme {
            path: file.path,
            bytes: bytes / segment_bytes * segment_bytes,
            segment_bytes,
            engine,
            codec: file.codec.unwrap_or(NvmeCodec::Auto),
            inflight_bytes,
            state_dir,
            admit: file.admit.unwrap_or(NvmeAdmit::All),
            write_bytes_per_day,
        })
    }

    /// The section that says what is in force.
    pub(super) fn as_file(&self) -> NvmeFile {
        NvmeFile {
            path: self.path.clone(),
            bytes: Bytes(self.bytes),
            segment_bytes: Some(Bytes(self.segment_bytes)),
            engine: Some(self.engine),
            codec: Some(self.codec),
            inflight_bytes: Some(Bytes(self.inflight_bytes)),
            state_dir: Some(self.state_dir.clone()),
            admit: Some(self.admit),
            write_bytes_per_day: Some(Bytes(self.write_bytes_per_day)).filter(|bytes| bytes.0 > 0),
        }
    }
}
