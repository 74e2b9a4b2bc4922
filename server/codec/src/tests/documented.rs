//! Pages as the documents say they are: written here by hand, read by the decoder. What lies on devices stays readable.

use super::{decode, encode, page_of, paths};
use crate::limits::{BLOCK_HEADER_BYTES, CODEC_BLOCK_BYTES, PAGE_HEADER_BYTES};
use crate::{Codec, Corrupt, Values};
use turnkv_mutate::{Random, each_seed};

const GROUP: usize = 64;

/// A block by the book, as the tables in `codebook` say: of bf16, or of fp32.
fn block_of(book: &[u8; 15], values: &[u8], wide: bool) -> Vec<u8> {
    let bytes = if wide { 4 } else { 2 };
    let whole: Vec<u32> = values
        .chunks(bytes)
        .map(|value| value.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
        .collect();
    let (exponent_at, sign_at) = if wide { (23, 31) } else { (7, 15) };
    let exponents: Vec<u8> = whole.iter().map(|value| (value >> exponent_at) as u8).collect();
    let code = |exponent: &u8| book.iter().position(|known| known == exponent).unwrap_or(15) as u8;
    let (mut codes, mut escapes) = (Vec::new(), Vec::new());
    for group in exponents.chunks(GROUP) {
        for at in 0..GROUP / 2 {
            let (low, high) = (group[at], group[at + GROUP / 2]);
            codes.push(code(&low) | code(&high) << 4);
            escapes.extend([low, high].into_iter().filter(|exponent| code(exponent) == 15));
        }
    }
    let mut block = [&book[..], &[0], &codes[..]].concat();
    for plane in 0..bytes - 1 {
        let last = plane == bytes - 2;
        block.extend(whole.iter().map(|value| {
            let byte = (value >> (8 * plane)) as u8;
            // The byte with the fraction's highest bits has the sign in the exponent's place.
            if last { byte & 0x7f | ((value >> sign_at) as u8) << 7 } else { byte }
        }));
    }
    [block, escapes].concat()
}

#[test]
fn a_page_that_is_written_by_the_book_s_tables_is_read() {
    let (mut tried, mut read, mut escaped) = (0, 0, 0);
    each_seed(60, |random| {
        tried += 1;
        let (values, wide) = if random.one_in(2) { (Values::F32, true) } else { (Values::Bf16, false) };
        let bytes = GROUP * 4 + random.below(3 * GROUP * 4);
        let page = page_of(values, bytes, 10 + random.below(40), random);
        let mut whole = page.clone();
        whole.resize(bytes.next_multiple_of(GROUP * 4), 0);
        let first = 110 + random.below(5) as u8;
        // Any book will do: what is not in it stands behind. That may be longer than the page: such a block stays as it was.
        let book = std::array::from_fn(|at| first.wrapping_add(at as u8));
        let block = block_of(&book, &whole, wide);
        if block.len() > bytes {
            return;
        }
        let rest = if wide { 3 } else { 1 };
        let groups = whole.len() / (GROUP * (rest + 1));
        escaped += usize::from(block.len() > 16 + groups * (GROUP / 2 + GROUP * rest));
        read += 1;
        let header = [1, 1, values as u8, 0];
        let lengths = [(bytes as u32).to_le_bytes(), (block.len() as u32).to_le_bytes()].concat();
        let encoded = [&header[..], &lengths, &block].concat();
        for path in paths() {
            assert_eq!(decode(path, &encoded, bytes), Ok(page.clone()), "{bytes} bytes of {values:?}");
        }
    });
    assert!(tried < 60 || read >= 20 && escaped >= 15, "{read} of them, {escaped} with exponents behind");
}

#[test]
fn a_block_that_is_kept_as_it_was_has_the_highest_bit_and_all_of_its_bytes() {
    let page: Vec<u8> = (0..100).collect();
    let with = |word: u32, bytes: &[u8]| {
        let header = [1, 3, 0, 0, 100, 0, 0, 0];
        let encoded = [&header[..], &word.to_le_bytes(), bytes].concat();
        paths().map(|path| decode(path, &encoded, 100)).reduce(|one, other| {
            assert_eq!(one, other);
            one
        })
    };
    assert_eq!(with(1 << 31 | 100, &page), Some(Ok(page.clone())));
    let other = Some(Err(Corrupt("a block of another length")));
    assert_eq!(with(1 << 31 | 99, &page[1..]), other);
    assert_eq!(with(101, &[&page[..], &[0]].concat()), other);
    assert_eq!(with(1 << 31 | 101, &page), Some(Err(Corrupt("a block is cut off"))));
    assert_eq!(with(u32::MAX, &page), Some(Err(Corrupt("a block is cut off"))));
    assert!(with(0, &[]).is_some_and(|empty| empty.is_err()), "nothing is no frame");
}

/// Lengths around what a group, a block and a page's first blocks have.
#[test]
fn pages_of_lengths_at_every_edge_come_back() {
    let group = GROUP * 4;
    let mut lengths = vec![1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33];
    for edge in [group, 2 * group, CODEC_BLOCK_BYTES, 2 * CODEC_BLOCK_BYTES] {
        lengths.extend([edge - 1, edge, edge + 1, edge + group - 1]);
    }
    let mut random = Random::new(21);
    for length in lengths {
        for (codec, values) in [
            (Codec::Codebook, Values::Bf16),
            (Codec::Codebook, Values::F32),
            (Codec::Huffman, Values::Bf16),
            (Codec::Huffman, Values::Bytes),
            (Codec::Zstd, Values::Bytes),
        ] {
            let page = page_of(values, length, 300, &mut random);
            let mut encodings = paths().map(|path| encode(path, codec, values, &page));
            let first = encodings.next().unwrap();
            assert!(encodings.all(|other| other == first), "paths differ at {length} bytes");
            for (path, encoded) in paths().zip(std::iter::repeat(&first)) {
                if let Some(encoded) = encoded {
                    assert!(decode(path, encoded, length) == Ok(page.clone()), "{length} bytes by {codec:?}");
                }
            }
            assert!(
                first.is_some() || length < CODEC_BLOCK_BYTES - 1 || codec == Codec::Zstd,
                "{length} by {codec:?} shrink"
            );
        }
    }
}

#[test]
fn no_beginning_of_an_encoded_page_passes_for_all_of_it() {
    let path = paths().last().unwrap();
    let bytes = CODEC_BLOCK_BYTES + 1000;
    for (codec, values) in
        [(Codec::Codebook, Values::F32), (Codec::Huffman, Values::F16), (Codec::Huffman, Values::Bytes)]
    {
        let page = page_of(values, bytes, 200, &mut Random::new(31));
        let encoded = encode(path, codec, values, &page).unwrap();
        let mut ends: Vec<usize> = (0..PAGE_HEADER_BYTES + BLOCK_HEADER_BYTES + 20).collect();
        ends.extend((encoded.len() - 40..encoded.len()).chain((0..encoded.len()).step_by(4099)));
        for end in ends {
            assert!(decode(path, &encoded[..end], bytes).is_err(), "{end} bytes of {codec:?} of {values:?}");
        }
        for other in [0, 1, bytes - 1, bytes + 1, 2 * bytes] {
            assert_eq!(decode(path, &encoded, other), Err(Corrupt("a page of another length")));
        }
    }
}
