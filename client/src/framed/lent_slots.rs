//! Slots that are lent to a server as they are, for one call. Owns: taking them back however the call ends. Must not know: pages, what
//! the slots are for.
//!
//! Only framed rails reach them. Their domain touches memory in calls that do not wait, so what is taken back is nobody's at once; a
//! NIC may go on, and registering with it takes long: where there is one, pages go through staging memory.

use super::memory::Reach;
use std::sync::Arc;
use turnkv_proto::limits::REMOTE_REGIONS_MAX;
use turnkv_proto::wire;
use turnkv_transfer::Slot;
use turnkv_transfer::fabric::{Access, Domain, HostMemory, RegionKey, TargetMemory};

/// Slots that a server may write. Dropped, they are taken back.
#[derive(Debug)]
pub(crate) struct LentSlots {
    domain: Arc<dyn Domain>,
    number: u32,
    /// Of each run of slots that lie one behind the other.
    keys: Vec<RegionKey>,
    /// Of each slot: which run, and where in it.
    places: Vec<(u32, u64)>,
}

impl LentSlots {
    /// Lends these slots. None: not as they are, because not only framed rails would reach them, they lie too far apart, or too much is lent.
    pub(super) fn lend(reaches: &[Reach], slots: &[Slot]) -> Option<LentSlots> {
        let [reach] = reaches else { return None };
        let (runs, places) = runs(slots);
        if reach.is_slow || runs.len() > REMOTE_REGIONS_MAX {
            return None;
        }
        let (domain, number) = (Arc::clone(reach.domain()), reach.number);
        let mut lent = LentSlots { domain, number, keys: Vec::with_capacity(runs.len()), places };
        for run in runs {
            let memory = TargetMemory::Host(Arc::new(run) as Arc<dyn HostMemory>);
            match lent.domain.register(memory, Access::Write) {
                Ok(key) => lent.keys.push(key),
                Err(error) => {
                    tracing::debug!(%error, "slots are not lent as they are: their pages are staged");
                    return None;
                }
            }
        }
        Some(lent)
    }

    /// What names them to the server.
    pub(crate) fn regions(&self) -> Vec<wire::RemoteRegion> {
        let region = |key: &RegionKey| wire::RemoteRegion {
            keys: vec![wire::RemoteKey { domain: self.number, key: key.key, base: key.base }],
            bytes: key.bytes,
        };
        self.keys.iter().map(region).collect()
    }

    /// Where a slot is in these.
    pub(crate) fn span(&self, at: usize, bytes: usize) -> Option<wire::RemoteSpan> {
        let (region, offset) = *self.places.get(at)?;
        Some(wire::RemoteSpan { region, offset, bytes: bytes as u32 })
    }
}

impl Drop for LentSlots {
    fn drop(&mut self) {
        for key in self.keys.drain(..) {
            // A framed domain keeps nothing.
            let taken = self.domain.deregister(key);
            debug_assert!(taken.is_ok(), "slots stay with a rail");
        }
    }
}

/// Slots that lie one behind the other, as one; and of each slot, in which of these and where.
fn runs(slots: &[Slot]) -> (Vec<Slot>, Vec<(u32, u64)>) {
    let (mut runs, mut places): (Vec<Slot>, _) = (Vec::new(), Vec::with_capacity(slots.len()));
    for slot in slots {
        let longer = runs.last().and_then(|run| {
            let follows =
                Arc::ptr_eq(run.region(), slot.region()) && run.offset() + run.len() == slot.offset();
            follows.then(|| run.region().slot(run.offset(), run.len() + slot.len())).flatten()
        });
        let offset = match (longer, runs.last_mut()) {
            (Some(longer), Some(run)) => {
                let offset = run.len();
                *run = longer;
                offset
            }
            _ => {
                runs.push(slot.clone());
                0
            }
        };
        places.push((runs.len() as u32 - 1, offset as u64));
    }
    (runs, places)
}

#[cfg(test)]
mod tests;
