//! Prefixes that were pulled from other members, without a session that would move: they are here a second time. Owns: how much of memory
//! they may take like pages that are here only. Must not know: who has the first copy, how pages came.
//!
//! ```text
//!   landed: goes first --a turn here reads it--> stays like any page, as long as all second copies fit their share
//!                                                  \--they do not--> that of long ago goes first again
//! ```

use crate::limits::SECOND_COPIES_MAX;
use parking_lot::Mutex;
use std::collections::VecDeque;
use turnkv_proto::{BlockHash, NamespaceId};

/// The prefixes that are here a second time, those of long ago first.
#[derive(Default)]
pub(crate) struct SecondCopies(Mutex<KnownCopies>);

#[derive(Default)]
struct KnownCopies {
    copies: VecDeque<SecondCopy>,
    bytes: u64,
}

/// A prefix that is here a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SecondCopy {
    pub(super) namespace: NamespaceId,
    pub(super) last: BlockHash,
    /// Leading pages that were here before it was pulled.
    pub(super) keep: u32,
    pub(super) bytes: u64,
}

impl SecondCopies {
    /// One more came. Returns those that are more than may be.
    pub(super) fn came(&self, copy: SecondCopy, bytes_max: u64) -> Vec<SecondCopy> {
        let mut known = self.0.lock();
        known.bytes += copy.bytes;
        known.copies.push_back(copy);
        let mut beyond = Vec::new();
        while known.bytes > bytes_max || known.copies.len() > SECOND_COPIES_MAX {
            let Some(oldest) = known.copies.pop_front() else { break };
            known.bytes -= oldest.bytes;
            beyond.push(oldest);
        }
        beyond
    }

    /// Bytes of those that may stay.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(number: u8, bytes: u64) -> SecondCopy {
        SecondCopy { namespace: NamespaceId([1; 32]), last: BlockHash([number; 32]), keep: 0, bytes }
    }

    #[test]
    fn second_copies_have_a_share_and_those_of_long_ago_leave_it_first() {
        let copies = SecondCopies::default();
        assert!(copies.came(copy(1, 40), 100).is_empty() && copies.came(copy(2, 50), 100).is_empty());
        assert_eq!(copies.came(copy(3, 20), 100), [copy(1, 40)]);
        assert_eq!(copies.bytes(), 70);
        assert_eq!(
            copies.came(copy(4, 101), 100),
            [copy(2, 50), copy(3, 20), copy(4, 101)],
            "more than all of it"
        );
        assert_eq!(copies.bytes(), 0);
        let many = (0..SECOND_COPIES_MAX + 5).map(|_| copies.came(copy(5, 0), 100).len()).sum::<usize>();
        assert_eq!(many, 5, "and so many at most");
    }
}
