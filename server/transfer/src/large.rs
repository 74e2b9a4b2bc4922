//! Memory for frames that do not fit a socket's read buffer. Owns: a bound on all of it together, and waiting
//! for a part of it. Must not know: sockets, what a frame says.
//!
//! Bytes that found no room stay in the system's socket buffer, which is bounded too: their sender waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// The bytes that all large frames of a server may take together, from their headers on until they are
/// dropped; or one peer's share of them.
///
/// A share is no fixed part: its peer may have a multiple of what is free. With three quarters that is three
/// times as much: alone it gets three quarters of all, one of two gets 3/7 and leaves 1/7 free, one of k gets
/// 3/(1 + 3k). So however many peers ask for all that they may have, some of it is free for the next one.
#[derive(Debug)]
pub struct LargeFrames {
    room: Arc<Room>,
    /// What the frames of this peer take; changes only while the room is locked.
    own: AtomicUsize,
    /// What a peer that is alone may have.
    percent: usize,
}

#[derive(Debug)]
struct Room {
    taken: Mutex<TakenBytes>,
    freed: Condvar,
    bytes: usize,
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
}

impl LargeFrames {
    /// So many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Arc<LargeFrames> {
        let room = Arc::new(Room { taken: Mutex::default(), freed: Condvar::new(), bytes });
        Arc::new(LargeFrames { room, own: AtomicUsize::new(0), percent: 100 })
    }

    /// What one peer may have of these: so many percent when nobody else has any.
    ///
    /// # Panics
    /// If that is more than all.
    #[must_use]
    pub fn share(&self, percent: usize) -> Arc<LargeFrames> {
        assert!(percent <= 100, "a share is a part");
        Arc::new(LargeFrames { room: Arc::clone(&self.room), own: AtomicUsize::new(0), percent })
    }

    /// Bytes that are taken, of all shares together.
    pub fn taken_bytes(&self) -> usize {
        self.room.taken.lock().bytes
    }

    /// Whether a burst has passed since the last look: `least` bytes or more were taken, and fewer are now.
    pub fn burst_has_passed(&self, least: usize) -> bool {
        let mut taken = self.room.taken.lock();
        let passed = taken.bytes < least && taken.most_bytes >= least;
        if passed {
            taken.most_bytes = taken.bytes;
        }
        passed
    }

    /// A part, if it is free by the deadline.
    pub(crate) fn hold(self: &Arc<Self>, bytes: usize, deadline: Instant) -> Option<Held> {
        let mut taken = self.room.taken.lock();
        while !self.has_room(&taken, bytes) {
            let late = self.room.freed.wait_until(&mut taken, deadline).timed_out();
            if late && !self.has_room(&taken, bytes) {
                return None;
            }
        }
        taken.bytes += bytes;
        taken.most_bytes = taken.most_bytes.max(taken.bytes);
        self.own.fetch_add(bytes, Ordering::Relaxed);
        Some(Held { of: Arc::clone(self), bytes })
    }

    fn has_room(&self, taken: &TakenBytes, bytes: usize) -> bool {
        let left = self.room.bytes.checked_sub(taken.bytes).and_then(|free| free.checked_sub(bytes));
        let own = self.own.load(Ordering::Relaxed) + bytes;
        left.is_some_and(|left| own * (100 - self.percent) <= left * self.percent)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let room = &self.of.room;
        let mut taken = room.taken.lock();
        taken.bytes -= self.bytes;
        self.of.own.fetch_sub(self.bytes, Ordering::Relaxed);
        drop(taken);
        room.freed.notify_all();
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
    fn one_peer_gets_its_share_and_leaves_the_rest() {
        let all = LargeFrames::new(100);
        let soon = || Instant::now() + Duration::from_millis(30);
        let (greedy, other) = (all.share(75), all.share(75));
        let held = greedy.hold(75, soon()).unwrap();
        assert!(greedy.hold(1, soon()).is_none() && other.hold(26, soon()).is_none());
        let rest = other.hold(18, soon()).unwrap();
        assert_eq!(all.taken_bytes(), 93);
        drop(held);
        assert!(other.hold(50, soon()).is_some(), "what one gives back the other may have");
        drop(rest);
        assert_eq!((all.taken_bytes(), greedy.taken_bytes()), (0, 0));
    }

    #[test]
    fn however_many_peers_take_all_they_may_one_more_finds_room() {
        let now = Instant::now();
        for peers in 1..=8 {
            let all = LargeFrames::new(128 << 10);
            let greedy: Vec<_> = (0..peers).map(|_| all.share(75)).collect();
            let mut held = Vec::new();
            // In turn, until none of them gets any more.
            loop {
                let before = held.len();
                held.extend(greedy.iter().filter_map(|one| one.hold(64, now)));
                if held.len() == before {
                    break;
                }
            }
            assert!(all.share(75).hold(3 << 10, now).is_some(), "{peers} peers, {} bytes", all.taken_bytes());
        }
    }
}
