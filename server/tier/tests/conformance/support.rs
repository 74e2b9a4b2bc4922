//! A tier on a temporary place, slots with known bytes, and waiting for call-backs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;
use tempfile::TempDir;
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_tier::nvme::{Engine, NvmeConfig, NvmeTier, OpenError, OpenReport, Recovered};
use turnkv_tier::{Done, ExtentMeta, Location, TierError};
use turnkv_transfer::{HugePages, Region, RegionOptions, Slot, checksum};

pub(crate) const SEGMENT: u64 = 1 << 20;
pub(crate) const SEGMENTS: u64 = 8;
pub(crate) const ENGINES: [Engine; 2] = [Engine::Ring, Engine::Blocking];

/// Directories of tests lie beside the build, on a disk that knows O_DIRECT.
pub(crate) fn place() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Runs a test for every engine, on a directory and on a file used like a block device.
pub(crate) fn everywhere(test: impl Fn(Bench)) {
    for engine in ENGINES {
        let dir = place();
        test(Bench::new(dir.path().to_owned(), engine));
        let dir = place();
        let file = dir.path().join("device");
        std::fs::File::create(&file).unwrap().set_len((1 << 20) + SEGMENTS * SEGMENT).unwrap();
        test(Bench::new(file, engine));
    }
}

pub(crate) struct Bench {
    pub(crate) config: NvmeConfig,
    pub(crate) region: Arc<Region>,
}

impl Bench {
    pub(crate) fn new(path: PathBuf, engine: Engine) -> Bench {
        let config =
            NvmeConfig { segment_bytes: SEGMENT, engine, ..NvmeConfig::new(path, SEGMENTS * SEGMENT) };
        Bench { config, region: region(4 << 20) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.config.path
    }

    pub(crate) fn try_open(&self) -> Result<(NvmeTier, Vec<Recovered>, OpenReport), OpenError> {
        NvmeTier::open(self.config.clone(), vec![Arc::clone(&self.region)])
    }

    pub(crate) fn open(&self) -> (NvmeTier, Vec<Recovered>, OpenReport) {
        self.try_open().unwrap()
    }

    /// A slot of the region, by number, with the bytes of a seed.
    pub(crate) fn filled(&self, number: usize, bytes: u32, seed: u64) -> Slot {
        let slot = self.slot(number, bytes);
        slot.claim().unwrap().fill(&pattern(bytes, seed));
        slot
    }

    pub(crate) fn slot(&self, number: usize, bytes: u32) -> Slot {
        let stride = (bytes as usize).next_multiple_of(4096);
        let slots = self.region.len() / stride;
        self.region.slot(number % slots * stride, bytes as usize).unwrap()
    }
}

pub(crate) fn region(bytes: usize) -> Arc<Region> {
    let name = "test".to_owned();
    let options = RegionOptions { bytes, huge_pages: HugePages::Off, touch: false, lock: false, name };
    Region::create(&options).unwrap().0
}

pub(crate) fn pattern(bytes: u32, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

pub(crate) fn meta(seed: u64, bytes: u32) -> ExtentMeta {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&seed.to_le_bytes());
    ExtentMeta {
        namespace: NamespaceId([7; 32]),
        hash: BlockHash(hash),
        parent: (seed > 0).then_some(BlockHash([3; 32])),
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        payload_bytes: bytes,
        checksum: checksum(&pattern(bytes, seed)),
    }
}

/// A call-back and where its answer arrives.
pub(crate) fn promise<T: Send + 'static>() -> (Done<T>, Receiver<Result<T, TierError>>) {
    let (tell, told) = sync_channel(1);
    (Box::new(move |result| tell.send(result).unwrap_or(())), told)
}

pub(crate) fn answer<T>(told: &Receiver<Result<T, TierError>>) -> Result<T, TierError> {
    told.recv_timeout(Duration::from_secs(60)).expect("every operation is answered")
}

pub(crate) fn write(tier: &NvmeTier, bench: &Bench, seed: u64, bytes: u32) -> Result<Location, TierError> {
    let (done, told) = promise();
    tier.write(meta(seed, bytes), bench.filled(0, bytes, seed), done);
    answer(&told)
}

pub(crate) fn read_into(
    tier: &NvmeTier,
    at: Location,
    seed: u64,
    bytes: u32,
    target: &Slot,
) -> Result<(), TierError> {
    let (done, told) = promise();
    tier.read(at, bytes, meta(seed, bytes).checksum, target.clone(), done);
    answer(&told)
}

/// Reads an extent and compares every byte.
pub(crate) fn read(
    tier: &NvmeTier,
    bench: &Bench,
    at: Location,
    seed: u64,
    bytes: u32,
) -> Result<(), TierError> {
    let target = bench.slot(1, bytes);
    target.claim().unwrap().fill(&vec![0xEE; bytes as usize]);
    read_into(tier, at, seed, bytes, &target)?;
    assert!(target.page().to_vec() == pattern(bytes, seed), "verified bytes are the written ones");
    Ok(())
}

pub(crate) fn flush(tier: &NvmeTier) -> Result<(), TierError> {
    let (done, told) = promise();
    tier.flush(done);
    answer(&told)
}

/// Waits for something that another thread does in its own time.
pub(crate) fn eventually(what: &str, check: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if check() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what}: never");
}

/// Where a segment is in the files.
pub(crate) fn segment_file(bench: &Bench, segment: u16) -> (PathBuf, u64) {
    if bench.path().is_dir() {
        (bench.path().join(format!("segment-{segment:06}.kv")), 0)
    } else {
        (bench.path().to_owned(), (1 << 20) + u64::from(segment) * SEGMENT)
    }
}
