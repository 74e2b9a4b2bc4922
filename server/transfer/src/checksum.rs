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

/// The polynomial, bit 63 of which is the coefficient of x^0.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// What so many bytes do to the checksum of those before them: a factor, modulo the polynomial. (The library's own way takes tens
/// of microseconds each time.)
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appended(u64);

impl Appended {
    /// Of so many bytes: x^8 to that power.
    pub(crate) fn bytes(mut bytes: usize) -> Self {
        let (mut factor, mut square) = (1 << 63, 1 << 55);
        while bytes > 0 {
            if bytes & 1 == 1 {
                factor = multiply(factor, square);
            }
            square = multiply(square, square);
            bytes >>= 1;
        }
        Self(factor)
    }

    /// The checksum of all bytes, of that of the first of them and that of the appended ones.
    pub(crate) fn join(self, first: u64, appended: u64) -> u64 {
        multiply(first, self.0) ^ appended
    }
}

/// The product of two polynomials, modulo ours.
fn multiply(one: u64, mut other: u64) -> u64 {
    let mut product = 0;
    for power in 0..u64::BITS {
        product ^= other & (one >> (u64::BITS - 1 - power) & 1).wrapping_neg();
        other = (other >> 1) ^ (POLYNOMIAL & (other & 1).wrapping_neg());
    }
    product
}

impl Default for Checksum {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::{Appended, checksum};

    #[test]
    fn checksums_of_parts_come_to_that_of_the_whole() {
        let bytes: Vec<u8> = (0..100_003u32).map(|at| ((at * 7) >> 3) as u8).collect();
        for cut in [0, 1, 2, 255, 4096, 65_537, bytes.len() - 1, bytes.len()] {
            let (first, appended) = bytes.split_at(cut);
            let joined = Appended::bytes(appended.len()).join(checksum(first), checksum(appended));
            assert_eq!(joined, checksum(&bytes), "cut at {cut}");
        }
    }
}
