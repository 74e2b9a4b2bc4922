//! Where slabs are found by their numbers. Owns: places that stay where they are while others are added. Must not know: what is
//! in a slab.

use super::Slab;
use crate::limits::{SLAB_PLACES_AT_ONCE, SLABS_MAX};
use parking_lot::RwLock;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Places that are made together.
type Block = Box<[RwLock<Slab>]>;

/// The slabs' places: some are made at a time, none goes.
#[derive(Debug)]
pub(super) struct Places {
    blocks: Box<[OnceLock<Block>]>,
    count: AtomicU32,
}

impl Places {
    /// Of slabs that are there from the start.
    pub(super) fn of(slabs: Vec<Slab>) -> Places {
        let blocks = SLABS_MAX as usize / SLAB_PLACES_AT_ONCE;
        let places =
            Places { blocks: (0..blocks).map(|_| OnceLock::new()).collect(), count: AtomicU32::new(0) };
        for (at, slab) in slabs.into_iter().enumerate() {
            if let Some(place) = places.make(at as u32) {
                *place.write() = slab;
            }
        }
        places
    }

    /// A slab's place, if there ever was one of this number.
    pub(super) fn get(&self, slab: u32) -> Option<&RwLock<Slab>> {
        if slab >= self.count.load(Ordering::Acquire) {
            return None;
        }
        self.blocks.get(slab as usize / SLAB_PLACES_AT_ONCE)?.get()?.get(slab as usize % SLAB_PLACES_AT_ONCE)
    }

    /// The same, with a new place without memory where there was none.
    pub(super) fn make(&self, slab: u32) -> Option<&RwLock<Slab>> {
        let block = self.blocks.get(slab as usize / SLAB_PLACES_AT_ONCE)?;
        let none = || (0..SLAB_PLACES_AT_ONCE).map(|_| RwLock::new(Slab::none())).collect();
        let place = block.get_or_init(none).get(slab as usize % SLAB_PLACES_AT_ONCE);
        self.count.fetch_max(slab + 1, Ordering::Release);
        place
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &RwLock<Slab>> {
        (0..self.count.load(Ordering::Acquire)).filter_map(|slab| self.get(slab))
    }
}
