//! Offloads from GPU memory. Owns: waiting for the engine's work, filling slots by the device. Must not know:
//! windows, how pages are copied.

use super::framed::Stage;
use super::shm::{Fill, Grants};
use super::{Done, OffloadOptions, OffloadReport, OffloadWindow, Sources};
use crate::config::Plane;
use crate::deadline::Deadline;
use crate::device::{Filling, Marked, bound, mark, no_frames};
use crate::error::Result;
use crate::framed::Staged;
use crate::limits::{DEVICE_PIECE_BYTES_MAX, DEVICE_WINDOW_BYTES_MAX};
use crate::link::Way;
use crate::local::Lent;
use crate::namespace::Namespace;
use std::future::Future;
use std::ops::Range;
use turnkv_proto::BlockHash;
use turnkv_transfer::device::{Device, DevicePlan, Mark, PageSlot, SlotPage, Stream};

impl Namespace {
    /// Offloads pages from device memory, in prefix order. What the engine's stream `after` was given before
    /// this call is done before any of it is read; nobody's thread waits for that. The pages' memory must
    /// stay as it is until the returned future ends, or its copies have ended after it was dropped: plans
    /// with an owner keep that for as long. Pages go into shared memory with a pool on this host, and over data rails to one on another
    /// host: out of memory that the device fills, its own where NICs read that by dma-buf, else this host's.
    pub fn offload_device<'a>(
        &'a self,
        device: &'a Device,
        options: &'a OffloadOptions,
        hashes: &'a [BlockHash],
        pages: &'a [DevicePlan],
        after: Option<Stream>,
    ) -> impl Future<Output = Result<OffloadReport>> + Send + 'a {
        let marked = mark(device, after);
        let deadline = self.link.deadline(options.deadline);
        async move {
            let moved = self.moved(options.shard, options.shards)?;
            self.check_pages(moved, hashes, pages.iter().map(DevicePlan::slot_bytes))?;
            device.check()?;
            let after = self.engine_done(device, marked, deadline).await?;
            let sources = DevicePages { device, pages, after };
            self.offload_from(options, hashes, &sources, deadline).await
        }
    }

    /// Waits, in this future, for what the engine had to do before: slots are granted only when they can be
    /// filled, and no other offload waits behind this one.
    async fn engine_done(&self, device: &Device, marked: Marked, deadline: Deadline) -> Result<Option<Mark>> {
        let Some(mark) = marked.transpose()? else { return Ok(None) };
        if !mark.passed()? {
            bound(deadline, device.passed(&mark)?.landed()).await?;
        }
        Ok(Some(mark))
    }
}

/// Pages in device memory.
struct DevicePages<'a> {
    device: &'a Device,
    pages: &'a [DevicePlan],
    after: Option<Mark>,
}

impl Sources for DevicePages<'_> {
    const WINDOW_BYTES_MAX: u64 = DEVICE_WINDOW_BYTES_MAX;

    async fn window(
        &self,
        namespace: &Namespace,
        window: &OffloadWindow,
        positions: Range<usize>,
    ) -> Result<Done> {
        let pages =
            DevicePages { device: self.device, pages: &self.pages[positions], after: self.after.clone() };
        match namespace.link.way(window.deadline).await? {
            Way::Shm(lent) => Ok(namespace.offload_shm(lent, window, pages).await?.over(Plane::Shm)),
            Way::Framed(plane, lent) => {
                Ok(namespace.offload_framed(&plane, lent, window, &pages).await?.over(Plane::Framed))
            }
            Way::Inline => Err(no_frames()),
        }
    }
}

impl Fill for DevicePages<'_> {
    async fn fill(self, lent: Lent, grants: Grants<'_>) -> Result<(Lent, Vec<u64>)> {
        let mut pages = Vec::with_capacity(grants.len());
        for number in 0..grants.len() {
            let (position, slot) = grants.slot(number, &lent).await?;
            pages.push(SlotPage { slot: slot.into(), plan: self.pages[position].clone() });
        }
        let flight = self.device.fill(pages, self.after)?;
        let (lent, landed) = Filling::new(flight, lent).landed(grants.deadline()).await?;
        Ok((lent, landed.checksums))
    }
}

impl Stage for DevicePages<'_> {
    const PIECE_BYTES_MAX: u64 = DEVICE_PIECE_BYTES_MAX;

    fn device(&self) -> Option<&Device> {
        Some(self.device)
    }

    async fn stage(
        &self,
        first: usize,
        slots: Vec<PageSlot>,
        memory: &Staged,
        deadline: Deadline,
    ) -> Result<Vec<u64>> {
        let pages = slots.into_iter().zip(&self.pages[first..]);
        let pages = pages.map(|(slot, plan)| SlotPage { slot, plan: plan.clone() }).collect();
        let flight = self.device.fill(pages, self.after.clone())?;
        let (_, landed) = Filling::new(flight, memory.begin_use()).landed(deadline).await?;
        Ok(landed.checksums)
    }
}
