//! `[dram]`: its keys as they are written. Owns: their words. Must not know: what is checked of them.

use super::bytes::Bytes;
use serde::{Deserialize, Serialize};

/// `[dram]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DramFile {
    /// Page memory; default `1GiB`, at least `16MiB`.
    pub(super) bytes: Option<Bytes>,
    /// Bytes of one slab; default: bytes / 64 within `4MiB..=1GiB`. A page's shard must fit one slab.
    pub(super) slab_bytes: Option<Bytes>,
    /// Use 2 MiB huge pages where the system has reserved some; default true.
    pub(super) huge_pages: Option<bool>,
    /// mlock the slabs; default true. A refusal is reported, never fatal.
    pub(super) lock: Option<bool>,
    /// Refuse to start where the host says that it has less memory available; default true. False where its memory grows.
    pub(super) check_available: Option<bool>,
}
