//! Memory that servers may reach, and the domains that know it. Owns: registering it, in the background where that is slow, and
//! taking it back. Must not know: for which call.

use parking_lot::Mutex;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use turnkv_transfer::device::{Device, ExportedBuffer, PageSlot, WeakDevice};
use turnkv_transfer::fabric::framed::FramedDomain;
use turnkv_transfer::fabric::{
    Access, Domain, HostMemory, RailOffers, RegionKey, RegisterError, TargetMemory,
};
use turnkv_transfer::{HugePages, Region, RegionOptions};

/// A domain with a rail: whoever has a key of it reaches the memory.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    /// The domain's number, never used again for another one.
    pub(super) number: u32,
    /// What people call it.
    pub(super) name: String,
    domain: Arc<dyn Domain>,
    /// Registering takes long: pages are pinned and a NIC is told of each.
    pub(super) is_slow: bool,
}

/// Memory, and what knows it. Dropped, it is taken back.
#[derive(Debug)]
pub(super) struct Memory {
    bytes: LentBytes,
    known: Mutex<Vec<Known>>,
    /// A device of this host copies from and to it, so has pinned it.
    has_device: AtomicBool,
}

/// Where it is.
#[derive(Debug)]
enum LentBytes {
    Host(Arc<Region>),
    /// On a device: only NICs get at it, and that device.
    Device(WeakDevice, Arc<ExportedBuffer>),
}

#[derive(Debug)]
struct Known {
    number: u32,
    domain: Weak<dyn Domain>,
    state: KnownState,
}

#[derive(Debug)]
enum KnownState {
    /// It is being registered.
    Coming,
    Here(RegionKey),
    /// It could not be.
    Refused(RegisterError),
}

/// How a domain knows memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Knows {
    /// By this key.
    Key(RegionKey),
    /// It will, or never will.
    NotNow,
    /// Nobody has told it yet.
    Nothing,
}

impl Reach {
    /// Over a NIC.
    pub(super) fn nic(number: u32, domain: &Arc<dyn RailOffers>) -> Reach {
        let name = domain.name().to_owned();
        let domain: Arc<dyn Domain> = Arc::clone(domain) as Arc<dyn Domain>;
        Reach { number, name, domain, is_slow: true }
    }

    /// Over framed rails.
    pub(super) fn framed(number: u32, domain: &Arc<FramedDomain>) -> Reach {
        let domain: Arc<dyn Domain> = Arc::clone(domain) as Arc<dyn Domain>;
        Reach { number, name: "framed".to_owned(), domain, is_slow: false }
    }

    /// Its domain, which is not kept.
    pub(super) fn downgrade(&self) -> Weak<dyn Domain> {
        Arc::downgrade(&self.domain)
    }
}

impl Memory {
    /// So many bytes that nobody knows.
    pub(super) fn create(bytes: usize) -> std::io::Result<Memory> {
        let options = RegionOptions {
            bytes,
            huge_pages: HugePages::Off,
            touch: false,
            lock: false,
            name: "turnkv-staging".to_owned(),
        };
        let (region, _) = Region::create(&options)?;
        Ok(Memory::of(LentBytes::Host(region)))
    }

    /// Of a device, which nobody knows.
    pub(super) fn of_device(device: &Device, buffer: Arc<ExportedBuffer>) -> Memory {
        Memory::of(LentBytes::Device(device.downgrade(), buffer))
    }

    fn of(bytes: LentBytes) -> Memory {
        Memory { bytes, known: Mutex::default(), has_device: AtomicBool::new(false) }
    }

    /// Whether it is this device's; none: memory of the host.
    pub(super) fn is_of(&self, wanted: Option<&Device>) -> bool {
        match (&self.bytes, wanted) {
            (LentBytes::Host(_), None) => true,
            (LentBytes::Device(device, _), Some(wanted)) => device.is(wanted),
            _ => false,
        }
    }

    /// Whether it is of a device that nobody has any more.
    pub(super) fn is_orphan(&self) -> bool {
        matches!(&self.bytes, LentBytes::Device(device, _) if device.is_gone())
    }

    /// Its size.
    pub(super) fn len(&self) -> usize {
        match &self.bytes {
            LentBytes::Host(region) => region.len(),
            LentBytes::Device(_, buffer) => buffer.len(),
        }
    }

    /// The slot at `[offset, offset + bytes)`, if that lies inside.
    pub(super) fn slot(&self, offset: usize, bytes: usize) -> Option<PageSlot> {
        match &self.bytes {
            LentBytes::Host(region) => region.slot(offset, bytes).map(PageSlot::Host),
            LentBytes::Device(_, buffer) => buffer.slot(offset, bytes).map(PageSlot::Device),
        }
    }

    /// Has owners as long as an engine, a device or a slot still has the bytes.
    pub(super) fn owners(&self) -> Weak<dyn Any + Send + Sync> {
        match &self.bytes {
            LentBytes::Host(region) => Arc::downgrade(region) as Weak<dyn Any + Send + Sync>,
            LentBytes::Device(_, buffer) => Arc::downgrade(buffer) as Weak<dyn Any + Send + Sync>,
        }
    }

