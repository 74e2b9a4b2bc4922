//! `[dram]`: how much page memory there is, in slabs of which size. Owns: the section's keys, defaults and bounds. Must not know:
//! how memory is had.

use super::bounds::bad;
use super::bytes::{Bytes, GIB, MIB};
use super::error::ConfigError;
use serde::{Deserialize, Serialize};

/// The least page memory.
pub(crate) const DRAM_BYTES_MIN: u64 = 16 * MIB;

/// `[dram]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DramFile {
    /// Page memory; default `1GiB`, at least `16MiB`.
    pub(super) bytes: Option<Bytes>,
    /// Bytes of one slab; default: as memory that is kept has it, else bytes / 64 within `4MiB..=1GiB`. A page's shard must fit one slab.
    pub(super) slab_bytes: Option<Bytes>,
    /// Use 2 MiB huge pages where the system has reserved some; default true.
    pub(super) huge_pages: Option<bool>,
    /// mlock the slabs; default true. A refusal is reported, never fatal.
    pub(super) lock: Option<bool>,
    /// Refuse to start where the host says that it has less memory available; default true. False where its memory grows.
    pub(super) check_available: Option<bool>,
}

/// Checked `[dram]`.
#[derive(Debug, Clone)]
pub(crate) struct Dram {
    /// Page memory, a multiple of `slab_bytes`.
    pub(crate) bytes: u64,
    /// Bytes of a slab.
    pub(crate) slab_bytes: u64,
    /// Nobody said how large slabs are to be: those that are kept stay as they are.
    pub(crate) any_slab_bytes: bool,
    /// Huge pages wanted.
    pub(crate) huge_pages: bool,
    /// mlock wanted.
    pub(crate) lock: bool,
    /// The host must have as much memory available at the start.
    pub(crate) check_available: bool,
}

impl Dram {
    /// Checks the section.
    pub(super) fn check(file: &DramFile) -> Result<Dram, ConfigError> {
        let bytes = file.bytes.map_or(GIB, |bytes| bytes.0);
        if bytes < DRAM_BYTES_MIN {
            return Err(bad("dram.bytes", format!("{} is under the least of 16MiB", Bytes(bytes))));
        }
        let slab_bytes = match file.slab_bytes {
            Some(slab) => slab.0,
            None => (bytes / 64).clamp(4 * MIB, GIB).next_multiple_of(2 * MIB),
        };
        let (slab_bytes, bytes) = Dram::with_slabs(bytes, Bytes(slab_bytes))?;
        Ok(Dram {
            bytes,
            slab_bytes,
            any_slab_bytes: file.slab_bytes.is_none(),
            huge_pages: file.huge_pages.unwrap_or(true),
            lock: file.lock.unwrap_or(true),
            check_available: file.check_available.unwrap_or(true),
        })
    }

    /// Bytes of a slab, and the whole slabs of so much memory.
    ///
    /// # Errors
    /// Slabs cannot have this size.
    pub(crate) fn with_slabs(bytes: u64, slab_bytes: Bytes) -> Result<(u64, u64), ConfigError> {
        let Bytes(slab) = slab_bytes;
        if !(MIB..=GIB).contains(&slab) || !slab.is_multiple_of(MIB) || slab > bytes {
            let why = format!("{slab_bytes} must be a multiple of 1MiB, at most 1GiB and dram.bytes");
            return Err(bad("dram.slab_bytes", why));
        }
        Ok((slab, bytes / slab * slab))
    }
}
