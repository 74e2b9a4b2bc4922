//! Pages over a network through a real server: turns, sessions, several clients, ends of either side, slow networks, a fallback.

use anyhow::{Result, ensure};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use turnkv_client::{Client, ClientConfig, DataPlane, OffloadOptions, TierKind};
use turnkv_proto::limits::RAILS_MAX;
use turnkv_tests::child::Running;
use turnkv_tests::counts;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::chain;
use turnkv_tests::proxy::{Fault, Proxy};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 96 << 10;
/// Busy machines get much of it.
const SOON: Duration = Duration::from_secs(30);

/// A server with a port, and that.
fn start(setup: Setup) -> Result<(Server, SocketAddr)> {
    let tcp = free_address()?;
    Ok((Server::start(Setup { tcp: Some(tcp.to_string()), ..setup })?, tcp))
}

async fn connect(at: SocketAddr, page_bytes: u64) -> Result<User> {
    User::connect(&format!("tcp://{at}"), DataPlane::Framed, page_bytes).await
}

async fn slots_are_back(server: &Server) -> Result<()> {
    counts::slots_are_back(server, SOON).await
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_come_back_from_both_tiers() -> Result<()> {
    let (server, tcp) = start(Setup::default())?;
    let user = connect(tcp, PAGE).await?;
    let hashes = chain(1, 40);
    user.go_and_come_back(&hashes).await?;
    let durable = OffloadOptions { durable: true, ..OffloadOptions::default() };
    ensure!(user.offload(&durable, &hashes).await?.durable, "for pages that were there already");
    ensure!(user.offload(&durable, &chain(2, 4)).await?.durable, "for pages that arrive");
    user.settle().await?;
    user.client.evict(None, Some(TierKind::Dram)).await?;
    let report = user.reload(&hashes).await?;
    ensure!((report.pages, report.from_nvme) == (40, 40), "{report:?}");
    ensure!(user.client.state().data_rails >= 1, "pages went otherwise: {:?}", user.client.state());
    let local = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    ensure!(local.reload(&hashes).await?.pages == 40, "one pool, whichever the door");
    slots_are_back(&server).await
}

/// A client that was told that its rail is joined may be asked for its pages at once.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_call_of_a_client_finds_its_rail() -> Result<()> {
    let (server, tcp) = start(Setup::default())?;
    for number in 0..200 {
        let user = connect(tcp, PAGE).await?;
        // More than a request carries.
        let report = user.offload(&OffloadOptions::default(), &chain(number, 6)).await?;
        ensure!(report.stored == 6, "client {number}: {report:?}");
    }
    slots_are_back(&server).await
}

/// Rails swallow what they are given here; the first connection speaks gRPC, the second frames.
#[tokio::test(flavor = "multi_thread")]
async fn small_calls_carry_their_pages_and_large_ones_need_a_rail() -> Result<()> {
    let (_server, tcp) = start(Setup::default())?;
    let swallow = |number| if number < 2 { Fault::None } else { Fault::Vanish(1_000) };
    let proxy = Proxy::to(tcp, move |number| (swallow(number), swallow(number)))?;
    let user = connect(proxy.address(), PAGE).await?;
    let hashes = chain(10, 5);
    ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.stored == 5);
    ensure!(user.reload(&hashes).await?.pages == 5);
    let options = OffloadOptions { deadline: Some(Duration::from_secs(1)), ..OffloadOptions::default() };
    let large = user.offload(&options, &chain(11, 6)).await;
    ensure!(large.is_err() || large.is_ok_and(|report| report.stored == 0), "it went otherwise");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_turns_of_sessions_of_four_clients() -> Result<()> {
    let metrics = free_address()?;
    let setup = Setup { dram_mib: 128, metrics: Some(metrics.to_string()), ..Setup::default() };
    let (server, tcp) = start(setup)?;
    let turns = |number: u64| async move {
        let user = connect(tcp, PAGE).await?;
        let name = format!("chat-{number}");
        let options = || OffloadOptions { session: Some(name.clone()), ..OffloadOptions::default() };
        let hashes = chain(number, 60);
        user.namespace.begin_turn(&name).await?;
        ensure!(user.offload(&options(), &hashes[..30]).await?.stored == 30);
        let turn = user.namespace.begin_turn(&name).await?;
        ensure!((turn.turn, turn.pages) == (2, 30), "{turn:?}");
        ensure!(user.reload(&hashes[..30]).await?.pages == 30);
        let report = user.offload(&options(), &hashes).await?;
        ensure!((report.stored, report.present) == (30, 30), "{report:?}");
        ensure!(user.reload(&hashes).await?.pages == 60);
        anyhow::Ok(())
    };
    let clients: Vec<_> = (1..=4).map(|number| tokio::spawn(turns(number))).collect();
    for client in clients {
        client.await??;
    }
    slots_are_back(&server).await?;
    let page = get(metrics, "/metrics")?.1;
    let moved = |way: &str| {
        value(&page, &format!("turnkv_remote_moved_bytes_total{{fabric=\"framed\",direction=\"{way}\"}}"))
    };
    ensure!(moved("read")? == (4 * 60 * PAGE) as f64, "{}", moved("read")?);
    ensure!(moved("written")? == (4 * 90 * PAGE) as f64, "{}", moved("written")?);
    ensure!(value(&page, "turnkv_remote_inflight_bytes")? == 0.0);
    Ok(())
}

