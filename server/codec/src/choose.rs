//! Which codec is worth it. Owns: the measuring on real pages, and the rule. Must not know: whose pages they are.
//!
//! A device that gives so many bytes a second gives `ratio` times as many of the page's, if they can be decoded as fast: of the
//! codecs the one is best with which most of a page's bytes arrive in a second. It must beat the pages as they are there, and may
//! cost some of the rate at which they are written: that is behind, and what is written is less.

use crate::codec::{Codec, Values};
use crate::kernel::Path;
use crate::limits::{CHOICE_PAGES_MAX, WRITE_SHARE_MIN, encoded_bytes_max};
use crate::page::{Decoder, Encoder};
use std::io;
use std::time::Duration;

/// What a codec did with a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Which.
    pub codec: Codec,
    /// Of what it took the bytes to be.
    pub values: Values,
    /// Bytes of the pages for each byte they became; 1 where they do not shrink.
    pub ratio: f64,
    /// Bytes of pages that are encoded in a second.
    pub encode_bytes_per_s: f64,
    /// Bytes of pages that are decoded in a second.
    pub decode_bytes_per_s: f64,
}

/// How fast a device is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceRates {
    /// Bytes that can be read from it in a second.
    pub read_bytes_per_s: f64,
    /// Bytes that can be written to it in a second.
    pub write_bytes_per_s: f64,
}

/// Tries every codec on the first pages of a sample, as values of every type: what the bytes are is found out by what they shrink
/// to, as engines with an order of their own do not say. Rates are those of one core. `clock` tells the time since any moment.
pub fn measure(pages: &[&[u8]], path: Path, clock: impl Fn() -> Duration) -> io::Result<Vec<Measured>> {
    let (mut encoder, mut decoder) = (Encoder::new(path)?, Decoder::new(path)?);
    let tries = Values::ALL.into_iter().flat_map(|values| Codec::ALL.map(|codec| (codec, values)));
    // What the bytes are is nothing to zstd.
    let tries =
        tries.filter(|(codec, of)| codec.takes(*of) && (*codec != Codec::Zstd || *of == Values::Bytes));
    let mut measured = Vec::new();
    for (codec, values) in tries {
        let (mut decoded, mut held) = (0, 0);
        let (mut encoding, mut decoding) = (Duration::ZERO, Duration::ZERO);
        for page in pages.iter().take(CHOICE_PAGES_MAX) {
            let Ok(page_bytes) = u32::try_from(page.len()) else { continue };
            let mut out = Vec::with_capacity(encoded_bytes_max(page.len()));
            let write = |_: usize, piece: &[u8]| out.extend_from_slice(piece);
            decoded += page.len();
            let began = clock();
            let encoded = encoder.encode(codec, values, page_bytes, reading(page), write);
            encoding += clock().saturating_sub(began);
            let Some(length) = encoded else {
                held += page.len();
                continue;
            };
            held += length;
            let mut target = vec![0; page.len()];
            let write = |at: usize, piece: &[u8]| target[at..][..piece.len()].copy_from_slice(piece);
            let began = clock();
            let good = decoder.decode(length, page_bytes, reading(&out), write).is_ok();
            decoding += clock().saturating_sub(began);
            if !good || target != *page {
                held += page.len(); // a codec that does not give back what it took is not chosen
            }
        }
        let ratio = decoded as f64 / held.max(1) as f64;
        let rate = |took: Duration| decoded as f64 / took.as_secs_f64().max(1e-9);
        let (encode_bytes_per_s, decode_bytes_per_s) = (rate(encoding), rate(decoding));
        measured.push(Measured { codec, values, ratio, encode_bytes_per_s, decode_bytes_per_s });
    }
    Ok(measured)
}

fn reading(bytes: &[u8]) -> impl FnMut(usize, &mut [u8]) {
    |at, target| target.copy_from_slice(&bytes[at..][..target.len()])
}

/// The codec with which most bytes of pages arrive from a device in a second, if any beats the pages as they are and does not
/// slow their writing down by more than [`WRITE_SHARE_MIN`] allows.
pub fn best(measured: &[Measured], device: DeviceRates) -> Option<Measured> {
    let arrive = |one: &Measured| (device.read_bytes_per_s * one.ratio).min(one.decode_bytes_per_s);
    let pays = |one: &&Measured| {
        one.ratio > 1.0
            && arrive(one) > device.read_bytes_per_s
            && one.encode_bytes_per_s >= device.write_bytes_per_s * WRITE_SHARE_MIN
    };
    let better = |a: &&Measured, b: &&Measured| (arrive(a), a.ratio).partial_cmp(&(arrive(b), b.ratio));
    let best = measured.iter().filter(pays).max_by(|a, b| better(a, b).unwrap_or(std::cmp::Ordering::Equal));
    best.copied()
}
