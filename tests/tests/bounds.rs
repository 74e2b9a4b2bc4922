//! A working set of four times DRAM over a full NVMe tier: memory stays flat, the disk stays within its limit, and
//! every acknowledged page is served, or was evicted by policy and counted. `TURNKV_BOUNDS_S` sets for how long.

use anyhow::{Result, ensure};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 256 << 10;
const CHAIN: usize = 16; // 4 MiB
const DRAM_MIB: u64 = 32;
const NVME_MIB: u64 = 256;
/// Chains in use: 4 x DRAM, half of NVMe.
const WORKING: usize = (DRAM_MIB * 4 / 4) as usize;

fn seconds() -> u64 {
    std::env::var("TURNKV_BOUNDS_S").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_flat_disk_bounded_nothing_lost() -> Result<()> {
    // What is in use stays, if the order is that of use: a learned one may judge otherwise.
    let top = "policy = \"lru\"\n".to_owned();
    let server = Server::start(Setup {
        dram_mib: DRAM_MIB,
        nvme_mib: NVME_MIB,
        segment_mib: 8,
        top,
        ..Setup::default()
    })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let options = OffloadOptions {
        wait: Duration::from_secs(5),
        deadline: Some(Duration::from_secs(10)),
        ..Default::default()
    };
    let mut working: VecDeque<u64> = VecDeque::new();
    let (mut seed, mut stored, mut declined, mut turns) = (0u64, 0usize, 0usize, 0usize);
    let mut rss_early = 0;
    let end = Instant::now() + Duration::from_secs(seconds());
    while Instant::now() < end || stored < 3 * (NVME_MIB as usize * 4) {
        seed += 1;
        let report = user.offload(&options, &chain(seed, CHAIN)).await?;
        stored += report.stored;
        declined += report.declined;
        if report.declined == 0 {
            working.push_back(seed);
        }
        if working.len() > WORKING {
            working.pop_front();
        }
        // A turn of an older session of the working set, over and over: acknowledged, in use, so it must be there.
        for back in [1, WORKING / 4, WORKING / 2, WORKING - 1] {
            if let Some(session) = working.len().checked_sub(back + 1).and_then(|at| working.get(at)) {
                let report = user.reload(&chain(*session, CHAIN)).await?;
                ensure!(
                    report.pages == CHAIN,
                    "chain {session}, {back} back of {seed}: {report:?}\n{}",
                    server.log()
                );
                turns += 1;
            }
        }
        ensure!(
            disk_mib(&server)? <= NVME_MIB + 2,
            "the NVMe tier is over its limit: {} MiB",
            disk_mib(&server)?
        );
        if seed == 60 {
            rss_early = server.rss_anon_bytes()?;
        }
    }
    let rss_late = server.rss_anon_bytes()?;
    ensure!(rss_late < rss_early + (24 << 20), "memory grows: {rss_early} -> {rss_late}");
    let stats = user.client.stats().await?;
    let kept = stats.index_pages + stats.evicted_pages;
    ensure!(stats.offloaded_pages <= kept, "pages lost without being counted: {stats:?}");
    ensure!(stats.declined_pages as usize >= declined, "{declined} declined: {stats:?}");
    println!(
        "{stored} pages stored, {declined} declined, {turns} turns served, {} evicted",
        stats.evicted_pages
    );
    Ok(())
}

fn disk_mib(server: &Server) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut blocks = 0;
    for entry in std::fs::read_dir(server.nvme_dir())? {
        let entry = entry?;
        if entry.path().extension().is_some_and(|extension| extension == "kv") {
            blocks += entry.metadata()?.blocks();
        }
    }
    Ok((blocks * 512) >> 20)
}

/// The gauges are what the kernel says: the slabs' resident bytes are the DRAM tier's capacity.
#[tokio::test(flavor = "multi_thread")]
async fn gauges_agree_with_the_kernel() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(1, CHAIN)).await?;
    let smaps = std::fs::read_to_string(format!("/proc/{}/smaps", server.pid()))?;
    let (mut slab, mut resident) = (false, 0u64);
    for line in smaps.lines() {
        if line.contains("memfd:turnkv-slab") {
            slab = true;
        } else if let (true, Some(rest)) = (slab, line.strip_prefix("Rss:")) {
            resident += rest.trim().trim_end_matches("kB").trim().parse::<u64>()? << 10;
            slab = false; // the next line that names a mapping says whose it is
        }
    }
    let stats = user.client.stats().await?;
    let capacity = stats.tiers[0].capacity_bytes;
    ensure!(resident == capacity, "the kernel says {resident} bytes of slabs, the gauge {capacity}");
    ensure!(stats.tiers[0].used_bytes == CHAIN as u64 * PAGE, "{stats:?}");
    Ok(())
}
