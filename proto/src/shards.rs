//! Which shards of its pages a call moves, and what a position of such a call is.
//! Owns: this arithmetic. Must not know: messages, what is done with a shard.
//!
//! A call over n pages and k shards of each has n * k positions, page after page, of each page one shard after another:
//! position `p * k + s` is the call's s-th shard of its p-th page.

#[cfg(test)]
mod tests;

/// Neighbouring shards of every page that a call names; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shards {
    first: u16,
    count: u16,
}

impl Shards {
    /// This shard alone.
    pub const fn one(shard: u16) -> Shards {
        Shards { first: shard, count: 1 }
    }

    /// `count` shards from `first` on; 0 means 1. None: there are never so many.
    pub fn new(first: u32, count: u32) -> Option<Shards> {
        let (first, count) = (u16::try_from(first).ok()?, u16::try_from(count.max(1)).ok()?);
        first.checked_add(count).map(|_| Shards { first, count })
    }

    /// The first of them.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// Whether a call that moves these is the one at which its pages and their tokens are counted: of the calls that move a page
    /// shard by shard, the one with the first.
    pub const fn are_counted(self) -> bool {
        self.first == 0
    }

    /// How many they are: positions of one page.
    pub const fn count(self) -> usize {
        self.count as usize
    }

    /// The number behind the last of them: a page must have at least so many shards.
    pub const fn end(self) -> u16 {
        self.first + self.count
    }

    /// All of them, in order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = u16> {
        self.first..self.end()
    }

    /// Positions of a call over so many pages.
    pub const fn positions(self, pages: usize) -> usize {
        pages.saturating_mul(self.count())
    }

    /// The page of a position.
    pub const fn page(self, position: usize) -> usize {
        position / self.count()
    }

    /// The shard of a position.
    pub const fn shard(self, position: usize) -> u16 {
        self.first + (position % self.count()) as u16
    }

    /// Whole pages within so many leading positions.
    pub const fn whole_pages(self, positions: usize) -> usize {
        positions / self.count()
    }
}
