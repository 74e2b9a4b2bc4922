//! The server's slabs, mapped into this process. Owns: the bounded cache of mappings. Must not know:
//! connections, pages.

use crate::limits::{PREFAULT_PIECE_BYTES, SLABS_MAX};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};
use turnkv_transfer::Region;

/// A mapping's name: instance of the server, slab, generation.
pub(super) type SlabKey = (u64, u32, u32);

/// The bounded cache of mappings.
#[derive(Debug, Default)]
pub(crate) struct MappedSlabs {
    mapped: Mutex<HashMap<SlabKey, Arc<Region>>>,
    /// Slabs are faulted in one after another.
    warming: Arc<tokio::sync::Mutex<()>>,
}

impl MappedSlabs {
    /// Drops every mapping that no slot uses.
    pub(crate) fn forget(&self) {
        self.mapped.lock().clear();
    }

    /// How many slabs are mapped.
    pub(crate) fn count(&self) -> usize {
        self.mapped.lock().len()
    }

    pub(super) fn find(&self, key: SlabKey) -> Option<Arc<Region>> {
        self.mapped.lock().get(&key).cloned()
    }

    pub(super) fn keep(&self, key: SlabKey, region: &Arc<Region>) {
        let mut mapped = self.mapped.lock();
        // A re-cut slab's old memory is of no use to anyone.
        mapped.retain(|(instance, slab, _), _| *instance == key.0 && *slab != key.1);
        if mapped.len() >= SLABS_MAX
            && let Some(other) = mapped.keys().next().copied()
        {
            mapped.remove(&other);
        }
        mapped.insert(key, Arc::clone(region));
    }

    /// Faults a new mapping in beside the operations that use it: touching a page first costs more than
    /// copying it.
    pub(super) fn warm(&self, region: &Arc<Region>) {
        let (turn, region) = (Arc::clone(&self.warming), Arc::downgrade(region));
        drop(tokio::spawn(async move {
            let _turn = turn.lock().await;
            let warmed = tokio::task::spawn_blocking(move || prefault(&region)).await;
            if let Ok(Err(error)) = warmed {
                tracing::debug!(%error, "a slab was not faulted in: its first copies will");
            }
        }));
    }
}

/// Piece by piece, so that it ends soon after the mapping is not needed any more.
fn prefault(region: &Weak<Region>) -> io::Result<()> {
    let mut offset = 0;
    while let Some(region) = region.upgrade().filter(|region| offset < region.len()) {
        let bytes = PREFAULT_PIECE_BYTES.min(region.len() - offset);
        region.prefault(offset, bytes)?;
        offset += bytes;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
