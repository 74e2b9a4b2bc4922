//! Memory that is lent to a server. Owns: lending it for one call, taking it back however the call ends, keeping some for the
//! next. Must not know: pages, how a domain comes to know it.
//!
//! ```text
//!   at rest ---lend---> lent ---the call was answered---> at rest, still known to the server's domains
//!                         \----the call was dropped: taken back, nothing touches it any more---> at rest
//!                                                   \---not surely: quarantined until the rails end---> gone
//! ```
//! Where registering takes long, memory that a domain does not know yet is registered behind the call, which goes by another. For a
//! call of a device it is memory of that device where all NICs take it (`direct`), else memory of this host.

use super::direct::{DeviceWay, DirectMemory};
pub(super) use super::memory::Reach;
use super::memory::{Knows, Memory};
use crate::config::DeviceMemoryChoice;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{
    DEVICE_MEMORY_WAIT, QUARANTINED_BYTES_MAX, STAGING_BYTES_MAX, STAGING_BYTES_STEP, STAGING_KEPT_BYTES_MAX,
    STAGING_KEPT_MAX,
};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use turnkv_proto::wire;
use turnkv_transfer::Slot;
use turnkv_transfer::device::{Device, PageSlot};
use turnkv_transfer::fabric::RegionKey;
use turnkv_transfer::limits::EXPORT_STEP_BYTES;

/// What all calls of a client may lend together.
#[derive(Debug)]
pub(super) struct StagingRoom {
    room: Arc<Semaphore>,
    state: Mutex<StagingState>,
    direct: Arc<DirectMemory>,
}

#[derive(Debug, Default)]
struct StagingState {
    /// The longest at rest first.
    rest: Vec<Arc<Memory>>,
    /// Memory that was taken back and that a domain may still touch.
    quarantined: Vec<Quarantine>,
    /// Domains where registering takes long.
    slow: BTreeSet<u32>,
}

/// Memory that stays with an engine. Its room is free when it is.
#[derive(Debug)]
struct Quarantine {
    owners: Weak<dyn Any + Send + Sync>,
    bytes: usize,
    domains: Vec<u32>,
    /// None: it was at rest, where it takes none.
    _room: Option<Arc<OwnedSemaphorePermit>>,
}

/// Memory that is lent for one call.
#[derive(Debug)]
pub(crate) struct Staged {
    /// None once it is given back.
    memory: Option<Arc<Memory>>,
    /// What the server may be told: domains, and their keys.
    keys: Vec<(u32, RegionKey)>,
    staging: Arc<StagingRoom>,
    /// The call was answered: the server does nothing with it any more.
    answered: bool,
    room: Option<Arc<OwnedSemaphorePermit>>,
    /// One owner, and one more for each [`StagedUse`].
    users: Arc<()>,
    /// It is memory of a device.
    direct: Option<Arc<()>>,
}

/// Lent memory that a device writes to, beside the call. It is lent to no other call before all of these are gone.
#[derive(Debug, Clone)]
pub(crate) struct StagedUse {
    _memory: Option<Arc<Memory>>,
    _room: Option<Arc<OwnedSemaphorePermit>>,
    _user: Arc<()>,
}

impl StagingRoom {
    /// Nothing is lent yet.
    pub(super) fn new(choice: DeviceMemoryChoice) -> Arc<StagingRoom> {
        let room = Arc::new(Semaphore::new(STAGING_BYTES_MAX / STAGING_BYTES_STEP));
        Arc::new(StagingRoom { room, state: Mutex::default(), direct: DirectMemory::new(choice) })
    }

