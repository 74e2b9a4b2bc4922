//! Pages kept in device memory, for engines without a paged cache of their own and for prefixes that many
//! share: the tier above the pool's. Owns: the memory, copies into and out of it, writing through to the pool
//! and filling from it. Must not know: who gives way (`index`), how bytes are copied.
//!
//! ```text
//!   put, fill --> [ place ][ place ][ place ]... --get, D2D--> an engine's blocks
//!                     |        \---- view: the address itself, pinned while it is looked at
//!                     \--write_through--> the pool's DRAM
//! ```
//! All that writes to places, and all copies out of them, go through one stream in order; so a place that is
//! used again is written only after the copies out of it, without anybody waiting. A page has its name only
//! once its bytes are there.

use crate::device::{DeviceOrder, mark};
use crate::error::{Error, ErrorKind, Result};
use crate::limits::GPU_PAGES_MAX;
use crate::namespace::Namespace;
use crate::offload::{OffloadOptions, OffloadReport};
use crate::reload::{ReloadOptions, ReloadReport};
use parking_lot::Mutex;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use turnkv_proto::BlockHash;
use turnkv_transfer::device::{Device, DeviceAddress, DeviceErrorKind, DevicePlan, Flight, Mark, Stream};

mod index;
mod memory;
mod places;
#[cfg(test)]
mod tests;

use index::{Filled, Index};
use memory::PoolMemory;
use places::{Pins, Reserved, covers, filled_of, with};

/// Pages in device memory. Clones are the same pool.
#[derive(Debug, Clone)]
pub struct GpuPagePool {
    inner: Arc<PoolMemory>,
}

/// What a GPU page pool holds, and how it fared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GpuPoolStats {
    /// Pages that fit.
    pub capacity_pages: usize,
    /// Pages that are here.
    pub pages: usize,
    /// Of these, looked at now, or being written to the pool.
    pub pinned: usize,
    /// Pages asked for and copied out.
    pub hits: u64,
    /// Pages asked for that were not here.
    pub misses: u64,
    /// Pages that gave way.
    pub evicted: u64,
}

impl GpuPagePool {
    /// Takes device memory for `pages` pages, or nothing.
    pub fn new(device: &Device, page_bytes: usize, pages: usize) -> Result<GpuPagePool> {
        if page_bytes == 0 || pages == 0 || pages > GPU_PAGES_MAX {
            return Err(Error::invalid(format!(
                "a GPU page pool of {pages} pages of {page_bytes} bytes: 1 to {GPU_PAGES_MAX} pages of at least 1 byte make sense"
            )));
        }
        let bytes =
            page_bytes.checked_mul(pages).ok_or_else(|| Error::invalid("more bytes than can be counted"))?;
        let memory = device.allocate(bytes)?;
        let index = Mutex::new(Index::new(pages as u32));
        let (hits, misses) = (AtomicU64::new(0), AtomicU64::new(0));
        let device = device.clone();
        Ok(GpuPagePool {
            inner: Arc::new(PoolMemory { device, memory, page_bytes, places: pages, index, hits, misses }),
        })
    }

    /// How many leading pages are here.
    pub fn lookup(&self, hashes: &[BlockHash]) -> usize {
        self.inner.index.lock().prefix(hashes).len()
    }

    /// What it holds, and how it fared.
    pub fn stats(&self) -> GpuPoolStats {
        let index = self.inner.index.lock();
        GpuPoolStats {
            capacity_pages: self.inner.places,
            pages: index.len(),
            pinned: index.pinned(),
            hits: self.inner.hits.load(Ordering::Relaxed),
            misses: self.inner.misses.load(Ordering::Relaxed),
            evicted: index.evicted,
        }
    }

