//! The gallop: how many leading pages of a prefix somebody has, in few questions. Owns: what is known, and the next sample.
//! Must not know: who is asked.

/// At least `known`, at most `possible`: an index that is prefix-closed has all pages before one that it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    pub(crate) known: usize,
    pub(crate) possible: usize,
}

impl Search {
    pub(crate) fn is_settled(&self) -> bool {
        self.known >= self.possible
    }

    /// Ascending counts to ask about: is the `count`-th page there? Spread evenly over what is open.
    pub(crate) fn sample(&self, sample_max: usize) -> Vec<usize> {
        let open = self.possible.saturating_sub(self.known);
        let size = open.min(sample_max);
        let gaps = if open <= sample_max { size } else { size + 1 };
        (1..=size).map(|at| self.known + open * at / gaps).collect()
    }

    /// So many leading ones of a sample are there. More than were asked about count as all of them.
    pub(crate) fn narrow(&mut self, sample: &[usize], present: usize) {
        if let Some(absent) = sample.get(present) {
            self.possible = absent - 1;
        }
        if let Some(last) = sample.get(..present.min(sample.len())).and_then(<[usize]>::last) {
            self.known = *last;
        }
    }
}
