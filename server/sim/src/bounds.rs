//! The best that any policy could do. Owns: Belady's rule at block level with prefix hits.
//! Must not know: pools, policies, sessions.

use crate::trace::Trace;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[cfg(test)]
mod tests;

/// Not in the cache.
const ABSENT: u32 = u32::MAX;

/// Leading blocks found if always the block goes that is used again last (of equals the one deepest in its request),
/// and blocks never used again are not kept. Requests: positions in the trace, by time.
pub fn belady_hits(trace: &Trace, stream: &[u32], capacity_blocks: u64) -> u64 {
    let never = stream.len() as u32;
    let uses = next_uses(trace, stream);
    let mut kept = vec![ABSENT; trace.unique_blocks as usize];
    let mut count = 0u64;
    let mut order: BinaryHeap<(u32, u32, Reverse<u32>)> = BinaryHeap::new();
    let (mut hits, mut use_at) = (0u64, 0usize);
    for at in stream {
        let blocks = trace.blocks(&trace.requests[*at as usize]);
        hits += blocks.iter().take_while(|block| kept[**block as usize] != ABSENT).count() as u64;
        for (depth, block) in blocks.iter().enumerate() {
            let next = std::mem::replace(&mut kept[*block as usize], ABSENT);
            count -= u64::from(next != ABSENT);
            let next = uses[use_at + depth];
            if next != never {
                kept[*block as usize] = next;
                count += 1;
                order.push((next, depth as u32, Reverse(*block)));
            }
        }
        use_at += blocks.len();
        while count > capacity_blocks {
            let Some((next, _, Reverse(block))) = order.pop() else { break };
            if kept[block as usize] == next {
                kept[block as usize] = ABSENT;
                count -= 1;
            }
        }
    }
    hits
}

/// For every block of every request, the position of the request that uses it next.
fn next_uses(trace: &Trace, stream: &[u32]) -> Vec<u32> {
    let never = stream.len() as u32;
    let mut next = vec![never; trace.unique_blocks as usize];
    let total = stream.iter().map(|at| trace.blocks(&trace.requests[*at as usize]).len()).sum();
    let mut uses = vec![never; total];
    let mut end = total;
    for (position, at) in stream.iter().enumerate().rev() {
        let blocks = trace.blocks(&trace.requests[*at as usize]);
        end -= blocks.len();
        for (depth, block) in blocks.iter().enumerate() {
            uses[end + depth] = next[*block as usize];
        }
        for block in blocks {
            next[*block as usize] = position as u32;
        }
    }
    uses
}