/// A window goes in pieces of 4 MiB, each copied over the last but one: of every length, behind every prefix that is there already.
#[tokio::test(flavor = "multi_thread")]
async fn pieces_of_a_window_arrive_whole_whatever_is_there_already() -> Result<()> {
    let (server, tcp) = start(Setup { dram_mib: 768, nvme_mib: 0, ..Setup::default() })?;
    let (user, options) = (connect(tcp, 1 << 20).await?, OffloadOptions::default());
    let mut seed = 0;
    for pages in [1, 3, 4, 5, 8, 9, 11, 14] {
        for there in [0, 1, 3, 4, 5, 7, 13].into_iter().filter(|there| *there < pages) {
            seed += 1;
            let hashes = chain(seed, pages);
            user.offload(&options, &hashes[..there]).await?;
            let report = user.offload(&options, &hashes).await?;
            let told = (report.stored, report.present, report.declined);
            ensure!(told == (pages - there, there, 0), "{pages} pages, {there} there: {report:?}");
            ensure!(user.reload(&hashes).await?.pages == pages, "{pages} pages, {there} there");
        }
    }
    slots_are_back(&server).await
}

/// What fits is kept and told, piece after piece, and the rest is declined.
#[tokio::test(flavor = "multi_thread")]
async fn pieces_that_find_no_room_end_an_offload() -> Result<()> {
    let (server, tcp) = start(Setup { dram_mib: 24, nvme_mib: 0, ..Setup::default() })?;
    let user = connect(tcp, 1 << 20).await?;
    let hashes = chain(1, 40);
    let report = user.offload(&OffloadOptions::default(), &hashes).await?;
    ensure!(report.stored > 4 && report.stored + report.declined == 40 && report.declined > 0, "{report:?}");
    ensure!(user.reload(&hashes[..report.stored]).await?.pages == report.stored, "{report:?}");
    slots_are_back(&server).await
}