    /// Lends so many bytes by these domains, once there is room for them: to a device's call its own memory, where that can be. More
    /// than may ever be lent are refused at once.
    pub(super) async fn lend(
        self: &Arc<Self>,
        device: Option<&Device>,
        reaches: &[Reach],
        bytes: usize,
        deadline: Deadline,
    ) -> Result<Staged> {
        if bytes > STAGING_BYTES_MAX {
            return Err(too_large(bytes));
        }
        self.prune();
        let least = if device.is_some() { EXPORT_STEP_BYTES / STAGING_BYTES_STEP } else { 1 };
        // Few sizes: what is at rest fits again.
        let steps = bytes.div_ceil(STAGING_BYTES_STEP).max(least).next_power_of_two();
        let room = Arc::clone(&self.room).acquire_many_owned(steps as u32);
        let room = deadline.bound(room).await.map_err(|_| crowded())?;
        let mut room = room.map_err(|_| Error::unavailable("the client is closing"))?;
        let size = steps * STAGING_BYTES_STEP;
        let direct = match device {
            Some(device) => self.take_direct(device, reaches, bytes..size, &mut room, deadline).await,
            None => None,
        };
        let is_direct = direct.is_some();
        let (memory, reaches) = match direct {
            Some(direct) => direct,
            None => (self.take_host(bytes..size, reaches, &mut room)?, reaches.to_vec()),
        };
        let mut staged = Staged {
            memory: Some(Arc::clone(&memory)),
            keys: Vec::new(),
            staging: Arc::clone(self),
            // Nobody was told of it yet.
            answered: true,
            room: Some(Arc::new(room)),
            users: Arc::default(),
            direct: is_direct.then(|| self.direct.lend()),
        };
        staged.keys = keys(&memory, &reaches, deadline).await?;
        staged.answered = false;
        self.state.lock().slow.extend(reaches.iter().filter(|reach| reach.is_slow).map(|reach| reach.number));
        Ok(staged)
    }

    /// A call came back otherwise than it should.
    pub(super) fn doubt(&self) {
        self.direct.doubt();
    }

    /// How pages of a device went last.
    pub(super) fn device_way(&self) -> Option<DeviceWay> {
        self.direct.last()
    }

    /// Memory of this host: at least `sizes.start` bytes of what is at rest, or `sizes.end` that are new.
    fn take_host(
        &self,
        sizes: Range<usize>,
        reaches: &[Reach],
        room: &mut OwnedSemaphorePermit,
    ) -> Result<Arc<Memory>> {
        if let Some(memory) = self.take(None, sizes.start, reaches, room) {
            return Ok(memory);
        }
        let failed = |error| Error::new(ErrorKind::Internal, format!("staging memory: {error}"));
        Ok(Arc::new(Memory::create(sizes.end).map_err(failed)?))
    }

    /// The same of a device, and the NICs that know it; none: host memory is lent to this call, and it is told why.
    async fn take_direct(
        self: &Arc<Self>,
        device: &Device,
        reaches: &[Reach],
        sizes: Range<usize>,
        room: &mut OwnedSemaphorePermit,
        deadline: Deadline,
    ) -> Option<(Arc<Memory>, Vec<Reach>)> {
        let nics = match self.direct.admit(device, reaches) {
            Ok(nics) => nics,
            Err(why) => {
                self.direct.note(DeviceWay::ThroughHost(why));
                return None;
            }
        };
        let rest = self.take(Some(device), sizes.start, &nics, room);
        let is_known =
            |memory: &Arc<Memory>| nics.iter().all(|nic| matches!(memory.knows(nic), Knows::Key(_)));
        let taken = match rest {
            Some(memory) if is_known(&memory) => Some(memory),
            rest => self.make_direct(device, &nics, rest, sizes.end, deadline).await,
        };
        match taken {
            Some(memory) => {
                self.direct.note(DeviceWay::Direct);
                Some((memory, nics))
            }
            None => {
                let why = self.direct.admit(device, reaches).err();
                let why =
                    why.unwrap_or_else(|| "memory of the device is being made known to NICs".to_owned());
                self.direct.note(DeviceWay::ThroughHost(why));
                None
            }
        }
    }

    /// Makes memory of a device known to NICs beside the call, which waits for it a short while: drivers take their time where an
    /// engine is at work.
    async fn make_direct(
        self: &Arc<Self>,
        device: &Device,
        nics: &[Reach],
        rest: Option<Arc<Memory>>,
        bytes: usize,
        deadline: Deadline,
    ) -> Option<Arc<Memory>> {
        let Some(making) = self.direct.begin_making() else {
            if let Some(memory) = rest {
                self.give_back(memory, None);
            }
            return None;
        };
        let (tell, told) = oneshot::channel();
        let (staging, device, nics) = (Arc::clone(self), device.clone(), nics.to_vec());
        tokio::task::spawn_blocking(move || {
            let made = staging.direct.make(&device, &nics, rest, bytes);
            drop(making);
            if let Err(Some(memory)) = tell.send(made) {
                staging.give_back(memory, None);
            }
        });
        deadline.within(DEVICE_MEMORY_WAIT).bound(told).await.ok()?.ok()?
    }

