//! How many pages are asked for at a time. Owns: that size, which follows how long a part took. Must not know: pages, clocks.

use crate::limits::{PULL_PART_BYTES_MAX, PULL_PART_MS, PULL_PART_WAIT};
use std::time::Duration;

/// The size of the next part: one page at first, so that it is there soon, then as many as come in a short time more than the
/// shortest part took. That is how long asking takes, which fewer pages would not make shorter.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartSize {
    pages: usize,
    pages_max: usize,
    shortest: Duration,
}

impl PartSize {
    /// Of pages of so many bytes, of which at most so many may be asked for at a time.
    pub(super) fn new(page_bytes: u64, pages_max: usize) -> PartSize {
        let fit = usize::try_from(PULL_PART_BYTES_MAX / page_bytes.max(1)).unwrap_or(usize::MAX);
        PartSize { pages: 1, pages_max: fit.min(pages_max).max(1), shortest: PULL_PART_WAIT }
    }

    /// Pages to ask for now.
    pub(super) fn pages(self) -> usize {
        self.pages
    }

    /// A part has come in so long.
    pub(super) fn took(&mut self, time: Duration) {
        self.shortest = self.shortest.min(time);
        let is_long = time > self.shortest + Duration::from_millis(PULL_PART_MS);
        self.pages = if is_long { (self.pages / 2).max(1) } else { (self.pages * 2).min(self.pages_max) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_on_a_fast_wire_and_shrink_on_a_slow_one_within_bounds() {
        let mut part = PartSize::new(2 << 20, 1024);
        let mut sizes = Vec::new();
        for _ in 0..5 {
            sizes.push(part.pages());
            part.took(Duration::from_millis(1));
        }
        assert_eq!(sizes, [1, 2, 4, 8, 8], "16 MiB are 8 pages of 2 MiB");
        (0..5).for_each(|_| part.took(Duration::from_millis(PULL_PART_MS + 2)));
        assert_eq!(part.pages(), 1);
        assert_eq!(PartSize::new(64 << 20, 1024).pages_max, 1, "a page is never cut");
        assert_eq!(PartSize::new(1, 7).pages_max, 7);
    }

    #[test]
    fn where_asking_takes_long_parts_grow_all_the_same() {
        let (asking, mut part) = (Duration::from_millis(4 * PULL_PART_MS), PartSize::new(128 << 10, 1024));
        (0..7).for_each(|_| part.took(asking));
        assert_eq!(part.pages(), 128, "16 MiB");
        part.took(asking + Duration::from_millis(PULL_PART_MS + 1));
        assert_eq!(part.pages(), 64);
    }
}
