//! Pages over NICs through a real server and clients in other processes: sessions to the byte, ends of either side, rails that die,
//! what happens where one end lacks the library.
//!
//! Over libfabric's provider for TCP, with the library that `server/transfer/setup_libfabric.sh` puts into `.tools/libfabric` (or
//! `TURNKV_LIBFABRIC` names): each test runs once more in a process that finds it. With `TURNKV_RDMA` set, over verbs on this machine's
//! device (`tests/rdma/run.sh`). Without either, a test says on stderr that it was left out.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Write;
use std::time::{Duration, Instant};
use turnkv_client::{Client, ClientConfig, Fabric, FabricChoice, OffloadOptions, StatsReply, TierKind};
use turnkv_tests::fabric::{Rig, SOON, choice, connect_to, fabric, provider, with_fabric};
use turnkv_tests::pages::chain;
use turnkv_tests::server::Setup;

const VICTIM: &str = env!("CARGO_BIN_EXE_victim");
const PAGE: u64 = 96 << 10;
/// All that a client lends, and what a library may keep of it before the client ends its rails (docs/reference/limits.md).
const LENT_BYTES_MAX: usize = 256 << 20;
const KEPT_BYTES_MAX: usize = 64 << 20;

#[test]
fn whole_sessions_go_and_come_back() -> Result<()> {
    with_fabric("whole_sessions_go_and_come_back", async {
        let rig = Rig::with_nics(Setup { dram_mib: 192, ..Setup::default() })?;
        let mut bytes = 0;
        // Pages of one operation, of several stripes, and of an odd size.
        for (seed, page, count) in [(1, PAGE, 60), (2, 4 << 20, 8), (3, (1 << 20) + 4096, 10)] {
            let user = rig.connect(choice(), page).await?;
            let name = format!("chat-{seed}");
            let options = || OffloadOptions { session: Some(name.clone()), ..OffloadOptions::default() };
            let hashes = chain(seed, count);
            user.namespace.begin_turn(&name).await?;
            ensure!(user.offload(&options(), &hashes[..count / 2]).await?.stored == count / 2);
            user.namespace.begin_turn(&name).await?;
            ensure!(user.reload(&hashes[..count / 2]).await?.pages == count / 2);
            let report = user.offload(&options(), &hashes).await?;
            ensure!((report.stored, report.present) == (count - count / 2, count / 2), "{report:?}");
            ensure!(user.reload(&hashes).await?.pages == count);
            user.settle().await?;
            user.client.evict(None, Some(TierKind::Dram)).await?;
            let report = user.reload(&hashes).await?;
            ensure!((report.pages, report.from_nvme) == (count, count), "{report:?}");
            ensure!(user.client.state().fabric == Some(fabric()), "{:?}", user.client.state());
            bytes += count as u64 * page;
        }
        ensure!(rig.moved(fabric(), "read")? == bytes as f64, "{}", rig.moved(fabric(), "read")?);
        ensure!(rig.moved(Fabric::Framed, "read")? + rig.moved(Fabric::Framed, "written")? == 0.0);
        rig.slots_are_back().await?;
        let stats = Client::new(ClientConfig::at(rig.server.address()))?.stats().await?;
        let shown = stats.fabrics.iter().find(|shown| shown.fabric == fabric().name());
        let shown = shown.context("the status names the fabric")?;
        ensure!(shown.read_bytes == bytes && shown.nics.len() == 1 && shown.known_slabs > 0, "{shown:?}");
        Ok(())
    })
}

/// Some of what libfabric loads ends the process at the first SIGTERM, if it is let.
#[test]
fn a_server_with_the_library_drains_before_it_leaves() -> Result<()> {
    with_fabric("a_server_with_the_library_drains_before_it_leaves", async {
        let mut rig = Rig::with_nics(Setup { dram_mib: 64, ..Setup::default() })?;
        let user = rig.connect(choice(), PAGE).await?;
        let hashes = chain(9, 200);
        ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.stored == 200);
        rig.server.terminate()?;
        rig.server.restart()?;
        let user = rig.connect(choice(), PAGE).await?;
        ensure!(user.reload(&hashes).await?.pages == 200);
        Ok(())
    })
}

