//! Pauses before what failed is tried again. Owns: how they grow. Must not know: what is tried.

use std::time::{Duration, Instant};

/// A pause that doubles with each failure that follows soon, and is short again after what lasted.
#[derive(Debug)]
pub(super) struct Pause {
    least: Duration,
    most: Duration,
    length: Duration,
    until: Option<Instant>,
}

impl Pause {
    /// None yet; each will be within these.
    pub(super) fn within(least: Duration, most: Duration) -> Pause {
        Pause { least, most, length: least, until: None }
    }

    /// Whether it is not over.
    pub(super) fn goes_on(&self) -> bool {
        self.until.is_some_and(|moment| Instant::now() < moment)
    }

    /// What is tried failed, or ended: it is tried again later, and later still if it does not last then.
    pub(super) fn begin(&mut self) {
        let now = Instant::now();
        let lasted = self.until.is_none_or(|moment| now > moment + self.most);
        self.length = if lasted { self.least } else { (self.length * 2).min(self.most) };
        self.until = Some(now + self.length);
    }
}

#[cfg(test)]
mod tests {
    use super::Pause;
    use std::time::{Duration, Instant};

    #[test]
    fn it_is_short_again_after_what_lasted_longer_than_the_longest_and_only_then() {
        let (least, most) = (Duration::from_secs(10), Duration::from_secs(60));
        for (ended_before, length) in [(0, 40), (59, 40), (61, 10), (1_000, 10)] {
            let mut pause = Pause::within(least, most);
            pause.begin();
            pause.begin();
            pause.until = Instant::now().checked_sub(Duration::from_secs(ended_before));
            assert!(!pause.goes_on(), "over for {ended_before} s");
            pause.begin();
            assert_eq!(pause.length, Duration::from_secs(length), "over for {ended_before} s");
        }
    }

    #[test]
    fn it_grows_with_each_failure_up_to_a_bound() {
        let mut pause = Pause::within(Duration::from_secs(1), Duration::from_secs(3));
        assert!(!pause.goes_on());
        let lengths = [1, 2, 3, 3].map(Duration::from_secs);
        for length in lengths {
            pause.begin();
            assert_eq!((pause.length, pause.goes_on()), (length, true));
        }
    }
}