    /// How a domain knows it.
    pub(super) fn knows(&self, reach: &Reach) -> Knows {
        let known = self.known.lock();
        match known.iter().find(|known| known.number == reach.number).map(|known| &known.state) {
            Some(KnownState::Here(key)) => Knows::Key(*key),
            Some(KnownState::Coming | KnownState::Refused(_)) => Knows::NotNow,
            None => Knows::Nothing,
        }
    }

    /// A device copies from or to it.
    pub(super) fn note_device(&self) {
        self.has_device.store(true, Ordering::Relaxed);
    }

    /// Whether a device has pinned it, or a domain where registering takes long knows it.
    pub(super) fn is_worth_keeping(&self, slow: impl Fn(u32) -> bool) -> bool {
        let known = self.known.lock();
        let has_device = self.has_device.load(Ordering::Relaxed);
        has_device
            || known.iter().any(|known| matches!(known.state, KnownState::Here(_)) && slow(known.number))
    }

    /// Registers it with a domain that knows nothing of it. Takes as long as that takes.
    pub(super) fn register(&self, reach: &Reach) -> Knows {
        let knows = self.register_once(reach);
        if let Some(error) = self.refusal(reach) {
            tracing::warn!(%error, "memory for pages is not known to a NIC: they go otherwise");
        }
        knows
    }

    /// The same, for whoever does without it where a domain refuses.
    pub(super) fn register_or_say(&self, reach: &Reach) -> Result<(), RegisterError> {
        match self.register_once(reach) {
            Knows::Key(_) => Ok(()),
            Knows::NotNow | Knows::Nothing => Err(self.refusal(reach).unwrap_or(RegisterError::Unsupported)),
        }
    }

    fn refusal(&self, reach: &Reach) -> Option<RegisterError> {
        let known = self.known.lock();
        known.iter().find(|known| known.number == reach.number).and_then(|known| match &known.state {
            KnownState::Refused(error) => Some(error.clone()),
            KnownState::Coming | KnownState::Here(_) => None,
        })
    }

    fn register_once(&self, reach: &Reach) -> Knows {
        let Some(()) = self.begin(reach) else { return self.knows(reach) };
        let registered = self.target().and_then(|memory| reach.domain.register(memory, Access::ReadWrite));
        let state = registered.map_or_else(KnownState::Refused, KnownState::Here);
        let mut all = self.known.lock();
        match all.iter_mut().find(|known| known.number == reach.number) {
            Some(known) => known.state = state,
            // It was taken back meanwhile: from this one too.
            None => {
                drop(all);
                let (number, domain) = (reach.number, Arc::downgrade(&reach.domain));
                if !(Known { number, domain, state }).take_back() {
                    tracing::debug!("memory that was taken back stays with its rails until they end");
                }
                return Knows::NotNow;
            }
        }
        drop(all);
        self.knows(reach)
    }

    /// The same on a thread of its own.
    pub(super) fn register_later(self: &Arc<Self>, reach: &Reach) {
        let (memory, reach) = (Arc::clone(self), reach.clone());
        let work = move || {
            memory.register(&reach);
        };
        if let Err(error) = std::thread::Builder::new().name("turnkv-register".to_owned()).spawn(work) {
            tracing::debug!(%error, "no thread to register memory: a later call tries again");
        }
    }

    /// Takes it back from these domains: after that nothing touches it any more. False: one of them cannot be sure, and keeps it as
    /// long as its rails are open.
    #[must_use]
    pub(super) fn take_back(&self, from: &[(u32, RegionKey)]) -> bool {
        let mut taken = Vec::new();
        let mut known = self.known.lock();
        for (number, _) in from {
            taken.extend(known.extract_if(.., |known| known.number == *number));
        }
        drop(known);
        // All of them, whatever one says.
        taken.into_iter().map(Known::take_back).filter(|taken| !taken).count() == 0
    }

    /// The same from all that know it.
    #[must_use]
    pub(super) fn take_back_all(&self) -> bool {
        let known = std::mem::take(&mut *self.known.lock());
        known.into_iter().map(Known::take_back).filter(|taken| !taken).count() == 0
    }

    fn target(&self) -> Result<TargetMemory, RegisterError> {
        match &self.bytes {
            LentBytes::Host(region) => Ok(TargetMemory::Host(Arc::clone(region) as Arc<dyn HostMemory>)),
            LentBytes::Device(_, buffer) => {
                let target = buffer.target().map_err(|error| RegisterError::Failed(error.to_string()));
                target.map(TargetMemory::Device)
            }
        }
    }

    fn begin(&self, reach: &Reach) -> Option<()> {
        let mut known = self.known.lock();
        // Those of servers that are gone are of no use.
        known.retain(|known| known.domain.strong_count() > 0);
        if known.iter().any(|known| known.number == reach.number) {
            return None;
        }
        let (number, domain) = (reach.number, Arc::downgrade(&reach.domain));
        known.push(Known { number, domain, state: KnownState::Coming });
        Some(())
    }
}

impl Known {
    fn take_back(self) -> bool {
        match (self.state, self.domain.upgrade()) {
            (KnownState::Here(key), Some(domain)) => domain.deregister(key).is_ok(),
            _ => true,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if !self.take_back_all() {
            tracing::debug!("memory that was lent stays with its rails until they end");
        }
    }
}
