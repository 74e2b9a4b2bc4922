//! Bounds of encoded pages. Owns: these numbers.

/// Bytes of a page that are encoded at a time: they, and what they become, stay in a core's second-level cache.
pub const CODEC_BLOCK_BYTES: usize = 64 << 10;
/// A page is stored as it is unless it shrinks by this part of it: less does not pay for a decoder.
pub const GAIN_MIN_SHARE: usize = 32;
/// A page whose first so many bytes did not shrink at all is not looked at further.
pub const GIVE_UP_BYTES: usize = 4 * CODEC_BLOCK_BYTES;
/// Bytes of an encoded page before its blocks.
pub const PAGE_HEADER_BYTES: usize = 8;
/// Bytes before each block.
pub const BLOCK_HEADER_BYTES: usize = 4;
/// Share of a device's rate of writing that a codec must reach.
pub const WRITE_SHARE_MIN: f64 = 0.5;
/// Pages that a choice of codec looks at.
pub const CHOICE_PAGES_MAX: usize = 8;

/// The most bytes that a page of so many may become.
pub const fn encoded_bytes_max(page_bytes: usize) -> usize {
    PAGE_HEADER_BYTES + page_bytes.div_ceil(CODEC_BLOCK_BYTES) * BLOCK_HEADER_BYTES + page_bytes
}
