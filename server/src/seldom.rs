//! What the log says now and then, however often it happens. Owns: when the last line was. Must not know: what it says.

use crate::limits::SAID_EVERY_MS;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// A line of the log that peers can cause.
pub(crate) struct Seldom {
    state: Mutex<(Option<Instant>, u64)>,
}

impl Seldom {
    /// Nothing was said yet.
    pub(crate) fn new() -> Seldom {
        Seldom { state: Mutex::default() }
    }

    /// It happened again: whether to say so, with how often it happened unsaid before.
    pub(crate) fn may_say(&self) -> Option<u64> {
        self.may_say_at(Instant::now())
    }

    fn may_say_at(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock();
        let (last, unsaid) = &mut *state;
        if last.is_some_and(|last| now.saturating_duration_since(last) < Duration::from_millis(SAID_EVERY_MS))
        {
            *unsaid += 1;
            return None;
        }
        *last = Some(now);
        Some(std::mem::take(unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::Seldom;
    use crate::limits::SAID_EVERY_MS;
    use std::time::{Duration, Instant};

    #[test]
    fn what_happens_often_is_said_seldom_and_counted() {
        let (seldom, began) = (Seldom::new(), Instant::now());
        let at = |ms: u64| seldom.may_say_at(began + Duration::from_millis(ms));
        assert_eq!((at(0), at(1), at(SAID_EVERY_MS - 1)), (Some(0), None, None));
        assert_eq!((at(SAID_EVERY_MS), at(SAID_EVERY_MS + 1)), (Some(2), None));
    }
}