#[tokio::test(flavor = "multi_thread")]
async fn large_pages_are_striped_and_shards_go_together() -> Result<()> {
    let (server, tcp) = start(Setup { dram_mib: 256, nvme_mib: 0, ..Setup::default() })?;
    let user = connect(tcp, 4 << 20).await?;
    let hashes = chain(5, 12);
    for _ in 0..4 {
        ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.declined == 0);
        ensure!(user.reload(&hashes).await?.pages == 12);
    }
    ensure!(user.client.state().data_rails > 1, "large transfers have several rails");
    slots_are_back(&server).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_killed_leaves_no_slot_behind() -> Result<()> {
    let (server, tcp) = start(Setup { dram_mib: 64, ..Setup::default() })?;
    let user = connect(tcp, 128 << 10).await?;
    for number in 0..6u64 {
        let seed = 900 + number;
        let mut victim = Command::new(env!("CARGO_BIN_EXE_victim"));
        let mut child = Running::start(victim.args([format!("tcp://{tcp}"), seed.to_string()]))?;
        tokio::time::sleep(Duration::from_millis(60 + number * 45)).await;
        child.kill()?;
        child.wait()?;
        user.reload(&chain(seed, 64)).await?; // checks every byte
        slots_are_back(&server).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_is_found_again() -> Result<()> {
    let (mut server, tcp) = start(Setup::default())?;
    let user = connect(tcp, PAGE).await?;
    let hashes = chain(3, 20);
    let durable = OffloadOptions { durable: true, ..OffloadOptions::default() };
    ensure!(user.offload(&durable, &hashes).await?.durable);
    server.kill()?;
    let began = Instant::now();
    ensure!(user.reload(&hashes).await.is_err(), "nobody is there");
    ensure!(began.elapsed() < Duration::from_secs(5), "it said so late: {:?}", began.elapsed());
    server.restart()?;
    let began = Instant::now();
    loop {
        // The breaker may be open for a second.
        match user.reload(&hashes).await {
            Ok(report) => {
                ensure!(report.pages == 20, "{report:?}");
                return Ok(());
            }
            Err(error) => ensure!(began.elapsed() < SOON, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_dropped_leaves_nothing_behind() -> Result<()> {
    let (server, tcp) = start(Setup { dram_mib: 128, ..Setup::default() })?;
    let proxy = Proxy::to(tcp, |_| (Fault::Slow(32 << 10, Duration::from_millis(1)), Fault::None))?;
    let user = connect(proxy.address(), 1 << 20).await?;
    let hashes = chain(4, 24);
    for after_ms in [1, 5, 20, 60, 120] {
        let options = OffloadOptions::default();
        let offload = user.offload(&options, &hashes);
        let cut = tokio::time::timeout(Duration::from_millis(after_ms), offload).await;
        ensure!(cut.is_err(), "too fast a network for this test");
        user.reload(&hashes).await?; // checks the bytes of what is there
    }
    slots_are_back(&server).await?;
    ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.declined == 0, "it goes on");
    Ok(())
}

/// A rail that ended at the client's end alone, however that came, is none of its rails.
#[tokio::test(flavor = "multi_thread")]
async fn rails_that_the_server_does_not_see_end_take_no_room() -> Result<()> {
    let (server, tcp) = start(Setup { dram_mib: 128, ..Setup::default() })?;
    let healed = Arc::new(AtomicBool::new(false));
    let well = Arc::clone(&healed);
    // More than a control connection carries here.
    let vanish = move |_| {
        (if well.load(Ordering::Relaxed) { Fault::None } else { Fault::Vanish(300 << 10) }, Fault::None)
    };
    let proxy = Proxy::to(tcp, vanish)?;
    let user = connect(proxy.address(), 1 << 20).await?;
    for number in 0..2 * RAILS_MAX as u64 {
        let (options, hashes) = (OffloadOptions::default(), chain(100 + number, 4));
        let offload = user.offload(&options, &hashes);
        let cut = tokio::time::timeout(Duration::from_millis(200), offload).await;
        ensure!(cut.is_err(), "call {number} ended: {cut:?}");
    }
    healed.store(true, Ordering::Relaxed);
    // On a busy machine the last rail may have swallowed nothing yet: one more call finds that out.
    let options = OffloadOptions { deadline: Some(Duration::from_secs(2)), ..OffloadOptions::default() };
    let (hashes, began) = (chain(99, 24), Instant::now());
    loop {
        let offload = user.offload(&options, &hashes).await;
        if offload.as_ref().is_ok_and(|report| report.declined == 0) {
            break;
        }
        ensure!(began.elapsed() < SOON, "it does not go on: {offload:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    slots_are_back(&server).await
}

/// Leases last half a second; the transfer takes longer, and is never without progress.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_network_is_cut_by_progress_and_not_by_time() -> Result<()> {
    let limits = "lease_ms = 500\nlease_grace_ms = 100\n".to_owned();
    let (server, tcp) = start(Setup { dram_mib: 64, nvme_mib: 0, limits, ..Setup::default() })?;
    let slow = Fault::Slow(16 << 10, Duration::from_millis(8));
    let proxy = Proxy::to(tcp, move |_| (slow, slow))?;
    let user = connect(proxy.address(), 256 << 10).await?;
    let hashes = chain(6, 16);
    let began = Instant::now();
    let report = user.offload(&OffloadOptions::default(), &hashes).await?;
    ensure!(report.stored == 16, "{report:?}");
    ensure!(began.elapsed() > Duration::from_millis(1_000), "too fast a network for this test");
    ensure!(user.reload(&hashes).await?.pages == 16);
    slots_are_back(&server).await
}

/// The server's rails see nothing for as long as they wait; slots are back then, not before.
#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_vanishes_gives_slots_back_when_its_rails_are_dead() -> Result<()> {
    let limits = "lease_ms = 300\nlease_grace_ms = 100\n".to_owned();
    let (server, tcp) = start(Setup { dram_mib: 64, nvme_mib: 0, limits, ..Setup::default() })?;
    let proxy = Proxy::to(tcp, |_| (Fault::Slow(16 << 10, Duration::from_millis(4)), Fault::None))?;
    let user = connect(proxy.address(), 1 << 20).await?;
    let hashes = chain(8, 16);
    let options = OffloadOptions { deadline: Some(Duration::from_secs(2)), ..OffloadOptions::default() };
    let offload = user.offload(&options, &hashes);
    let vanish = async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        proxy.partition(true);
        tokio::time::sleep(Duration::from_millis(900)).await;
        // Leases are three times overdue by now, and the transfers may still go on.
        let local = Client::new(ClientConfig::at(server.address()))?;
        let now = local.stats().await?;
        ensure!(
            now.tiers[0].leased_bytes > 0,
            "slots were given back while transfers may touch them: {now:?}"
        );
        anyhow::Ok(())
    };
    let began = Instant::now();
    let (offloaded, vanished) = tokio::join!(offload, vanish);
    vanished?;
    ensure!(offloaded.is_err() || offloaded.is_ok_and(|report| report.declined > 0));
    ensure!(began.elapsed() < Duration::from_secs(4), "over its deadline: {:?}", began.elapsed());
    slots_are_back(&server).await
}

/// A server that speaks gRPC only, on the port of one that speaks both.
#[tokio::test(flavor = "multi_thread")]
async fn pages_go_inline_where_no_frames_are_spoken() -> Result<()> {
    let metrics = free_address()?;
    let (_server, tcp) = start(Setup { metrics: Some(metrics.to_string()), ..Setup::default() })?;
    // To whoever says anything but HTTP/2, a gRPC server answers with its settings and the end.
    let old = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let at = old.local_addr()?;
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        while let Ok((mut client, _)) = old.accept().await {
            tokio::spawn(async move {
                let mut first = [0; 4];
                client.peek(&mut first).await?;
                if &first != b"PRI " {
                    client.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).await?;
                    return client.shutdown().await;
                }
                let mut server = tokio::net::TcpStream::connect(tcp).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
            });
        }
    });
    let user = User::connect(&format!("tcp://{at}"), DataPlane::Auto, PAGE).await?;
    let hashes = chain(9, 8);
    ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.stored == 8);
    ensure!(user.reload(&hashes).await?.pages == 8);
    ensure!(user.client.state().data_rails == 0);
    let page = get(metrics, "/metrics")?.1;
    ensure!(value(&page, "turnkv_remote_moved_bytes_total{fabric=\"framed\",direction=\"read\"}")? == 0.0);
    let only = User::connect(&format!("tcp://{at}"), DataPlane::Framed, PAGE).await?;
    ensure!(only.reload(&hashes).await.is_err(), "whoever wants frames alone is told");
    Ok(())
}

/// Bits that turn in what a server says first are no reason to do without the checks that frames have.
#[tokio::test(flavor = "multi_thread")]
async fn pages_go_in_frames_though_the_first_ones_were_damaged() -> Result<()> {
    let (_server, tcp) = start(Setup::default())?;
    // The first connection speaks gRPC, the next ones frames: a header of eight bytes, then an answer to Hello.
    let damaged = 1..4;
    let plan = move |number| match damaged.contains(&number) {
        true => (Fault::None, Fault::Flip(8 * 12 + number)),
        false => (Fault::None, Fault::None),
    };
    let proxy = Proxy::to(tcp, plan)?;
    let user = User::connect(&format!("tcp://{}", proxy.address()), DataPlane::Auto, PAGE).await?;
    let (hashes, began) = (chain(9, 8), Instant::now());
    while !user.offload(&OffloadOptions::default(), &hashes).await.is_ok_and(|report| report.stored == 8) {
        ensure!(
            began.elapsed() < Duration::from_secs(30),
            "nothing goes any more: {:?}",
            user.client.state()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(user.client.state().data_rails > 0, "its pages go unchecked: {:?}", user.client.state());
    Ok(())
}
