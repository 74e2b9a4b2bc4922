//! Where slabs are found by their numbers. Owns: places that stay where they are while others are added. Must not know: what is
//! known of a slab.

use crate::limits::{SLAB_PLACES_AT_ONCE, SLABS_MAX};
use parking_lot::RwLock;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Places that are made together.
type Together<T> = Box<[RwLock<T>]>;

/// The slabs' places: some are made at a time, none goes.
#[derive(Debug)]
pub(super) struct Places<T> {
    blocks: Box<[OnceLock<Together<T>>]>,
    count: AtomicU32,
}

impl<T: Default> Places<T> {
    /// Of slabs that are there from the start.
    pub(super) fn of(slabs: Vec<T>) -> Places<T> {
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
    pub(super) fn get(&self, slab: u32) -> Option<&RwLock<T>> {
        if slab >= self.count.load(Ordering::Acquire) {
            return None;
        }
        self.blocks.get(slab as usize / SLAB_PLACES_AT_ONCE)?.get()?.get(slab as usize % SLAB_PLACES_AT_ONCE)
    }

    /// The same, with a new place without memory where there was none.
    pub(super) fn make(&self, slab: u32) -> Option<&RwLock<T>> {
        let block = self.blocks.get(slab as usize / SLAB_PLACES_AT_ONCE)?;
        let none = || (0..SLAB_PLACES_AT_ONCE).map(|_| RwLock::new(T::default())).collect();
        let place = block.get_or_init(none).get(slab as usize % SLAB_PLACES_AT_ONCE);
        self.count.fetch_max(slab + 1, Ordering::Release);
        place
    }

    /// How many there are.
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &RwLock<T>> {
        (0..self.count()).filter_map(|slab| self.get(slab))
    }
}
