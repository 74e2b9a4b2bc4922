//! Which instructions the loops over values are compiled for. Owns: the choice, and the one call that needs it to be right.
//!
//! The loops are plain Rust over arrays, which the compiler turns into vector instructions: once for every x86-64 and once for
//! those with AVX2 (twice as quick; AVX-512 gains nothing more). Elsewhere the plain ones are already that.

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
        work.run()
    }
}

/// A loop, and what it works on. Its `run` is `inline(always)`, and so is what it calls: what is not inlined is compiled for
/// every machine.
pub(crate) trait Loop {
    /// What it gives.
    type Output;
    /// Runs it.
    fn run(self) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1")]
fn run_avx2<L: Loop>(work: L) -> L::Output {
    work.run()
}