    /// Copies pages in, in prefix order, after what the stream was given before this call. Returns how many
    /// leading pages are here now: fewer than were given where no page can give way. Pages that are here
    /// already are not copied.
    pub fn put<'a>(
        &'a self,
        parent: Option<&'a BlockHash>,
        hashes: &'a [BlockHash],
        sources: &'a [DevicePlan],
        after: Option<Stream>,
    ) -> impl Future<Output = Result<usize>> + Send + 'a {
        let marked = mark(&self.inner.device, after);
        async move {
            self.check(hashes, sources)?;
            let after = marked.transpose()?;
            let (_pins, reserved) = self.reserve(parent, hashes);
            let mut copies = Vec::with_capacity(reserved.len());
            for (number, place) in reserved.iter() {
                copies.push((sources[number].clone(), self.plan(place, &filled_of(&sources[number]))?));
            }
            self.inner.device.copy(copies, after, 0)?.landed().await?;
            self.name(reserved, parent, hashes, sources.iter().map(filled_of), usize::MAX);
            Ok(self.lookup(hashes))
        }
    }

    /// Copies the leading pages that are here into their targets, after what `order.after` was given before
    /// this call. Ready when the copies are enqueued.
    pub fn get<'a>(
        &'a self,
        hashes: &'a [BlockHash],
        targets: &'a [DevicePlan],
        order: DeviceOrder,
    ) -> impl Future<Output = Result<GpuHit>> + Send + 'a {
        let marked = mark(&self.inner.device, order.after);
        async move {
            self.check(hashes, targets)?;
            let (pages, flight) = self.copy_out(hashes, targets, marked.transpose()?, order.layers)?;
            if let Err(error) = flight.enqueued().await {
                flight.ended().await; // what was enqueued before goes on, and the targets are their owner's after this
                return Err(error.into());
            }
            self.inner.hits.fetch_add(pages as u64, Ordering::Relaxed);
            self.inner.misses.fetch_add((hashes.len() - pages) as u64, Ordering::Relaxed);
            Ok(GpuHit { pages, flight })
        }
    }

    /// Enqueues the copies under the lock: a place found here is not given to another page before they are.
    fn copy_out(
        &self,
        hashes: &[BlockHash],
        targets: &[DevicePlan],
        after: Option<Mark>,
        layers: usize,
    ) -> Result<(usize, Flight)> {
        let mut index = self.inner.index.lock();
        let mut copies = Vec::new();
        for (place, target) in index.prefix(hashes).into_iter().zip(targets) {
            let filled = index.filled(place);
            if !covers(&filled, target) {
                break; // the page has fewer tokens than are asked for
            }
            copies.push((self.plan(place, &filled)?, target.clone()));
            index.touch(place);
        }
        let pages = copies.len();
        Ok((pages, self.inner.device.copy(copies, after, layers)?))
    }

    /// Adds bytes to a page, which has the name `next` from then on: the tokens of a tail, at `pieces` of the
    /// page, each `(offset, bytes)`, in the source's order. Where others use the page as it is, a copy of it
    /// is made first. False: the page is not here, or there is no room for a copy.
    pub fn append<'a>(
        &'a self,
        tail: &'a BlockHash,
        next: BlockHash,
        pieces: &'a [(usize, usize)],
        source: &'a DevicePlan,
        after: Option<Stream>,
    ) -> impl Future<Output = Result<bool>> + Send + 'a {
        let marked = mark(&self.inner.device, after);
        async move {
            let begun = match self.begin_append(tail, &next, pieces, source, marked.transpose()?)? {
                Ok(begun) => begun,
                Err(is_here) => return Ok(is_here),
            };
            begun.flight.landed().await?;
            Ok(self.end_append(begun, tail, next))
        }
    }

    /// Enqueues the copies of an append. `Err`: none are needed, or possible.
    fn begin_append(
        &self,
        tail: &BlockHash,
        next: &BlockHash,
        pieces: &[(usize, usize)],
        source: &DevicePlan,
        after: Option<Mark>,
    ) -> Result<std::result::Result<Appending, bool>> {
        let added = self.pieces(pieces)?;
        let mut index = self.inner.index.lock();
        if index.find(next).is_some() {
            return Ok(Err(true));
        }
        let Some(place) = index.find(tail) else { return Ok(Err(false)) };
        let (filled, shared) = (index.filled(place), index.is_used(place));
        let whole = with(&filled, &added, self.inner.page_bytes);
        let parent = index.parent(place);
        let pins = Pins::new(&self.inner, &mut index, &[place]);
        let target = if shared { index.reserve() } else { Some(place) };
        drop(index);
        let Some(target) = target else { return Ok(Err(false)) };
        let reserved = Reserved::new(&self.inner, if shared { vec![(0, target)] } else { Vec::new() });
        let mut copies = Vec::new();
        if shared {
            copies.push((self.plan(place, &filled)?, self.plan(target, &filled)?));
        }
        copies.push((source.clone(), self.rows(target, pieces)?));
        let flight = self.inner.device.copy(copies, after, 0)?;
        Ok(Ok(Appending { flight, pins, reserved, place, shared, whole, parent }))
    }

    /// Names the page that was appended to, or its copy. False: somebody came to use it as it was.
    fn end_append(&self, begun: Appending, tail: &BlockHash, next: BlockHash) -> bool {
        let Appending { pins, reserved, place, shared, whole, parent, .. } = begun;
        drop(pins);
        if shared {
            self.name(reserved, parent.as_ref(), &[next], std::iter::once(whole), 1);
            return true;
        }
        let mut index = self.inner.index.lock();
        let unchanged =
            index.find(tail) == Some(place) && !index.is_used(place) && index.find(&next).is_none();
        if unchanged {
            index.rename(place, next, whole);
        }
        unchanged
    }

    /// Looks at a page where it is, without a copy. It stays there until the view ends.
    pub fn view(&self, hash: &BlockHash) -> Option<PageView> {
        let mut index = self.inner.index.lock();
        let place = index.find(hash)?;
        index.touch(place);
        let pins = Pins::new(&self.inner, &mut index, &[place]);
        drop(index);
        let address = self.inner.memory.address() + (place as usize * self.inner.page_bytes) as u64;
        Some(PageView { pins: Some(pins), pool: Arc::clone(&self.inner), address })
    }

    /// Offloads the leading pages that are here to the pool. They stay here.
    pub async fn write_through(
        &self,
        namespace: &Namespace,
        options: &OffloadOptions,
        hashes: &[BlockHash],
    ) -> Result<OffloadReport> {
        namespace.moved_alone(options.shard, options.shards)?;
        let plans = {
            let mut index = self.inner.index.lock();
            let places = index.prefix(hashes);
            let plans = places.iter().map(|place| self.plan(*place, &index.filled(*place)));
            let plans = plans.collect::<Result<Vec<_>>>()?;
            // The plans own the pins: should this call be dropped, the pages stay until the device has read
            // them.
            let pins = Arc::new(Pins::new(&self.inner, &mut index, &places));
            plans.into_iter().map(|plan| plan.owned_by(Arc::clone(&pins) as _)).collect::<Vec<_>>()
        };
        if plans.is_empty() {
            return Err(Error::invalid("none of these pages is in the GPU page pool: put them there first"));
        }
        // A tail is the last of all pages, or it is not among those that are here.
        let tail_tokens = if plans.len() == hashes.len() { options.tail_tokens } else { 0 };
        let options = OffloadOptions { tail_tokens, ..options.clone() };
        let mut report = namespace
            .offload_device(&self.inner.device, &options, &hashes[..plans.len()], &plans, None)
            .await?;
        report.declined += hashes.len() - plans.len();
        Ok(report)
    }

    /// Brings pages here from the pool, in prefix order. Those that are here already are not read again.
    pub async fn fill(
        &self,
        namespace: &Namespace,
        options: &ReloadOptions,
        parent: Option<&BlockHash>,
        hashes: &[BlockHash],
    ) -> Result<ReloadReport> {
        namespace.moved_alone(options.shard, options.shards)?;
        let (_pins, reserved) = self.reserve(parent, hashes);
        let wanted: Vec<BlockHash> = reserved.iter().map(|(number, _)| hashes[number]).collect();
        let targets = reserved.iter().map(|(_, place)| self.plan(place, &None));
        let targets = targets.collect::<Result<Vec<_>>>()?;
        let order = DeviceOrder::default();
        let reload = namespace.reload_device(&self.inner.device, options, &wanted, &targets, order).await?;
        let report = reload.finished().await?;
        self.name(reserved, parent, hashes, hashes.iter().map(|_| None), report.pages);
        Ok(report)
    }

    /// Says that the conversation of these pages will not go on: they give way first, as far as no other
    /// needs them.
    pub fn retire(&self, hashes: &[BlockHash]) {
        let mut index = self.inner.index.lock();
        if let Some(last) = index.prefix(hashes).last() {
            index.retire(*last);
        }
    }

    fn check(&self, hashes: &[BlockHash], plans: &[DevicePlan]) -> Result<()> {
        if hashes.len() != plans.len() {
            return Err(Error::invalid(format!("{} plans for {} hashes", plans.len(), hashes.len())));
        }
        let expected = self.inner.page_bytes;
        match plans.iter().position(|plan| plan.slot_bytes() != expected) {
            Some(position) => {
                let bytes = plans[position].slot_bytes();
                Err(Error::invalid(format!("page {position} has {bytes} bytes; this pool's have {expected}")))
            }
            None => Ok(()),
        }
    }

    /// Places for the pages that are not here; what they hang on stays while they come.
    fn reserve(&self, parent: Option<&BlockHash>, hashes: &[BlockHash]) -> (Pins, Reserved) {
        let mut index = self.inner.index.lock();
        let here: Vec<u32> = parent.into_iter().chain(hashes).filter_map(|hash| index.find(hash)).collect();
        for place in &here {
            index.touch(*place);
        }
        let pins = Pins::new(&self.inner, &mut index, &here);
        let mut places = Vec::new();
        for (number, hash) in hashes.iter().enumerate() {
            if index.find(hash).is_some() {
                continue;
            }
            let Some(place) = index.reserve() else { break };
            places.push((number, place));
        }
        (pins, Reserved::new(&self.inner, places))
    }

    /// Gives the first `good` of the reserved places the names of the pages that are there now.
    fn name(
        &self,
        mut reserved: Reserved,
        parent: Option<&BlockHash>,
        hashes: &[BlockHash],
        filled: impl Iterator<Item = Filled>,
        good: usize,
    ) {
        let filled: Vec<Filled> = filled.collect();
        let mut index = self.inner.index.lock();
        for (number, place) in reserved.take(good) {
            let parent = number.checked_sub(1).map_or(parent, |before| hashes.get(before));
            index.insert(place, hashes[number], parent, filled[number].clone());
        }
        drop(index); // before what was not used goes back
    }

    /// The page at a place, as far as it is filled.
    fn plan(&self, place: u32, filled: &Filled) -> Result<DevicePlan> {
        let (offset, bytes) = (place as usize * self.inner.page_bytes, self.inner.page_bytes);
        let whole = 0..bytes;
        let parts = filled.as_deref().unwrap_or(std::slice::from_ref(&whole));
        Ok(self.inner.memory.page(offset, bytes, parts)?)
    }

    /// Pieces of the page at a place, one after another.
    fn rows(&self, place: u32, pieces: &[(usize, usize)]) -> Result<DevicePlan> {
        let base = place as usize * self.inner.page_bytes;
        let pieces: Vec<_> = pieces.iter().map(|(offset, bytes)| (base + offset, *bytes)).collect();
        Ok(self.inner.memory.plan(&pieces)?)
    }

    fn pieces(&self, pieces: &[(usize, usize)]) -> Result<Vec<Range<usize>>> {
        let inside = |&(offset, bytes): &(usize, usize)| {
            let end = offset.checked_add(bytes).filter(|end| *end <= self.inner.page_bytes && bytes > 0);
            end.map(|end| offset..end)
        };
        let ranges: Option<Vec<_>> = pieces.iter().map(inside).collect();
        ranges.ok_or_else(|| Error::invalid("bytes to append past the end of the page, or none"))
    }
}

