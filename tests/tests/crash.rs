//! kill -9 at random moments under load. Every page acknowledged durable is served after the restart with its exact
//! bytes; no page is ever served wrong. `TURNKV_CRASHES` sets how many kills (100 unless told).

use anyhow::{Result, ensure};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 60 << 10;
const PAGES: usize = 6;
/// Within so long the server is killed, at random; within up to so long where writers get nothing done before.
const KILLED_WITHIN_US: (u64, u64) = (60_000, 4_000_000);
/// Chains one writer offloads in one life of the server, at most.
const CHAINS_A_WRITER: u64 = 12;

fn crashes() -> usize {
    std::env::var("TURNKV_CRASHES").ok().and_then(|text| text.parse().ok()).unwrap_or(100)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_pages_survive_kill_9() -> Result<()> {
    // Room for everything that all rounds can write: what is lost here was not evicted.
    let written_mib = crashes() as u64 * 2 * CHAINS_A_WRITER * PAGES as u64 * 64 / 1024;
    let setup = Setup { dram_mib: 16, nvme_mib: written_mib * 2 + 256, segment_mib: 16, ..Setup::default() };
    let mut server = Server::start(setup)?;
    let mut acknowledged: BTreeSet<u64> = BTreeSet::new();
    let (mut next_seed, mut within_us) = (1u64, KILLED_WITHIN_US.0);
    for crash in 0..crashes() {
        let round = Arc::new(Round::default());
        let writers: Vec<_> = (0..2u64)
            .map(|writer| {
                tokio::spawn(write_until_dead(
                    server.address(),
                    next_seed + writer * 1_000_000,
                    Arc::clone(&round),
                ))
            })
            .collect();
        next_seed += 1_000;
        // A different moment every time: from before the first write to many segments later.
        let moment = (crash as u64 * 7_919) % KILLED_WITHIN_US.0 * within_us / KILLED_WITHIN_US.0;
        tokio::time::sleep(Duration::from_micros(500 + moment)).await;
        server.kill()?;
        round.stop.store(true, Ordering::Relaxed);
        for writer in writers {
            writer.await??;
        }
        let known = acknowledged.len();
        acknowledged.extend(round.durable.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.iter());
        // A busy machine is given as much longer as it needs.
        within_us = if acknowledged.len() == known { within_us * 2 } else { within_us / 2 }
            .clamp(KILLED_WITHIN_US.0, KILLED_WITHIN_US.1);
        server.restart()?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        // All of the latest round, and a sample of everything before.
        let sample = acknowledged
            .iter()
            .rev()
            .take(40)
            .chain(acknowledged.iter().step_by(acknowledged.len() / 20 + 1));
        for seed in sample {
            let report = user.reload(&chain(*seed, PAGES)).await?; // checks every byte
            ensure!(
                report.pages == PAGES,
                "crash {crash}: durable chain {seed} lost: {report:?}\n{}",
                server.log()
            );
        }
    }
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    for seed in &acknowledged {
        let report = user.reload(&chain(*seed, PAGES)).await?;
        ensure!(report.pages == PAGES, "durable chain {seed} lost in the end: {report:?}");
    }
    ensure!(
        acknowledged.len() >= crashes() / 4,
        "too few durable offloads to prove anything: {}",
        acknowledged.len()
    );
    println!("{} kills, {} durable chains of {PAGES} pages, all served", crashes(), acknowledged.len());
    Ok(())
}

#[derive(Default)]
struct Round {
    stop: AtomicBool,
    durable: Mutex<Vec<u64>>,
}

/// Offloads chains, every third durable, and reads some back, until the server dies. Only wrong bytes are an error.
async fn write_until_dead(address: String, first: u64, round: Arc<Round>) -> Result<()> {
    let Ok(user) = User::connect(&address, DataPlane::Shm, PAGE).await else { return Ok(()) };
    let mut seed = first;
    while !round.stop.load(Ordering::Relaxed) && seed < first + CHAINS_A_WRITER {
        let options = OffloadOptions {
            durable: seed.is_multiple_of(3),
            wait: Duration::from_secs(1),
            ..Default::default()
        };
        let Ok(report) = user.offload(&options, &chain(seed, PAGES)).await else { return Ok(()) };
        if report.durable && report.stored == PAGES {
            round.durable.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.push(seed);
        }
        match user.reload(&chain(seed, PAGES)).await {
            Ok(_) => {}
            Err(error) if error.to_string().contains("WRONG BYTES") => return Err(error),
            Err(_) => return Ok(()),
        }
        seed += 1;
    }
    Ok(())
}
