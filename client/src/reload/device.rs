//! Reloads into GPU memory. Owns: leasing pages for the device, what became of them once it is done. Must not
//! know: windows, how pages are copied.

use super::{Arrivals, MissCause, ReloadOptions, ReloadReport, ReloadWindow, Targets};
use crate::config::Plane;
use crate::deadline::Deadline;
use crate::device::{DeviceOrder, bound, mark};
use crate::error::{Error, Result};
use crate::limits::DEVICE_WINDOWS_AHEAD_MAX;
use crate::local::ReadGrant;
use crate::namespace::Namespace;
use crate::offload::device::only_shm;
use crate::reload::shm::{Next, Pages};
use std::future::Future;
use std::ops::Range;
use std::time::Instant;
use turnkv_proto::wire::TierKind;
use turnkv_proto::{BlockHash, Shards};
use turnkv_transfer::device::{Device, DevicePlan, Flight, Mark, SlotPage, Stream};

impl Namespace {
    /// Begins to reload pages into device memory, in prefix order. Nothing is written before what the
    /// engine's stream `order.after` was given before this call is done. Ready when all copies are enqueued:
    /// [`DeviceReload`] says which pages that are, and holds an engine's stream up until they are there. An
    /// error comes when nothing of it is being written any more, and nothing will be: where copies had begun
    /// by the deadline, after it. Dropped before it is ready, it writes no more than what had begun: the
    /// pages' memory must not be used for anything else before that has ended, which the owners of their
    /// plans see. Needs the shm data plane.
    pub fn reload_device<'a>(
        &'a self,
        device: &'a Device,
        options: &'a ReloadOptions,
        hashes: &'a [BlockHash],
        pages: &'a [DevicePlan],
        order: DeviceOrder,
    ) -> impl Future<Output = Result<DeviceReload>> + Send + 'a {
        let marked = mark(device, order.after);
        let deadline = self.link.deadline(options.deadline);
        async move {
            let moved = self.moved(options.shard, options.shards)?;
            self.check_pages(moved, hashes, pages.iter().map(DevicePlan::slot_bytes))?;
            device.check()?;
            let after = marked.transpose()?;
            for page in pages {
                page.layers(order.layers.max(1))?;
            }
            let layered = order.layers > 1;
            let mut landing =
                Landing { device, pages, after, layered, deadline, leased: Vec::new(), legs: Vec::new() };
            let begun = self.reload_into(options, hashes, &mut landing, deadline).await;
            let begun = match begun {
                Ok(begun) => landing.enqueued(self, order.layers).await.map(|()| begun),
                Err(error) => Err(error),
            };
            let (legs, verify) = (landing.legs, self.link.config.verify);
            match begun {
                Ok(begun) => Ok(DeviceReload { namespace: self.clone(), legs, begun, moved, verify }),
                Err(error) => {
                    call_off(legs).await;
                    Err(error)
                }
            }
        }
    }
}

/// A reload into device memory, under way. Dropping it at any moment leaves its copies to end by themselves:
/// the memory of its plans must not be used for anything else before they have. Plans with an owner keep that
/// for as long.
#[derive(Debug)]
pub struct DeviceReload {
    namespace: Namespace,
    legs: Vec<Leg>,
    /// What was begun, and why no more was.
    begun: ReloadReport,
    moved: Shards,
    verify: bool,
}

impl DeviceReload {
    /// Leading pages that are on their way, or there.
    pub fn pages_begun(&self) -> usize {
        self.begun.pages
    }

    /// Holds what `stream` is given from here on up until a layer of all pages begun is there (layer 0 of a
    /// reload that is not in layers: all of them). Never waits itself. Whether the bytes are right is known
    /// only when [`DeviceReload::finished`] says so.
    pub fn wait_layer(&self, layer: usize, stream: Stream) -> Result<()> {
        // What was begun before the last leg is before it on the same stream.
        match self.legs.last() {
            Some(leg) => Ok(leg.flight.wait_layer(layer, stream)?),
            None => Ok(()),
        }
    }

    /// Whether the device is done with all of it.
    pub fn is_done(&self) -> bool {
        self.legs.iter().all(|leg| leg.flight.is_done())
    }

    /// Waits until the device is done, and says how many leading pages are there, each verified where it
    /// landed. A page that does not verify is a miss, and the pool is told; so is a page whose lease ended
    /// first. Waits for as long as it takes, because the pages' memory cannot be used otherwise; the device's
    /// `stuck_after` bounds that.
    pub async fn finished(mut self) -> Result<ReloadReport> {
        let mut report = ReloadReport::default();
        let result = self.collect(&mut report).await;
        let total = self.begun.pages;
        if result.is_ok() && report.miss.is_none() {
            report.miss = self.begun.miss;
        }
        report.conclude(total, result)
    }

