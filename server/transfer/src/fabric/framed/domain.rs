//! The client's memory, as framed rails reach it. Owns: which memory is lent under which key, and taking it
//! back while it is used. Must not know: connections.
//!
//! Bytes are copied between memory and sockets in calls that do not wait, under the memory's gate. Taking it
//! back closes the gate: after that no call begins, and none is under way.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;

use super::wire::{Range, random};
use crate::fabric::contract::{Domain, Quarantined, RegisterError};
use crate::fabric::memory::{Access, HostMemory, TargetMemory};
use crate::fabric::operation::RegionKey;
use crate::limits::REGISTRATIONS_MAX;

/// What one server may reach, over all connections to it. Keys are drawn at random: one that was not told
/// cannot be guessed.
#[derive(Debug, Default)]
pub struct FramedDomain {
    lent: RwLock<HashMap<u64, Arc<Lent>>>,
}

/// Memory that is lent, or was.
#[derive(Debug)]
pub(super) struct Lent {
    bytes: u64,
    access: Access,
    /// None once it was taken back.
    gate: RwLock<Option<Arc<dyn HostMemory>>>,
}

impl FramedDomain {
    /// A domain in which nothing is lent.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The memory in which this range lies, if it was lent for this.
    pub(super) fn find(&self, range: Range, reads: bool) -> Option<Arc<Lent>> {
        let lent = Arc::clone(self.lent.read().get(&range.key)?);
        let end = range.offset.checked_add(u64::from(range.bytes))?;
        let allowed = if reads { lent.access.reads() } else { lent.access.writes() };
        (end <= lent.bytes && allowed).then_some(lent)
    }
}

impl Lent {
    /// Gives `copy` the address of the memory's byte at `offset`, unless the memory was taken back. While it
    /// runs the memory is not taken back; it must not wait.
    pub(super) fn with<R>(&self, offset: u64, copy: impl FnOnce(*mut u8) -> R) -> Option<R> {
        let gate = self.gate.read();
        let memory = gate.as_ref()?;
        Some(copy(memory.address().as_ptr().wrapping_add(offset as usize)))
    }
}

impl Domain for FramedDomain {
    fn register(&self, memory: TargetMemory, access: Access) -> Result<RegionKey, RegisterError> {
        let TargetMemory::Host(memory) = memory else { return Err(RegisterError::Unsupported) };
        let bytes = memory.bytes() as u64;
        let entry = Arc::new(Lent { bytes, access, gate: RwLock::new(Some(memory)) });
        let mut lent = self.lent.write();
        if lent.len() >= REGISTRATIONS_MAX {
            return Err(RegisterError::Full(REGISTRATIONS_MAX));
        }
        let key = loop {
            let mut key = [0; 8];
            random(&mut key).map_err(|error| RegisterError::Failed(error.to_string()))?;
            let key = u64::from_ne_bytes(key);
            if !lent.contains_key(&key) {
                break key;
            }
        };
        lent.insert(key, entry);
        Ok(RegionKey { key, base: 0, bytes })
    }

    fn deregister(&self, key: RegionKey) -> Result<(), Quarantined> {
        let lent = self.lent.write().remove(&key.key);
        let memory = lent.and_then(|lent| lent.gate.write().take());
        // Its owner may do anything when it goes: not under a lock.
        drop(memory);
        Ok(())
    }

    fn registrations(&self) -> usize {
        self.lent.read().len()
    }
}
