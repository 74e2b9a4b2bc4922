//! Reloads into GPU memory. Owns: leasing pages for the device, which are copied together, when slots are given back. Must not know:
//! windows, how pages are copied, what came of them (see `leg`).

mod leg;

use self::leg::{Checking, Leased, LeasedMemory, Leg};
use super::{Arrivals, MissCause, ReloadOptions, ReloadReport, ReloadWindow, Targets};
use crate::config::Plane;
use crate::deadline::Deadline;
use crate::device::{DeviceOrder, bound, mark, no_frames};
use crate::error::{Error, Result};
use crate::framed::FramedPlane;
use crate::limits::{DEVICE_LAYERS_TOGETHER_MAX, DEVICE_LENT_WINDOWS_MAX, DEVICE_WINDOWS_AHEAD_MAX};
use crate::link::Way;
use crate::local::{Lent, ReadGrant};
use crate::namespace::Namespace;
use crate::reload::framed::{Asked, Incoming};
use crate::reload::shm::{Next, Pages};
use crate::reload::tier;
use futures_util::future::{Either, select};
use std::convert::Infallible;
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use tokio::time::sleep;
use turnkv_proto::BlockHash;
use turnkv_proto::wire::TierKind;
use turnkv_transfer::device::{Device, DevicePlan, Mark, SlotPage, Stream};

impl Namespace {
    /// Begins to reload pages into device memory, in prefix order. Nothing is written before what the
    /// engine's stream `order.after` was given before this call is done. Ready when all copies are enqueued:
    /// [`DeviceReload`] says which pages that are, and holds an engine's stream up until they are there. An
    /// error comes when nothing of it is being written any more, and nothing will be: where copies had begun
    /// by the deadline, after it. Dropped before it is ready, it writes no more than what had begun: the
    /// pages' memory must not be used for anything else before that has ended, which the owners of their
    /// plans see. Where there are more pages than this engine may lease at once, it is not ready before the
    /// first of them have landed. Pages come out of shared memory of a pool on this host, and over data rails from
    /// one on another host: into memory that the device drains, its own where NICs write that by dma-buf, else
    /// this host's.
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
            let checking = Checking { namespace: self.id(), moved, verify: self.link.config.verify };
            let (leased, legs, layers) = (Vec::new(), Vec::new(), order.layers);
            let mut landing = Landing { device, pages, after, layers, deadline, checking, leased, legs };
            let begun = self.reload_into(options, hashes, &mut landing, deadline).await;
            let begun = match begun {
                Ok(begun) => landing.enqueued().await.map(|()| begun),
                Err(error) => Err(error),
            };
            let legs = landing.legs;
            match begun {
                Ok(begun) => Ok(DeviceReload { legs, begun, checking }),
                Err(error) => {
                    leg::call_off(legs).await;
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
    legs: Vec<Leg>,
    /// What was begun, and why no more was.
    begun: ReloadReport,
    checking: Checking,
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
            Some(leg) => Ok(leg.flight().wait_layer(layer, stream)?),
            None => Ok(()),
        }
    }

    /// Whether the device is done with all of it.
    pub fn is_done(&self) -> bool {
        self.legs.iter().all(|leg| leg.flight().is_done())
    }

    /// Waits until the device is done, and says how many leading pages are there, each verified where it
    /// landed. A page that does not verify is a miss, and the pool is told; so is a page whose lease ended
    /// first. Waits for as long as it takes, because the pages' memory cannot be used otherwise; the device's
    /// `stuck_after` bounds that.
    pub async fn finished(mut self) -> Result<ReloadReport> {
        let mut report = ReloadReport { plane: self.begun.plane, ..ReloadReport::default() };
        let result = self.collect(&mut report).await;
        let total = self.begun.pages;
        if result.is_ok() && report.miss.is_none() {
            report.miss = self.begun.miss;
        }
        report.conclude(total, result)
    }

