//! A blob as it is stored: encoded, with a checksum of what is stored. Owns: the codecs' numbers, encoding, decoding and verifying.
//! Must not know: packs, stores.
//!
//! The SHA-256 of what was decoded decides whether bytes are what they are called. The checksum of what is stored, CRC-64/NVME at
//! memory speed, is only for accidents: it says that the store damaged a blob before a decoder sees it, and lets a collection move
//! blobs without decoding them.

use crate::id::Digest;
use crate::limits::{GAIN_MIN_SHARE, ZSTD_LEVEL_MAX, ZSTD_LEVEL_MIN};
use bytes::Bytes;
use std::collections::HashMap;
use std::io;
use turnkv_codec::limits::encoded_bytes_max;
use turnkv_codec::{Codec, Decoder, Encoder, Path, Values};
use turnkv_transfer::checksum;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{find_frame_compressed_size, get_error_name};

/// How blobs are made smaller when they are stored. A blob that does not shrink is stored as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// The exponents of its values by Huffman's codes, the rest as it is: most of what there is to gain, quickly.
    Huffman(Values),
    /// zstd over all of it, at a level of 1 to 22.
    Zstd(i32),
}

impl Compression {
    /// The one for values of this type, by the name that manifests have for it.
    #[must_use]
    pub fn for_dtype(dtype: &str) -> Compression {
        Compression::Huffman(match dtype {
            "bf16" => Values::Bf16,
            "f16" => Values::F16,
            "f32" => Values::F32,
            _ => Values::Bytes,
        })
    }

    /// Whether its level is one.
    pub(crate) fn is_allowed(self) -> bool {
        !matches!(self, Compression::Zstd(level) if !(ZSTD_LEVEL_MIN..=ZSTD_LEVEL_MAX).contains(&level))
    }
}

/// How a stored blob is to be decoded. The numbers are written to packs: they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BlobCodec {
    /// As it was.
    Raw = 0,
    /// An encoded page of turnkv-codec, which says by itself how.
    Page = 1,
    /// One frame of zstd.
    Zstd = 2,
}

impl BlobCodec {
    /// From its number.
    pub(crate) fn from_number(number: u8) -> Option<BlobCodec> {
        [BlobCodec::Raw, BlobCodec::Page, BlobCodec::Zstd].into_iter().find(|codec| *codec as u8 == number)
    }
}

/// A blob, ready to be stored.
#[derive(Clone, Debug)]
pub(crate) struct StoredBlob {
    pub(crate) digest: Digest,
    pub(crate) decoded_bytes: u32,
    pub(crate) codec: BlobCodec,
    pub(crate) checksum: u64,
    pub(crate) bytes: Bytes,
}

/// Encodes and decodes blobs. One for each thread: it keeps its buffers.
pub(crate) struct Coder {
    encoder: Encoder,
    decoder: Decoder,
    compressors: HashMap<i32, Compressor<'static>>,
    decompressor: Decompressor<'static>,
}

impl Coder {
    /// Fails without memory.
    pub(crate) fn new() -> io::Result<Coder> {
        let path = Path::best();
        Ok(Coder {
            encoder: Encoder::new(path)?,
            decoder: Decoder::new(path)?,
            compressors: HashMap::new(),
            decompressor: Decompressor::new()?,
        })
    }

    /// Makes a blob of bytes whose digest is known. It is never longer than they are.
    pub(crate) fn encode(&mut self, compression: Compression, digest: Digest, bytes: &Bytes) -> StoredBlob {
        let encoded = match compression {
            Compression::None => None,
            Compression::Huffman(values) => {
                self.encode_page(values, bytes).map(|page| (BlobCodec::Page, page))
            }
            Compression::Zstd(level) => self.compress(level, bytes).map(|frame| (BlobCodec::Zstd, frame)),
        };
        let worth = bytes.len() - bytes.len() / GAIN_MIN_SHARE;
        let (codec, stored) = match encoded.filter(|(_, encoded)| encoded.len() < worth) {
            Some((codec, encoded)) => (codec, Bytes::from(encoded)),
            // A copy: a slice would keep all of the page it is of while its pack is filled.
            None => (BlobCodec::Raw, Bytes::copy_from_slice(bytes)),
        };
        let checksum = checksum(&stored);
        StoredBlob { digest, decoded_bytes: bytes.len() as u32, codec, checksum, bytes: stored }
    }

