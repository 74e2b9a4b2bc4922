//! How long a server whose DRAM was kept takes from its start to its first hit, and that all of its pages are there. `TURNKV_RESTART_MIB` says how
//! much DRAM is full of pages (128 unless told); what it took is printed.

use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 256 << 10;
const PAGES: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_full_of_pages_serves_them_soon_after_its_start() -> Result<()> {
    let dram_mib =
        std::env::var("TURNKV_RESTART_MIB").ok().and_then(|text| text.parse().ok()).unwrap_or(128u64);
    let mut server = Server::start(Setup { dram_mib, nvme_mib: 0, keep: true, ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    // A sixteenth stays free: nothing has to leave.
    let chains = (dram_mib << 20) * 15 / 16 / PAGE / PAGES as u64;
    for seed in 1..=chains {
        let report = user.offload(&OffloadOptions::default(), &chain(seed, PAGES)).await?;
        ensure!(report.stored == PAGES, "chain {seed}: {report:?}");
    }
    let mut before = 0;
    for seed in 1..=chains {
        before += user.namespace.lookup(&chain(seed, PAGES)).await?;
    }
    ensure!(before == chains as usize * PAGES);
    // What was said last of the namespace is saved.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    server.kill()?;
    let start = Instant::now();
    server.restart()?;
    let ready = start.elapsed();
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let report = user.reload(&chain(chains / 2 + 1, PAGES)).await?; // checks every byte
    let hit = start.elapsed();
    ensure!((report.pages, report.from_dram) == (PAGES, PAGES), "{report:?}\n{}", server.log());
    let mut after = 0;
    for seed in 1..=chains {
        after += user.namespace.lookup(&chain(seed, PAGES)).await?;
    }
    ensure!(after == before, "{after} of {before} pages are there\n{}", server.log());
    println!("{dram_mib} MiB, {before} pages: ready after {ready:?}, {PAGES} pages read after {hit:?}");
    Ok(())
}

/// A server that should be kept and found no keeper says so until there is one.
#[test]
fn a_server_without_a_keeper_says_so_until_it_has_one() -> Result<()> {
    let http = free_address()?;
    let setup = Setup { keep: true, nvme_mib: 0, metrics: Some(http.to_string()), ..Setup::default() };
    let mut server = Server::start(setup)?;
    let failing = || -> Result<f64> { value(&get(http, "/metrics")?.1, "turnkv_keep_failing_servers") };
    ensure!(failing()? == 0.0);
    server.kill_keeper()?;
    server.kill()?;
    // The server replaces a keeper that is lost at once; this one may have been.
    while server.kill_keeper().is_ok() {}
    std::fs::remove_file(server.keep_socket())
        .or_else(|error| if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
    std::fs::create_dir(server.keep_socket())?;
    server.restart()?;
    ensure!(failing()? == 1.0, "{}", server.log());
    let (_, health) = get(http, "/healthz")?;
    ensure!(health.contains("nobody keeps DRAM for the next start"), "{health}");
    // Once there is a place for one, one is started, and given everything.
    std::fs::remove_dir(server.keep_socket())?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while failing()? != 0.0 {
        ensure!(Instant::now() < deadline, "{}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(!get(http, "/healthz")?.1.contains("nobody keeps"));
    server.kill()?;
    server.restart()?;
    ensure!(failing()? == 0.0, "{}", server.log());
    Ok(())
}
