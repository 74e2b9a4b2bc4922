//! The simulation itself: it works, it loses what it may lose, and it is the same every time.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_tier::nvme::simulation::{Fault, FaultPlan, Random, SimulatedDisk};
use turnkv_tier::nvme::{NvmeConfig, NvmeTier};
use turnkv_tier::{Done, ExtentMeta, Tier, TierError};
use turnkv_transfer::{HugePages, Region, RegionOptions, checksum};

fn promise<T: Send + 'static>() -> (Done<T>, Receiver<Result<T, TierError>>) {
    let (tell, told) = sync_channel(1);
    (Box::new(move |result| tell.send(result).unwrap_or(())), told)
}

fn region() -> Arc<Region> {
    let name = "test".to_owned();
    let options =
        RegionOptions { bytes: 1 << 20, huge_pages: HugePages::Off, touch: false, lock: false, name };
    Region::create(&options).unwrap().0
}

fn config() -> NvmeConfig {
    NvmeConfig { segment_bytes: 1 << 20, ..NvmeConfig::new("simulated", 8 << 20) }
}

fn meta(seed: u8, payload: &[u8]) -> ExtentMeta {
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

#[test]
fn what_was_flushed_survives_a_crash_and_is_read_back() {
    let disk = SimulatedDisk::new(FaultPlan::calm(1).with(Fault::Short, 300_000), 1 << 30).unwrap();
    let (tier, recovered, _) = NvmeTier::open_simulated(config(), &disk).unwrap();
    assert!(recovered.is_empty());
    let region = region();
    let slot = region.slot(0, 20_000).unwrap();
    slot.fill(&[5; 20_000]);
    let (done, wrote) = promise();
    tier.write(meta(1, &[5; 20_000]), slot, done);
    let mut random = Random::new(2);
    while tier.step_any(&mut random) {}
    let at = wrote.try_recv().unwrap().unwrap();
    let (done, flushed) = promise();
    tier.flush(done);
    while tier.step_any(&mut random) {}
    flushed.try_recv().unwrap().unwrap();
    disk.crash();
    drop(tier);
    let (tier, recovered, _) = NvmeTier::open_simulated(config(), &disk).unwrap();
    assert_eq!(recovered.iter().map(|found| found.at).collect::<Vec<_>>(), [at]);
    let (done, read) = promise();
    let target = region.slot(40_960, 20_000).unwrap();
    tier.read(at, 20_000, recovered[0].meta.checksum, target.clone(), done);
    while tier.step_any(&mut random) {}
    read.try_recv().unwrap().unwrap();
    assert_eq!(target.bytes(), [5; 20_000]);
    tier.shutdown().unwrap();
    assert!(disk.counts().faults[&Fault::Short] > 0);
}
