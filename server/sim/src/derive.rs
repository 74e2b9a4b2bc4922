//! Sessions of a trace that does not name them. Owns: the rule by which a request belongs to a session.
//! Must not know: pools.
//!
//! A request continues the session that alone has sent the last block it shares with the past, if it shares more blocks
//! than a system prompt's head. Blocks that several sessions have sent prove nothing.

use crate::limits::SHARED_HEAD_BLOCKS_MAX;
use crate::trace::Trace;

#[cfg(test)]
mod tests;

/// Nobody has sent the block yet.
const NOBODY: u32 = u32::MAX;
/// Several sessions have.
const SHARED: u32 = u32::MAX - 1;

/// Gives every request without a session one, and a turn number to every request without one.
pub fn derive_sessions(trace: &mut Trace) {
    let mut owners = vec![NOBODY; trace.unique_blocks as usize];
    let mut turns = vec![0u32; trace.sessions.len()];
    for at in 0..trace.requests.len() {
        let request = trace.requests[at];
        let session = request.session.or_else(|| find_owner(trace.blocks(&request), &owners));
        let session = session.unwrap_or_else(|| {
            trace.sessions.push(format!("derived-{at}"));
            turns.push(0);
            trace.sessions.len() as u32 - 1
        });
        for block in trace.blocks(&request) {
            let owner = &mut owners[*block as usize];
            *owner = if *owner == NOBODY || *owner == session { session } else { SHARED };
        }
        let turn = &mut turns[session as usize];
        *turn = if request.turn > 0 { request.turn } else { *turn + 1 };
        let request = &mut trace.requests[at];
        (request.session, request.turn) = (Some(session), *turn);
    }
}

fn find_owner(blocks: &[u32], owners: &[u32]) -> Option<u32> {
    let known = blocks.iter().take_while(|block| owners[**block as usize] != NOBODY).count();
    let last = *blocks.get(known.checked_sub(1)?)?;
    let owner = owners[last as usize];
    (known > SHARED_HEAD_BLOCKS_MAX && owner != SHARED).then_some(owner)
}
