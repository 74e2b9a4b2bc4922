//! Every codec gives back what it took, by every set of instructions, and nothing that an encoder did not make passes for a page.

mod documented;
mod hostile;
mod round_trips;

use crate::kernel::Path;
use crate::limits::encoded_bytes_max;
use crate::{Codec, Corrupt, Decoder, Encoder, Values};
use turnkv_mutate::Random;

fn paths() -> impl Iterator<Item = Path> {
    [Path::Plain, Path::Avx2].into_iter().filter(|path| path.runs())
}

fn encode(path: Path, codec: Codec, values: Values, page: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0xa5; encoded_bytes_max(page.len())];
    let read = |at: usize, target: &mut [u8]| target.copy_from_slice(&page[at..][..target.len()]);
    let write = |at: usize, piece: &[u8]| out[at..][..piece.len()].copy_from_slice(piece);
    let length = Encoder::new(path).unwrap().encode(codec, values, page.len() as u32, read, write)?;
    out.truncate(length);
    Some(out)
}

fn decode(path: Path, encoded: &[u8], page_bytes: usize) -> Result<Vec<u8>, Corrupt> {
    let mut page = vec![0; page_bytes];
    let read = |at: usize, target: &mut [u8]| target.copy_from_slice(&encoded[at..][..target.len()]);
    let write = |at: usize, piece: &[u8]| page[at..][..piece.len()].copy_from_slice(piece);
    Decoder::new(path).unwrap().decode(encoded.len(), page_bytes as u32, read, write)?;
    Ok(page)
}

/// Values as caches have them: near zero, of few exponents, signs and fractions at random. A few are of any exponent.
fn page_of(values: Values, bytes: usize, strange_one_in: usize, random: &mut Random) -> Vec<u8> {
    let mut page = Vec::with_capacity(bytes + 4);
    while page.len() < bytes {
        let number = random.number();
        // The sum of a few bits is distributed as the exponents of a channel are.
        let spread = (number & 0x3f).count_ones() + ((number >> 6) & 0x3f).count_ones();
        let (sign, fraction) = (number >> 63, number >> 20);
        let strange = random.one_in(strange_one_in);
        match values {
            Values::Bf16 => {
                let exponent = if strange { number >> 8 & 0xff } else { 112 + u64::from(spread) };
                page.extend(((sign << 15 | exponent << 7 | fraction & 0x7f) as u16).to_le_bytes());
            }
            Values::F16 => {
                let exponent = if strange { number >> 8 & 0x1f } else { 4 + u64::from(spread) };
                page.extend(((sign << 15 | exponent << 10 | fraction & 0x3ff) as u16).to_le_bytes());
            }
            Values::F32 => {
                let exponent = if strange { number >> 8 & 0xff } else { 112 + u64::from(spread) };
                page.extend(((sign << 31 | exponent << 23 | fraction & 0x7f_ffff) as u32).to_le_bytes());
            }
            Values::Bytes => {
                let exponent = if strange { number >> 8 & 0xf } else { u64::from(spread) };
                page.push((sign << 7 | exponent << 3 & 0x78 | fraction & 7) as u8);
            }
        }
    }
    page.truncate(bytes);
    page
}
