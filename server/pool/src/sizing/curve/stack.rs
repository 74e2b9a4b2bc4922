//! The order in which sampled pages were used last, and how many were used after a given one. Owns: an order
//! statistic over recency: a bitmap of places, counted by a small Fenwick tree of its words, so that the part
//! that every touch reads and writes stays in a core's first cache. Must not know: pages, distances, rates.

/// Places in one word of the bitmap.
const WORD: usize = 64;
/// Places of the smallest stack.
const PLACES_MIN: usize = 1024;

/// Keys by recency. Every use takes the next place; places left behind are empty until the stack is
/// compacted.
#[derive(Default)]
pub(super) struct Stack {
    /// The key at each place.
    keys: Vec<u64>,
    /// Which places are taken.
    taken: Vec<u64>,
    /// Fenwick tree over the words' counts.
    tree: Vec<u16>,
    next: usize,
    count: usize,
}

impl Stack {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The place that the next key gets.
    pub(super) fn next(&self) -> u32 {
        self.next as u32
    }

    pub(super) fn is_full(&self) -> bool {
        self.next == self.keys.len()
    }

    /// Puts a key on top. The stack must not be full.
    pub(super) fn push(&mut self, key: u64) -> u32 {
        let place = self.next;
        self.keys[place] = key;
        self.taken[place / WORD] |= 1 << (place % WORD);
        self.add(place / WORD, 1);
        self.next += 1;
        self.count += 1;
        place as u32
    }

    pub(super) fn remove(&mut self, place: u32) {
        let place = place as usize;
        debug_assert!(self.taken[place / WORD] >> (place % WORD) & 1 == 1, "a key is at its place");
        self.taken[place / WORD] &= !(1 << (place % WORD));
        self.add(place / WORD, u16::MAX); // minus one
        self.count -= 1;
    }

    /// How many keys are at this place or above it.
    pub(super) fn from(&self, place: u32) -> u64 {
        (self.count - self.below(place)) as u64
    }

    /// How many keys are below this place.
    pub(super) fn below(&self, place: u32) -> usize {
        let place = place as usize;
        let mut word = place / WORD;
        let inside = match self.taken.get(word) {
            Some(bits) => (bits & ((1 << (place % WORD)) - 1)).count_ones() as usize,
            None => 0,
        };
        let mut sum = 0;
        while word > 0 {
            sum += usize::from(self.tree[word]);
            word &= word - 1;
        }
        sum + inside
    }

    /// The key used longest ago.
    pub(super) fn bottom(&self) -> Option<u64> {
        let word = self.taken.iter().position(|bits| *bits != 0)?;
        Some(self.keys[word * WORD + self.taken[word].trailing_zeros() as usize])
    }

    /// All keys, the one used longest ago first.
    pub(super) fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.next as u32).filter_map(|place| self.key(place))
    }

    /// The key at a place.
    pub(super) fn key(&self, place: u32) -> Option<u64> {
        let place = place as usize;
        let taken = self.taken.get(place / WORD)? >> (place % WORD) & 1 == 1;
        taken.then(|| self.keys[place])
    }

    /// Closes the gaps, and grows so that three uses in four need no such pass again; tells every key its new
    /// place.
    pub(super) fn compact(&mut self, mut moved: impl FnMut(u64, u32)) {
        let places = (4 * self.count).max(PLACES_MIN).next_power_of_two().max(self.keys.len());
        let mut to = 0;
        for word in 0..self.taken.len() {
            let mut bits = self.taken[word];
            while bits != 0 {
                let key = self.keys[word * WORD + bits.trailing_zeros() as usize];
                self.keys[to] = key;
                moved(key, to as u32);
                to += 1;
                bits &= bits - 1;
            }
        }
        self.keys.resize(places, 0);
        self.taken.clear();
        self.taken.resize(places / WORD, 0);
        self.tree.clear();
        self.tree.resize(places / WORD + 1, 0);
        for word in 0..to.div_ceil(WORD) {
            let bits = (to - word * WORD).min(WORD);
            self.taken[word] = u64::MAX >> (WORD - bits);
            self.add(word, bits as u16);
        }
        self.next = to;
    }

    pub(super) fn bytes(&self) -> usize {
        self.keys.capacity() * 8 + self.taken.capacity() * 8 + self.tree.capacity() * 2
    }

    fn add(&mut self, word: usize, by: u16) {
        let mut at = word + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(by);
            at += at & at.wrapping_neg();
        }
    }
}