/// An append under way.
struct Appending {
    flight: Flight,
    pins: Pins,
    /// The place of the copy, if one is made.
    reserved: Reserved,
    place: u32,
    shared: bool,
    /// What holds bytes afterwards.
    whole: Filled,
    parent: Option<BlockHash>,
}

/// Pages on their way out of the pool's memory. Dropping it changes nothing.
#[derive(Debug)]
pub struct GpuHit {
    pages: usize,
    flight: Flight,
}

impl GpuHit {
    /// Leading pages that are copied.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Holds what `stream` is given from here on up until a layer is there. Never waits itself. Asking for a
    /// layer needs a copy in layers.
    pub fn wait_layer(&self, layer: usize, stream: Stream) -> Result<()> {
        Ok(self.flight.wait_layer(layer, stream)?)
    }

    /// Whether the copies are done.
    pub fn is_done(&self) -> bool {
        self.flight.is_done()
    }

    /// Waits until the copies are done.
    pub async fn finished(&self) -> Result<usize> {
        self.flight.landed().await?;
        Ok(self.pages)
    }
}

/// A look at a page in the pool's memory. The page stays there until the view is dropped, or its end is told.
#[derive(Debug)]
pub struct PageView {
    pins: Option<Pins>,
    pool: Arc<PoolMemory>,
    address: DeviceAddress,
}

