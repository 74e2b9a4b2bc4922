//! What could have been found: for every request, what a pool of any size had been sent before.
//! Owns: the infinite bound and whose block it was. Must not know: pools, policies.

use crate::trace::Trace;
use std::collections::HashSet;

/// The past of every request of a stream, as far as hits are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Leading blocks sent before, by position in the stream.
    known: Vec<u32>,
    /// Of these, the leading ones that the same session had sent, by position in the stream.
    own: Vec<u32>,
    /// Blocks of all requests.
    pub blocks: u64,
    /// Blocks known before.
    pub infinite_hits: u64,
    /// Blocks that differ.
    pub unique_blocks: u64,
}

impl History {
    /// Walks the requests of one stream (positions in the trace, by time).
    pub fn of(trace: &Trace, stream: &[u32]) -> History {
        let mut seen = vec![false; trace.unique_blocks as usize];
        let mut sent: HashSet<(u32, u32)> = HashSet::new();
        let mut history = History::default();
        for at in stream {
            let request = &trace.requests[*at as usize];
            let blocks = trace.blocks(request);
            let session = request.session.unwrap_or(u32::MAX);
            let known = blocks.iter().take_while(|block| seen[**block as usize]).count();
            let own = blocks[..known].iter().take_while(|block| sent.contains(&(session, **block))).count();
            for block in blocks {
                history.unique_blocks += u64::from(!std::mem::replace(&mut seen[*block as usize], true));
            }
            sent.extend(blocks[own..].iter().map(|block| (session, *block)));
            history.blocks += blocks.len() as u64;
            history.infinite_hits += known as u64;
            history.known.push(known as u32);
            history.own.push(own as u32);
        }
        history
    }

    /// Leading blocks that an infinite pool would have had.
    pub fn known(&self, position: usize) -> u32 {
        self.known[position]
    }

    /// Of a request that found `hits`, the blocks lost: (sent before by the same session, by others only).
    pub fn lost(&self, position: usize, hits: u32) -> (u64, u64) {
        let (known, own) = (self.known[position], self.own[position]);
        let multi_turn = own.saturating_sub(hits);
        (u64::from(multi_turn), u64::from(known.saturating_sub(hits) - multi_turn))
    }
}
