//! The simulation itself: it works, it loses what it may lose, and it is the same every time.

use crate::support::{config, extent, promise, region};
use turnkv_tier::nvme::NvmeTier;
use turnkv_tier::nvme::simulation::{Fault, FaultPlan, Random, SimulatedDisk};

#[test]
fn what_was_flushed_survives_a_crash_and_is_read_back() {
    let disk = SimulatedDisk::new(FaultPlan::calm(1).with(Fault::Short, 300_000), 1 << 30).unwrap();
    let (tier, recovered, _) = NvmeTier::open_simulated(config(), &disk).unwrap();
    assert!(recovered.is_empty());
    let region = region();
    let slot = region.slot(0, 20_000).unwrap();
    slot.claim().unwrap().fill(&[5; 20_000]);
    let (done, wrote) = promise();
    tier.write(extent(1, &[5; 20_000]), slot, done);
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
    assert_eq!(target.page().to_vec(), [5; 20_000]);
    tier.shutdown().unwrap();
    assert!(disk.counts().faults[&Fault::Short] > 0);
}

#[test]
fn a_crash_keeps_drops_and_tears_what_was_not_synced() {
    let disk = SimulatedDisk::new(FaultPlan::calm(3), 1 << 30).unwrap();
    let file = disk.open_file("catalog").unwrap();
    file.set_len(64 << 10).unwrap();
    file.write(0, &[1; 4096]).unwrap();
    file.sync().unwrap();
    disk.sync().unwrap();
    for at in 1..16 {
        file.write(at * 4096, &[2; 4096]).unwrap();
    }
    disk.crash();
    assert!(file.read(0, &mut [0; 512]).is_err(), "a handle does not outlive its process");
    let file = disk.open_file("catalog").unwrap();
    let mut bytes = vec![0; 64 << 10];
    file.read(0, &mut bytes).unwrap();
    assert!(bytes[..4096].iter().all(|byte| *byte == 1), "what was synced is there");
    let sectors: Vec<bool> = bytes[4096..].chunks(512).map(|sector| sector == [2; 512]).collect();
    let whole = sectors.chunks(8).filter(|write| write.iter().all(|kept| *kept)).count() as u64;
    let gone = sectors.chunks(8).filter(|write| write.iter().all(|kept| !kept)).count() as u64;
    let counts = disk.counts();
    assert!(counts.writes_kept > 0 && counts.writes_dropped > 0 && counts.writes_torn > 0, "{counts:?}");
    assert!(whole >= counts.writes_kept && gone >= counts.writes_dropped, "{counts:?}: {whole}, {gone}");
}

#[test]
fn a_full_disk_and_a_dead_sector_say_so_until_they_do_not() {
    let disk = SimulatedDisk::new(FaultPlan::calm(4), 8192).unwrap();
    let file = disk.open_file("catalog").unwrap();
    file.write(0, &[1; 8192]).unwrap();
    assert!(file.write(8192, &[1; 512]).is_err() && file.set_len(9000).is_err());
    disk.set_capacity(16_384);
    file.write(8192, &[1; 512]).unwrap();
    disk.make_unreadable("catalog", 512, 1);
    assert!(file.read(0, &mut [0; 1024]).is_err() && file.read(1024, &mut [0; 512]).is_ok());
    assert!(disk.is_damaged("catalog", 0, 1024) && !disk.is_damaged("catalog", 1024, 512));
    file.write(512, &[3; 512]).unwrap();
    file.read(0, &mut [0; 1024]).unwrap();
    assert!(!disk.is_damaged("catalog", 0, 1024));
}
