//! The exact miss-ratio curve of a trace: every block's distance at every reference, under tail-first LRU.
//! Owns: what the sampled curve is measured against. Must not know: pools, sampling.

use crate::trace::Trace;

#[cfg(test)]
mod tests;

/// Not sent yet.
const NEVER: u32 = u32::MAX;

/// How many references there are at each distance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExactCurve {
    /// Blocks of all requests.
    pub references: u64,
    /// `hits[c]`: references that a pool of `c` blocks finds; the last one is what any larger pool finds.
    hits: Vec<u64>,
}

impl ExactCurve {
    /// Walks a stream (positions in the trace, by time): one pass, a Fenwick tree over the moments of use.
    pub fn of(trace: &Trace, stream: &[u32]) -> ExactCurve {
        let requests = || stream.iter().map(|at| trace.blocks(&trace.requests[*at as usize]));
        let references: usize = requests().map(<[u32]>::len).sum();
        let mut used = vec![NEVER; trace.unique_blocks as usize];
        let mut tree = vec![0u32; references + 1];
        let (mut moment, mut known) = (0u32, 0u32);
        let mut hits = vec![0u64; trace.unique_blocks as usize + 1];
        for blocks in requests() {
            for block in blocks {
                let last = used[*block as usize];
                if last != NEVER {
                    // Blocks used at that moment or later, itself among them.
                    hits[(known - sum_below(&tree, last)) as usize] += 1;
                }
            }
            for block in blocks.iter().rev() {
                let last = std::mem::replace(&mut used[*block as usize], moment);
                match last {
                    NEVER => known += 1,
                    last => add(&mut tree, last, u32::MAX), // minus one
                }
                add(&mut tree, moment, 1);
                moment += 1;
            }
        }
        let mut sum = 0;
        for count in &mut hits {
            sum += *count;
            *count = sum;
        }
        ExactCurve { references: references as u64, hits }
    }

    /// References that so many blocks find.
    pub fn hits(&self, blocks: u64) -> u64 {
        let at = usize::try_from(blocks).unwrap_or(usize::MAX).min(self.hits.len().saturating_sub(1));
        self.hits.get(at).copied().unwrap_or(0)
    }

    /// The share of references that so many blocks find, from 0 to 1.
    pub fn hit_ratio(&self, blocks: u64) -> f64 {
        self.hits(blocks) as f64 / self.references.max(1) as f64
    }
}

fn add(tree: &mut [u32], moment: u32, by: u32) {
    let mut at = moment as usize + 1;
    while at < tree.len() {
        tree[at] = tree[at].wrapping_add(by);
        at += at & at.wrapping_neg();
    }
}

fn sum_below(tree: &[u32], moment: u32) -> u32 {
    let (mut at, mut sum) = (moment as usize, 0u32);
    while at > 0 {
        sum = sum.wrapping_add(tree[at]);
        at &= at - 1;
    }
    sum
}
