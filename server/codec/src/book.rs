//! The exponents that a block has codes for. Owns: which ones, and tables by which their codes are found. Must not know: how they
//! are looked up.

use crate::lane::Lane;

/// Entries of a book: of sixteen codes the last has none.
pub(crate) const TABLE: usize = 15;
/// The code of whatever is not in a book.
pub(crate) const ESCAPE: u8 = 15;
/// The book is made from every so many-th value. Prime to the sizes of heads, so that all their channels are looked at.
const SAMPLE_EVERY: usize = 41;

/// Fifteen exponents, the code of each its place.
pub(crate) struct Book {
    entries: [u8; TABLE],
    rows: [Row; TABLE],
    used: usize,
}

/// The codes of sixteen exponents that agree in their high halves.
#[derive(Clone, Copy, Default)]
pub(crate) struct Row {
    /// Their high half, the low one zero.
    pub(crate) high: u8,
    /// By the low half: the bits in which the code is not [`ESCAPE`].
    pub(crate) turned: [u8; 16],
}

impl Book {
    /// The most frequent exponents of a sample, the most frequent first, some of which may not occur at all.
    pub(crate) fn of<const W: usize, const R: usize, L: Lane<W, R>>(values: &[u8]) -> Book {
        let mut counts = [0_u32; 256];
        for value in values.chunks_exact(W).step_by(SAMPLE_EVERY) {
            let mut bytes = [0; W];
            bytes.copy_from_slice(value);
            counts[usize::from(L::split(bytes).0)] += 1;
        }
        // Those that occur first: few do, and only they are worth an order.
        let mut exponents = [0; 256];
        let (mut seen, mut unseen) = (0, 256);
        for (exponent, count) in (0..=u8::MAX).zip(counts) {
            if count > 0 {
                exponents[seen] = exponent;
                seen += 1;
            } else {
                unseen -= 1;
                exponents[unseen] = exponent;
            }
        }
        let by_count = |exponent: &u8| std::cmp::Reverse((counts[usize::from(*exponent)], *exponent));
        if seen > TABLE {
            exponents[..seen].select_nth_unstable_by_key(TABLE, by_count);
        }
        let mut entries = [0; TABLE];
        entries.copy_from_slice(&exponents[..TABLE]);
        entries.sort_unstable_by_key(by_count);
        Book::with(entries)
    }

    fn with(entries: [u8; TABLE]) -> Book {
        let mut book = Book { entries, rows: [Row::default(); TABLE], used: 0 };
        for (code, entry) in entries.into_iter().enumerate() {
            let (high, low) = (entry & 0xf0, entry & 0xf);
            let at = book.rows().iter().position(|row| row.high == high).unwrap_or(book.used);
            book.used = book.used.max(at + 1);
            book.rows[at].high = high;
            book.rows[at].turned[usize::from(low)] = ESCAPE ^ code as u8;
        }
        book
    }

    /// The exponents, by their codes.
    pub(crate) fn entries(&self) -> &[u8; TABLE] {
        &self.entries
    }

    /// Where any of them are: two or three rows, for values near one another.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows[..self.used]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Looked, Loop, PICKED, PLACES, Path};
    use turnkv_mutate::Random;

    /// Looks exponents up, as an encoder does.
    struct LookUp<'a>(&'a Book, [u8; PICKED]);

    impl Loop for LookUp<'_> {
        type Output = Looked;

        #[inline(always)]
        fn run(
            self,
            _: impl Fn(&[u8; TABLE], [u8; PLACES]) -> [u8; PICKED],
            look_up: impl Fn(&Book, &[u8; PICKED]) -> Looked,
        ) -> Looked {
            look_up(self.0, &self.1)
        }
    }

    #[test]
    fn every_exponent_has_its_code_in_books_near_and_far_by_every_path() {
        let mut random = Random::new(1);
        let mut books: Vec<Book> =
            [1, 16, 17].map(|step| Book::with(std::array::from_fn(|at| (at * step) as u8))).into();
        // Of many exponents, of some more than a book has, and of fewer.
        for of in [0xff, 0x1f, 0x07].repeat(200) {
            let values: Vec<u8> = (0..4_000).map(|_| random.number() as u8 & of).collect();
            books.push(Book::of::<1, 0, crate::lane::Byte>(&values));
        }
        for book in &books {
            for path in [Path::Plain, Path::Avx2].into_iter().filter(|path| path.runs()) {
                for first in (0..=255_u8).step_by(PICKED) {
                    let exponents = std::array::from_fn(|at| first + at as u8);
                    let Looked { codes, escaped } = path.run(LookUp(book, exponents));
                    for (at, (exponent, code)) in exponents.into_iter().zip(codes).enumerate() {
                        let place = book.entries().iter().position(|entry| *entry == exponent);
                        let known = (usize::from(code), escaped >> at & 1 == 0);
                        let wanted = (place.unwrap_or(usize::from(ESCAPE)), place.is_some());
                        assert_eq!(known, wanted, "{path:?} of {exponent}");
                    }
                }
            }
        }
    }
}
