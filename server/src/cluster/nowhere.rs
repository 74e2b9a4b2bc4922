//! Pages that no other member had a moment ago. Owns: for how long that is believed, and what ends it sooner. Must not know: who was
//! asked, and how.
//!
//! ```text
//!   nobody has this page --note--> nobody is asked for it --a second, or its chain is heard of--> members are asked again
//! ```
//! A prompt that is nowhere is looked for again and again: by each round of a client's search, by each engine that a router tries,
//! by whoever computes it. Each time would wait for all members, and for as long as the slowest of them may take.

use crate::limits::{NOWHERE_CHECKED_MAX, NOWHERE_PAGES_MAX, NOWHERE_TIME};
use moka::sync::Cache;
use std::sync::atomic::{AtomicU64, Ordering};
use turnkv_cluster::PrefixKey;
use turnkv_proto::{BlockHash, NamespaceId};

/// What was looked for lately and is nowhere.
pub(super) struct NowherePages {
    /// By the first page that nobody has: when members were asked for it.
    absent: Cache<PrefixKey, Moment>,
    /// Pages that a home said that it holds: when.
    heard: Cache<PrefixKey, Moment>,
    next: AtomicU64,
}

/// Orders what was asked and what was heard: a clock is too coarse for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(u64);

impl NowherePages {
    /// Nothing was asked yet.
    pub(super) fn new() -> NowherePages {
        NowherePages { absent: remembered(), heard: remembered(), next: AtomicU64::new(0) }
    }

    /// Now: to be taken before members are asked.
    pub(super) fn moment(&self) -> Moment {
        Moment(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Members were asked at that moment, and none has the page.
    pub(super) fn note(&self, namespace: &NamespaceId, page: &BlockHash, asked: Moment) {
        self.absent.insert(PrefixKey::of(namespace, page), asked);
    }

    /// Whether nobody else had the first of these pages a moment ago, and nothing was heard since of any of them.
    pub(super) fn knows(&self, namespace: &NamespaceId, pages: &[BlockHash]) -> bool {
        let Some(first) = pages.first() else { return false };
        let Some(asked) = self.absent.get(&PrefixKey::of(namespace, first)) else { return false };
        pages
            .iter()
            .take(NOWHERE_CHECKED_MAX)
            .all(|page| self.heard.get(&PrefixKey::of(namespace, page)).is_none_or(|heard| heard < asked))
    }

    /// A home says that it holds these.
    pub(super) fn heard(&self, pages: Vec<PrefixKey>) {
        pages.into_iter().for_each(|page| self.heard.insert(page, self.moment()));
    }

    /// Lets go of what is too old. Returns how many are remembered, of both kinds.
    pub(super) fn age(&self) -> u64 {
        self.absent.run_pending_tasks();
        self.heard.run_pending_tasks();
        self.absent.entry_count() + self.heard.entry_count()
    }
}

/// Entries are of one size, so that their number bounds their bytes, too.
fn remembered() -> Cache<PrefixKey, Moment> {
    Cache::builder().max_capacity(NOWHERE_PAGES_MAX).time_to_live(NOWHERE_TIME).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMESPACE: NamespaceId = NamespaceId([1; 32]);

    fn pages(from: u8, to: u8) -> Vec<BlockHash> {
        (from..to).map(|page| BlockHash([page; 32])).collect()
    }

    #[test]
    fn what_nobody_has_is_known_for_a_while() {
        let nowhere = NowherePages::new();
        let asked = pages(1, 9);
        assert!(!nowhere.knows(&NAMESPACE, &asked) && !nowhere.knows(&NAMESPACE, &[]));
        nowhere.note(&NAMESPACE, &asked[0], nowhere.moment());
        assert!(nowhere.knows(&NAMESPACE, &asked) && nowhere.knows(&NAMESPACE, &asked[..1]));
        assert!(!nowhere.knows(&NAMESPACE, &asked[1..]), "another page is another question");
        assert!(!nowhere.knows(&NamespaceId([2; 32]), &asked));
        std::thread::sleep(NOWHERE_TIME + NOWHERE_TIME / 4);
        assert!(!nowhere.knows(&NAMESPACE, &asked), "for a while only");
    }

    #[test]
    fn what_was_heard_of_since_is_asked_for_again() {
        let nowhere = NowherePages::new();
        let asked = pages(1, 9);
        let heard = |page: u8| nowhere.heard(vec![PrefixKey::of(&NAMESPACE, &BlockHash([page; 32]))]);
        heard(4);
        nowhere.note(&NAMESPACE, &asked[0], nowhere.moment());
        heard(10);
        assert!(nowhere.knows(&NAMESPACE, &asked), "heard before it was asked for, and of another chain");
        // An answer that was under way when its page was published is not believed either.
        let before = nowhere.moment();
        heard(4);
        nowhere.note(&NAMESPACE, &asked[0], before);
        assert!(!nowhere.knows(&NAMESPACE, &asked));
    }

    #[test]
    fn no_more_is_remembered_than_may_be() {
        let nowhere = NowherePages::new();
        for page in 0..2 * NOWHERE_PAGES_MAX {
            let mut hash = [0; 32];
            hash[..8].copy_from_slice(&page.to_le_bytes());
            nowhere.note(&NAMESPACE, &BlockHash(hash), nowhere.moment());
            nowhere.heard(vec![PrefixKey::of(&NAMESPACE, &BlockHash(hash))]);
        }
        assert!(nowhere.age() <= 2 * NOWHERE_PAGES_MAX, "{}", nowhere.age());
    }
}
