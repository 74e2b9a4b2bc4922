//! Pages in memory with an owner, which go over a network without a copy of the client's: every byte and none beside it, however they lie;
//! a call that is dropped leaves them to their owner at once.

use anyhow::{Result, ensure};
use std::net::SocketAddr;
use std::time::Duration;
use turnkv_client::{
    BlockHash, DataPlane, OffloadOptions, PageMemory, PageSource, PageTarget, Plane, ReloadOptions,
};
use turnkv_tests::http::free_address;
use turnkv_tests::own::OwnMemory;
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::proxy::{Fault, Proxy};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: usize = 32 << 10;
/// More than a request or an answer carries, and than a call may name regions.
const PAGES: usize = 80;
const NOBODYS: u8 = 0xa5;

fn start() -> Result<(Server, SocketAddr)> {
    let tcp = free_address()?;
    let server = Server::start(Setup { nvme_mib: 0, tcp: Some(tcp.to_string()), ..Setup::default() })?;
    Ok((server, tcp))
}

async fn through(address: SocketAddr) -> Result<User> {
    User::connect(&format!("tcp://{address}"), DataPlane::Auto, PAGE as u64).await
}

/// Places of so many pages among twice as many and one, the rest of which is nobody's.
fn ways(pages: usize) -> [(&'static str, Vec<usize>); 4] {
    [
        ("side by side", (1..=pages).collect()),
        ("one in two", (0..pages).map(|page| 2 * page + 1).collect()),
        ("backwards", (0..pages).map(|page| pages - page).collect()),
        ("in two halves", (0..pages).map(|page| page + 1 + page / (pages / 2) * (pages / 4)).collect()),
    ]
}

fn nobodys() -> Result<OwnMemory> {
    let own = OwnMemory::new(2 * PAGES + 1, PAGE)?;
    (0..=2 * PAGES).try_for_each(|at| own.fill(at, &[NOBODYS; PAGE]))?;
    Ok(own)
}

async fn offload(user: &User, hashes: &[BlockHash], from: &[PageMemory]) -> Result<Option<Plane>> {
    let sources: Vec<PageSource<'_>> = from.iter().map(PageSource::Memory).collect();
    let report = user.namespace.offload(&OffloadOptions::default(), hashes, &sources).await?;
    ensure!(report.stored == hashes.len(), "{report:?}");
    Ok(report.plane)
}

async fn go_and_come_back(user: &User, hashes: &[BlockHash], places: &[usize]) -> Result<Option<Plane>> {
    let (from, to) = (nobodys()?, nobodys()?);
    for (hash, at) in hashes.iter().zip(places) {
        from.fill(*at, &bytes(hash, PAGE))?;
    }
    let plane = offload(user, hashes, &from.pages(places.iter().copied())?).await?;
    let memory = to.pages(places.iter().copied())?;
    let mut targets: Vec<PageTarget<'_>> = memory.iter().map(PageTarget::Memory).collect();
    let report = user.namespace.reload(&ReloadOptions::default(), hashes, &mut targets).await?;
    drop(memory);
    ensure!((report.pages, report.plane) == (hashes.len(), plane), "{report:?}");
    for at in 0..=2 * PAGES {
        let wanted = places.iter().position(|place| *place == at);
        let wanted = wanted.map_or_else(|| vec![NOBODYS; PAGE], |page| bytes(&hashes[page], PAGE));
        ensure!(to.read(at)? == wanted, "place {at} does not hold what it should");
        ensure!(from.read(at)? == wanted, "place {at} of the source was written");
    }
    ensure!(from.is_alone() && to.is_alone(), "pages stay lent");
    Ok(plane)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_come_back_to_the_byte_however_they_lie_and_travel() -> Result<()> {
    let (server, tcp) = start()?;
    let far = through(tcp).await?;
    let inline = User::connect(&format!("tcp://{tcp}"), DataPlane::Inline, PAGE as u64).await?;
    let near = User::connect(&server.address(), DataPlane::Shm, PAGE as u64).await?;
    let side_by_side = &ways(PAGES)[0].1;
    ensure!(go_and_come_back(&far, &chain(99, PAGES), side_by_side).await? == Some(Plane::Framed));
    ensure!(
        !std::fs::read_to_string("/proc/self/maps")?.contains("turnkv-staging"),
        "the client copied them"
    );
    let mut number = 0;
    for pages in [4, PAGES] {
        for (way, places) in ways(pages) {
            for (user, plane) in [(&far, Plane::Framed), (&inline, Plane::Inline), (&near, Plane::Shm)] {
                number += 1;
                let went = go_and_come_back(user, &chain(number, pages), &places).await?;
                ensure!(went == Some(plane), "{pages} {way}: {went:?}");
            }
        }
    }
    ensure!(far.client.stats().await?.leases == 0, "{}", server.log());
    let (own, hashes) = (OwnMemory::new(2, PAGE)?, chain(number, 2));
    let memory = own.pages([1, 1])?;
    let mut targets: Vec<PageTarget<'_>> = memory.iter().map(PageTarget::Memory).collect();
    let refused = near.namespace.reload(&ReloadOptions::default(), &hashes, &mut targets).await;
    let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(refused.contains("overlap"), "one page would be written over another: {refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dropped_offload_had_lent_is_its_owners_to_change() -> Result<()> {
    let (server, tcp) = start()?;
    let near = User::connect(&server.address(), DataPlane::Shm, PAGE as u64).await?;
    let slow = |number| {
        let pace = Fault::Slow(8 << 10, Duration::from_millis(1));
        (if number < 2 { Fault::None } else { pace }, Fault::None)
    };
    let mut dropped = 0;
    for (round, waits_ms) in [2, 10, 30, 60, 120, 240, 400].into_iter().enumerate() {
        let proxy = Proxy::to(tcp, slow)?;
        let (user, hashes) = (through(proxy.address()).await?, chain(100 + round as u64, PAGES));
        let truths: Vec<Vec<u8>> = hashes.iter().map(|hash| bytes(hash, PAGE)).collect();
        let own = OwnMemory::of(&truths)?;
        let memory = own.pages(0..PAGES)?;
        let call = offload(&user, &hashes, &memory);
        dropped += usize::from(tokio::time::timeout(Duration::from_millis(waits_ms), call).await.is_err());
        drop(memory);
        ensure!(own.is_alone(), "pages stay lent after {waits_ms} ms");
        // Its owner puts something else there.
        (0..PAGES).try_for_each(|at| own.fill(at, &[7; PAGE]))?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        // What the pool took is what the pages were: nothing of what was put there since.
        near.reload(&hashes).await?;
    }
    ensure!(dropped > 1, "no call was under way when it was dropped");
    let (user, hashes) = (through(tcp).await?, chain(99, PAGES));
    ensure!(go_and_come_back(&user, &hashes, &ways(PAGES)[0].1).await? == Some(Plane::Framed));
    ensure!(near.client.stats().await?.leases == 0, "{}", server.log());
    Ok(())
}
