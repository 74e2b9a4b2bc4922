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
    use std::time::Duration;

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
