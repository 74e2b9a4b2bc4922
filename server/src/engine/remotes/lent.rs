//! Memory that a client lends, as its calls name it. Owns: the keys of its domains. Must not know: which rail is used.

use std::sync::Arc;
use turnkv_transfer::Slot;
use turnkv_transfer::fabric::{Direction, Op, Operation, RegionKey, RemoteSpan};

/// The client's number of what its memory is registered with: one for framed rails, one for each NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Domain(pub(crate) u32);

/// Memory that a call names: registered with some of its client's domains.
#[derive(Debug, Clone)]
pub(crate) struct LentRegion {
    /// In each domain the key by which rails of that domain reach it. All are of the same size.
    pub(crate) keys: Vec<(Domain, RegionKey)>,
}

/// A part of it, inside of it and no longer than one operation.
#[derive(Debug, Clone)]
pub(crate) struct LentSpan {
    region: Arc<LentRegion>,
    offset: u64,
    bytes: u32,
}

impl LentSpan {
    /// The part at `[offset, offset + bytes)`, or none if it is empty, too long, or outside of the memory as any key describes it.
    pub(crate) fn new(region: &Arc<LentRegion>, offset: u64, bytes: u32) -> Option<LentSpan> {
        let fits = |(_, key): &(Domain, RegionKey)| RemoteSpan::new(*key, offset, bytes).is_some();
        let known = !region.keys.is_empty() && region.keys.iter().all(fits);
        known.then(|| LentSpan { region: Arc::clone(region), offset, bytes })
    }

    /// Size in bytes.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// The part of this one at `[at, at + bytes)`.
    pub(super) fn part(&self, at: u32, bytes: u32) -> Option<LentSpan> {
        let inside = at.checked_add(bytes).is_some_and(|end| end <= self.bytes);
        inside.then(|| LentSpan::new(&self.region, self.offset + u64::from(at), bytes)).flatten()
    }

    /// How rails of a domain reach it: none if it is not registered there.
    fn within(&self, domain: Domain) -> Option<RemoteSpan> {
        let (_, key) = self.region.keys.iter().find(|(known, _)| *known == domain)?;
        RemoteSpan::new(*key, self.offset, self.bytes)
    }
}

/// A transfer that any rail of a domain with a key may carry.
#[derive(Debug)]
pub(super) struct Transfer<'a> {
    pub(super) direction: Direction,
    pub(super) slot: &'a Slot,
    pub(super) span: &'a LentSpan,
    pub(super) op: Op,
}

impl Transfer<'_> {
    /// The operation by which a rail of this domain carries it; none: the memory is not registered there.
    pub(super) fn over(&self, domain: Domain) -> Option<Operation> {
        let span = self.span.within(domain)?;
        match self.direction {
            Direction::Read => Operation::read(span, self.slot.clone(), self.op),
            Direction::Write => Operation::write(self.slot.clone(), span, self.op),
        }
    }
}
