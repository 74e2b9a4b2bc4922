//! The turn loop through a real server: offload, reload, restart, both data planes, both tiers, both I/O engines.

use anyhow::{Result, ensure};
use turnkv_client::{DataPlane, OffloadOptions, TierKind};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 96 << 10;

fn durable() -> OffloadOptions {
    OffloadOptions { durable: true, ..OffloadOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_come_back_on_both_planes_and_engines() -> Result<()> {
    for engine in ["ring", "blocking"] {
        let server = Server::start(Setup { engine, ..Setup::default() })?;
        for (seed, plane) in [(1, DataPlane::Shm), (2, DataPlane::Inline)] {
            let user = User::connect(&server.address(), plane, PAGE).await?;
            let hashes = chain(seed, 40);
            user.go_and_come_back(&hashes).await?;
            let kept = user.offload(&durable(), &hashes).await?;
            ensure!(
                kept.present == 40 && kept.durable,
                "durable for pages that were there already: {kept:?}"
            );
            user.settle().await?;
            user.client.evict(None, Some(TierKind::Dram)).await?;
            let report = user.reload(&hashes).await?;
            ensure!((report.pages, report.from_nvme) == (40, 40), "{engine} {plane:?} {report:?}");
            ensure!(user.reload(&hashes).await?.from_dram == 40, "promoted pages stay in DRAM");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_serves_what_was_written_and_knows_the_sessions() -> Result<()> {
    let mut server = Server::start(Setup::default())?;
    let hashes = chain(7, 50);
    {
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        user.namespace.begin_turn("chat").await?;
        let options = OffloadOptions { session: Some("chat".into()), ..OffloadOptions::default() };
        ensure!(user.offload(&options, &hashes).await?.stored == 50);
    }
    server.terminate()?; // a graceful end writes what is dirty
    server.restart()?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let turn = user.namespace.begin_turn("chat").await?;
    ensure!(turn.turn == 2 && turn.pages == 50, "{turn:?}");
    let report = user.reload(&hashes).await?;
    ensure!((report.pages, report.from_nvme) == (50, 50), "{report:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_process_on_the_same_directory_is_refused() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let (success, log) = server.second_process()?;
    ensure!(!success, "the second process served");
    ensure!(
        log.contains("another") || log.contains("in use") || log.contains("locked"),
        "unclear refusal: {log}"
    );
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    ensure!(user.offload(&durable(), &chain(3, 4)).await?.durable, "the first goes on");
    Ok(())
}

/// Flips one byte in every page on disk; every reload must miss, and the pages must be gone afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn flipped_bytes_on_disk_are_misses() -> Result<()> {
    let mut server = Server::start(Setup { nvme_mib: 64, ..Setup::default() })?;
    let chains: Vec<_> = (100..120).map(|seed| chain(seed, 3)).collect();
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    for hashes in &chains {
        ensure!(user.offload(&durable(), hashes).await?.durable);
    }
    server.kill()?;
    let flipped = flip_pages(&server, &chains)?;
    ensure!(flipped == 20, "{flipped} pages found on disk");
    server.restart()?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    for hashes in &chains {
        let report = user.reload(hashes).await?; // checks bytes
        ensure!(report.pages <= 1, "the second page's byte was flipped: {report:?}");
    }
    Ok(())
}

/// Flips a byte in the second page of every chain, wherever the segments have it.
fn flip_pages(server: &Server, chains: &[Vec<turnkv_client::BlockHash>]) -> Result<usize> {
    let mut flipped = 0;
    for entry in std::fs::read_dir(server.nvme_dir())? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "kv") {
            continue;
        }
        let mut segment = std::fs::read(&path)?;
        for hashes in chains {
            let page = turnkv_tests::pages::bytes(&hashes[1], PAGE as usize);
            let places = (0..segment.len() / 4096).map(|block| block * 4096);
            let found: Vec<usize> = places.filter(|at| segment[*at..].starts_with(&page[..64])).collect();
            for at in found {
                segment[at + 54_321] ^= 0x10;
                flipped += 1;
            }
        }
        std::fs::write(&path, segment)?;
    }
    Ok(flipped)
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_fork_and_share_and_supersede() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let hashes = chain(11, 10);
    let options = OffloadOptions { session: Some("a".into()), ..OffloadOptions::default() };
    user.namespace.begin_turn("a").await?;
    user.offload(&options, &hashes).await?;
    ensure!(user.namespace.fork("a", "b", None).await? == 10);
    ensure!(user.namespace.begin_turn("b").await?.pages == 10, "a fork shares pages");
    let stats = user.client.stats().await?;
    ensure!(stats.index_pages == 10 && stats.sessions == 2, "shared, not copied: {stats:?}");
    ensure!(user.namespace.supersede("b", 4).await? == 4);
    ensure!(user.namespace.begin_turn("a").await?.pages == 10, "the original is untouched");
    user.namespace.close("a").await?;
    user.namespace.close("b").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_reads_without_a_copy() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let hashes = chain(21, 6);
    user.offload(&OffloadOptions::default(), &hashes).await?;
    let lease = user.namespace.lease(&Default::default(), &hashes).await?;
    for (position, hash) in hashes.iter().enumerate() {
        ensure!(
            lease
                .page(position)
                .is_some_and(|page| page.to_vec() == turnkv_tests::pages::bytes(hash, PAGE as usize))
        );
    }
    ensure!(user.client.stats().await?.leases == 1);
    lease.finish()?;
    for _ in 0..100 {
        if user.client.stats().await?.leases == 0 {
            return Ok(());
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    anyhow::bail!("the lease did not end")
}