    /// Domains that keep so much memory that was taken back that their rails are better ended.
    pub(super) fn overfull(&self) -> BTreeSet<u32> {
        self.prune();
        let state = self.state.lock();
        let kept: usize = state.quarantined.iter().map(|kept| kept.bytes).sum();
        if kept < QUARANTINED_BYTES_MAX {
            return BTreeSet::new();
        }
        state.quarantined.iter().flat_map(|kept| kept.domains.iter().copied()).collect()
    }

    /// Bytes that were taken back and that an engine keeps.
    pub(super) fn quarantined_bytes(&self) -> usize {
        self.prune();
        self.state.lock().quarantined.iter().map(|kept| kept.bytes).sum()
    }

    fn prune(&self) {
        let free: Vec<Quarantine> =
            self.state.lock().quarantined.extract_if(.., |kept| kept.owners.strong_count() == 0).collect();
        drop(free);
        // What a device had is of use to nobody without it.
        let orphans: Vec<Arc<Memory>> =
            self.state.lock().rest.extract_if(.., |memory| memory.is_orphan()).collect();
        for memory in orphans {
            let domains = self.state.lock().slow.iter().copied().collect();
            self.forget(&memory, domains, None);
        }
    }

    /// The smallest memory at rest, of this device or of the host, that is large enough, known to most of these domains, if there is
    /// room for all of it.
    fn take(
        &self,
        device: Option<&Device>,
        bytes: usize,
        reaches: &[Reach],
        room: &mut OwnedSemaphorePermit,
    ) -> Option<Arc<Memory>> {
        let rest = &mut self.state.lock().rest;
        let fits = |memory: &Memory| memory.is_of(device) && memory.len() >= bytes;
        let fits = rest.iter().enumerate().filter(|(_, memory)| fits(memory));
        let strangers = |memory: &Memory| {
            reaches.iter().filter(|reach| !matches!(memory.knows(reach), Knows::Key(_))).count()
        };
        let best = fits.min_by_key(|(_, memory)| (memory.len(), strangers(memory)));
        let (at, memory) = best?;
        let more = (memory.len() / STAGING_BYTES_STEP).saturating_sub(room.num_permits());
        if more > 0 {
            room.merge(Arc::clone(&self.room).try_acquire_many_owned(more as u32).ok()?);
        }
        Some(rest.remove(at))
    }

    /// Keeps memory that nothing touches any more for later calls, in place of what is longest at rest; too much of it is taken back.
    fn give_back(&self, memory: Arc<Memory>, room: Option<Arc<OwnedSemaphorePermit>>) {
        let mut state = self.state.lock();
        let domains: Vec<u32> = state.slow.iter().copied().collect();
        let bytes_max = state.rest_bytes_max(&memory);
        if memory.len() > bytes_max {
            drop(state);
            return self.forget(&memory, domains, room);
        }
        state.rest.push(memory);
        let mut displaced = Vec::new();
        while state.rest.len() > STAGING_KEPT_MAX || state.rest_bytes() > bytes_max {
            displaced.push(state.rest.remove(0));
        }
        drop(state);
        for memory in displaced {
            self.forget(&memory, domains.clone(), None);
        }
    }

    /// Takes memory back from all that know it.
    fn forget(&self, memory: &Memory, domains: Vec<u32>, room: Option<Arc<OwnedSemaphorePermit>>) {
        if !memory.take_back_all() {
            self.quarantine(memory, domains, room);
        }
    }

    fn quarantine(&self, memory: &Memory, domains: Vec<u32>, room: Option<Arc<OwnedSemaphorePermit>>) {
        let (owners, bytes) = (memory.owners(), memory.len());
        self.state.lock().quarantined.push(Quarantine { owners, bytes, domains, _room: room });
    }
}

impl StagingState {
    fn rest_bytes(&self) -> usize {
        self.rest.iter().map(|memory| memory.len()).sum()
    }

    /// Bytes that may be at rest, this memory with them.
    fn rest_bytes_max(&self, memory: &Arc<Memory>) -> usize {
        let is_dear = |memory: &Arc<Memory>| memory.is_worth_keeping(|number| self.slow.contains(&number));
        let any_dear = self.rest.iter().chain([memory]).any(is_dear);
        if any_dear { STAGING_BYTES_MAX } else { STAGING_KEPT_BYTES_MAX }
    }
}

