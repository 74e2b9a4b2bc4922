//! NICs and rails for the tests: played, so that they take their time, keep memory, refuse, and end when they are told to.

use parking_lot::Mutex;
use std::fs::File;
use std::os::unix::fs::FileExt;
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
    /// It has no dma-bufs.
    pub(super) refuses_devices: AtomicBool,
    /// How often it was asked to know memory of a device.
    pub(super) asked_devices: AtomicU64,
}

impl PlayedNic {
    fn is_device(memory: &TargetMemory) -> bool {
        matches!(memory, TargetMemory::Device(_))
    }

    /// How much memory of devices it knows.
    pub(super) fn lent_devices(&self) -> usize {
        self.lent.lock().iter().filter(|(_, memory)| Self::is_device(memory)).count()
    }

    /// What a server reads by it, of the device's memory with this key.
    pub(super) fn read(&self, key: u64, offset: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.device(key).read_exact_at(&mut read, offset as u64).unwrap();
        read
    }

    /// A server writes.
    pub(super) fn write(&self, key: u64, offset: usize, bytes: &[u8]) {
        self.device(key).write_all_at(bytes, offset as u64).unwrap();
    }

    fn device(&self, key: u64) -> File {
        let lent = self.lent.lock();
        match lent.iter().find(|(known, _)| *known == key) {
            Some((_, TargetMemory::Device(memory))) => File::from(memory.dma_buf.try_clone().unwrap()),
            other => panic!("no device's memory has key {key}: {other:?}"),
        }
    }
}

impl Domain for PlayedNic {
    fn register(&self, memory: TargetMemory, _: Access) -> Result<RegionKey, RegisterError> {
        std::thread::sleep(Duration::from_millis(self.takes_ms));
        if self.refuses.load(Ordering::Relaxed) {
            return Err(RegisterError::Failed("locked memory".to_owned()));
        }
        if Self::is_device(&memory) {
            self.asked_devices.fetch_add(1, Ordering::Relaxed);
            if self.refuses_devices.load(Ordering::Relaxed) {
                return Err(RegisterError::Unsupported);
            }
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
