//! NICs and rails for the tests: played, so that they take their time, keep memory, refuse, and end when they are told to.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use turnkv_transfer::fabric::{
    Access, Cause, Domain, OpenError, Quarantined, RailAddress, RailOffer, RailOffers, RegionKey,
    RegisterError, Target, TargetMemory,
};

/// A domain over a NIC that takes its time, and may keep what is taken back.
#[derive(Debug, Default)]
pub(super) struct PlayedNic {
    pub(super) next: AtomicU64,
    pub(super) lent: Mutex<Vec<(u64, TargetMemory)>>,
    pub(super) kept: Mutex<Vec<TargetMemory>>,
    pub(super) takes_ms: u64,
    pub(super) keeps: AtomicBool,
    pub(super) refuses: AtomicBool,
    pub(super) offers: AtomicBool,
}

impl Domain for PlayedNic {
    fn register(&self, memory: TargetMemory, _: Access) -> Result<RegionKey, RegisterError> {
        std::thread::sleep(Duration::from_millis(self.takes_ms));
        if self.refuses.load(Ordering::Relaxed) {
            return Err(RegisterError::Failed("locked memory".to_owned()));
        }
        let (key, bytes) = (self.next.fetch_add(1, Ordering::Relaxed), memory.bytes());
        self.lent.lock().push((key, memory));
        Ok(RegionKey { key, base: 0, bytes })
    }

    fn deregister(&self, key: RegionKey) -> Result<(), Quarantined> {
        let mut lent = self.lent.lock();
        let Some(at) = lent.iter().position(|(known, _)| *known == key.key) else { return Ok(()) };
        let (_, memory) = lent.swap_remove(at);
        if self.keeps.load(Ordering::Relaxed) {
            self.kept.lock().push(memory);
            return Err(Quarantined);
        }
        Ok(())
    }

    fn registrations(&self) -> usize {
        self.lent.lock().len()
    }
}

impl RailOffers for PlayedNic {
    fn offer(&self) -> Result<Box<dyn RailOffer>, OpenError> {
        if self.offers.load(Ordering::Relaxed) {
            return Ok(Box::new(PlayedOffer(RailAddress::new(vec![7]).unwrap())));
        }
        Err(OpenError::Unavailable("it is played".to_owned()))
    }

    fn name(&self) -> &str {
        "played"
    }
}

/// A rail that is being opened: it connects to whoever has no address.
#[derive(Debug)]
struct PlayedOffer(RailAddress);

impl RailOffer for PlayedOffer {
    fn address(&self) -> &RailAddress {
        &self.0
    }

    fn connect(self: Box<Self>, server: &RailAddress) -> Result<Arc<dyn Target>, OpenError> {
        if server.as_bytes().is_empty() {
            return Ok(PlayedRail::open());
        }
        Err(OpenError::Unavailable("nobody is there".to_owned()))
    }
}

/// A rail over a NIC, until it ends.
#[derive(Debug, Default)]
pub(super) struct PlayedRail {
    ended: AtomicBool,
}

impl PlayedRail {
    pub(super) fn open() -> Arc<PlayedRail> {
        Arc::default()
    }
}

impl Target for PlayedRail {
    fn close(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    fn death(&self) -> Option<Cause> {
        self.ended.load(Ordering::Relaxed).then_some(Cause::Cancelled)
    }
}