/// The keys by which these domains know memory. Where registering takes long it is done behind the call, unless no other domain knows
/// the memory.
async fn keys(memory: &Arc<Memory>, reaches: &[Reach], deadline: Deadline) -> Result<Vec<(u32, RegionKey)>> {
    let mut keys = Vec::new();
    let only_slow = reaches.iter().all(|reach| reach.is_slow);
    for reach in reaches {
        let knows = match memory.knows(reach) {
            Knows::Nothing if !reach.is_slow => memory.register(reach),
            Knows::Nothing if only_slow => {
                let (memory, reach) = (Arc::clone(memory), reach.clone());
                let made = deadline.bound(tokio::task::spawn_blocking(move || memory.register(&reach)));
                made.await?.map_err(|error| Error::unavailable(error.to_string()))?
            }
            Knows::Nothing => {
                memory.register_later(reach);
                Knows::NotNow
            }
            known => known,
        };
        if let Knows::Key(key) = knows {
            keys.push((reach.number, key));
        }
    }
    if keys.is_empty() {
        return Err(Error::new(ErrorKind::Internal, "memory for pages could not be lent to the server"));
    }
    Ok(keys)
}

impl Staged {
    /// What names it to the server.
    pub(crate) fn region(&self) -> wire::RemoteRegion {
        let key = |(domain, key): &(u32, RegionKey)| wire::RemoteKey {
            domain: *domain,
            key: key.key,
            base: key.base,
        };
        let bytes = self.keys.first().map_or(0, |(_, key)| key.bytes);
        wire::RemoteRegion { keys: self.keys.iter().map(key).collect(), bytes }
    }

    /// A part of it, for a CPU: of memory of this host.
    pub(crate) fn slot(&self, offset: usize, bytes: usize) -> Result<Slot> {
        match self.page(offset, bytes)? {
            PageSlot::Host(slot) => Ok(slot),
            PageSlot::Device(_) => Err(Error::invalid("no CPU can look at a page in a device's memory")),
        }
    }

    /// A part of it, wherever it is.
    pub(crate) fn page(&self, offset: usize, bytes: usize) -> Result<PageSlot> {
        let slot = self.memory.as_ref().and_then(|memory| memory.slot(offset, bytes));
        slot.ok_or_else(|| Error::invalid("a page outside of the memory for it"))
    }

    /// Whether it is memory of a device, which only NICs reach.
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// The call that it was lent for was answered: the server does nothing with it any more.
    pub(crate) fn answered(mut self) {
        self.answered = true;
    }

    /// The same, and a device is to read it.
    pub(crate) fn kept(mut self) -> Staged {
        self.answered = true;
        self.memory.iter().for_each(|memory| memory.note_device());
        self
    }

    /// A device will write to it, and may go on when the call has ended.
    pub(crate) fn begin_use(&self) -> StagedUse {
        self.memory.iter().for_each(|memory| memory.note_device());
        let (memory, room) = (self.memory.clone(), self.room.clone());
        StagedUse { _memory: memory, _room: room, _user: Arc::clone(&self.users) }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let room = self.room.take();
        // Memory that no domain knows yet, or ever will, would fail the next call as it failed this one.
        if self.keys.is_empty() {
            return;
        }
        let used = Arc::strong_count(&self.users) > 1;
        if (self.answered && !used) || memory.take_back(&self.keys) {
            // What is still written to goes, with its room, when that ends.
            if !used {
                self.staging.give_back(memory, room);
            }
        } else {
            let domains = self.keys.iter().map(|(number, _)| *number).collect();
            self.staging.quarantine(&memory, domains, room);
        }
    }
}

/// A window is cut to whole pages: only one page of many shards is so large.
fn too_large(bytes: usize) -> Error {
    let most = STAGING_BYTES_MAX >> 20;
    Error::invalid(format!(
        "a page has {bytes} bytes in the shards that are moved, and over a network at most {most} MiB of one are: \
         move fewer shards of it in one call"
    ))
}

/// Not the pool's fault: this process moves as much at a time as it may.
fn crowded() -> Error {
    Error::new(ErrorKind::Busy { retry_after_ms: 0 }, "as much memory as may be was lent until the deadline")
}

#[cfg(test)]
mod tests;
