//! What of the answers on one connection its peer has not taken yet. Owns: their bytes and ages, and who waits for room among
//! them. Must not know: HTTP, what is answered.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

/// The pieces of answers that wait for one peer.
#[derive(Default)]
pub(crate) struct Unread {
    state: Mutex<UnreadState>,
}

#[derive(Default)]
struct UnreadState {
    bytes: u64,
    /// The number of the next piece.
    next: u64,
    /// When each piece was made, by its number: the first one is the oldest.
    since: BTreeMap<u64, u64>,
    /// Answers that go on once there is room.
    waiting: Vec<Waker>,
}

impl Unread {
    /// A piece waits from now on; its number.
    pub(crate) fn add(&self, bytes: u64, now: u64) -> u64 {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.bytes += bytes;
        state.since.insert(number, now);
        number
    }

    /// A piece was taken, or its connection is gone.
    pub(crate) fn remove(&self, number: u64, bytes: u64) {
        let waiting = {
            let mut state = self.state.lock();
            state.bytes -= bytes;
            state.since.remove(&number);
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Bytes that wait.
    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Whether fewer than `most` bytes wait; else `context` is woken when some were taken.
    pub(crate) fn poll_room(&self, most: u64, context: &Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.bytes < most {
            return Poll::Ready(());
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            state.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Since when the oldest piece waits.
    pub(super) fn since(&self) -> Option<u64> {
        self.state.lock().since.first_key_value().map(|(_, since)| *since)
    }
}

#[cfg(test)]
mod tests {
    use super::Unread;
    use std::task::{Context, Waker};

    #[test]
    fn the_oldest_is_known_in_whatever_order_pieces_are_taken() {
        let unread = Unread::default();
        let [a, b, c] = [10, 20, 30].map(|now| unread.add(now, now));
        unread.remove(b, 20);
        assert_eq!((unread.since(), unread.bytes()), (Some(10), 40));
        unread.remove(a, 10);
        assert_eq!(unread.since(), Some(30));
        unread.remove(c, 30);
        assert_eq!((unread.since(), unread.bytes()), (None, 0));
    }

    #[test]
    fn who_waits_for_room_is_let_go() {
        let unread = Unread::default();
        let context = Context::from_waker(Waker::noop());
        let number = unread.add(5, 1);
        assert!(unread.poll_room(6, &context).is_ready());
        assert!(unread.poll_room(5, &context).is_pending());
        assert_eq!(unread.state.lock().waiting.len(), 1);
        unread.remove(number, 5);
        assert!(unread.poll_room(5, &context).is_ready() && unread.state.lock().waiting.is_empty());
    }
}
