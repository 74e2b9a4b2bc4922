//! Memory for frames that do not fit a socket's read buffer. Owns: a bound on all of it together, and waiting
//! for a part of it. Must not know: sockets, what a frame says.
//!
//! Bytes that found no room stay in the system's socket buffer, which is bounded too: their sender waits.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// The bytes that all large frames of a server may take together, from their headers on until they are
/// dropped.
#[derive(Debug)]
pub struct LargeFrames {
    taken: Mutex<TakenBytes>,
    freed: Condvar,
    bytes: usize,
    /// What these are a share of.
    whole: Option<Arc<LargeFrames>>,
}

#[derive(Debug, Default)]
struct TakenBytes {
    bytes: usize,
    /// The most since somebody last asked for it.
    most_bytes: usize,
}

/// A part of them.
#[derive(Debug)]
pub(crate) struct Held {
    of: Arc<LargeFrames>,
    bytes: usize,
    /// The same part of what it is a share of: held for its end only.
    _whole: Option<Box<Held>>,
}

impl LargeFrames {
    /// So many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Arc<LargeFrames> {
        Arc::new(LargeFrames { taken: Mutex::default(), freed: Condvar::new(), bytes, whole: None })
    }

    /// At most so many of these, for some of the connections.
    #[must_use]
    pub fn share(self: &Arc<Self>, bytes: usize) -> Arc<LargeFrames> {
        let whole = Some(Arc::clone(self));
        Arc::new(LargeFrames { taken: Mutex::default(), freed: Condvar::new(), bytes, whole })
    }

    /// Bytes that are taken.
    pub fn taken_bytes(&self) -> usize {
        self.taken.lock().bytes
    }

    /// Whether a burst has passed since the last look: `least` bytes or more were taken, and fewer are now.
    pub fn burst_has_passed(&self, least: usize) -> bool {
        let mut taken = self.taken.lock();
        let passed = taken.bytes < least && taken.most_bytes >= least;
        if passed {
            taken.most_bytes = taken.bytes;
        }
        passed
    }

    /// A part, if it is free by the deadline.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize, deadline: Instant) -> Option<Held> {
        let mut taken = self.taken.lock();
        while taken.bytes + bytes > self.bytes {
            let late = self.freed.wait_until(&mut taken, deadline).timed_out();
            if late && taken.bytes + bytes > self.bytes {
                return None;
            }
        }
        taken.bytes += bytes;
        taken.most_bytes = taken.most_bytes.max(taken.bytes);
        drop(taken);
        let mut held = Held { of: Arc::clone(self), bytes, _whole: None };
        if let Some(whole) = &self.whole {
            held._whole = Some(Box::new(whole.hold(bytes, deadline)?));
        }
        Some(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.taken.lock().bytes -= self.bytes;
        self.of.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::LargeFrames;
    use std::time::{Duration, Instant};

    #[test]
    fn a_part_is_waited_for_and_comes_back() {
        let all = LargeFrames::new(10);
        let soon = || Instant::now() + Duration::from_millis(30);
        let first = all.hold(6, soon()).unwrap();
        assert!(all.hold(5, soon()).is_none() && all.hold(11, soon()).is_none());
        let second = all.hold(4, soon()).unwrap();
        assert!(!all.burst_has_passed(8), "it lasts");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| all.hold(7, Instant::now() + Duration::from_secs(10)).is_some());
            drop(first);
            drop(second);
            assert!(waiting.join().unwrap());
        });
        assert!(all.burst_has_passed(8) && !all.burst_has_passed(8), "said once");
        assert!(all.hold(10, soon()).is_some());
    }

    #[test]
    fn a_share_leaves_the_rest_to_others() {
        let all = LargeFrames::new(10);
        let soon = || Instant::now() + Duration::from_millis(30);
        let (greedy, other) = (all.share(7), all.share(7));
        let held = greedy.hold(7, soon()).unwrap();
        assert!(greedy.hold(1, soon()).is_none() && other.hold(4, soon()).is_none());
        assert_eq!((all.taken_bytes(), other.taken_bytes()), (7, 0), "what found no room is given back");
        let rest = other.hold(3, soon()).unwrap();
        assert_eq!(all.taken_bytes(), 10);
        drop((held, rest));
        assert_eq!((all.taken_bytes(), greedy.taken_bytes()), (0, 0));
    }
}
