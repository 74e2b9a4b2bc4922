//! Which instructions the loops over values are compiled for. Owns: the choice, the one call that needs it to be right, and both ways
//! through a book, exponents by codes and codes by exponents, for which there is an instruction that the compiler does not find.
//!
//! The loops are plain Rust over arrays, which the compiler turns into vector instructions: once for every x86-64 and once for
//! those with AVX2 (twice as quick; AVX-512 gains nothing more). Elsewhere the plain ones are already that.

use crate::book::{Book, ESCAPE, TABLE};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, _mm_set_epi64x, _mm256_broadcastsi128_si256, _mm256_extract_epi64, _mm256_set_epi64x,
};

/// Bytes that are picked at once.
pub(crate) const PICKED: usize = 64;
/// Bytes of their places, two in each.
pub(crate) const PLACES: usize = PICKED / 2;

/// A set of instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// What every machine of this architecture has.
    Plain,
    /// AVX2 and what comes with it.
    Avx2,
}

impl Path {
    /// The quickest that this processor runs.
    pub fn best() -> Path {
        if Path::Avx2.runs() { Path::Avx2 } else { Path::Plain }
    }

    /// Does this processor run it?
    pub fn runs(self) -> bool {
        match self {
            Path::Plain => true,
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1"),
            #[cfg(not(target_arch = "x86_64"))]
            Path::Avx2 => false,
        }
    }

    /// Runs a loop compiled for these instructions, or the plain one where the processor lacks them.
    #[inline]
    pub(crate) fn run<L: Loop>(self, work: L) -> L::Output {
        #[cfg(target_arch = "x86_64")]
        if self == Path::Avx2 && self.runs() {
            // SAFETY: the processor has the features, as was just asked.
            return unsafe { run_avx2(work) };
        }
        work.run(pick, look_up)
    }
}

/// What a book says of exponents.
pub(crate) struct Looked {
    /// The code of each.
    pub(crate) codes: [u8; PICKED],
    /// A bit for each that is not in the book, the first one's the lowest.
    pub(crate) escaped: u64,
}

/// A loop, and what it works on. Its `run` is `inline(always)`, and so is what it calls: what is not inlined is compiled for
/// every machine.
pub(crate) trait Loop {
    /// What it gives.
    type Output;
    /// Runs it. `pick` gives what a table has at each place: first those in the low halves of the bytes, then those in the high
    /// ones. At the place without an entry it gives anything. `look_up` gives the code of each exponent.
    fn run(
        self,
        pick: impl Fn(&[u8; TABLE], [u8; PLACES]) -> [u8; PICKED],
        look_up: impl Fn(&Book, &[u8; PICKED]) -> Looked,
    ) -> Self::Output;
}

#[inline(always)]
fn pick(table: &[u8; TABLE], places: [u8; PLACES]) -> [u8; PICKED] {
    let (mut wide, mut picked) = ([0; PICKED], [0; PICKED]);
    for i in 0..PLACES {
        wide[i] = places[i] & 15;
        wide[i + PLACES] = places[i] >> 4;
    }
    for (place, entry) in table.iter().enumerate() {
        for i in 0..PICKED {
            // Exactly one place is each byte's: all bits of its entry, none of the others'.
            picked[i] |= entry & u8::from(wide[i] == place as u8).wrapping_neg();
        }
    }
    picked
}

