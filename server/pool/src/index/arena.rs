//! Where entries live: fixed chunks, a side table for shards, the tree's links, stable keys.
//! Owns: storage and shape of the index. Must not know: why a page comes or goes.

use crate::ids::{NONE, PageKey};
use crate::index::chunks::Chunks;
use crate::index::entry::{Cell, Entry};
use crate::index::flags::PageFlags;
use crate::index::path_end::PathEnd;
use crate::index::siblings::Siblings;
use crate::index::table::Table;
use crate::index::tips::{TipId, TipKeeper, Tips};
use crate::limits::CHUNK_ROWS;
use std::ops::{Index, IndexMut};
use turnkv_proto::BlockHash;

/// Rows of cells of one namespace with several shards.
struct Rows {
    shards: usize,
    /// Live entries of the namespace, those that wait for I/O included.
    live: u32,
    chunks: Vec<Box<[Cell]>>,
    free: Vec<u32>,
}

/// The index.
pub(crate) struct Pages {
    chunks: Chunks,
    table: Table,
    free: u32,
    live: u32,
    rows: Vec<Rows>,
    pub(super) siblings: Siblings,
    /// Where sessions' lists, protected prefixes and branches that were left end.
    tips: Tips,
}

impl Pages {
    pub(crate) fn new() -> Pages {
        Pages {
            chunks: Chunks::default(),
            table: Table::new(),
            free: NONE,
            live: 0,
            rows: Vec::new(),
            siblings: Siblings::new(),
            tips: Tips::default(),
        }
    }

    /// Makes room for the namespace opened next.
    pub(crate) fn add_namespace(&mut self, shards: u16) {
        self.rows.push(Rows::new(shards));
    }

    /// The same for a namespace that has the place of one of which nothing is left.
    pub(crate) fn renew_namespace(&mut self, ns: u16, shards: u16) {
        debug_assert_eq!(self.live_of(ns), 0, "nothing is left of it");
        self.rows[usize::from(ns)] = Rows::new(shards);
    }

    /// Namespaces that there is room for, those too that have retired.
    pub(crate) fn namespaces(&self) -> u16 {
        self.rows.len() as u16
    }

    /// Entries of one namespace.
    pub(crate) fn live_of(&self, ns: u16) -> u32 {
        self.rows[usize::from(ns)].live
    }

    /// Adds an entry without cells, and links it to its parent.
    pub(crate) fn insert(&mut self, ns: u16, hash: BlockHash, parent: u32) -> u32 {
        if self.free == NONE {
            self.grow();
        }
        let index = self.free;
        let rows = &mut self.rows[usize::from(ns)];
        rows.live += 1;
        let row = rows.take();
        let entry = &mut self.chunks[index];
        self.free = entry.parent;
        let generation = entry.generation;
        *entry = Entry { hash, ns, generation, flags: PageFlags::NEW, ..Entry::EMPTY };
        entry.cell.slot = row;
        self.live += 1;
        self.table.insert(&self.chunks, index);
        self.link(parent, index);
        (self[index].depth, self[index].jump) = (self.depth(parent) + 1, self.jump_below(parent));
        index
    }

    /// Takes an entry out of table and tree; its children, if any, lose their parent.
    pub(crate) fn detach(&mut self, index: u32) {
        self.table.remove(&self.chunks, index);
        self.unlink(index);
        self.part_from_children(index);
    }

    /// Frees a detached entry; its key is stale from now on.
    pub(crate) fn release(&mut self, index: u32) {
        let (ns, row) = (usize::from(self[index].ns), self[index].cell.slot);
        self.rows[ns].give_back(row);
        self.rows[ns].live -= 1;
        let free = self.free;
        let entry = &mut self.chunks[index];
        *entry = Entry { generation: entry.generation.wrapping_add(1), parent: free, ..Entry::EMPTY };
        self.free = index;
        self.live -= 1;
    }

    pub(crate) fn find(&self, ns: u16, hash: &BlockHash) -> Option<u32> {
        self.table.find(&self.chunks, ns, hash)
    }

    pub(crate) fn key(&self, index: u32) -> PageKey {
        PageKey { index, generation: self[index].generation }
    }