    fn encode_page(&mut self, values: Values, bytes: &Bytes) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(encoded_bytes_max(bytes.len()));
        let read = |at: usize, target: &mut [u8]| target.copy_from_slice(&bytes[at..][..target.len()]);
        let write = |_: usize, piece: &[u8]| out.extend_from_slice(piece);
        let length = self.encoder.encode(Codec::Huffman, values, bytes.len() as u32, read, write)?;
        out.truncate(length);
        out.shrink_to_fit(); // it waits in a pack, which counts what blobs have, not what they were given
        Some(out)
    }

    /// One frame of zstd; nothing if there is no memory for it.
    pub(crate) fn compress(&mut self, level: i32, bytes: &[u8]) -> Option<Vec<u8>> {
        if let std::collections::hash_map::Entry::Vacant(place) = self.compressors.entry(level) {
            place.insert(Compressor::new(level).ok()?);
        }
        self.compressors.get_mut(&level)?.compress(bytes).ok()
    }

    /// The bytes of one frame of zstd that are exactly so many; what is wrong with it otherwise.
    pub(crate) fn decompress(&mut self, frame: &[u8], decoded_bytes: u32) -> Result<Vec<u8>, String> {
        // What follows the first frame would be decoded too, and be part of it.
        match find_frame_compressed_size(frame) {
            Ok(first) if first == frame.len() => {}
            Ok(first) => return Err(format!("a frame of zstd ends after {first} of {} bytes", frame.len())),
            Err(fault) => return Err(format!("a frame of zstd is damaged: {}", get_error_name(fault))),
        }
        let mut out = vec![0; decoded_bytes as usize];
        match self.decompressor.decompress_to_buffer(frame, &mut out[..]) {
            Ok(length) if length == out.len() => Ok(out),
            Ok(length) => Err(format!("a frame of zstd has {length} bytes, {decoded_bytes} were expected")),
            Err(fault) => Err(format!("a frame of zstd is damaged: {fault}")),
        }
    }

    /// The bytes of a stored blob, verified; what differs otherwise.
    pub(crate) fn decode(&mut self, blob: &StoredBlob) -> Result<Bytes, String> {
        verify_stored(blob)?;
        let decoded = match blob.codec {
            BlobCodec::Raw if blob.bytes.len() == blob.decoded_bytes as usize => blob.bytes.clone(),
            BlobCodec::Raw => return Err("a blob that is stored as it is has another length".to_owned()),
            BlobCodec::Page => Bytes::from(self.decode_page(blob)?),
            BlobCodec::Zstd => Bytes::from(self.decompress(&blob.bytes, blob.decoded_bytes)?),
        };
        let found = Digest::of(&decoded);
        if found == blob.digest {
            Ok(decoded)
        } else {
            Err(format!("its SHA-256 is {found}, not {}", blob.digest))
        }
    }

    fn decode_page(&mut self, blob: &StoredBlob) -> Result<Vec<u8>, String> {
        let mut out = vec![0; blob.decoded_bytes as usize];
        let read = |at: usize, target: &mut [u8]| target.copy_from_slice(&blob.bytes[at..][..target.len()]);
        let write = |at: usize, piece: &[u8]| out[at..][..piece.len()].copy_from_slice(piece);
        let decoded = self.decoder.decode(blob.bytes.len(), blob.decoded_bytes, read, write);
        decoded.map_err(|fault| fault.to_string())?;
        Ok(out)
    }
}

/// Whether a blob's stored bytes are those that were stored; what differs otherwise.
pub(crate) fn verify_stored(blob: &StoredBlob) -> Result<(), String> {
    let found = checksum(&blob.bytes);
    if found == blob.checksum {
        Ok(())
    } else {
        Err(format!(
            "the stored bytes of blob {} have checksum {found:016x}, not {:016x}",
            blob.digest, blob.checksum
        ))
    }
}
