//! What goes in comes out.

use super::{decode, encode, page_of, paths};
use crate::lane::{Bf16, Byte, F16, F32, Lane};
use crate::limits::{CODEC_BLOCK_BYTES, GAIN_MIN_SHARE};
use crate::{Codec, DeviceRates, Measured, Values, best, measure};
use proptest::prelude::*;
use std::cell::Cell;
use std::time::Duration;
use turnkv_mutate::Random;

#[test]
fn every_value_is_put_together_as_it_was() {
    for bits in 0..=u16::MAX {
        let value = bits.to_le_bytes();
        let (exponent, rest) = Bf16::split(value);
        assert_eq!(Bf16::join(exponent, rest), value);
        let (exponent, rest) = F16::split(value);
        assert_eq!(F16::join(exponent, rest), value);
        for value in [[0, 0, value[0], value[1]], [value[0], value[1], 0x80, 0xff]] {
            let (exponent, rest) = F32::split(value);
            assert_eq!(F32::join(exponent, rest), value);
        }
    }
    let (exponent, rest) = Byte::split([7]);
    assert_eq!(Byte::join(exponent, rest), [7]);
}

#[test]
fn exponents_of_values_are_where_they_should_be() {
    assert_eq!(F32::split(1.5_f32.to_le_bytes()).0, 127);
    assert_eq!(F32::split((-0.25_f32).to_le_bytes()).0, 125);
    assert_eq!(Bf16::split([0x80, 0xbf]).0, 127, "-1 in bf16");
}

#[test]
fn pages_of_caches_shrink_and_come_back_by_every_path() {
    let mut random = Random::new(1);
    for values in Values::ALL {
        for bytes in [CODEC_BLOCK_BYTES, 3 * CODEC_BLOCK_BYTES + 4096, 300_000] {
            let page = page_of(values, bytes, 200, &mut random);
            for codec in Codec::ALL.into_iter().filter(|codec| codec.takes(values)) {
                let encodings: Vec<_> = paths().map(|path| encode(path, codec, values, &page)).collect();
                assert!(
                    encodings.windows(2).all(|two| two[0] == two[1]),
                    "paths differ for {codec:?} of {values:?}"
                );
                let Some(encoded) = &encodings[0] else {
                    assert_eq!(codec, Codec::Zstd, "{values:?} do not shrink by {codec:?}");
                    continue;
                };
                for path in paths() {
                    assert!(
                        decode(path, encoded, bytes).unwrap() == page,
                        "{codec:?} of {values:?} by {path:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn bf16_shrinks_by_near_a_third_of_its_smaller_half() {
    let page = page_of(Values::Bf16, 1 << 20, 1000, &mut Random::new(2));
    let ratio = |codec| {
        page.len() as f64 / encode(paths().next().unwrap(), codec, Values::Bf16, &page).unwrap().len() as f64
    };
    assert!(ratio(Codec::Codebook) > 1.32, "{}", ratio(Codec::Codebook));
    assert!(ratio(Codec::Huffman) > ratio(Codec::Codebook), "{}", ratio(Codec::Huffman));
}

#[test]
fn what_does_not_shrink_is_left_alone_early() {
    let mut random = Random::new(3);
    let page: Vec<u8> = (0..(1 << 20) / 8).flat_map(|_| random.number().to_le_bytes()).collect();
    for values in Values::ALL {
        for codec in Codec::ALL {
            for path in paths() {
                assert_eq!(encode(path, codec, values, &page), None, "{codec:?} of {values:?}");
            }
        }
    }
}

#[test]
fn a_page_with_a_part_that_does_not_shrink_keeps_that_as_it_was() {
    let mut random = Random::new(4);
    let mut page = page_of(Values::Bf16, 4 * CODEC_BLOCK_BYTES, 500, &mut random);
    for byte in &mut page[CODEC_BLOCK_BYTES..2 * CODEC_BLOCK_BYTES] {
        *byte = random.number() as u8;
    }
    for codec in [Codec::Codebook, Codec::Huffman] {
        let path = paths().next().unwrap();
        let encoded = encode(path, codec, Values::Bf16, &page).unwrap();
        assert!(encoded.len() < page.len() - page.len() / GAIN_MIN_SHARE);
        assert!(decode(path, &encoded, page.len()).unwrap() == page);
    }
}

/// A clock by which each look costs a microsecond.
fn slow_clock() -> impl Fn() -> Duration {
    let looks = Cell::new(0);
    move || {
        looks.set(looks.get() + 1);
        Duration::from_micros(looks.get())
    }
}

fn rates(both: f64) -> DeviceRates {
    DeviceRates { read_bytes_per_s: both, write_bytes_per_s: both }
}

#[test]
fn the_codec_is_chosen_by_what_arrives() {
    let bf16 = page_of(Values::Bf16, 1 << 20, 500, &mut Random::new(6));
    let path = paths().next().unwrap();
    let measured = measure(&[&bf16], path, slow_clock()).unwrap();
    assert_eq!(measured.len(), 7, "two types by the book, four by Huffman's codes, and zstd");
    let best = |measured: &[Measured], rate| best(measured, rates(rate)).map(|one| one.codec);
    assert_eq!(best(&measured, 1e9), Some(Codec::Huffman), "where decoding costs nothing, the smallest wins");
    let mut slow = measured.clone();
    for one in &mut slow {
        one.decode_bytes_per_s = if one.codec == Codec::Codebook { 9e9 } else { 1.1e9 };
    }
    assert_eq!(best(&slow, 2e9), Some(Codec::Codebook), "where it costs, the quickest");
    assert_eq!(best(&slow, 20e9), None, "on a device that is quicker than any decoder, none");
    for one in &mut slow {
        one.encode_bytes_per_s = 0.9e9;
    }
    assert_eq!(best(&slow, 2e9), None, "none that writes would have to wait for");
    let random: Vec<u8> = {
        let mut random = Random::new(7);
        (0..1 << 17).flat_map(|_| random.number().to_le_bytes()).collect()
    };
    let measured = measure(&[&random], path, slow_clock()).unwrap();
    assert_eq!(best(&measured, 1e9), None, "nothing that shrinks");
    for values in Values::ALL {
        let page = page_of(values, 1 << 20, 500, &mut Random::new(8));
        let found = crate::best(&measure(&[&page], path, slow_clock()).unwrap(), rates(1e9)).unwrap();
        assert_eq!(found.values, values, "what the bytes are is found out");
    }
    let zeroes = vec![0; 1 << 20];
    let measured = measure(&[&zeroes], path, slow_clock()).unwrap();
    assert_eq!(best(&measured, 1e9), Some(Codec::Zstd));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Any bytes of any length: what is encoded comes back, whatever type they are said to be of.
    #[test]
    fn any_bytes_come_back(seed: u64, length in 1_usize..200_000, strange in 1_usize..300, values in 0_u8..4, told in 0_u8..4) {
        let (values, told) = (Values::from_number(values).unwrap(), Values::from_number(told).unwrap());
        let page = page_of(values, length, strange, &mut Random::new(seed));
        for codec in Codec::ALL {
            for path in paths() {
                if let Some(encoded) = encode(path, codec, told, &page) {
                    prop_assert!(encoded.len() <= length - length / GAIN_MIN_SHARE);
                    prop_assert!(decode(path, &encoded, length).unwrap() == page, "{:?} of {:?}", codec, told);
                }
            }
        }
    }
}
