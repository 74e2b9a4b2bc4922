//! A hash of numbers that is the same on every host and in every version. Owns: the function. Must not know: what is hashed.

/// The finaliser of SplitMix64: every bit of the result depends on every bit of the word.
pub(crate) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}
