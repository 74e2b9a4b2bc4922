//! The parts of a value: which of its bits are worth packing. Owns: where each type of value has its exponent.

/// A value of `W` bytes as one byte that repeats from value to value (of most types the exponent), and `R` bytes that do not.
pub(crate) trait Lane<const W: usize, const R: usize> {
    /// Takes a value apart.
    fn split(value: [u8; W]) -> (u8, [u8; R]);
    /// Puts it together: the inverse.
    fn join(exponent: u8, rest: [u8; R]) -> [u8; W];
}

/// bfloat16: one bit of sign, eight of exponent, seven of fraction. The sign goes with the fraction.
pub(crate) struct Bf16;

impl Lane<2, 1> for Bf16 {
    #[inline(always)]
    fn split(value: [u8; 2]) -> (u8, [u8; 1]) {
        let bits = u16::from_le_bytes(value);
        ((bits >> 7) as u8, [(bits & 0x7f) as u8 | (bits >> 8) as u8 & 0x80])
    }

    #[inline(always)]
    fn join(exponent: u8, rest: [u8; 1]) -> [u8; 2] {
        let (exponent, rest) = (u16::from(exponent), u16::from(rest[0]));
        (exponent << 7 | rest & 0x7f | (rest & 0x80) << 8).to_le_bytes()
    }
}

/// IEEE single precision: one bit of sign, eight of exponent, 23 of fraction. The sign goes with the fraction.
pub(crate) struct F32;

impl Lane<4, 3> for F32 {
    #[inline(always)]
    fn split(value: [u8; 4]) -> (u8, [u8; 3]) {
        let bits = u32::from_le_bytes(value);
        let high = (bits >> 16 & 0x7f | bits >> 24 & 0x80) as u8;
        ((bits >> 23) as u8, [bits as u8, (bits >> 8) as u8, high])
    }

    #[inline(always)]
    fn join(exponent: u8, rest: [u8; 3]) -> [u8; 4] {
        let [low, middle, high] = rest.map(u32::from);
        let fraction = low | middle << 8 | (high & 0x7f) << 16;
        (fraction | u32::from(exponent) << 23 | (high & 0x80) << 24).to_le_bytes()
    }
}

/// IEEE half precision: one bit of sign, five of exponent, ten of fraction. Its upper byte has the exponent and three bits more.
pub(crate) struct F16;

impl Lane<2, 1> for F16 {
    #[inline(always)]
    fn split([low, high]: [u8; 2]) -> (u8, [u8; 1]) {
        (high, [low])
    }

    #[inline(always)]
    fn join(exponent: u8, [low]: [u8; 1]) -> [u8; 2] {
        [low, exponent]
    }
}

/// Bytes, each of which may repeat.
pub(crate) struct Byte;

impl Lane<1, 0> for Byte {
    #[inline(always)]
    fn split([value]: [u8; 1]) -> (u8, [u8; 0]) {
        (value, [])
    }

    #[inline(always)]
    fn join(exponent: u8, _: [u8; 0]) -> [u8; 1] {
        [exponent]
    }
}
