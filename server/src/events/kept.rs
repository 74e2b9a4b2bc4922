//! Messages that were published, as long as there is room. Owns: their numbers. Must not know: who reads them.

use bytes::Bytes;
use std::collections::VecDeque;

/// The last messages, oldest first.
pub(super) struct KeptMessages {
    messages: VecDeque<Bytes>,
    bytes: u64,
    bytes_max: u64,
    /// The number of the first of them.
    first: u64,
}

impl KeptMessages {
    /// None yet.
    pub(super) fn new(bytes_max: u64) -> KeptMessages {
        KeptMessages { messages: VecDeque::new(), bytes: 0, bytes_max, first: 0 }
    }

    /// One more. The oldest go, but never the one that is new. Returns the number that the next one will have.
    pub(super) fn push(&mut self, payload: Bytes) -> u64 {
        self.bytes += payload.len() as u64;
        self.messages.push_back(payload);
        while self.bytes > self.bytes_max
            && self.messages.len() > 1
            && let Some(oldest) = self.messages.pop_front()
        {
            self.bytes -= oldest.len() as u64;
            self.first += 1;
        }
        self.next()
    }

    /// The first message from a number on that is still here, and its number.
    pub(super) fn from(&self, number: u64) -> Option<(u64, Bytes)> {
        let number = number.max(self.first);
        let at = usize::try_from(number - self.first).ok()?;
        Some((number, self.messages.get(at)?.clone()))
    }

    fn next(&self) -> u64 {
        self.first + self.messages.len() as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what it expected by failing")]

    use super::*;

    #[test]
    fn the_oldest_go_where_there_is_no_room() {
        let mut kept = KeptMessages::new(10);
        assert_eq!(kept.from(0), None);
        for number in 0..5_u8 {
            assert_eq!(kept.push(Bytes::from(vec![number; 4])), u64::from(number) + 1);
        }
        assert_eq!(kept.from(0), Some((3, Bytes::from(vec![3; 4]))), "8 of 10 bytes");
        assert_eq!(kept.from(4), Some((4, Bytes::from(vec![4; 4]))));
        assert_eq!(kept.from(5), None);
        assert_eq!(kept.from(u64::MAX), None);
        assert_eq!(kept.push(Bytes::from(vec![9; 100])), 6, "one that is too large for it is kept alone");
        assert_eq!(kept.from(0).unwrap().0, 5);
    }
}
