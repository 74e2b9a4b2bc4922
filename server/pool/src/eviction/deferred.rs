//! Deferred pages. Owns: which pages are deferred, and in which order. Must not know: why, and for how long.

use crate::ids::PageKey;
use std::collections::VecDeque;

/// Deferred pages by namespace, those that would have gone first in front; some are not deferred any more.
#[derive(Default)]
pub(crate) struct DeferredVictims {
    rows: Vec<VecDeque<PageKey>>,
}

impl DeferredVictims {
    /// The deferred pages of a namespace, those that would have gone first in front.
    pub(crate) fn row(&mut self, ns: u16) -> &mut VecDeque<PageKey> {
        let at = usize::from(ns);
        if at >= self.rows.len() {
            self.rows.resize_with(at + 1, VecDeque::default);
        }
        &mut self.rows[at]
    }

    /// A namespace retired.
    pub(crate) fn forget(&mut self, ns: u16) {
        *self.row(ns) = VecDeque::new();
    }

    /// How many rows a namespace has.
    pub(crate) fn len(&mut self, ns: u16) -> usize {
        self.row(ns).len()
    }
}
