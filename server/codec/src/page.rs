//! An encoded page. Owns: its layout, and the two ends that write and read it. Must not know: where its bytes come from.
//!
//! All numbers are little-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | version of this layout |
//! | 1 | 1 | [`Codec`] |
//! | 2 | 1 | [`Values`] |
//! | 3 | 1 | zero |
//! | 4 | 4 | bytes of the page |
//!
//! Then its blocks, each of [`CODEC_BLOCK_BYTES`] of the page, the last of what is left: four bytes with the length of what follows
//! (the highest bit set: as it was), then that. A block's values are whole groups of the codebook; what the last block lacks to a
//! group is zero, and is cut off when it is decoded.

use crate::codebook::{self, GROUP};
use crate::codec::{Codec, Corrupt, Values};
use crate::kernel::Path;
use crate::lane::{Bf16, Byte, F16, F32};
use crate::limits::{
    BLOCK_HEADER_BYTES, CODEC_BLOCK_BYTES, GAIN_MIN_SHARE, GIVE_UP_BYTES, PAGE_HEADER_BYTES,
};
use crate::squeeze::{Squeezer, Unsqueezer};
use std::io;

const VERSION: u8 = 1;
const AS_IT_WAS: u32 = 1 << 31;
/// The widest value.
const VALUE_BYTES_MAX: usize = 4;

/// Encodes pages. One for each thread: it keeps its buffers.
pub struct Encoder {
    path: Path,
    squeezer: Squeezer,
    block: Vec<u8>,
    exponents: Vec<u8>,
    encoded: Vec<u8>,
}

impl Encoder {
    /// For these instructions; fails without memory.
    pub fn new(path: Path) -> io::Result<Encoder> {
        let encoded = vec![0; BLOCK_HEADER_BYTES + CODEC_BLOCK_BYTES];
        Ok(Encoder { path, squeezer: Squeezer::new()?, block: Vec::new(), exponents: Vec::new(), encoded })
    }

    /// Encodes a page of `page_bytes` that `read` copies piece by piece, from the offset it is given, and hands it to `write`
    /// likewise. How many bytes it became; nothing if it does not shrink enough to be worth it, and then not all of it was read,
    /// and what was written is void.
    pub fn encode(
        &mut self,
        codec: Codec,
        values: Values,
        page_bytes: u32,
        mut read: impl FnMut(usize, &mut [u8]),
        mut write: impl FnMut(usize, &[u8]),
    ) -> Option<usize> {
        let bytes = page_bytes as usize;
        let worth = bytes - bytes / GAIN_MIN_SHARE;
        if !codec.takes(values) || worth < PAGE_HEADER_BYTES {
            return None;
        }
        let mut header = [VERSION, codec as u8, values as u8, 0, 0, 0, 0, 0];
        header[4..].copy_from_slice(&page_bytes.to_le_bytes());
        write(0, &header);
        let (mut at, mut offset) = (PAGE_HEADER_BYTES, 0);
        while offset < bytes {
            let length = (bytes - offset).min(CODEC_BLOCK_BYTES);
            self.block.resize(whole_groups(length), 0);
            read(offset, &mut self.block[..length]);
            self.block[length..].fill(0);
            let (word, taken) = match self.encode_block(codec, values, length) {
                Some(taken) => (taken as u32, taken),
                None => {
                    // A block that does not shrink stays as it was.
                    self.encoded[BLOCK_HEADER_BYTES..][..length].copy_from_slice(&self.block[..length]);
                    (length as u32 | AS_IT_WAS, length)
                }
            };
            self.encoded[..BLOCK_HEADER_BYTES].copy_from_slice(&word.to_le_bytes());
            let whole = BLOCK_HEADER_BYTES + taken;
            if at + whole > worth {
                return None;
            }
            write(at, &self.encoded[..whole]);
            at += whole;
            offset += length;
            if offset >= GIVE_UP_BYTES && at >= offset {
                return None;
            }
        }
        Some(at)
    }

    fn encode_block(&mut self, codec: Codec, values: Values, length: usize) -> Option<usize> {
        let Encoder { path, squeezer, block, exponents, encoded } = self;
        let out = &mut encoded[BLOCK_HEADER_BYTES..][..length - 1];
        match (codec, values) {
            (Codec::Codebook, Values::Bf16) => codebook::encode::<2, 1, Bf16>(*path, block, out),
            (Codec::Codebook, Values::F32) => codebook::encode::<4, 3, F32>(*path, block, out),
            (Codec::Codebook, Values::F16 | Values::Bytes) => None,
            (Codec::Huffman, Values::Bf16) => squeezer.encode::<2, 1, Bf16>(block, exponents, out),
            (Codec::Huffman, Values::F32) => squeezer.encode::<4, 3, F32>(block, exponents, out),
            (Codec::Huffman, Values::F16) => squeezer.encode::<2, 1, F16>(block, exponents, out),
            (Codec::Huffman, Values::Bytes) => squeezer.encode::<1, 0, Byte>(block, exponents, out),
            (Codec::Zstd, _) => squeezer.encode_plain(&block[..length], out),
        }
    }
}