    /// The entry of a key, also when it only waits for its I/O.
    pub(super) fn resolve_any(&self, key: PageKey) -> Option<u32> {
        let entry = self.chunks.get(key.index)?;
        (entry.generation == key.generation && entry.is_used()).then_some(key.index)
    }

    /// The entry of a key, if the page is still in the index.
    pub(crate) fn resolve(&self, key: PageKey) -> Option<u32> {
        self.resolve_any(key).filter(|index| !self[*index].is_gone())
    }

    /// Whether an entry number is that of a page in the index.
    pub(crate) fn is_live(&self, index: u32) -> bool {
        self[index].is_used() && !self[index].is_gone()
    }

    pub(crate) fn shards(&self, index: u32) -> u16 {
        self.rows[usize::from(self[index].ns)].shards as u16
    }

    /// The cells of a page, one a shard.
    pub(crate) fn cells(&self, index: u32) -> &[Cell] {
        let entry = &self.chunks[index];
        let rows = &self.rows[usize::from(entry.ns)];
        if rows.shards == 1 { std::slice::from_ref(&entry.cell) } else { rows.row(entry.cell.slot) }
    }

    pub(crate) fn cell(&self, index: u32, shard: u16) -> &Cell {
        &self.cells(index)[usize::from(shard)]
    }

    /// The shard of a page that is in a slot; none: its cells know nothing of it.
    pub(crate) fn shard_in(&self, index: u32, slot: u32) -> Option<u16> {
        self.cells(index).iter().position(|cell| cell.slot == slot).map(|shard| shard as u16)
    }

    pub(in crate::index) fn cell_mut(&mut self, index: u32, shard: u16) -> &mut Cell {
        let Pages { chunks, rows, .. } = self;
        let entry = &mut chunks[index];
        let rows = &mut rows[usize::from(entry.ns)];
        if rows.shards == 1 {
            &mut entry.cell
        } else {
            &mut rows.row_mut(entry.cell.slot)[usize::from(shard)]
        }
    }

    /// A page and what it hangs on, up to the root; nothing for `NONE`.
    pub(crate) fn upward(&self, index: u32) -> impl Iterator<Item = u32> {
        let page = |index: u32| Some(index).filter(|index| *index != NONE);
        std::iter::successors(page(index), move |index| page(self[*index].parent))
    }

    /// Pages from the root to this one; 0 for `NONE`.
    pub(crate) fn depth(&self, index: u32) -> u32 {
        if index == NONE { 0 } else { self[index].depth }
    }

    fn jump(&self, index: u32) -> u32 {
        if index == NONE { NONE } else { self[index].jump }
    }

    /// Where a child of this page jumps to: over two jumps of one length, or to its parent. So of pages as
    /// deep as one another all jump equally far, and a path of n pages is gone up in a few times log n links.
    pub(crate) fn jump_below(&self, parent: u32) -> u32 {
        let near = self.jump(parent);
        let far = self.jump(near);
        let same = self.depth(parent) - self.depth(near) == self.depth(near) - self.depth(far);
        if same { far } else { parent }
    }

    /// The page at a depth on the way from the root to this one, which is no nearer to the root; `NONE` at 0.
    pub(super) fn ancestor(&self, mut index: u32, depth: u32) -> u32 {
        debug_assert!(depth <= self.depth(index), "a page has no ancestor that is deeper");
        while self.depth(index) > depth {
            let jump = self[index].jump;
            index = if self.depth(jump) >= depth { jump } else { self[index].parent };
        }
        index
    }

    /// The last page that is on the way to both of two pages; `NONE`: they have no page in common.
    pub(super) fn common(&self, one: u32, two: u32) -> u32 {
        let depth = self.depth(one).min(self.depth(two));
        let (mut one, mut two) = (self.ancestor(one, depth), self.ancestor(two, depth));
        while one != two {
            (one, two) = match (self[one].jump, self[two].jump) {
                (up, other) if up == other => (self[one].parent, self[two].parent),
                jumps => jumps,
            };
        }
        one
    }

