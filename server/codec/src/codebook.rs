//! Exponents by a book. Owns: the layout of such a block, its two loops. Must not know: pages.
//!
//! A block of G groups of 64 values, each with R bytes beside its exponent, becomes:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 15 | the book: exponents in the order of their codes |
//! | 15 | 1 | zero |
//! | 16 | 32 G | codes: value i of a group in the low half of its byte i, value i + 32 in the high half; 15 = not in the book |
//! | 16 + 32 G | 64 G R | the rest of the values, one plane for each of its R bytes |
//! | 16 + 32 G + 64 G R | 1 each | exponents that are not in the book, in the order of the codes' bytes, low halves first |

use crate::book::{Book, TABLE};
use crate::codec::Corrupt;
use crate::kernel::{Looked, Loop, PICKED, PLACES, Path};
use crate::lane::Lane;
use std::marker::PhantomData;

/// Values of a group.
pub(crate) const GROUP: usize = 64;
const HALF: usize = GROUP / 2;
/// Values that are taken apart before their exponents are looked up.
const TILE: usize = 16 * GROUP;
const BOOK: usize = TABLE;
const BOOK_BYTES: usize = 16;

/// Bytes of an encoded block but for the exponents that are not in its book.
fn fixed_bytes(groups: usize, rest: usize) -> usize {
    BOOK_BYTES + groups * (HALF + GROUP * rest)
}

/// Encodes whole groups into `out`; how many bytes that took, or nothing if they do not fit.
pub(crate) fn encode<const W: usize, const R: usize, L: Lane<W, R>>(
    path: Path,
    values: &[u8],
    out: &mut [u8],
) -> Option<usize> {
    let groups = values.len() / (W * GROUP);
    let book = Book::of::<W, R, L>(values);
    let (fixed, escapes) = out.split_at_mut_checked(fixed_bytes(groups, R))?;
    let (head, planes) = fixed.split_at_mut(BOOK_BYTES + groups * HALF);
    let (kept, codes) = head.split_at_mut(BOOK_BYTES);
    kept[..BOOK].copy_from_slice(book.entries());
    kept[BOOK] = 0;
    let work = Encode::<W, R, L> { values, book, codes, planes, escapes, lane: PhantomData };
    let escaped = path.run(work)?;
    Some(fixed_bytes(groups, R) + escaped)
}

/// Decodes a block of whole groups, `values` long, from bytes that are exactly it.
pub(crate) fn decode<const W: usize, const R: usize, L: Lane<W, R>>(
    path: Path,
    encoded: &[u8],
    values: &mut [u8],
) -> Result<(), Corrupt> {
    let groups = values.len() / (W * GROUP);
    let fixed = encoded.split_at_checked(fixed_bytes(groups, R)).ok_or(Corrupt("a block is too short"))?;
    let (head, planes) = fixed.0.split_at(BOOK_BYTES + groups * HALF);
    let (kept, codes) = head.split_at(BOOK_BYTES);
    let mut book = [0; BOOK];
    book.copy_from_slice(&kept[..BOOK]);
    let work = Decode::<W, R, L> { codes, planes, book, escapes: fixed.1, values, lane: PhantomData };
    let used = path.run(work).ok_or(Corrupt("a block lacks exponents"))?;
    if used == fixed.1.len() { Ok(()) } else { Err(Corrupt("a block is longer than it says")) }
}

struct Encode<'a, const W: usize, const R: usize, L> {
    values: &'a [u8],
    book: Book,
    codes: &'a mut [u8],
    planes: &'a mut [u8],
    escapes: &'a mut [u8],
    lane: PhantomData<L>,
}

impl<const W: usize, const R: usize, L: Lane<W, R>> Loop for Encode<'_, W, R, L> {
    /// How many exponents were not in the book, unless they do not fit.
    type Output = Option<usize>;

    #[inline(always)]
    fn run(
        self,
        _: impl Fn(&[u8; TABLE], [u8; PLACES]) -> [u8; PICKED],
        look_up: impl Fn(&Book, &[u8; PICKED]) -> Looked,
    ) -> Option<usize> {
        let plane_bytes = self.planes.len() / R.max(1);
        let (mut escaped, mut at) = (0, 0);
        let tiles = self.values.chunks(W * TILE).zip(self.codes.chunks_mut(TILE / 2));
        let mut exponents = [0; TILE];
        for (values, codes) in tiles {
            // All are taken apart before the first is looked up: a processor waits where it loads at once what narrower stores wrote.
            let exponents = &mut exponents[..values.len() / W];
            for (values, exponents) in values.chunks_exact(W * GROUP).zip(exponents.chunks_exact_mut(GROUP)) {
                let mut rests = [[0; GROUP]; R];
                let values = group_of::<W>(values)?;
                // Loops over arrays of a known length are those that become vector instructions.
                for i in 0..GROUP {
                    let (exponent, rest) = L::split(values[i]);
                    exponents[i] = exponent;
                    for plane in 0..R {
                        rests[plane][i] = rest[plane];
                    }
                }
                for (plane, rest) in rests.iter().enumerate() {
                    self.planes[plane * plane_bytes + at..][..GROUP].copy_from_slice(rest);
                }
                at += GROUP;
            }
            for (exponents, codes) in
                exponents.as_chunks::<GROUP>().0.iter().zip(codes.chunks_exact_mut(HALF))
            {
                let Looked { codes: coded, escaped: marks } = look_up(&self.book, exponents);
                for i in 0..HALF {
                    codes[i] = coded[i] | coded[i + HALF] << 4;
                }
                escaped = list_escapes(marks, exponents, self.escapes, escaped)?;
            }
        }
        Some(escaped)
    }
}

