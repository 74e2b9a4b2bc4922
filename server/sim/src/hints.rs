//! What an engine could tell the pool, at the time it could tell it. Owns: expected returns learned from gaps seen so
//! far, and when sessions are closed. Must not know: the pool, the future (but that a session ended, once it has).

use crate::trace::{Request, Stop, Trace};
use std::collections::HashMap;
use turnkv_pool::Now;

#[cfg(test)]
mod tests;

/// The gap expected after a tool call before any was seen.
const TOOL_USE_MS: u64 = 8_500;
/// The gap expected after the end of a turn before any was seen.
const END_TURN_MS: u64 = 22_000;
/// Nobody closes a session before its turn is over.
const TURN_OVER_MS: u64 = 1;
/// How much the first guess weighs, in gaps.
const PRIOR_GAPS: u32 = 8;
/// Buckets of the gaps' histogram: four to an octave, from 1 ms to about 20 days.
const BUCKETS: usize = 4 * 31;

/// What the engine says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HintRules {
    /// How long after its last request a session is closed (somebody closes the window, or turns to something else).
    pub close_after_ms: u64,
}

impl Default for HintRules {
    fn default() -> HintRules {
        HintRules { close_after_ms: 600_000 }
    }
}

/// What the engine knows by now.
pub struct Hints {
    rules: HintRules,
    gaps: [Gaps; 2],
    /// By session: its last request so far.
    last: HashMap<u32, (Now, Stop)>,
    /// Requests to come, by session: only whether there are any is ever used.
    left: Vec<u32>,
}

/// What to do about a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// When the session is expected back; 0: unknown.
    pub expected_return_ms: u64,
    /// The session is closed at this time.
    pub close_at: Option<Now>,
}

impl Hints {
    /// Begins to watch a stream (positions in the trace).
    pub fn new(trace: &Trace, stream: &[u32], rules: HintRules) -> Hints {
        let mut left = vec![0; trace.sessions.len()];
        for at in stream {
            if let Some(session) = trace.requests[*at as usize].session {
                left[session as usize] += 1;
            }
        }
        let gaps = [Gaps::new(TOOL_USE_MS), Gaps::new(END_TURN_MS)];
        Hints { rules, gaps, last: HashMap::new(), left }
    }

    /// A request came.
    pub fn observe(&mut self, request: &Request) -> Advice {
        let Some(session) = request.session else { return Advice::default() };
        let now = request.at_ms;
        if let Some((before, stop)) = self.last.insert(session, (now, request.stop))
            && let Some(gaps) = class(stop).map(|class| &mut self.gaps[class])
        {
            gaps.add(now - before);
        }
        let left = &mut self.left[session as usize];
        *left -= 1;
        let close_at = match (request.parent, request.stop) {
            // A sub-agent that ended its turn has reported back: nobody asks it again.
            (Some(_), Stop::EndTurn) => Some(now + TURN_OVER_MS),
            _ => (*left == 0).then(|| now + self.rules.close_after_ms.max(TURN_OVER_MS)),
        };
        let expected_return_ms = class(request.stop).map_or(0, |class| self.gaps[class].median());
        Advice { expected_return_ms, close_at }
    }
}

/// Which gaps a reply's end belongs to; none: its end says nothing.
fn class(stop: Stop) -> Option<usize> {
    match stop {
        Stop::ToolUse => Some(0),
        Stop::EndTurn => Some(1),
        Stop::Unknown => None,
    }
}

/// Gaps seen so far.
struct Gaps {
    counts: [u32; BUCKETS],
    total: u32,
}

impl Gaps {
    fn new(prior_ms: u64) -> Gaps {
        let mut gaps = Gaps { counts: [0; BUCKETS], total: PRIOR_GAPS };
        gaps.counts[bucket(prior_ms)] = PRIOR_GAPS;
        gaps
    }

    fn add(&mut self, gap_ms: u64) {
        self.counts[bucket(gap_ms)] += 1;
        self.total += 1;
    }

    fn median(&self) -> u64 {
        let mut below = 0;
        for (at, count) in self.counts.iter().enumerate() {
            below += count;
            if below * 2 >= self.total {
                return 2f64.powf((at as f64 + 0.5) / 4.0) as u64;
            }
        }
        0
    }
}

fn bucket(gap_ms: u64) -> usize {
    ((gap_ms.max(1) as f64).log2() * 4.0).min(BUCKETS as f64 - 1.0) as usize
}