    /// The last page on the way to this one of which something is true that is true of all before it as well.
    pub(crate) fn last_that(&self, mut index: u32, is: impl Fn(&Entry) -> bool) -> u32 {
        while index != NONE && !is(&self[index]) {
            let Entry { parent, jump, .. } = self[index];
            index = if jump != NONE && !is(&self[jump]) { jump } else { parent };
        }
        index
    }

    /// One more list ends here. The end is that of a page.
    pub(crate) fn add_tip(&mut self, end: PathEnd, keeper: TipKeeper) -> TipId {
        let tip = self.tips.add(end, keeper);
        self.count_sessions(end.page);
        tip
    }

    /// A list does not end any more where it did.
    pub(crate) fn drop_tip(&mut self, tip: TipId, keeper: TipKeeper) {
        let page = self.tips.end(tip).page;
        self.tips.drop(tip, keeper);
        self.count_sessions(page);
    }

    /// Where a list ends now.
    pub(crate) fn tip_end(&self, tip: TipId) -> PathEnd {
        self.tips.end(tip)
    }

    /// A page is about to leave the index: lists that end at it end at the page before it.
    pub(in crate::index) fn lift_tips(&mut self, index: u32) {
        let parent = self[index].parent;
        self.tips.lift(index, parent);
        self[index].cell.set_ends(0);
        self.count_sessions(parent);
    }

    /// Memory of the tips.
    pub(crate) fn tips_bytes(&self) -> usize {
        self.tips.bytes()
    }

    /// Checks the tips; so many lists have one.
    pub(crate) fn check_tips(&self, lists: usize) -> Result<(), String> {
        self.tips.check(lists)
    }

    /// Notes at a page how many sessions end there, as far as it can count.
    fn count_sessions(&mut self, page: u32) {
        if page != NONE {
            let sessions = self.tips.sessions_at(page);
            self[page].cell.set_ends(sessions);
        }
    }

    /// Live entries, those that wait for I/O included.
    pub(crate) fn len(&self) -> u32 {
        self.live
    }

    /// Entries in the table.
    pub(crate) fn table_len(&self) -> usize {
        self.table.len()
    }

    /// One past the highest entry number.
    pub(crate) fn end(&self) -> u32 {
        self.chunks.end()
    }

    pub(crate) fn bytes(&self) -> usize {
        let rows = self.rows.iter().map(Rows::bytes).sum::<usize>();
        self.chunks.bytes() + self.table.bytes() + rows + self.siblings_bytes()
    }

    fn grow(&mut self) {
        self.free = self.chunks.grow();
    }
}

impl Index<u32> for Pages {
    type Output = Entry;

    fn index(&self, index: u32) -> &Entry {
        &self.chunks[index]
    }
}

impl IndexMut<u32> for Pages {
    fn index_mut(&mut self, index: u32) -> &mut Entry {
        &mut self.chunks[index]
    }
}

impl Rows {
    fn new(shards: u16) -> Rows {
        Rows { shards: usize::from(shards), live: 0, chunks: Vec::new(), free: Vec::new() }
    }

    /// A row of empty cells; none is needed when the only cell is in the entry.
    fn take(&mut self) -> u32 {
        if self.shards == 1 {
            return NONE;
        }
        if self.free.is_empty() {
            let first = (self.chunks.len() * CHUNK_ROWS) as u32;
            self.chunks.push(vec![Cell::EMPTY; CHUNK_ROWS * self.shards].into_boxed_slice());
            self.free.extend((first..first + CHUNK_ROWS as u32).rev());
        }
        self.free.pop().unwrap_or(NONE)
    }

    fn give_back(&mut self, row: u32) {
        if self.shards > 1 {
            self.row_mut(row).fill(Cell::EMPTY);
            self.free.push(row);
        }
    }

    fn row(&self, row: u32) -> &[Cell] {
        let at = row as usize % CHUNK_ROWS * self.shards;
        &self.chunks[row as usize / CHUNK_ROWS][at..at + self.shards]
    }

    fn row_mut(&mut self, row: u32) -> &mut [Cell] {
        let at = row as usize % CHUNK_ROWS * self.shards;
        &mut self.chunks[row as usize / CHUNK_ROWS][at..at + self.shards]
    }

    fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK_ROWS * self.shards * size_of::<Cell>() + self.free.capacity() * 4
    }
}