/// The values of a group.
#[inline(always)]
fn group_of<const W: usize>(values: &[u8]) -> Option<&[[u8; W]; GROUP]> {
    values.as_chunks::<W>().0.try_into().ok()
}

/// Appends the exponents of a group that are not in the book: those whose bits are set in `marks`.
#[inline(always)]
fn list_escapes(marks: u64, exponents: &[u8; GROUP], escapes: &mut [u8], mut listed: usize) -> Option<usize> {
    let (low, high) = (marks as u32, (marks >> HALF) as u32);
    let mut bytes = low | high;
    while bytes != 0 {
        let byte = bytes.trailing_zeros() as usize;
        for (half, at) in [(low, byte), (high, byte + HALF)] {
            if half >> byte & 1 == 1 {
                *escapes.get_mut(listed)? = exponents[at];
                listed += 1;
            }
        }
        bytes &= bytes - 1;
    }
    Some(listed)
}

struct Decode<'a, const W: usize, const R: usize, L> {
    codes: &'a [u8],
    planes: &'a [u8],
    book: [u8; BOOK],
    escapes: &'a [u8],
    values: &'a mut [u8],
    lane: PhantomData<L>,
}

impl<const W: usize, const R: usize, L: Lane<W, R>> Loop for Decode<'_, W, R, L> {
    /// How many exponents were taken from those that are not in the book, unless there are too few.
    type Output = Option<usize>;

    #[inline(always)]
    fn run(
        self,
        pick: impl Fn(&[u8; TABLE], [u8; PLACES]) -> [u8; PICKED],
        _: impl Fn(&Book, &[u8; PICKED]) -> Looked,
    ) -> Option<usize> {
        let plane_bytes = self.planes.len() / R.max(1);
        let mut used = 0;
        let groups = self.codes.chunks_exact(HALF).zip(self.values.chunks_exact_mut(W * GROUP));
        for (group, (codes, values)) in groups.enumerate() {
            let mut packed = [0; HALF];
            packed.copy_from_slice(codes);
            // Where the book has none it is anything.
            let mut exponents = pick(&self.book, packed);
            for (word, eight) in codes.chunks_exact(8).enumerate() {
                let mut marks = Marks::of(eight);
                while let Some((byte, half)) = marks.next() {
                    exponents[word * 8 + byte + half * HALF] = *self.escapes.get(used)?;
                    used += 1;
                }
            }
            let mut rests = [[0; GROUP]; R];
            for (plane, rest) in rests.iter_mut().enumerate() {
                rest.copy_from_slice(&self.planes[plane * plane_bytes + group * GROUP..][..GROUP]);
            }
            let mut joined = [[0; W]; GROUP];
            for i in 0..GROUP {
                let mut rest = [0; R];
                for plane in 0..R {
                    rest[plane] = rests[plane][i];
                }
                joined[i] = L::join(exponents[i], rest);
            }
            values.copy_from_slice(joined.as_flattened());
        }
        Some(used)
    }
}

/// Which halves of eight bytes of codes are of none in the book: byte by byte, low halves first.
struct Marks(u64);

impl Marks {
    #[inline(always)]
    fn of(eight: &[u8]) -> Marks {
        const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        const ONE: u64 = 0x0101_0101_0101_0101;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(eight);
        let word = u64::from_le_bytes(bytes);
        // 15 + 1 carries into the next four bits, which are empty.
        let low = ((word & LOW) + ONE) >> 4 & ONE;
        let high = ((word >> 4 & LOW) + ONE) >> 4 & ONE;
        Marks(low | high << 1)
    }

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, usize)> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0 - 1;
        Some((bit / 8, bit % 8))
    }
}
