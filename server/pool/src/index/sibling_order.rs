//! Pages that hang on one page together. Owns: their order. Must not know: what it means, where links are.

use crate::ids::NONE;
use crate::index::arena::Pages;
use crate::index::siblings::Links;

impl Pages {
    /// The next page that hangs on the same one; `NONE`: this is the last.
    pub(crate) fn next_sibling(&self, index: u32) -> u32 {
        match self[index].siblings {
            NONE => NONE,
            row => self.siblings.row(row).next,
        }
    }

    /// The one before; of the first, the last.
    pub(crate) fn prev_sibling(&self, index: u32) -> u32 {
        match self[index].siblings {
            NONE => index,
            row => self.siblings.row(row).prev,
        }
    }

    /// Makes `index`, a page by itself, the first of those that hang on `parent` (none: a root).
    pub(super) fn link(&mut self, parent: u32, index: u32) {
        self[index].parent = parent;
        if parent == NONE {
            return;
        }
        let first = std::mem::replace(&mut self[parent].first_child, index);
        if first == NONE {
            return;
        }
        if self[first].siblings == NONE {
            self[first].siblings = self.siblings.take(Links { next: NONE, prev: first });
        }
        let prev = std::mem::replace(&mut self.links(first).prev, index);
        self[index].siblings = self.siblings.take(Links { next: first, prev });
    }

    /// Takes a page from those that hang on its parent.
    pub(super) fn unlink(&mut self, index: u32) {
        let parent = std::mem::replace(&mut self[index].parent, NONE);
        if parent == NONE {
            return;
        }
        if self[index].siblings == NONE {
            self[parent].first_child = NONE;
            return;
        }
        let Links { next, prev } = *self.links(index);
        self.drop_links(index);
        if self[parent].first_child == index {
            self[parent].first_child = next;
        } else {
            self.links(prev).next = next;
        }
        let first = self[parent].first_child;
        self.links(if next == NONE { first } else { next }).prev = prev;
        if self.links(first).next == NONE {
            self.drop_links(first);
        }
    }

    /// Moves a page before its siblings.
    pub(crate) fn move_first(&mut self, index: u32) {
        let parent = self[index].parent;
        if parent != NONE && self[parent].first_child != index {
            self.unlink(index);
            self.link(parent, index);
        }
    }

    /// Moves a page behind its siblings.
    pub(crate) fn move_last(&mut self, index: u32) {
        let next = self.next_sibling(index);
        if next == NONE {
            return;
        }
        let (parent, prev) = (self[index].parent, self.prev_sibling(index));
        self.links(next).prev = prev;
        if self[parent].first_child == index {
            self[parent].first_child = next;
        } else {
            self.links(prev).next = next;
        }
        let first = self[parent].first_child;
        let last = std::mem::replace(&mut self.links(first).prev, index);
        self.links(last).next = index;
        *self.links(index) = Links { next: NONE, prev: last };
    }

    /// Nothing hangs on a page any more: what did is by itself.
    pub(super) fn part_from_children(&mut self, index: u32) {
        let mut child = std::mem::replace(&mut self[index].first_child, NONE);
        while child != NONE {
            let next = self.next_sibling(child);
            self.drop_links(child);
            self[child].parent = NONE;
            child = next;
        }
    }

    /// Memory of the links.
    pub(super) fn siblings_bytes(&self) -> usize {
        self.siblings.bytes()
    }

    /// The links of a page with siblings.
    fn links(&mut self, index: u32) -> &mut Links {
        let row = self[index].siblings;
        debug_assert_ne!(row, NONE, "it has siblings");
        self.siblings.row_mut(row)
    }

    fn drop_links(&mut self, index: u32) {
        let row = std::mem::replace(&mut self[index].siblings, NONE);
        if row != NONE {
            self.siblings.give_back(row);
        }
    }
}

#[cfg(test)]
mod tests;