/// Decodes pages. One for each thread: it keeps its buffers.
pub struct Decoder {
    path: Path,
    unsqueezer: Unsqueezer,
    block: Vec<u8>,
    exponents: Vec<u8>,
    encoded: Vec<u8>,
}

impl Decoder {
    /// For these instructions; fails without memory.
    pub fn new(path: Path) -> io::Result<Decoder> {
        let encoded = vec![0; CODEC_BLOCK_BYTES];
        Ok(Decoder {
            path,
            unsqueezer: Unsqueezer::new()?,
            block: Vec::new(),
            exponents: Vec::new(),
            encoded,
        })
    }

    /// Decodes a page of `page_bytes` from `encoded_bytes` that are exactly it, which `read` copies piece by piece from the
    /// offset it is given, and hands it to `write` likewise. What was written before an error is void.
    pub fn decode(
        &mut self,
        encoded_bytes: usize,
        page_bytes: u32,
        mut read: impl FnMut(usize, &mut [u8]),
        mut write: impl FnMut(usize, &[u8]),
    ) -> Result<(), Corrupt> {
        if encoded_bytes < PAGE_HEADER_BYTES {
            return Err(Corrupt("no header"));
        }
        let mut header = [0; PAGE_HEADER_BYTES];
        read(0, &mut header);
        let (codec, values) = check_header(&header, page_bytes)?;
        let (bytes, mut offset, mut at) = (page_bytes as usize, 0, PAGE_HEADER_BYTES);
        while offset < bytes {
            let length = (bytes - offset).min(CODEC_BLOCK_BYTES);
            if encoded_bytes - at < BLOCK_HEADER_BYTES {
                return Err(Corrupt("a block is missing"));
            }
            let mut word = [0; BLOCK_HEADER_BYTES];
            read(at, &mut word);
            at += BLOCK_HEADER_BYTES;
            let word = u32::from_le_bytes(word);
            let (taken, as_it_was) = ((word & !AS_IT_WAS) as usize, word & AS_IT_WAS != 0);
            if taken > encoded_bytes - at {
                return Err(Corrupt("a block is cut off"));
            }
            if taken > length || as_it_was && taken < length {
                return Err(Corrupt("a block of another length"));
            }
            read(at, &mut self.encoded[..taken]);
            if as_it_was {
                write(offset, &self.encoded[..taken]);
            } else {
                self.decode_block(codec, values, length, taken)?;
                write(offset, &self.block[..length]);
            }
            (at, offset) = (at + taken, offset + length);
        }
        if at == encoded_bytes { Ok(()) } else { Err(Corrupt("bytes behind the last block")) }
    }

    fn decode_block(
        &mut self,
        codec: Codec,
        values: Values,
        length: usize,
        taken: usize,
    ) -> Result<(), Corrupt> {
        let Decoder { path, unsqueezer, block, exponents, encoded } = self;
        let encoded = &encoded[..taken];
        block.resize(whole_groups(length), 0);
        match (codec, values) {
            (Codec::Codebook, Values::Bf16) => codebook::decode::<2, 1, Bf16>(*path, encoded, block),
            (Codec::Codebook, Values::F32) => codebook::decode::<4, 3, F32>(*path, encoded, block),
            (Codec::Codebook, Values::F16 | Values::Bytes) => {
                Err(Corrupt("values that the codec does not take"))
            }
            (Codec::Huffman, Values::Bf16) => unsqueezer.decode::<2, 1, Bf16>(encoded, exponents, block),
            (Codec::Huffman, Values::F32) => unsqueezer.decode::<4, 3, F32>(encoded, exponents, block),
            (Codec::Huffman, Values::F16) => unsqueezer.decode::<2, 1, F16>(encoded, exponents, block),
            (Codec::Huffman, Values::Bytes) => unsqueezer.decode::<1, 0, Byte>(encoded, exponents, block),
            (Codec::Zstd, _) => unsqueezer.decode_plain(encoded, &mut block[..length]),
        }
    }
}

/// Bytes of a block of `length` with what it lacks to whole groups of any value.
fn whole_groups(length: usize) -> usize {
    length.next_multiple_of(GROUP * VALUE_BYTES_MAX)
}

fn check_header(header: &[u8; PAGE_HEADER_BYTES], page_bytes: u32) -> Result<(Codec, Values), Corrupt> {
    let [version, codec, values, zero, length @ ..] = *header;
    if version != VERSION || zero != 0 {
        return Err(Corrupt("a version that is not known"));
    }
    let codec = Codec::from_number(codec).ok_or(Corrupt("a codec that is not known"))?;
    let values = Values::from_number(values).ok_or(Corrupt("values of a type that is not known"))?;
    if !codec.takes(values) {
        return Err(Corrupt("values that the codec does not take"));
    }
    if length != page_bytes.to_le_bytes() {
        return Err(Corrupt("a page of another length"));
    }
    Ok((codec, values))
}
