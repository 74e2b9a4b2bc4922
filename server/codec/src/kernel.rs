//! Which instructions the loops over values are compiled for. Owns: the choice, the one call that needs it to be right, and picking
//! from a small table, for which there is an instruction that the compiler does not find.
//!
//! The loops are plain Rust over arrays, which the compiler turns into vector instructions: once for every x86-64 and once for
//! those with AVX2 (twice as quick; AVX-512 gains nothing more). Elsewhere the plain ones are already that.

/// Entries of a table that is picked from: of sixteen places the last has none.
pub(crate) const TABLE: usize = 15;
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
        work.run(pick)
    }
}

/// A loop, and what it works on. Its `run` is `inline(always)`, and so is what it calls: what is not inlined is compiled for
/// every machine.
pub(crate) trait Loop {
    /// What it gives.
    type Output;
    /// Runs it. `pick` gives what a table has at each place: first those in the low halves of the bytes, then those in the high
    /// ones. At the place without an entry it gives anything.
    fn run(self, pick: impl Fn(&[u8; TABLE], [u8; PLACES]) -> [u8; PICKED]) -> Self::Output;
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

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1")]
fn run_avx2<L: Loop>(work: L) -> L::Output {
    work.run(|table, places| pick_avx2(table, places))
}

/// One instruction where [`pick`] has a hundred. Words come and go through integers: the compiler makes whole loads and stores of it.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1")]
#[inline]
fn pick_avx2(table: &[u8; TABLE], places: [u8; PLACES]) -> [u8; PICKED] {
    use std::arch::x86_64::{
        __m256i, _mm_set_epi64x, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_extract_epi64,
        _mm256_set_epi64x, _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_srli_epi16,
    };
    let word = |bytes: &[u8], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at * 8..][..8]);
        i64::from_le_bytes(word)
    };
    let mut whole = [0; TABLE + 1];
    whole[..TABLE].copy_from_slice(table);
    let table = _mm256_broadcastsi128_si256(_mm_set_epi64x(word(&whole, 1), word(&whole, 0)));
    let (places, low) = (
        _mm256_set_epi64x(word(&places, 3), word(&places, 2), word(&places, 1), word(&places, 0)),
        _mm256_set1_epi8(15),
    );
    let mut out = [0; PICKED];
    let (first, second) = out.split_at_mut(PLACES);
    let put = |out: &mut [u8], picked: __m256i| {
        let words = [
            _mm256_extract_epi64::<0>(picked),
            _mm256_extract_epi64::<1>(picked),
            _mm256_extract_epi64::<2>(picked),
            _mm256_extract_epi64::<3>(picked),
        ];
        for (bytes, word) in out.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    };
    put(first, _mm256_shuffle_epi8(table, _mm256_and_si256(places, low)));
    put(second, _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16::<4>(places), low)));
    out
}
