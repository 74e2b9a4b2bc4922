//! Settings that are one of some words. Owns: the words. Must not know: what follows from them.

use serde::{Deserialize, Serialize};

/// Which new pages go to NVMe at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NvmeAdmit {
    /// All.
    All,
    /// Those of sessions that came back, or are expected.
    Reused,
}

/// Who is evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Policy {
    /// Least recently used, tails before heads.
    Lru,
    /// A queue of newcomers before the main one.
    S3fifo,
    /// Newcomers must be read more often than what they replace.
    Tinylfu,
    /// Read once and read again share the room as their ghosts say.
    Arc,
    /// Learned chances of return by uses and age.
    Gittins,
    /// Learned chances of return by session, and what its owner said.
    Session,
}

/// Which engine moves the bytes of the NVMe tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NvmeEngine {
    /// io_uring where the kernel allows it.
    Auto,
    /// io_uring or refuse to start.
    Ring,
    /// Blocking threads.
    Blocking,
}

/// How pages are made smaller on their way to NVMe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NvmeCodec {
    /// By what is worth most on this device, measured on pages of each namespace.
    Auto,
    /// Not at all.
    None,
    /// Exponents by a book of fifteen.
    Codebook,
    /// Exponents by Huffman's codes.
    Huffman,
    /// zstd.
    Zstd,
}