    async fn collect(&mut self, report: &mut ReloadReport) -> Result<()> {
        let mut broken = None;
        for leg in &mut self.legs {
            // All of them, also behind a miss: until the last one is done the device writes to the pages'
            // memory.
            match leg.landed(&self.checking).await {
                Ok(part) if report.miss.is_none() && broken.is_none() => report.add(&part),
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
}

/// Takes windows in.
struct Landing<'a> {
    device: &'a Device,
    pages: &'a [DevicePlan],
    after: Option<Mark>,
    /// Greater than 1: pages are copied in so many layers, all that is leased together.
    layers: usize,
    deadline: Deadline,
    checking: Checking,
    /// Leased, to be copied together.
    leased: Vec<(Vec<SlotPage>, Leased)>,
    legs: Vec<Leg>,
}

/// What a window's lease has: whole pages, and why no more of them.
struct Leasing {
    slots: Vec<SlotPage>,
    leased: Leased,
    miss: Option<MissCause>,
}

impl Targets for Landing<'_> {
    async fn window(
        &mut self,
        namespace: &Namespace,
        window: &ReloadWindow,
        range: Range<usize>,
        report: &mut ReloadReport,
    ) -> Result<()> {
        let way = namespace.link.way(window.deadline).await?;
        report.plane = Some(way.plane());
        let Leasing { slots, leased, miss } = self.lease(namespace, way, window, range).await?;
        let tiers: Vec<TierKind> = leased.tiers().collect();
        if !slots.is_empty() {
            self.leased.push((slots, leased));
        }
        // What is lent for a network is all that this client has for its calls: some of it is left to others.
        let far = report.plane == Some(Plane::Framed);
        let ahead_max = if far { DEVICE_LENT_WINDOWS_MAX } else { DEVICE_WINDOWS_AHEAD_MAX };
        let many = far && (self.leased.len() >= ahead_max || !self.legs.is_empty());
        let launched = (self.layers <= 1 || many) && !self.leased.is_empty();
        if launched {
            self.launch()?;
        }
        // Not before they are under way: what is counted is waited for.
        report.miss = miss;
        let mut arrivals = Arrivals::new(window.moved);
        tiers.into_iter().for_each(|tier| arrivals.count(tier, report));
        if let Some(oldest) = self.legs.len().checked_sub(ahead_max).filter(|_| launched) {
            // Leases are not piled up: what is far ahead of the copies could expire before its turn.
            for leg in &mut self.legs[..=oldest] {
                bound(self.deadline, leg.landed(&self.checking)).await?;
            }
        }
        Ok(())
    }
}

impl Landing<'_> {
    /// Leases a window. It may wait for slots that this very reload has: these are given back as they land. What is to be copied
    /// together begins without the rest where that takes long.
    async fn lease(
        &mut self,
        namespace: &Namespace,
        way: Way,
        window: &ReloadWindow,
        range: Range<usize>,
    ) -> Result<Leasing> {
        let (device, pages) = (self.device, self.pages);
        let leasing = async {
            match way {
                Way::Shm(lent) => lease(namespace, lent, window, &pages[range]).await,
                Way::Framed(plane, lent) => {
                    bring(namespace, plane, lent, window, (device, &pages[range])).await
                }
                Way::Inline => Err(no_frames()),
            }
        };
        let mut leasing = pin!(leasing);
        if self.layers > 1 && !self.leased.is_empty() {
            match select(&mut leasing, pin!(sleep(DEVICE_LAYERS_TOGETHER_MAX))).await {
                Either::Left((leased, _)) => return leased,
                Either::Right(_) => self.launch()?,
            }
        }
        let (legs, checking) = (&mut self.legs, &self.checking);
        let giving_back = async {
            for leg in legs {
                // What did not land is told when all of it is collected.
                drop(leg.landed(checking).await);
            }
            std::future::pending::<Infallible>().await
        };
        match select(leasing, pin!(giving_back)).await {
            Either::Left((leased, _)) => leased,
            Either::Right((never, _)) => match never {},
        }
    }

