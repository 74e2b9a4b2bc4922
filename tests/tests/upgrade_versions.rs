//! Upgrades to the next version and back, by programs that differ in a version: that of the protocol that local clients speak, or that of
//! the slot table. What both make something of stays; what the other one cannot read is refused in one line, and never wrong.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinHandle;
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::http::free_address;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::{build_next, server_binary};

const PAGE: u64 = 60 << 10;
const PAGES: usize = 24;

fn setup(nvme_mib: u64) -> Result<Setup> {
    let (tcp, metrics) = (Some(free_address()?.to_string()), Some(free_address()?.to_string()));
    Ok(Setup { dram_mib: 32, nvme_mib, keep: true, tcp, metrics, ..Setup::default() })
}

/// `turnkv upgrade`: what it says.
fn upgraded(server: &Server, program: &Path) -> Result<String> {
    let output = server.upgrade(&["--binary", &program.display().to_string()])?;
    ensure!(output.status.success(), "{output:?}\n{}", server.log());
    Ok(String::from_utf8(output.stdout)?)
}

/// A client that goes on through everything: each page that it reads is checked, and each call must be answered.
struct Load {
    stop: Arc<AtomicBool>,
    calls: JoinHandle<Result<u64>>,
}

impl Load {
    fn start(address: String, first: u64) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let calls = tokio::spawn(async move {
            // By gRPC: fields are only added there, whichever version the server is.
            let user = User::connect(&address, DataPlane::Inline, PAGE).await?;
            let mut turns = 0;
            while !stopped.load(Ordering::Relaxed) {
                let hashes = chain(first + turns % 4, 4);
                user.offload(&OffloadOptions::default(), &hashes).await.context("offload")?;
                user.reload(&hashes).await.context("reload")?;
                turns += 1;
            }
            Ok(turns)
        });
        Load { stop, calls }
    }

    async fn end(self, server: &Server) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        let turns = self.calls.await?.with_context(|| server.log())?;
        ensure!(turns > 0, "it did nothing");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_stays_with_a_program_of_another_protocol() -> Result<()> {
    let server = Server::start(setup(0)?)?;
    let (own, next) = (server_binary()?, server.config().with_file_name("next-protocol"));
    build_next("next-protocol", &next)?;
    let remote = User::connect(&server.address(), DataPlane::Inline, PAGE).await?;
    let local = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    local.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
    let load = Load::start(server.address(), 1_000);
    for round in 0..2 {
        let said = upgraded(&server, &next)?;
        ensure!(said.contains("its local protocol is version 2, not 1"), "{said}");
        let report = remote.reload(&chain(1, PAGES)).await?;
        ensure!(report.from_dram == PAGES, "{round}: {report:?}\n{}", server.log());
        let refused = local.reload(&chain(1, PAGES)).await;
        let why = refused.map(|report| format!("{report:?}")).unwrap_or_else(|error| format!("{error:#}"));
        ensure!(why.contains("speaks protocol 2, not 1: update the older side"), "{round}: {why}");
        let said = upgraded(&server, own)?;
        ensure!(said.contains("its local protocol is version 1, not 2"), "{said}");
        for user in [&remote, &local] {
            let report = user.reload(&chain(1, PAGES)).await?;
            ensure!(report.from_dram == PAGES, "{round}: {report:?}\n{}", server.log());
        }
    }
    load.end(&server).await?;
    ensure!(remote.client.stats().await?.corrupt_pages == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_another_version_is_refused_and_nvme_is_warm() -> Result<()> {
    let mut server = Server::start(setup(128)?)?;
    let (own, next) = (server_binary()?.to_path_buf(), server.config().with_file_name("next-table"));
    build_next("next-table", &next)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let load = Load::start(server.address(), 1_000);
    let mut cold = 0;
    for (round, (program, theirs, ours)) in
        [(&next, 3, 2), (&own, 2, 3)].into_iter().cycle().take(4).enumerate()
    {
        let hashes = chain(round as u64 + 1, PAGES);
        user.offload(&OffloadOptions::default(), &hashes).await?;
        let said = upgraded(&server, program)?;
        let note = format!("its slot table is version {theirs}, not {ours}: DRAM begins cold");
        ensure!(said.contains(&note), "{round}: {said}");
        cold += 1;
        let lines = server.log().matches("DRAM begins cold: ").count();
        ensure!(lines == cold, "one line a start, not {lines} of {cold}: {}", server.log());
        let why = format!("the slot table has format {ours}, this server speaks {theirs}");
        ensure!(server.log().contains(&why), "{}", server.log());
        // All that was acknowledged is there, what was dirty a moment ago too.
        for seed in 1..=round as u64 + 1 {
            let report = user.reload(&chain(seed, PAGES)).await?;
            ensure!(report.pages == PAGES, "{round}: {report:?}\n{}", server.log());
            ensure!(seed <= round as u64 || report.from_dram == 0, "{round}: {report:?}");
        }
    }
    load.end(&server).await?;
    // A start after a `kill -9` finds the other one's table as well.
    upgraded(&server, &next)?;
    user.settle().await?;
    server.kill()?;
    server.restart()?;
    ensure!(server.log().contains("the slot table has format 3, this server speaks 2"), "{}", server.log());
    let report = user.reload(&chain(1, PAGES)).await?;
    ensure!((report.pages, report.from_dram) == (PAGES, 0), "{report:?}\n{}", server.log());
    ensure!(user.client.stats().await?.corrupt_pages == 0);
    Ok(())
}
