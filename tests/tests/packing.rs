//! Pages are smaller on NVMe than in memory: a server holds more of them there, and each comes back to the byte, also after a kill
//! and under another setting.

use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::time::Duration;
use turnkv_client::{BlockHash, DataPlane, OffloadOptions, PageSource, PageTarget, ReloadOptions, TierKind};
use turnkv_tests::http::{free_address, get_soon, value};
use turnkv_tests::pages::{self, chain};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 128 << 10;
const PAGES: usize = 8;
/// Twice what the tier holds.
const CHAINS: u64 = 200;

fn setup(http: SocketAddr, codec: &str) -> Setup {
    let metrics = Some(http.to_string());
    let nvme = format!("codec = \"{codec}\"\n");
    Setup { metrics, dram_mib: 16, nvme_mib: 96, segment_mib: 4, nvme, ..Setup::default() }
}

/// bf16 values near zero, as caches have them: few exponents, signs and fractions at random.
fn values(hash: &BlockHash) -> Vec<u8> {
    let random = pages::bytes(hash, 2 * PAGE as usize);
    let value = |two: &[u8]| {
        let (exponent, rest) = (118 + two[0].count_ones() as u16, u16::from(two[1]));
        (exponent << 7 | rest & 0x7f | (rest & 0x80) << 8).to_le_bytes()
    };
    random.chunks_exact(4).flat_map(value).collect()
}

async fn store(user: &User, seed: u64) -> Result<()> {
    let hashes = chain(seed, PAGES);
    let bytes: Vec<Vec<u8>> = hashes.iter().map(values).collect();
    let sources: Vec<PageSource<'_>> = bytes.iter().map(|page| PageSource::Bytes(page)).collect();
    let options = OffloadOptions { wait: Duration::from_secs(20), ..OffloadOptions::default() };
    let report = user.namespace.offload(&options, &hashes, &sources).await?;
    ensure!(report.stored + report.declined == PAGES, "{report:?}");
    Ok(())
}

/// Reloads what is there of a chain, and compares every byte; how many pages that were.
async fn check(user: &User, seed: u64) -> Result<usize> {
    let hashes = chain(seed, PAGES);
    let mut bytes = vec![vec![0; PAGE as usize]; PAGES];
    let mut targets: Vec<PageTarget<'_>> = bytes.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
    let options = ReloadOptions { deadline: Some(Duration::from_secs(20)), ..ReloadOptions::default() };
    let report = user.namespace.reload(&options, &hashes, &mut targets).await?;
    for (hash, page) in hashes.iter().zip(&bytes).take(report.pages) {
        ensure!(*page == values(hash), "WRONG BYTES in chain {seed}");
    }
    Ok(report.pages)
}

async fn pages_on_nvme(user: &User) -> Result<u64> {
    let stats = user.client.stats().await?;
    let nvme = stats.tiers.iter().find(|tier| tier.tier() == TierKind::Nvme).context("an NVMe tier")?;
    Ok(nvme.pages)
}

/// Fills a server's NVMe under a setting; how many pages it has in the end.
async fn fill(codec: &str) -> Result<(Server, u64)> {
    let http = free_address()?;
    let server = Server::start(setup(http, codec))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    for seed in 0..CHAINS {
        store(&user, seed).await?;
        user.settle().await?;
    }
    let metric = |series: &str| value(&get_soon(http, "/metrics")?.1, series);
    let (written, stored) =
        (metric("turnkv_nvme_written_bytes_total")?, metric("turnkv_nvme_stored_bytes_total")?);
    match codec {
        "none" => ensure!(stored == written, "{stored} of {written} bytes"),
        _ => ensure!(stored < written * 0.85, "{stored} of {written} bytes"),
    }
    let pages = pages_on_nvme(&user).await?;
    Ok((server, pages))
}

#[tokio::test(flavor = "multi_thread")]
async fn nvme_holds_more_of_what_shrinks() -> Result<()> {
    let (_plain, plain) = fill("none").await?;
    let (mut server, packed) = fill("codebook").await?;
    ensure!(packed * 100 >= plain * 125, "{packed} pages instead of {plain}\n{}", server.log());

    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let mut found = 0;
    for seed in 0..CHAINS {
        found += check(&user, seed).await?;
    }
    ensure!(found as u64 >= packed * 9 / 10, "{found} of {packed}");
    user.settle().await?;
    let before = pages_on_nvme(&user).await?;
    drop(user);
    server.kill()?;
    // What was packed is read whatever is packed from now on, and a start gives nothing up because it is told another size.
    server.restart_with(setup(free_address()?, "none"))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let mut again = 0;
    for seed in 0..CHAINS {
        again += check(&user, seed).await?;
    }
    ensure!(again as u64 >= before * 9 / 10, "{again} of {before} pages after a kill\n{}", server.log());
    Ok(())
}
