//! A tier on a simulated disk, pages with known bytes, and calls that are carried to their end.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_tier::nvme::simulation::{Random, SimulatedDisk};
use turnkv_tier::nvme::{NvmeConfig, NvmeTier, OpenError, OpenReport, Recovered};
use turnkv_tier::{Done, ExtentMeta, Location, TierError};
use turnkv_transfer::{HugePages, Region, RegionOptions, Slot, checksum};

pub(crate) const SEGMENT: u64 = 1 << 20;
pub(crate) const SEGMENTS: u64 = 8;
/// Bytes of a page: a dozen fill a segment.
pub(crate) const PAGE: u32 = 80_000;

/// A small tier: eight segments of 1 MiB.
pub(crate) fn config() -> NvmeConfig {
    NvmeConfig { segment_bytes: SEGMENT, ..NvmeConfig::new("simulated", SEGMENTS * SEGMENT) }
}

/// An extent of one shard, named by a number.
pub(crate) fn extent(seed: u8, payload: &[u8]) -> ExtentMeta {
    ExtentMeta {
        namespace: NamespaceId([7; 32]),
        hash: BlockHash([seed; 32]),
        parent: None,
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        payload_bytes: payload.len() as u32,
        checksum: checksum(payload),
    }
}

/// A disk, the memory its tiers read into, and the order things happen in.
pub(crate) struct World {
    pub(crate) disk: SimulatedDisk,
    pub(crate) random: Random,
    region: Arc<Region>,
}

impl World {
    pub(crate) fn new(disk: SimulatedDisk, seed: u64) -> World {
        World { disk, random: Random::new(seed), region: region() }
    }

    pub(crate) fn try_open(&self) -> Result<(NvmeTier, Vec<Recovered>, OpenReport), OpenError> {
        NvmeTier::open_simulated(config(), &self.disk)
    }

    pub(crate) fn open(&self) -> (NvmeTier, Vec<Recovered>, OpenReport) {
        self.try_open().unwrap()
    }

    /// Takes steps until the call is answered.
    fn finish<T>(&mut self, tier: &NvmeTier, told: &Receiver<Result<T, TierError>>) -> Result<T, TierError> {
        loop {
            if let Ok(answer) = told.try_recv() {
                return answer;
            }
            if !tier.step_any(&mut self.random) {
                self.disk.advance(std::time::Duration::from_millis(100));
            }
        }
    }

    pub(crate) fn settle(&mut self, tier: &NvmeTier) {
        while tier.step_any(&mut self.random) {}
    }

    fn slot(&self, number: usize) -> Slot {
        self.region.slot(number * 81_920, PAGE as usize).unwrap()
    }

    pub(crate) fn write(&mut self, tier: &NvmeTier, seed: u64, moves: bool) -> Result<Location, TierError> {
        let slot = self.slot(0);
        slot.claim().unwrap().fill(&pattern(seed));
        let (done, told) = promise();
        if moves {
            tier.rewrite(meta(seed), slot, done)
        } else {
            tier.write(meta(seed), slot, done)
        }
        self.finish(tier, &told)
    }

    /// Reads a page and compares every byte.
    pub(crate) fn read(&mut self, tier: &NvmeTier, at: Location, seed: u64) -> Result<(), TierError> {
        let target = self.slot(1);
        let (done, told) = promise();
        tier.read(at, PAGE, meta(seed).checksum, target.clone(), done);
        self.finish(tier, &told)?;
        assert!(target.page().to_vec() == pattern(seed), "verified bytes are the written ones");
        Ok(())
    }

    pub(crate) fn flush(&mut self, tier: &NvmeTier) -> Result<(), TierError> {
        let (done, told) = promise();
        tier.flush(done);
        self.finish(tier, &told)
    }
}

/// Memory for a few pages.
pub(crate) fn region() -> Arc<Region> {
    let name = "test".to_owned();
    let options =
        RegionOptions { bytes: 1 << 20, huge_pages: HugePages::Off, touch: false, lock: false, name };
    Region::create(&options).unwrap().0
}

/// A call-back, and where its answer is found.
pub(crate) fn promise<T: Send + 'static>() -> (Done<T>, Receiver<Result<T, TierError>>) {
    let (tell, told) = sync_channel(1);
    (Box::new(move |result| tell.send(result).unwrap_or(())), told)
}

fn pattern(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = vec![0; PAGE as usize];
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.draw().to_le_bytes()));
    bytes
}

pub(crate) fn meta(seed: u64) -> ExtentMeta {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&seed.to_le_bytes());
    ExtentMeta {
        namespace: NamespaceId([7; 32]),
        hash: BlockHash(hash),
        parent: None,
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        payload_bytes: PAGE,
        checksum: checksum(&pattern(seed)),
    }
}

/// Which page an extent holds.
pub(crate) fn seed_of(meta: &ExtentMeta) -> u64 {
    u64::from_le_bytes(meta.hash.0[..8].try_into().unwrap())
}
