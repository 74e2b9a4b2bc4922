//! zstd, over the exponents of a block or over all its bytes. Owns: its contexts and their settings. Must not know: pages.
//!
//! A block of exponents becomes the planes of the rest, then one frame of zstd that has Huffman's codes and no matches: at its
//! quickest level it looks for none that are worth anything in exponents, and its literals are made to be packed.

use crate::codec::Corrupt;
use crate::lane::Lane;
use std::io;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{CParameter, ParamSwitch};

/// The level at which zstd looks for hardly any matches.
const LEVEL_NO_MATCHES: i32 = -1000;
/// zstd's quickest ordinary level.
const LEVEL_PLAIN: i32 = 1;

/// zstd's contexts of one encoder.
pub(crate) struct Squeezer {
    literals: Compressor<'static>,
    plain: Compressor<'static>,
}

impl Squeezer {
    /// Fails without memory.
    pub(crate) fn new() -> io::Result<Squeezer> {
        let mut literals = Compressor::new(LEVEL_NO_MATCHES)?;
        literals.set_parameter(CParameter::LiteralCompressionMode(ParamSwitch::Enable))?;
        Ok(Squeezer { literals, plain: Compressor::new(LEVEL_PLAIN)? })
    }

    /// Encodes values into `out`; how many bytes that took, or nothing if they do not fit. `exponents` is scratch.
    pub(crate) fn encode<const W: usize, const R: usize, L: Lane<W, R>>(
        &mut self,
        values: &[u8],
        exponents: &mut Vec<u8>,
        out: &mut [u8],
    ) -> Option<usize> {
        let count = values.len() / W;
        let (planes, frame) = out.split_at_mut_checked(count * R)?;
        exponents.resize(count, 0);
        for (i, value) in values.chunks_exact(W).enumerate() {
            let mut bytes = [0; W];
            bytes.copy_from_slice(value);
            let (exponent, rest) = L::split(bytes);
            exponents[i] = exponent;
            for (plane, byte) in rest.into_iter().enumerate() {
                planes[plane * count + i] = byte;
            }
        }
        // Its only error here is that the frame does not fit.
        let packed = self.literals.compress_to_buffer(&exponents[..], frame).ok()?;
        Some(count * R + packed)
    }

    /// Encodes bytes as they are into `out`; how many bytes that took, or nothing if they do not fit.
    pub(crate) fn encode_plain(&mut self, bytes: &[u8], out: &mut [u8]) -> Option<usize> {
        self.plain.compress_to_buffer(bytes, out).ok()
    }
}

/// zstd's context of one decoder.
pub(crate) struct Unsqueezer(Decompressor<'static>);

impl Unsqueezer {
    /// Fails without memory.
    pub(crate) fn new() -> io::Result<Unsqueezer> {
        Decompressor::new().map(Unsqueezer)
    }

    /// Decodes exactly `values`. `exponents` is scratch.
    pub(crate) fn decode<const W: usize, const R: usize, L: Lane<W, R>>(
        &mut self,
        encoded: &[u8],
        exponents: &mut Vec<u8>,
        values: &mut [u8],
    ) -> Result<(), Corrupt> {
        let count = values.len() / W;
        let (planes, frame) = encoded.split_at_checked(count * R).ok_or(Corrupt("a block is too short"))?;
        exponents.resize(count, 0);
        self.decode_plain(frame, &mut exponents[..])?;
        for (i, value) in values.chunks_exact_mut(W).enumerate() {
            let rest = std::array::from_fn(|plane| planes[plane * count + i]);
            value.copy_from_slice(&L::join(exponents[i], rest));
        }
        Ok(())
    }

    /// Decodes exactly `bytes`.
    pub(crate) fn decode_plain(&mut self, frame: &[u8], bytes: &mut [u8]) -> Result<(), Corrupt> {
        match self.0.decompress_to_buffer(frame, bytes) {
            Ok(decoded) if decoded == bytes.len() => Ok(()),
            Ok(_) => Err(Corrupt("a frame of zstd is too short")),
            Err(_) => Err(Corrupt("a frame of zstd is damaged")),
        }
    }
}
