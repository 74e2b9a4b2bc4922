//! CRC-64/NVME, the end-to-end checksum of a page. Owns: the choice of the algorithm. Must not know: where bytes lie.

use crc_fast::{CrcAlgorithm, Digest};

/// The checksum of `bytes` in one go.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::crc64_nvme(bytes)
}

/// The same checksum, taken piece by piece.
#[derive(Clone, Debug)]
pub struct Checksum {
    digest: Digest,
}

impl Checksum {
    /// The checksum of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self { digest: Digest::new(CrcAlgorithm::Crc64Nvme) }
    }

    /// Adds the bytes that follow those already added.
    pub fn update(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
    }

    /// What goes on to the next byte.
    pub(crate) fn register(&self) -> u64 {
        self.digest.get_state()
    }

    /// Goes on from a remainder: sixteen bytes that leave behind nothing in the register what all bytes so far leave.
    pub(crate) fn resume(&mut self, remainder: &[u8; 16]) {
        self.digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, 0);
        self.digest.update(remainder);
    }

    /// The checksum of all bytes added.
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.digest.finalize()
    }
}

impl Default for Checksum {
    fn default() -> Self {
        Self::new()
    }
}
