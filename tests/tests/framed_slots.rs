//! Pages that are reloaded over a network into slots, as a pool does that pulls them: each is where it belongs and no byte beside it, a
//! bit that turned costs a page, and a call that is dropped writes nothing any more.

use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use turnkv_client::{BlockHash, DataPlane, OffloadOptions, PageTarget, ReloadOptions, SlotTarget};
use turnkv_tests::http::free_address;
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::proxy::{Fault, Proxy};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_transfer::{HugePages, Region, RegionOptions, Slot};

const PAGE: usize = 128 << 10;
/// Slots one behind the other, with gaps, and backwards; nobody's slots are between them.
const PLACES: [usize; 12] = [1, 2, 3, 4, 6, 8, 9, 20, 19, 18, 30, 31];
const SLOTS: usize = 33;
const NOBODYS: u8 = 0xa5;

/// A pool's memory, as the client of another one sees it.
struct Memory {
    region: Arc<Region>,
}

impl Memory {
    fn new() -> Result<Memory> {
        let options = RegionOptions {
            bytes: SLOTS * PAGE,
            huge_pages: HugePages::Off,
            touch: false,
            lock: false,
            name: "turnkv-test".to_owned(),
        };
        let memory = Memory { region: Region::create(&options)?.0 };
        (0..SLOTS).try_for_each(|at| memory.fill(at, NOBODYS))?;
        Ok(memory)
    }

    fn slot(&self, at: usize) -> Result<Slot> {
        self.region.slot(at * PAGE, PAGE).context("a slot outside of the memory")
    }

    fn holds(&self, at: usize, byte: u8) -> Result<bool> {
        Ok(self.slot(at)?.page().to_vec() == [byte; PAGE])
    }

    fn fill(&self, at: usize, byte: u8) -> Result<()> {
        self.slot(at)?.claim()?.fill(&vec![byte; PAGE]);
        Ok(())
    }

    fn targets(&self) -> Result<Vec<SlotTarget>> {
        let target = |at: &usize| Ok(SlotTarget { page: self.slot(*at)?.claim()?, checksum: 0 });
        PLACES.iter().map(target).collect()
    }

    /// Nothing but the slots of the call was written.
    fn check_others(&self) -> Result<()> {
        for at in (0..SLOTS).filter(|at| !PLACES.contains(at)) {
            ensure!(self.holds(at, NOBODYS)?, "slot {at} was written");
        }
        Ok(())
    }

    /// Reloads into the slots; how many pages came. Every one of them is what it is said to be.
    async fn reload(&self, user: &User, hashes: &[BlockHash], deadline: Duration) -> Result<usize> {
        let mut slots = self.targets()?;
        let mut targets: Vec<PageTarget<'_>> = slots.iter_mut().map(PageTarget::Slot).collect();
        let options = ReloadOptions { deadline: Some(deadline), ..ReloadOptions::default() };
        let pages = match user.namespace.reload(&options, hashes, &mut targets).await {
            Ok(report) => report.pages,
            Err(_) => 0,
        };
        drop(targets);
        for (target, hash) in slots.into_iter().zip(hashes).take(pages) {
            let page = target.page.seal();
            ensure!(page.to_vec() == bytes(hash, PAGE), "WRONG BYTES of {hash:?}");
            ensure!(page.checksum() == target.checksum, "the checksum of other bytes");
        }
        self.check_others()?;
        Ok(pages)
    }
}

/// A server with these pages.
async fn filled(hashes: &[BlockHash]) -> Result<(Server, SocketAddr)> {
    let tcp = free_address()?;
    let server = Server::start(Setup { nvme_mib: 0, tcp: Some(tcp.to_string()), ..Setup::default() })?;
    let user = through(tcp).await?;
    ensure!(user.offload(&OffloadOptions::default(), hashes).await?.stored == hashes.len());
    Ok((server, tcp))
}

async fn through(address: SocketAddr) -> Result<User> {
    User::connect(&format!("tcp://{address}"), DataPlane::Auto, PAGE as u64).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_written_where_they_belong_and_nowhere_else() -> Result<()> {
    let hashes = chain(1, PLACES.len());
    let (server, tcp) = filled(&hashes[..PLACES.len() - 2]).await?;
    let (user, memory) = (through(tcp).await?, Memory::new()?);
    let deadline = Duration::from_secs(20);
    for _ in 0..8 {
        ensure!(memory.reload(&user, &hashes, deadline).await? == hashes.len() - 2, "{}", server.log());
        // What the pool does not have was asked for in vain.
        for at in &PLACES[PLACES.len() - 2..] {
            ensure!(memory.holds(*at, NOBODYS)?);
        }
    }
    ensure!(user.client.stats().await?.leases == 0, "{}", server.log());
    drop(user);
    ensure!(Arc::strong_count(&memory.region) == 1, "slots stay lent");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bit_that_turned_on_the_way_costs_a_page_at_most() -> Result<()> {
    let hashes = chain(2, PLACES.len());
    let (_server, tcp) = filled(&hashes).await?;
    let (memory, total) = (Memory::new()?, (PLACES.len() * PAGE * 8) as u64);
    let (mut whole, mut calls) = (0, 0);
    // The first two connections speak gRPC and frames; behind them are rails, on any of which it may come.
    for bit in (0..total).step_by(total as usize / 24 + 3) {
        let fault = move |number| (Fault::None, if number < 2 { Fault::None } else { Fault::Flip(bit) });
        let proxy = Proxy::to(tcp, fault)?;
        let user = through(proxy.address()).await?;
        whole += usize::from(memory.reload(&user, &hashes, Duration::from_secs(2)).await? == hashes.len());
        calls += 1;
    }
    ensure!(
        whole * 2 > calls,
        "pages that arrived damaged are asked for once more: {whole} of {calls} whole"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_dropped_writes_nothing_any_more() -> Result<()> {
    let hashes = chain(3, PLACES.len());
    let (server, tcp) = filled(&hashes).await?;
    let memory = Memory::new()?;
    let slow = |number| {
        let pace = Fault::Slow(8 << 10, Duration::from_millis(2));
        (Fault::None, if number < 2 { Fault::None } else { pace })
    };
    let mut touched = 0;
    for waits_ms in [5, 20, 40, 80, 120, 160, 200] {
        let proxy = Proxy::to(tcp, slow)?;
        let user = through(proxy.address()).await?;
        PLACES.iter().try_for_each(|at| memory.fill(*at, NOBODYS))?;
        let reload = memory.reload(&user, &hashes, Duration::from_secs(20));
        drop(tokio::time::timeout(Duration::from_millis(waits_ms), reload).await);
        for at in PLACES {
            touched += usize::from(!memory.holds(at, NOBODYS)?);
        }
        // From here on the slots are somebody else's.
        PLACES.iter().try_for_each(|at| memory.fill(*at, 7))?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        for at in PLACES {
            ensure!(memory.holds(at, 7)?, "slot {at} was written after {waits_ms} ms");
        }
        memory.check_others()?;
    }
    ensure!(touched > 0, "nothing was under way when calls were dropped");
    let plain = through(tcp).await?;
    ensure!(memory.reload(&plain, &hashes, Duration::from_secs(20)).await? == hashes.len());
    ensure!(plain.client.stats().await?.leases == 0, "{}", server.log());
    Ok(())
}