#[inline(always)]
fn look_up(book: &Book, exponents: &[u8; PICKED]) -> Looked {
    let mut codes = [ESCAPE; PICKED];
    for (code, known) in book.entries().iter().enumerate() {
        for i in 0..PICKED {
            // At most one place of the book is each exponent's: the bits in which its code is not 15 turn.
            codes[i] ^= (ESCAPE ^ code as u8) & u8::from(exponents[i] == *known).wrapping_neg();
        }
    }
    let escaped = codes.iter().rev().fold(0, |marks, code| marks << 1 | u64::from(*code == ESCAPE));
    Looked { codes, escaped }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1")]
fn run_avx2<L: Loop>(work: L) -> L::Output {
    work.run(|table, places| pick_avx2(table, places), |book, exponents| look_up_avx2(book, exponents))
}

/// One instruction where [`pick`] has a hundred.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1")]
#[inline]
fn pick_avx2(table: &[u8; TABLE], places: [u8; PLACES]) -> [u8; PICKED] {
    use std::arch::x86_64::{_mm256_and_si256, _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_srli_epi16};
    let mut whole = [0; TABLE + 1];
    whole[..TABLE].copy_from_slice(table);
    let (table, places, low) = (both_halves(&whole), vector(places), _mm256_set1_epi8(15));
    let mut out = [0; PICKED];
    let (first, second) = out.split_at_mut(PLACES);
    put(first, _mm256_shuffle_epi8(table, _mm256_and_si256(places, low)));
    put(second, _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(places), low)));
    out
}

/// Four instructions for each row of the book where [`look_up`] has three for each of its fifteen entries.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1")]
#[inline]
fn look_up_avx2(book: &Book, exponents: &[u8; PICKED]) -> Looked {
    use std::arch::x86_64::{
        _mm256_adds_epu8, _mm256_cmpeq_epi8, _mm256_movemask_epi8, _mm256_or_si256, _mm256_set1_epi8,
        _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_xor_si256,
    };
    let (mut first, mut second) = ([0; PLACES], [0; PLACES]);
    first.copy_from_slice(&exponents[..PLACES]);
    second.copy_from_slice(&exponents[PLACES..]);
    let (first, second) = (vector(first), vector(second));
    let (mut turned, mut turned_second) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    // What is not of a row has its highest bit set by this, and nothing is picked for it.
    let beyond = _mm256_set1_epi8(0x70);
    for row in book.rows() {
        let (table, high) = (both_halves(&row.turned), _mm256_set1_epi8(row.high as i8));
        let place = |exponents| _mm256_adds_epu8(_mm256_xor_si256(exponents, high), beyond);
        turned = _mm256_or_si256(turned, _mm256_shuffle_epi8(table, place(first)));
        turned_second = _mm256_or_si256(turned_second, _mm256_shuffle_epi8(table, place(second)));
    }
    let (escape, zero) = (_mm256_set1_epi8(ESCAPE as i8), _mm256_setzero_si256());
    let marks = |turned| u64::from(_mm256_movemask_epi8(_mm256_cmpeq_epi8(turned, zero)) as u32);
    let escaped = marks(turned) | marks(turned_second) << PLACES;
    let mut out = [0; PICKED];
    let (codes, codes_second) = out.split_at_mut(PLACES);
    put(codes, _mm256_xor_si256(turned, escape));
    put(codes_second, _mm256_xor_si256(turned_second, escape));
    Looked { codes: out, escaped }
}

/// Thirty-two bytes. Words come and go through integers: the compiler makes whole loads and stores of it.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn vector(bytes: [u8; PLACES]) -> __m256i {
    _mm256_set_epi64x(word(&bytes, 3), word(&bytes, 2), word(&bytes, 1), word(&bytes, 0))
}

/// Sixteen bytes, twice.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn both_halves(bytes: &[u8; 16]) -> __m256i {
    _mm256_broadcastsi128_si256(_mm_set_epi64x(word(bytes, 1), word(bytes, 0)))
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn word(bytes: &[u8], at: usize) -> i64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at * 8..][..8]);
    i64::from_le_bytes(word)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn put(out: &mut [u8], picked: __m256i) {
    let words = [
        _mm256_extract_epi64::<0>(picked),
        _mm256_extract_epi64::<1>(picked),
        _mm256_extract_epi64::<2>(picked),
        _mm256_extract_epi64::<3>(picked),
    ];
    for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}
