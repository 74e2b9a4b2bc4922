//! The arithmetic of folding: how a checksum is carried along in wide registers. Owns: its constants. Must not know:
//! instructions, memory.
//!
//! CRC-64/NVME is the remainder of the message, a polynomial over one bit, divided by [`POLYNOMIAL`]. Sixteen bytes A that are
//! followed by n bytes and then by sixteen bytes B leave the same remainder as A times x^(8 (n + 16)), reduced to sixteen
//! bytes, plus B: two carry-less products fold A onto B. Many such A are folded side by side, then onto one another; sixteen
//! bytes are left, which a plain checksum turns into the register's value.
//!
//! Bits are reflected: the first bit of the message, the highest power, is the lowest of its word. A carry-less product of two
//! reflected words is reflected too but for a factor x, which the constants leave out.

/// Bytes of what is left of a message: 128 bits that leave the same remainder as all of it.
pub(super) const REMAINDER_BYTES: usize = 16;

/// See [`REMAINDER_BYTES`].
pub(super) type Remainder = [u8; REMAINDER_BYTES];

/// The polynomial of CRC-64/NVME without x^64, reflected.
const POLYNOMIAL: u64 = 0x9A6C_9329_AC4B_C9B5;

/// What the two halves of sixteen bytes are multiplied by to carry them over a distance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shift {
    /// For the first eight bytes, which stand 64 powers higher.
    pub(super) first: u64,
    pub(super) second: u64,
}

impl Shift {
    /// Over `bytes` bytes.
    pub(super) const fn by_bytes(bytes: usize) -> Shift {
        Shift { first: power(8 * bytes + 63), second: power(8 * bytes - 1) }
    }
}

/// x^`exponent`, reduced by the polynomial, reflected.
const fn power(exponent: usize) -> u64 {
    let mut value = 1 << 63; // x^0
    let mut done = 0;
    while done < exponent {
        value = (value >> 1) ^ if value & 1 == 1 { POLYNOMIAL } else { 0 };
        done += 1;
    }
    value
}
