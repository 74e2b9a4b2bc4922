//! What is counted and said of calls that their callers may not make. Owns: the series, and how often the log says it. Must not
//! know: why.

use super::caller::Caller;
use super::judge::Denied;
use crate::seldom::Seldom;
use metrics::{Counter, counter, describe_counter};

/// Those of one door.
pub(super) struct Refusals {
    door: &'static str,
    counters: [Counter; Denied::ALL.len()],
    /// A caller that asks again and again fills no log.
    said: Seldom,
}

impl Refusals {
    /// None yet.
    pub(super) fn new(door: &'static str) -> Refusals {
        let name = "turnkv_access_refused_total";
        describe_counter!(
            name,
            "Calls that their callers may not make: their role cannot (role), not to this tenant's (tenant), or not as this client, which is another caller's (client)"
        );
        let counters = Denied::ALL.map(|why| counter!(name, "door" => door, "reason" => why.name()));
        Refusals { door, counters, said: Seldom::new() }
    }

    /// One more.
    pub(super) fn refused(&self, caller: &Caller, verb: &'static str, denied: Denied) {
        if let Some(counter) = self.counters.get(denied as usize) {
            counter.increment(1);
        }
        if let Some(unsaid) = self.said.may_say() {
            let (door, caller, granted) = (self.door, caller.name(), &caller.grants);
            tracing::warn!(door, caller, verb, reason = denied.name(), %granted, unsaid, "a call is refused: its caller may not make it");
        }
    }
}