/// The first calls go framed; the NIC takes over without anybody's doing.
#[test]
fn a_nic_is_found_and_used() -> Result<()> {
    with_fabric("a_nic_is_found_and_used", async {
        let rig = Rig::with_nics(Setup::default())?;
        let user = rig.connect(FabricChoice::Auto, PAGE).await?;
        let hashes = chain(4, 12);
        ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.stored == 12);
        let began = Instant::now();
        while rig.moved(fabric(), "written")? == 0.0 {
            ensure!(user.reload(&hashes).await?.pages == 12);
            ensure!(began.elapsed() < SOON, "{:?}\n{}", user.client.state(), rig.server.log());
        }
        let framed = rig.moved(Fabric::Framed, "written")?;
        for _ in 0..20 {
            ensure!(user.reload(&hashes).await?.pages == 12);
        }
        ensure!(rig.moved(Fabric::Framed, "written")? == framed, "both are there, and the faster is taken");
        ensure!(user.client.state().fabric == Some(fabric()));
        rig.slots_are_back().await
    })
}

#[test]
fn a_client_that_is_killed_leaves_no_slot_behind() -> Result<()> {
    with_fabric("a_client_that_is_killed_leaves_no_slot_behind", async {
        let rig = Rig::with_nics(Setup { dram_mib: 64, ..Setup::default() })?;
        let user = rig.connect(choice(), 128 << 10).await?;
        for number in 0..5u64 {
            let (seed, before) = (900 + number, rig.moved(fabric(), "read")?);
            let mut child = rig.victim(VICTIM, seed)?;
            let began = Instant::now();
            while rig.moved(fabric(), "read")? == before {
                ensure!(began.elapsed() < SOON, "the client moves nothing");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(Duration::from_millis(number * 20)).await;
            child.kill()?;
            child.wait()?;
            user.reload(&chain(seed, 64)).await?; // checks every byte
            rig.slots_are_back().await?;
        }
        ensure!(rig.rails(fabric())? >= 1.0, "the other client's");
        Ok(())
    })
}

#[test]
fn a_server_that_is_killed_is_found_again() -> Result<()> {
    with_fabric("a_server_that_is_killed_is_found_again", async {
        let mut rig = Rig::with_nics(Setup::default())?;
        let user = rig.connect(choice(), PAGE).await?;
        let hashes = chain(3, 20);
        let durable = OffloadOptions { durable: true, ..OffloadOptions::default() };
        ensure!(user.offload(&durable, &hashes).await?.durable);
        rig.server.kill()?;
        ensure!(user.reload(&hashes).await.is_err(), "nobody is there");
        rig.server.restart()?;
        let began = Instant::now();
        while let Err(error) = user.reload(&hashes).await {
            // The breaker may be open for a second.
            ensure!(began.elapsed() < SOON, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        ensure!(user.reload(&hashes).await?.pages == 20);
        ensure!(rig.moved(fabric(), "written")? > 0.0, "by the fabric again");
        rig.slots_are_back().await
    })
}

/// A client that is stopped for longer than a transfer may go without progress: its rail is ended by the server, which it cannot
/// see, and it opens another.
#[test]
fn a_rail_that_died_comes_back() -> Result<()> {
    with_fabric("a_rail_that_died_comes_back", async {
        let limits = "lease_ms = 300\nlease_grace_ms = 100\n".to_owned();
        let rig = Rig::with_nics(Setup { dram_mib: 64, nvme_mib: 0, limits, ..Setup::default() })?;
        let mut child = rig.victim(VICTIM, 40)?;
        let began = Instant::now();
        while rig.moved(fabric(), "read")? == 0.0 {
            ensure!(began.elapsed() < SOON, "the client moves nothing");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let pid = Pid::from_raw(child.id().try_into()?).context("pid 0")?;
        kill_process(pid, Signal::STOP)?;
        tokio::time::sleep(Duration::from_secs(13)).await;
        rig.slots_are_back().await?;
        let before = rig.moved(fabric(), "read")?;
        kill_process(pid, Signal::CONT)?;
        let began = Instant::now();
        while rig.moved(fabric(), "read")? <= before {
            if let Some(status) = child.try_wait()? {
                // Its call failed, as it may: another client finds the rails as good as new.
                ensure!(!status.success());
                child = rig.victim(VICTIM, 41)?;
            }
            ensure!(began.elapsed() < SOON, "no rail came back: {}", rig.server.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        child.kill()?;
        child.wait()?;
        rig.slots_are_back().await
    })
}

/// Calls that are dropped in the middle leave memory with the library; nothing is wrong after, and it does not grow without bound.
#[test]
fn dropped_calls_leave_nothing_wrong_behind() -> Result<()> {
    with_fabric("dropped_calls_leave_nothing_wrong_behind", async {
        let rig = Rig::with_nics(Setup { dram_mib: 128, nvme_mib: 0, ..Setup::default() })?;
        let user = rig.connect(choice(), 1 << 20).await?;
        let hashes = chain(5, 40);
        for round in 0..12u64 {
            let options = OffloadOptions::default();
            let offload = user.offload(&options, &hashes);
            drop(tokio::time::timeout(Duration::from_millis(1 + 7 * round), offload).await);
            drop(tokio::time::timeout(Duration::from_millis(2 + 5 * round), user.reload(&hashes)).await);
            ensure!(user.client.state().quarantined_bytes <= LENT_BYTES_MAX, "{:?}", user.client.state());
            user.client.evict(None, None).await?;
        }
        // Too much of it ends the rails at the next call, and their ends free it.
        let began = Instant::now();
        while user.client.state().quarantined_bytes > KEPT_BYTES_MAX {
            user.reload(&hashes[..1]).await?;
            ensure!(began.elapsed() < SOON, "{:?}", user.client.state());
        }
        rig.slots_are_back().await?;
        ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.declined == 0, "it goes on");
        ensure!(user.reload(&hashes).await?.pages == 40);
        rig.slots_are_back().await
    })
}

/// Slabs that change their tenant get fresh memory: NICs know it, and let go of what was.
#[test]
fn a_slab_that_changes_its_tenant_is_known_anew() -> Result<()> {
    with_fabric("a_slab_that_changes_its_tenant_is_known_anew", async {
        let rig = Rig::with_nics(Setup { dram_mib: 16, nvme_mib: 0, ..Setup::default() })?;
        let slabs = |now: &StatsReply| {
            let shown = now.fabrics.iter().find(|shown| shown.fabric == fabric().name());
            shown.map_or((0, 0), |shown| (shown.known_slabs, shown.unknown_slabs))
        };
        rig.eventually("every slab is known", |now| slabs(now).0 > 1 && slabs(now).1 == 0).await?;
        for (seed, page) in [(1, 64 << 10), (2, 96 << 10), (3, 160 << 10), (4, 64 << 10)] {
            let user = rig.connect(choice(), page).await?;
            let hashes = chain(seed, 40);
            let report = user.offload(&OffloadOptions::default(), &hashes).await?;
            ensure!(report.stored > 0, "{report:?}");
            ensure!(user.reload(&hashes).await?.pages >= report.stored);
            user.client.evict(None, None).await?;
        }
        rig.slots_are_back().await?;
        rig.eventually("every slab is known", |now| slabs(now).0 > 1 && slabs(now).1 == 0).await?;
        ensure!(rig.moved(Fabric::Framed, "read")? == 0.0);
        Ok(())
    })
}

#[test]
fn a_server_without_the_library_takes_frames_and_says_what_it_has() -> Result<()> {
    if fabric() == Fabric::Verbs {
        return Ok(());
    }
    with_fabric("a_server_without_the_library_takes_frames_and_says_what_it_has", async {
        let environment = vec![("LD_LIBRARY_PATH", String::new())];
        let rig = Rig::start("", Setup { environment, ..Setup::default() })?;
        let user = rig.connect(FabricChoice::Auto, PAGE).await?;
        let hashes = chain(6, 8);
        ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.stored == 8);
        for _ in 0..10 {
            ensure!(user.reload(&hashes).await?.pages == 8);
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        ensure!(user.client.state().fabric == Some(Fabric::Framed), "{:?}", user.client.state());
        let only = rig.connect(choice(), PAGE).await?;
        let error = only.reload(&hashes).await.err().context("the server has no such fabric")?.to_string();
        ensure!(error.contains("rails over framed, not over libfabric"), "{error}");
        ensure!(
            rig.server.log().contains("pages of other hosts do not go by libfabric"),
            "{}",
            rig.server.log()
        );
        Ok(())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_the_library_takes_frames_and_says_why() -> Result<()> {
    if fabric() == Fabric::Verbs {
        return Ok(());
    }
    let rig = Rig::start("", Setup::default())?;
    let user = rig.connect(FabricChoice::Auto, PAGE).await?;
    let hashes = chain(7, 8);
    ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.stored == 8);
    ensure!(user.reload(&hashes).await?.pages == 8);
    ensure!(user.client.state().fabric == Some(Fabric::Framed), "{:?}", user.client.state());
    let began = Instant::now();
    while user.client.state().fabric_note.is_empty() {
        ensure!(began.elapsed() < SOON, "it does not say why");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let only = rig.connect(FabricChoice::Libfabric, PAGE).await?;
    let error = only.reload(&hashes).await.err().context("there is no library")?.to_string();
    ensure!(error.contains("libfabric"), "{error}");
    Ok(())
}

/// Frames alone load no library; a fabric that is named must be there.
#[test]
fn what_is_named_must_be_there_and_framed_alone_loads_nothing() -> Result<()> {
    with_fabric("what_is_named_must_be_there_and_framed_alone_loads_nothing", async {
        let rig = Rig::start("fabrics = [\"framed\"]", Setup::default())?;
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", rig.server.pid()))?;
        ensure!(!maps.contains("libfabric") && !maps.contains("libibverbs"), "a library was loaded");
        let named = format!("nics = [\"nonesuch\"]\nlibfabric_provider = \"{}\"", provider());
        for remote in [named.as_str(), "libfabric_provider = \"nonesuch\""] {
            let refused = Rig::start(remote, Setup::default()).err().context("it must not start")?;
            let said = format!("{refused:#}");
            ensure!(said.contains("nonesuch") || said.contains("libfabric"), "{said}");
        }
        Ok(())
    })
}

/// Names of NICs as libfabric's provider for TCP has them: interfaces with an address.
fn interfaces() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/class/net")? {
        let (name, up) = {
            let entry = entry?;
            (entry.file_name(), std::fs::read_to_string(entry.path().join("operstate"))?)
        };
        let name = name.to_string_lossy().into_owned();
        if name == "lo" || up.trim() == "up" {
            found.push(name);
        }
    }
    found.sort_by_key(|name| (name != "lo", name.clone()));
    Ok(found)
}

/// Two NICs at both ends: each has a rail, and pages go over both.
#[test]
fn two_nics_have_a_rail_each() -> Result<()> {
    let nics: Vec<String> = interfaces()?.into_iter().take(2).collect();
    if fabric() == Fabric::Verbs || nics.len() < 2 {
        writeln!(std::io::stderr(), "LEFT OUT: fabrics two_nics_have_a_rail_each: there is one NIC here")?;
        return Ok(());
    }
    with_fabric("two_nics_have_a_rail_each", async move {
        let remote = format!("libfabric_provider = \"{}\"\nnics = {nics:?}", provider());
        let rig = Rig::start(&remote, Setup { dram_mib: 96, nvme_mib: 0, ..Setup::default() })?;
        let user = rig.connect_over(choice(), &nics, 4 << 20).await?;
        let hashes = chain(8, 6);
        let began = Instant::now();
        while rig.rails(fabric())? < 2.0 {
            ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.declined == 0);
            ensure!(user.reload(&hashes).await?.pages == 6);
            ensure!(began.elapsed() < SOON, "{:?}\n{}", user.client.state(), rig.server.log());
        }
        for _ in 0..4 {
            user.client.evict(None, None).await?;
            ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.stored == 6);
            ensure!(user.reload(&hashes).await?.pages == 6);
        }
        let stats = Client::new(ClientConfig::at(rig.server.address()))?.stats().await?;
        let shown = stats.fabrics.iter().find(|shown| shown.fabric == fabric().name());
        let shown = shown.context("the status names the fabric")?;
        ensure!(shown.nics.len() == 2 && shown.rails == 2, "{shown:?}");
        ensure!(rig.moved(Fabric::Framed, "read")? == 0.0);
        rig.slots_are_back().await
    })
}

/// With a server on another machine, which `TURNKV_AT` names: its port, and whether the fabric is the one that is tested is what the
/// client says. Only `tests/rdma/run.sh` has such a server.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it wants a server on another machine"]
async fn sessions_with_another_machine() -> Result<()> {
    let at = std::env::var("TURNKV_AT").context("TURNKV_AT names no server")?;
    let began = Instant::now();
    let user = loop {
        match connect_to(&at, choice(), &[], 1 << 20).await {
            Ok(user) => break user,
            Err(error) => ensure!(began.elapsed() < 4 * SOON, "{at}: {error:#}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    for seed in 1..4 {
        let hashes = chain(seed, 16);
        let report = user.offload(&OffloadOptions::default(), &hashes).await?;
        ensure!(report.stored == 16, "{report:?}");
        ensure!(user.reload(&hashes).await?.pages == 16);
        ensure!(user.client.state().fabric == Some(fabric()), "{:?}", user.client.state());
    }
    let shown = user.client.stats().await?;
    let shown = shown.fabrics.iter().find(|shown| shown.fabric == fabric().name()).context("its fabric")?;
    ensure!(shown.read_bytes >= 48 << 20 && shown.written_bytes >= 48 << 20, "{shown:?}");
    Ok(())
}
