//! Copies into GPU memory under way, and the memory that they read: leased slots, or what a server wrote for them. Owns: which pages are
//! what they should be, that this memory is given back with its last read and no later. Must not know: who asks for pages, what is copied
//! together.

use crate::framed::{FramedPlane, Staged};
use crate::local::ReadGrant;
use crate::reload::{Arrivals, MissCause, ReloadReport};
use std::sync::Arc;
use std::time::Instant;
use turnkv_proto::wire::TierKind;
use turnkv_proto::{NamespaceId, Shards};
use turnkv_transfer::device::{DeviceError, Flight, Landed};

/// How pages are counted once they are there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checking {
    pub(super) namespace: NamespaceId,
    pub(super) moved: Shards,
    /// Their checksums are compared with what was stored.
    pub(super) verify: bool,
}

/// Whole pages in memory that was had for them together.
#[derive(Debug)]
pub(super) struct Leased {
    /// Of each shard, what it must add up to, and where it was found.
    shards: Vec<(u64, TierKind)>,
    memory: LeasedMemory,
}

/// Where they are.
#[derive(Debug)]
pub(super) enum LeasedMemory {
    /// In the pool's slots. What is read at or after `end` may be other pages' bytes.
    Slots { grant: ReadGrant, end: Instant },
    /// In memory that was lent to a server, which is done with it.
    Staged { _staged: Staged, plane: Arc<FramedPlane> },
}

/// Copies under way.
#[derive(Debug)]
pub(super) struct Leg {
    flight: Flight,
    /// None of them once the copies are done.
    leased: Vec<Leased>,
    /// What came of it, once that is known.
    part: Option<ReloadReport>,
}

impl Leased {
    pub(super) fn new(shards: Vec<(u64, TierKind)>, memory: LeasedMemory) -> Leased {
        Leased { shards, memory }
    }

    /// Whether what was read until then may be other pages' bytes.
    fn ended(&self, at: Instant) -> bool {
        match &self.memory {
            LeasedMemory::Slots { end, .. } => at >= *end,
            LeasedMemory::Staged { .. } => false,
        }
    }

    /// A shard did not verify.
    fn report_corrupt(&self, number: usize) {
        match &self.memory {
            LeasedMemory::Slots { grant, .. } => grant.report_corrupt(number as u32),
            LeasedMemory::Staged { plane, .. } => plane.suspect(),
        }
    }

    /// Where its shards were found.
    pub(super) fn tiers(&self) -> impl Iterator<Item = TierKind> {
        self.shards.iter().map(|(_, tier)| *tier)
    }
}

impl Leg {
    pub(super) fn new(flight: Flight, leased: Vec<Leased>) -> Leg {
        Leg { flight, leased, part: None }
    }

    pub(super) fn flight(&self) -> &Flight {
        &self.flight
    }

    /// Waits until its copies are done, gives its memory back, and says what came of it: leading pages that are right, and why no more are. A
    /// page that does not verify is a miss, and the pool is told; so is a page whose lease ended first.
    pub(super) async fn landed(&mut self, checking: &Checking) -> Result<ReloadReport, DeviceError> {
        if let Some(part) = &self.part {
            return Ok(part.clone());
        }
        let landed = self.flight.landed().await?;
        let mut part = ReloadReport::default();
        self.count(&landed, checking, &mut part);
        self.leased.clear();
        self.part = Some(part.clone());
        Ok(part)
    }

    /// Counts the leading pages that are what they should be.
    fn count(&self, landed: &Landed, checking: &Checking, part: &mut ReloadReport) {
        let checksums = checking.verify.then_some(&landed.checksums[..]);
        let (mut position, mut arrivals) = (0, Arrivals::new(checking.moved));
        for leased in &self.leased {
            for (number, (checksum, tier)) in leased.shards.iter().enumerate() {
                if leased.ended(landed.at) {
                    part.miss = Some(MissCause::LeaseExpired);
                    return;
                }
                if checksums.is_some_and(|sums| sums.get(position) != Some(checksum)) {
                    let Checking { namespace, .. } = checking;
                    tracing::warn!(%namespace, position, "a page does not verify on the device: it is a miss");
                    leased.report_corrupt(number);
                    part.miss = Some(MissCause::Checksum);
                    return;
                }
                arrivals.count(*tier, part);
                position += 1;
            }
        }
    }
}

/// Ends copies that nobody waits for any more: those that have not begun never do, the others are waited for.
pub(super) async fn call_off(legs: Vec<Leg>) {
    for leg in &legs {
        leg.flight.cancel();
    }
    for leg in &legs {
        leg.flight.ended().await;
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.flight.cancel();
        let leased = std::mem::take(&mut self.leased);
        self.flight.abandon(Box::new(move |_| drop(leased)));
    }
}
