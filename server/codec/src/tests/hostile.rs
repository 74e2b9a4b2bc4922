//! Decoders are given what no encoder made: an error or other bytes, never a panic, never an access outside.

use super::{decode, encode, page_of, paths};
use crate::limits::{BLOCK_HEADER_BYTES, PAGE_HEADER_BYTES};
use crate::{Codec, Corrupt, Values};
use turnkv_mutate::{Random, each_seed, mutate_bytes};

const PAGE_BYTES: usize = 70_000;

#[test]
fn damaged_pages_panic_no_decoder() {
    let encodings: Vec<(Codec, Values, Vec<u8>)> = Codec::ALL
        .into_iter()
        .flat_map(|codec| Values::ALL.map(|values| (codec, values)))
        .filter_map(|(codec, values)| {
            let page = page_of(values, PAGE_BYTES, 100, &mut Random::new(11));
            encode(paths().last().unwrap(), codec, values, &page).map(|encoded| (codec, values, encoded))
        })
        .collect();
    assert!(encodings.len() >= 6, "{}", encodings.len());
    each_seed(400, |random| {
        let (_, _, encoded) = &encodings[random.below(encodings.len())];
        let damaged = mutate_bytes(random, encoded);
        for path in paths() {
            if let Ok(page) = decode(path, &damaged, PAGE_BYTES) {
                assert_eq!(page.len(), PAGE_BYTES);
            }
        }
    });
}

#[test]
fn noise_panics_no_decoder() {
    each_seed(400, |random| {
        let length = random.below(90_000);
        let mut noise: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
        let header = [1, 1 + random.below(3) as u8, random.below(4) as u8, 0];
        for (byte, good) in noise.iter_mut().zip(header.into_iter().chain((PAGE_BYTES as u32).to_le_bytes()))
        {
            *byte = good;
        }
        // A block's length that is possible leads further than one that is not.
        if let Some(word) = noise.get_mut(PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + BLOCK_HEADER_BYTES) {
            word.copy_from_slice(&(random.below(length) as u32).to_le_bytes());
        }
        for path in paths() {
            if let Ok(page) = decode(path, &noise, PAGE_BYTES) {
                assert_eq!(page.len(), PAGE_BYTES);
            }
        }
    });
}

#[test]
fn what_is_wrong_is_said() {
    let page = page_of(Values::Bf16, PAGE_BYTES, 100, &mut Random::new(12));
    let path = paths().next().unwrap();
    let good = encode(path, Codec::Codebook, Values::Bf16, &page).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        decode(path, &bad, PAGE_BYTES).unwrap_err()
    };
    assert_eq!(with(0, 2), Corrupt("a version that is not known"));
    assert_eq!(with(1, 9), Corrupt("a codec that is not known"));
    assert_eq!(with(2, 9), Corrupt("values of a type that is not known"));
    assert_eq!(with(2, 0), Corrupt("values that the codec does not take"));
    assert_eq!(with(3, 1), Corrupt("a version that is not known"));
    assert_eq!(decode(path, &good, PAGE_BYTES + 1).unwrap_err(), Corrupt("a page of another length"));
    assert_eq!(decode(path, &good[..5], PAGE_BYTES).unwrap_err(), Corrupt("no header"));
    assert_eq!(
        decode(path, &good[..PAGE_HEADER_BYTES], PAGE_BYTES).unwrap_err(),
        Corrupt("a block is missing")
    );
    assert_eq!(decode(path, &good[..good.len() - 1], PAGE_BYTES).unwrap_err(), Corrupt("a block is cut off"));
    let mut longer = good.clone();
    longer.push(0);
    assert_eq!(decode(path, &longer, PAGE_BYTES).unwrap_err(), Corrupt("bytes behind the last block"));
}
