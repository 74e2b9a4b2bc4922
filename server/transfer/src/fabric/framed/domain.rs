//! The client's memory, as framed rails reach it. Owns: which memory is lent under which key, and taking it
//! back while it is used. Must not know: connections.
//!
//! Bytes are copied between memory and sockets in calls that do not wait, under the memory's gate. Taking it
//! back closes the gate: after that no call begins, and none is under way. Pages that are lent together have a
//! gate each: one that has arrived is closed before it is looked at, while others are still written. A rail that waits for room to
//! send more of it is told, since it would learn of it only when there is some.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use super::life::TargetLife;
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
    /// That read and write it.
    rails: Mutex<Vec<Weak<TargetLife>>>,
}

/// Memory that is lent, or was: parts of one size, one behind the other for whoever asks, wherever they are.
#[derive(Debug)]
pub(super) struct Lent {
    access: Access,
    part_bytes: u64,
    parts: Vec<Gate>,
}

/// None once it was taken back.
type Gate = RwLock<Option<Arc<dyn HostMemory>>>;

impl FramedDomain {
    /// A domain in which nothing is lent.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Lends pages of one size as one memory, in which they are one behind the other.
    ///
    /// # Errors
    /// See [`RegisterError`]; nothing is lent then.
    pub fn register_pages(
        &self,
        pages: Vec<Arc<dyn HostMemory>>,
        access: Access,
    ) -> Result<RegionKey, RegisterError> {
        let part_bytes = pages.first().map_or(0, |page| page.bytes());
        if part_bytes == 0 || pages.iter().any(|page| page.bytes() != part_bytes) {
            return Err(RegisterError::Failed("pages that are lent together have one size".to_owned()));
        }
        let parts = pages.into_iter().map(|page| RwLock::new(Some(page))).collect();
        self.lend(Lent { access, part_bytes: part_bytes as u64, parts })
    }

    /// Takes one of the pages back that were lent together: after that nothing touches it. Waits at most for one
    /// copy of what had arrived for it.
    pub fn take_back_page(&self, key: RegionKey, page: usize) {
        let lent = self.lent.read().get(&key.key).map(Arc::clone);
        if let Some(gate) = lent.as_ref().and_then(|lent| lent.parts.get(page)) {
            close(gate);
        }
    }

    /// The memory in which this range lies, if it was lent for this: inside one part that is still lent.
    pub(super) fn find(&self, range: Range, reads: bool) -> Option<Arc<Lent>> {
        let lent = Arc::clone(self.lent.read().get(&range.key)?);
        let within = range.offset % lent.part_bytes;
        let inside = within.checked_add(u64::from(range.bytes))? <= lent.part_bytes;
        let allowed = if reads { lent.access.reads() } else { lent.access.writes() };
        let is_lent = lent.gate(range.offset)?.read().is_some();
        (inside && allowed && is_lent).then_some(lent)
    }

    /// A rail more.
    pub(super) fn has(&self, rail: &Arc<TargetLife>) {
        let mut rails = self.rails.lock();
        rails.retain(|rail| rail.strong_count() > 0);
        rails.push(Arc::downgrade(rail));
    }

    /// Rails that have sent a part of this memory, and wait to send the rest, end.
    fn stop_sending(&self, key: u64) {
        let rails = self.rails.lock();
        for rail in rails.iter().filter_map(Weak::upgrade).filter(|rail| rail.sends(key)) {
            rail.waker.wake();
        }
    }

    fn lend(&self, entry: Lent) -> Result<RegionKey, RegisterError> {
        let bytes = entry.part_bytes * entry.parts.len() as u64;
        let mut lent = self.lent.write();
        if lent.len() >= REGISTRATIONS_MAX {
            return Err(RegisterError::Full(REGISTRATIONS_MAX));
        }
        let key = loop {
            let mut key = [0; 8];
            random(&mut key).map_err(|error| RegisterError::Failed(error.to_string()))?;
            let key = u64::from_ne_bytes(key);
            if key != 0 && !lent.contains_key(&key) {
                break key;
            }
        };
        lent.insert(key, Arc::new(entry));
        Ok(RegionKey { key, base: 0, bytes })
    }
}

impl Lent {
    /// Gives `copy` the address of the byte at `offset`, unless its part was taken back. While it runs the part is
    /// not taken back; it must not wait.
    pub(super) fn with<R>(&self, offset: u64, copy: impl FnOnce(*mut u8) -> R) -> Option<R> {
        let gate = self.gate(offset)?.read();
        let memory = gate.as_ref()?;
        let within = (offset % self.part_bytes) as usize;
        Some(copy(memory.address().as_ptr().wrapping_add(within)))
    }

    fn gate(&self, offset: u64) -> Option<&Gate> {
        self.parts.get(usize::try_from(offset / self.part_bytes).ok()?)
    }
}

fn close(gate: &Gate) {
    let memory = gate.write().take();
    // Its owner may do anything when it goes: not under a lock.
    drop(memory);
}

impl Domain for FramedDomain {
    fn register(&self, memory: TargetMemory, access: Access) -> Result<RegionKey, RegisterError> {
        let TargetMemory::Host(memory) = memory else { return Err(RegisterError::Unsupported) };
        let (part_bytes, parts) = (memory.bytes() as u64, vec![RwLock::new(Some(memory))]);
        self.lend(Lent { access, part_bytes, parts })
    }

    fn deregister(&self, key: RegionKey) -> Result<(), Quarantined> {
        let lent = self.lent.write().remove(&key.key);
        lent.iter().flat_map(|lent| &lent.parts).for_each(close);
        self.stop_sending(key.key);
        Ok(())
    }

    fn registrations(&self) -> usize {
        self.lent.read().len()
    }
}
