//! Memory that servers may reach, and the domains that know it. Owns: registering it, in the background where that is slow, and
//! taking it back. Must not know: for which call.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use turnkv_transfer::fabric::framed::FramedDomain;
use turnkv_transfer::fabric::{Access, Domain, HostMemory, RailOffers, RegionKey, TargetMemory};
use turnkv_transfer::{HugePages, Region, RegionOptions};

/// A domain with a rail: whoever has a key of it reaches the memory.
#[derive(Debug, Clone)]
pub(super) struct Reach {
    /// The domain's number, never used again for another one.
    pub(super) number: u32,
    domain: Arc<dyn Domain>,
    /// Registering takes long: pages are pinned and a NIC is told of each.
    pub(super) is_slow: bool,
}

/// Memory, and what knows it. Dropped, it is taken back.
#[derive(Debug)]
pub(super) struct Memory {
    region: Arc<Region>,
    known: Mutex<Vec<Known>>,
    /// A device of this host copies from and to it, so has pinned it.
    has_device: AtomicBool,
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
    Refused,
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
        let domain: Arc<dyn Domain> = Arc::clone(domain) as Arc<dyn Domain>;
        Reach { number, domain, is_slow: true }
    }

    /// Over framed rails.
    pub(super) fn framed(number: u32, domain: &Arc<FramedDomain>) -> Reach {
        let domain: Arc<dyn Domain> = Arc::clone(domain) as Arc<dyn Domain>;
        Reach { number, domain, is_slow: false }
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
        Ok(Memory { region, known: Mutex::default(), has_device: AtomicBool::new(false) })
    }

    /// Its bytes.
    pub(super) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// How a domain knows it.
    pub(super) fn knows(&self, reach: &Reach) -> Knows {
        let known = self.known.lock();
        match known.iter().find(|known| known.number == reach.number).map(|known| &known.state) {
            Some(KnownState::Here(key)) => Knows::Key(*key),
            Some(KnownState::Coming | KnownState::Refused) => Knows::NotNow,
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
        let Some(()) = self.begin(reach) else { return self.knows(reach) };
        let memory = TargetMemory::Host(Arc::clone(&self.region) as Arc<dyn HostMemory>);
        let state = match reach.domain.register(memory, Access::ReadWrite) {
            Ok(key) => KnownState::Here(key),
            Err(error) => {
                tracing::warn!(%error, "memory for pages is not known to a NIC: they go otherwise");
                KnownState::Refused
            }
        };
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