    /// Begins what is not begun yet, and waits until all copies are enqueued.
    async fn enqueued(&mut self) -> Result<()> {
        self.launch()?;
        for leg in &self.legs {
            bound(self.deadline, leg.flight().enqueued()).await?;
        }
        Ok(())
    }

    /// Begins to copy all that is leased.
    fn launch(&mut self) -> Result<()> {
        let (slots, leased): (Vec<_>, Vec<_>) = std::mem::take(&mut self.leased).into_iter().unzip();
        if leased.is_empty() {
            return Ok(());
        }
        let slots: Vec<SlotPage> = slots.into_iter().flatten().collect();
        let (layers, verify) = (self.layers.max(1), self.checking.verify);
        let flight = self.device.drain(slots, self.after.clone(), layers, verify).map_err(Error::from)?;
        self.legs.push(Leg::new(flight, leased));
        Ok(())
    }
}

/// Asks for a window's pages, and takes in what is leased of them.
async fn lease(
    namespace: &Namespace,
    lent: Lent,
    window: &ReloadWindow,
    plans: &[DevicePlan],
) -> Result<Leasing> {
    let mut pages = Pages::begin(lent, window).await?;
    let (mut found, mut slots) = (Vec::new(), Vec::new());
    let miss = loop {
        match pages.next(namespace, window).await? {
            Next::Page { position, slot, checksum, tier, .. } => {
                slots.push(SlotPage { slot: slot.into(), plan: plans[position as usize].clone() });
                found.push((checksum, tier));
            }
            Next::Miss(cause) => break Some(cause),
            Next::End => break None,
        }
    };
    let memory = LeasedMemory::Slots { end: pages.lease_end, grant: ReadGrant::of(&mut pages.lent) };
    Ok(Leasing::of_whole(window, slots, found, memory, miss)) // its connection is free for the next window
}

/// Asks a server on another host for a window's pages, and takes in what it wrote of them into memory lent for this device.
async fn bring(
    namespace: &Namespace,
    plane: Arc<FramedPlane>,
    mut lent: Lent,
    window: &ReloadWindow,
    (device, plans): (&Device, &[DevicePlan]),
) -> Result<Leasing> {
    let page_bytes = namespace.page_bytes();
    let bytes = window.positions() * page_bytes;
    let staged = plane.stage_for(Some(device), &mut lent, bytes, window.deadline).await?;
    let (mut found, mut slots, mut miss) = (Vec::new(), Vec::new(), None);
    let came = async {
        let asked = Asked { region: staged.region(), page_bytes, verify: plane.is_suspected(), carry: false };
        let mut incoming = Incoming::ask(&mut lent, window, asked)?;
        while let Some((position, page)) = incoming.next().await? {
            match page {
                Ok(page) => {
                    let slot = staged.page(position * page_bytes, page_bytes)?;
                    slots.push(SlotPage { slot, plan: plans[position].clone() });
                    found.push((page.checksum, tier(page.tier)));
                }
                Err(cause) => {
                    miss = Some(cause);
                    incoming.drain().await?;
                }
            }
        }
        Ok(())
    };
    if let Err(error) = came.await {
        plane.doubt();
        // Lent memory whose call was answered to its end can be lent again as it is.
        if !lent.is_waiting() {
            staged.answered();
        }
        return Err(error);
    }
    let memory = LeasedMemory::Staged { _staged: staged.kept(), plane };
    Ok(Leasing::of_whole(window, slots, found, memory, miss))
}

impl Leasing {
    /// Of a page that did not come whole nothing is copied.
    fn of_whole(
        window: &ReloadWindow,
        mut slots: Vec<SlotPage>,
        mut found: Vec<(u64, TierKind)>,
        memory: LeasedMemory,
        miss: Option<MissCause>,
    ) -> Leasing {
        let whole = window.moved.positions(window.moved.whole_pages(found.len()));
        found.truncate(whole);
        slots.truncate(whole);
        Leasing { slots, leased: Leased::new(found, memory), miss }
    }
}