impl PageView {
    /// Where the page begins, as the device knows it.
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Its size.
    pub fn page_bytes(&self) -> usize {
        self.pool.page_bytes
    }

    /// Where a layer of a page with `layers` equal ones lies: address and bytes.
    pub fn layer(&self, layer: usize, layers: usize) -> Result<(DeviceAddress, usize)> {
        let bytes = self.pool.page_bytes;
        if layers == 0 || !bytes.is_multiple_of(layers) || layer >= layers {
            return Err(Error::invalid(format!("layer {layer} of {layers} of a page of {bytes} bytes")));
        }
        Ok((self.address + (layer * (bytes / layers)) as u64, bytes / layers))
    }

    /// Ends the view when what `stream` was given so far is done: for pages that its work reads. Never waits
    /// itself.
    pub fn end_after(mut self, stream: Stream) -> Result<()> {
        let watched = self.pool.device.mark(stream).and_then(|mark| self.pool.device.passed(&mark));
        let Some(pins) = self.pins.take() else { return Ok(()) };
        match watched {
            Ok(flight) => {
                // A place that a lost device may be reading is never used again.
                flight.abandon(Box::new(move |safe| if safe { drop(pins) } else { std::mem::forget(pins) }));
                Ok(())
            }
            Err(error) if error.kind == DeviceErrorKind::Broken => {
                std::mem::forget(pins);
                Err(error.into())
            }
            Err(error) => {
                self.pins = Some(pins);
                std::mem::forget(self); // without a mark nobody can say when the place is free
                Err(Error::new(ErrorKind::Device, error.message))
            }
        }
    }
}