    async fn collect(&mut self, report: &mut ReloadReport) -> Result<()> {
        let mut broken = None;
        for leg in &self.legs {
            // All of them, also behind a miss: until the last one is done the device writes to the pages'
            // memory.
            match leg.flight.landed().await {
                Ok(landed) if report.miss.is_none() && broken.is_none() => {
                    let checksums = if self.verify { Some(&landed.checksums[..]) } else { None };
                    self.count(leg, landed.at, checksums, report);
                }
                Ok(_) => {}
                Err(error) => broken = broken.or(Some(error)),
            }
        }
        self.legs.clear();
        match broken {
            Some(error) if report.miss.is_none() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Counts the leading pages of a leg that are what they should be.
    fn count(&self, leg: &Leg, at: Instant, checksums: Option<&[u64]>, report: &mut ReloadReport) {
        let (mut position, mut arrivals) = (0, Arrivals::new(self.moved));
        for leased in &leg.leased {
            for (number, (checksum, tier)) in leased.shards.iter().enumerate() {
                if at >= leased.end {
                    report.miss = Some(MissCause::LeaseExpired);
                    return;
                }
                if checksums.is_some_and(|sums| sums.get(position) != Some(checksum)) {
                    let namespace = self.namespace.id();
                    tracing::warn!(%namespace, position = report.pages, "a page does not verify on the device: it is a miss");
                    leased.grant.report_corrupt(number as u32);
                    report.miss = Some(MissCause::Checksum);
                    return;
                }
                arrivals.count(*tier, report);
                position += 1;
            }
        }
    }
}

/// Whole pages of one lease.
#[derive(Debug)]
struct Leased {
    /// Of each shard, what it must add up to, and where it was found.
    shards: Vec<(u64, TierKind)>,
    /// What is read at or after this moment may be other pages' bytes.
    end: Instant,
    grant: ReadGrant,
}

/// Copies under way, and the leases of the slots that they read.
#[derive(Debug)]
struct Leg {
    flight: Flight,
    leased: Vec<Leased>,
}

/// Ends copies that nobody waits for any more: those that have not begun never do, the others are waited for.
async fn call_off(legs: Vec<Leg>) {
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

/// Takes windows in.
struct Landing<'a> {
    device: &'a Device,
    pages: &'a [DevicePlan],
    after: Option<Mark>,
    layered: bool,
    deadline: Deadline,
    /// Leased, to be copied together.
    leased: Vec<(Vec<SlotPage>, Leased)>,
    legs: Vec<Leg>,
}

impl Targets for Landing<'_> {
    async fn window(
        &mut self,
        namespace: &Namespace,
        window: &ReloadWindow,
        range: Range<usize>,
        report: &mut ReloadReport,
    ) -> Result<()> {
        let Some(lent) = namespace.link.lend_shm(window.deadline).await? else { return Err(only_shm()) };
        report.plane = Some(Plane::Shm);
        let mut pages = Pages::begin(lent, window).await?;
        let (mut found, mut slots) = (Vec::new(), Vec::new());
        let miss = loop {
            match pages.next(namespace, window).await? {
                Next::Page { position, slot, checksum, tier, .. } => {
                    let plan = self.pages[range.start + position as usize].clone();
                    slots.push(SlotPage { slot, plan });
                    found.push((checksum, tier));
                }
                Next::Miss(cause) => break Some(cause),
                Next::End => break None,
            }
        };
        // Of a page that did not come whole nothing is copied.
        let whole = window.moved.positions(window.moved.whole_pages(found.len()));
        found.truncate(whole);
        slots.truncate(whole);
        let leased = Leased { shards: found, end: pages.lease_end, grant: ReadGrant::of(&mut pages.lent) };
        drop(pages); // its connection is free for the next window
        let tiers: Vec<TierKind> = leased.shards.iter().map(|(_, tier)| *tier).collect();
        if !slots.is_empty() {
            self.leased.push((slots, leased));
        }
        let launched = !self.layered && !self.leased.is_empty();
        if launched {
            self.launch(namespace, 1)?;
        }
        // Not before they are under way: what is counted is waited for.
        report.miss = miss;
        let mut arrivals = Arrivals::new(window.moved);
        tiers.into_iter().for_each(|tier| arrivals.count(tier, report));
        let oldest = self.legs.len().checked_sub(DEVICE_WINDOWS_AHEAD_MAX).filter(|_| launched);
        if let Some(oldest) = oldest {
            // Leases are not piled up: what is far ahead of the copies could expire before its turn.
            bound(self.deadline, self.legs[oldest].flight.landed()).await?;
        }
        Ok(())
    }
}

impl Landing<'_> {
    /// Begins what is not begun yet, and waits until all copies are enqueued.
    async fn enqueued(&mut self, namespace: &Namespace, layers: usize) -> Result<()> {
        if self.layered {
            self.launch(namespace, layers)?;
        }
        for leg in &self.legs {
            bound(self.deadline, leg.flight.enqueued()).await?;
        }
        Ok(())
    }

    /// Begins to copy all that is leased.
    fn launch(&mut self, namespace: &Namespace, layers: usize) -> Result<()> {
        let (slots, leased): (Vec<_>, Vec<_>) = std::mem::take(&mut self.leased).into_iter().unzip();
        if leased.is_empty() {
            return Ok(());
        }
        let slots: Vec<SlotPage> = slots.into_iter().flatten().collect();
        let flight = self.device.drain(slots, self.after.clone(), layers, namespace.link.config.verify);
        let flight = flight.map_err(Error::from)?;
        self.legs.push(Leg { flight, leased });
        Ok(())
    }
}
