//! Places of a GPU page pool that something is under way on. Owns: giving them back however it ends, and
//! which parts of a page hold bytes. Must not know: copies.

use super::index::{Filled, Index};
use super::memory::PoolMemory;
use std::ops::Range;
use std::sync::Arc;
use turnkv_transfer::device::DevicePlan;

/// Pages that stay where they are until this is dropped.
#[derive(Debug)]
pub(super) struct Pins {
    pool: Arc<PoolMemory>,
    places: Vec<u32>,
}

impl Pins {
    pub(super) fn new(pool: &Arc<PoolMemory>, index: &mut Index, places: &[u32]) -> Pins {
        for place in places {
            index.pin(*place);
        }
        Pins { pool: Arc::clone(pool), places: places.to_vec() }
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let mut index = self.pool.index.lock();
        for place in &self.places {
            index.unpin(*place);
        }
    }
}

/// Places for pages that are on their way, each with the page's number in the call. Dropped, they are free
/// again.
#[derive(Debug)]
pub(super) struct Reserved {
    pool: Arc<PoolMemory>,
    places: Vec<(usize, u32)>,
}

impl Reserved {
    pub(super) fn new(pool: &Arc<PoolMemory>, places: Vec<(usize, u32)>) -> Reserved {
        Reserved { pool: Arc::clone(pool), places }
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.places.iter().copied()
    }

    /// Takes the first `count` out: they are used.
    pub(super) fn take(&mut self, count: usize) -> Vec<(usize, u32)> {
        let rest = self.places.split_off(count.min(self.places.len()));
        std::mem::replace(&mut self.places, rest)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut index = self.pool.index.lock();
        for (_, place) in &self.places {
            index.give_back(*place);
        }
    }
}

/// The parts of a page that a plan fills; none: all of it.
pub(super) fn filled_of(plan: &DevicePlan) -> Filled {
    plan.has_gaps().then(|| {
        merged(plan.pieces().iter().map(|run| run.slot_offset..run.slot_offset + run.bytes).collect())
    })
}

/// Whether a page has all the bytes that a plan would take from it.
pub(super) fn covers(filled: &Filled, plan: &DevicePlan) -> bool {
    let Some(filled) = filled else { return true };
    plan.pieces().iter().all(|run| {
        let at = filled.partition_point(|part| part.end <= run.slot_offset);
        let part = filled.get(at);
        part.is_some_and(|part| part.start <= run.slot_offset && run.slot_offset + run.bytes <= part.end)
    })
}

/// What is filled when these parts are added.
pub(super) fn with(filled: &Filled, added: &[Range<usize>], page_bytes: usize) -> Filled {
    let Some(filled) = filled else { return None };
    let parts = merged(filled.iter().chain(added).cloned().collect());
    let whole = parts.first() == Some(&(0..page_bytes));
    (!whole).then_some(parts)
}

/// Parts in order, those that touch as one.
fn merged(mut parts: Vec<Range<usize>>) -> Arc<[Range<usize>]> {
    parts.sort_unstable_by_key(|part| part.start);
    let mut merged: Vec<Range<usize>> = Vec::with_capacity(parts.len());
    for part in parts {
        match merged.last_mut() {
            Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
            _ => merged.push(part),
        }
    }
    merged.into()
}

#[cfg(test)]
mod tests;
