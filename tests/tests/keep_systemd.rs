//! DRAM in systemd's descriptor store (`keep.dram = "systemd"`), with a systemd that the test plays: what it keeps is served from DRAM after
//! `kill -9`, a restart and an upgrade; a store that is too small, loses something or is gone costs pages and never a wrong byte, and
//! is said. `TURNKV_UPGRADES` sets how many upgrades there are under load (4 unless told).

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use turnkv_client::{CommitOptions, DataPlane, OffloadOptions, PageSpan, ReloadOptions};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::manager::Manager;
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const PAGE: u64 = 60 << 10;
const PAGES: usize = 6;
/// Of 32 MiB in slabs of 4 MiB; with table, catalog and two listening sockets.
const SLABS: usize = 8;
const ALL: usize = SLABS + 4;

/// A systemd whose store has so many places, in a folder that goes with it.
fn manager(room: usize) -> Result<(Arc<Manager>, TempDir)> {
    let folder = tempfile::tempdir()?;
    let place = folder.path().join("notify").display().to_string();
    Ok((Manager::new(env!("CARGO_BIN_EXE_managed"), &place, room)?, folder))
}

fn setup(manager: &Arc<Manager>) -> Setup {
    let dram = "slab_bytes = \"4MiB\"\n".to_owned();
    Setup { dram_mib: 32, nvme_mib: 0, dram, manager: Some(Arc::clone(manager)), ..Setup::default() }
}

async fn offload(server: &Server, seeds: std::ops::Range<u64>) -> Result<()> {
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    for seed in seeds {
        let report = user.offload(&OffloadOptions::default(), &chain(seed, PAGES)).await?;
        ensure!(report.stored + report.present == PAGES, "{report:?}");
    }
    Ok(())
}

/// How many of these pages are served, each byte checked.
async fn served(server: &Server, seeds: std::ops::Range<u64>) -> Result<usize> {
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let mut pages = 0;
    for seed in seeds {
        let report = user.reload(&chain(seed, PAGES)).await?;
        ensure!(report.pages == report.from_dram, "{report:?}");
        pages += report.pages;
    }
    ensure!(user.client.stats().await?.corrupt_pages == 0);
    Ok(pages)
}

fn in_time(what: &str, server: &Server, is: impl Fn() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(90);
    while !is()? {
        ensure!(Instant::now() < deadline, "{what}: {}", server.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn refused_descriptors(http: std::net::SocketAddr) -> Result<f64> {
    value(&get(http, "/metrics")?.1, "turnkv_keep_refused_descriptors")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_systemd_keeps_is_served_from_dram_after_kill_9_and_a_restart() -> Result<()> {
    let abstract_name = format!("@turnkv-test-{}", std::process::id());
    let (at_a_path, _folder) = manager(64)?;
    let without_a_file = Manager::new(env!("CARGO_BIN_EXE_managed"), &abstract_name, 64)?;
    for manager in [at_a_path, without_a_file] {
        let mut server = Server::start(setup(&manager))?;
        ensure!(!server.keep_socket().exists(), "no other process keeps");
        offload(&server, 1..20).await?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        user.namespace.begin_turn("s").await?;
        for round in 0..4 {
            // What is kept is what there is, and nothing of any life before.
            let names = manager.names();
            ensure!(names.len() == ALL, "{round}: {names:?}");
            ensure!(names.contains("slot-table") && names.contains("catalog"), "{names:?}");
            ensure!(names.iter().filter(|name| name.starts_with("listen-")).count() == 2, "{names:?}");
            if round % 2 == 0 {
                server.kill()?;
                // Who connects while nobody serves waits.
                let waiting = std::os::unix::net::UnixStream::connect(server.local_socket())?;
                server.restart()?;
                drop(waiting);
            } else {
                server.terminate()?;
                ensure!(!manager.names().iter().any(|name| name.starts_with("listen-")), "nobody waits");
                ensure!(std::os::unix::net::UnixStream::connect(server.local_socket()).is_err());
                server.restart()?;
            }
            ensure!(served(&server, 1..20).await? == 19 * PAGES, "{round}: {}", server.log());
            let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
            let kept = user.client.stats().await?.kept;
            ensure!(kept.contains("systemd keeps DRAM"), "{kept}");
        }
        let said = manager.said();
        ensure!(said.iter().filter(|text| *text == "READY=1").count() == 5, "{said:?}");
        ensure!(said.iter().filter(|text| *text == "STOPPING=1").count() == 2, "{said:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn systemd_is_told_when_settings_are_read_again() -> Result<()> {
    let (manager, _folder) = manager(64)?;
    let server = Server::start(setup(&manager))?;
    server.signal(Signal::HUP)?;
    let reloaded = |said: &[String]| {
        let us = |text: &String| text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=")?.parse::<u64>().ok();
        said.len() == 3 && said[0] == "READY=1" && us(&said[1]).is_some() && said[2] == "READY=1"
    };
    manager.is_told(reloaded)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_systemd_it_is_refused_before_anything_is_taken() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("turnkv.toml");
    let socket = folder.path().join("t.sock");
    let text = format!("listen = \"unix:{}\"\n[keep]\ndram = \"systemd\"\n", socket.display());
    std::fs::write(&config, text)?;
    for place in [None, Some(""), Some("vsock:2:99")] {
        let mut command = Command::new(server_binary()?);
        command.args(["serve", "--config"]).arg(&config).env_remove("NOTIFY_SOCKET");
        let output = command.envs(place.map(|place| ("NOTIFY_SOCKET", place))).output()?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(!output.status.success() && said.contains("NOTIFY_SOCKET"), "{said}");
        ensure!(said.contains("keep.dram = \"auto\""), "what to do: {said}");
        ensure!(!said.contains("page memory") && !socket.exists(), "{said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_room_keeps_nothing_and_says_how_much_it_needs() -> Result<()> {
    let (manager, _folder) = manager(2)?;
    let http = free_address()?;
    let setup = Setup { metrics: Some(http.to_string()), ..setup(&manager) };
    let mut server = Server::start(setup)?;
    offload(&server, 1..10).await?;
    ensure!(!manager.names().contains("slot-table") && !manager.names().contains("room"));
    let warned = server.log();
    let line = warned.lines().find(|line| line.contains("FileDescriptorStoreMax="));
    ensure!(line.is_some_and(|line| line.contains("WARN")), "{warned}");
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let stats = user.client.stats().await?;
    ensure!(stats.kept.is_empty(), "{}", stats.kept);
    ensure!(stats.notes.iter().any(|note| note.contains("FileDescriptorStoreMax=")), "{:?}", stats.notes);
    ensure!(refused_descriptors(http)? >= (SLABS + 2) as f64);
    ensure!(value(&get(http, "/metrics")?.1, "turnkv_keep_failing_servers")? == 1.0);
    // An upgrade does not need it.
    ensure!(server.upgrade(&[])?.status.success(), "{}", server.log());
    ensure!(served(&server, 1..10).await? == 9 * PAGES, "{}", server.log());
    // A kill does: it begins cold, and serves.
    server.kill()?;
    server.restart()?;
    ensure!(served(&server, 1..10).await? == 0);
    offload(&server, 1..10).await?;
    // With more room it is kept, by itself.
    manager.set_room(64);
    in_time("it is kept", &server, || Ok(refused_descriptors(http)? == 0.0))?;
    ensure!(value(&get(http, "/metrics")?.1, "turnkv_keep_failing_servers")? == 0.0);
    server.kill()?;
    server.restart()?;
    ensure!(served(&server, 1..10).await? == 9 * PAGES, "{}", server.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slab_that_the_store_has_no_room_for_is_said_and_costs_its_pages_alone() -> Result<()> {
    let http = free_address()?;
    // Metrics listen, too.
    let (manager, _folder) = manager(ALL + 1 + 1)?;
    let mut server = Server::start(Setup { metrics: Some(http.to_string()), ..setup(&manager) })?;
    offload(&server, 1..40).await?;
    let resized = Command::new(server_binary()?)
        .args(["resize", "--address", &server.address(), "--dram", "48MiB"])
        .output()?;
    ensure!(resized.status.success(), "{resized:?}");
    in_time("some are refused", &server, || Ok(refused_descriptors(http)? == 4.0))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let notes = user.client.stats().await?.notes;
    ensure!(notes.iter().any(|note| note.contains("some of DRAM is not kept")), "{notes:?}");
    server.kill()?;
    server.restart()?;
    ensure!(served(&server, 1..40).await? == 39 * PAGES, "{}", server.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_store_loses_is_missed_and_all_else_is_served() -> Result<()> {
    let (manager, _folder) = manager(64)?;
    let mut server = Server::start(setup(&manager))?;
    // Two slabs with pages at least.
    offload(&server, 1..30).await?;
    server.kill()?;
    ensure!(manager.lose(|name| name == "slab-0-0") == 1, "{:?}", manager.names());
    server.restart()?;
    let left = served(&server, 1..30).await?;
    ensure!(left > 0 && left < 29 * PAGES, "{left}\n{}", server.log());
    ensure!(server.log().contains("was not kept: what was in them alone is recomputed"), "{}", server.log());
    // The table: nothing of it is known any more.
    offload(&server, 1..30).await?;
    server.kill()?;
    ensure!(manager.lose(|name| name == "slot-table") == 1);
    server.restart()?;
    ensure!(served(&server, 1..30).await? == 0);
    offload(&server, 1..30).await?;
    // A listening socket: it is made anew.
    server.kill()?;
    ensure!(manager.lose(|name| name.starts_with("listen-")) == 2);
    server.restart()?;
    ensure!(served(&server, 1..30).await? == 29 * PAGES, "{}", server.log());
    ensure!(manager.names().len() == ALL, "{:?}", manager.names());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_of_another_boot_or_format_or_nobodys_begins_cold_and_is_let_go() -> Result<()> {
    let (manager, _folder) = manager(64)?;
    let mut server = Server::start(setup(&manager))?;
    // In the header of the table: its version, and which boot it is of.
    for at in [8u64, 40] {
        offload(&server, 1..10).await?;
        server.kill()?;
        let table = File::from(manager.kept("slot-table")?);
        let mut byte = [0];
        table.read_exact_at(&mut byte, at)?;
        table.write_all_at(&[!byte[0]], at)?;
        server.restart()?;
        ensure!(served(&server, 1..10).await? == 0, "{at}");
        ensure!(server.log().contains("DRAM begins cold"), "{}", server.log());
        ensure!(manager.names().len() == ALL, "{:?}", manager.names());
    }
    // Somebody else's descriptors, and one name for two of them.
    offload(&server, 1..10).await?;
    server.kill()?;
    let other = File::open("/dev/null")?;
    for name in ["slab-0-0", "slab-70000-1", "slab-x", "stored", "", "a b"] {
        manager.add(name, other.as_fd().try_clone_to_owned()?);
    }
    server.restart()?;
    let left = served(&server, 1..10).await?;
    ensure!(left < 9 * PAGES, "nobody knows which slab-0-0 it is: {left}");
    let ours: BTreeSet<String> = manager.names();
    for name in ["slab-70000-1", "slab-x", "stored"] {
        ensure!(!ours.contains(name), "{ours:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_systemd_that_is_gone_or_deaf_is_nobodys_end_and_has_everything_again_when_it_is_back() -> Result<()>
{
    let (manager, _folder) = manager(64)?;
    let http = free_address()?;
    let mut server = Server::start(Setup { metrics: Some(http.to_string()), ..setup(&manager) })?;
    offload(&server, 1..10).await?;
    let failing = || value(&get(http, "/metrics")?.1, "turnkv_keep_failing_servers");
    manager.go();
    in_time("it is noticed", &server, || Ok(failing()? == 1.0))?;
    offload(&server, 10..20).await?;
    let health = get(http, "/healthz")?.1;
    ensure!(health.contains("NOTIFY_SOCKET"), "{health}");
    manager.listen()?;
    in_time("it is kept again", &server, || Ok(failing()? == 0.0))?;
    server.kill()?;
    server.restart()?;
    ensure!(served(&server, 1..20).await? == 19 * PAGES, "{}", server.log());
    // One that does nothing keeps no start waiting for ever, and takes no memory away.
    server.kill()?;
    manager.be_deaf(true);
    server.restart()?;
    ensure!(served(&server, 1..20).await? == 19 * PAGES, "{}", server.log());
    ensure!(failing()? == 1.0);
    manager.be_deaf(false);
    in_time("it is kept again", &server, || Ok(failing()? == 0.0))?;
    manager.lose(|name| name == "deaf");
    server.kill()?;
    server.restart()?;
    ensure!(served(&server, 1..20).await? == 19 * PAGES, "{}", server.log());
    Ok(())
}

/// Whoever is not to keep any more has nothing left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_one_who_keeps_to_another_nothing_stays_behind() -> Result<()> {
    let (manager, _folder) = manager(64)?;
    let mut server = Server::start(setup(&manager))?;
    offload(&server, 1..10).await?;
    server.kill()?;
    let config = std::fs::read_to_string(server.config())?;
    let other = server.config().with_file_name("other.toml");
    std::fs::write(&other, config.replace("\"systemd\"", "\"off\""))?;
    let mut off = manager.start(server_binary()?, |command| {
        command.args(["serve", "--config"]).arg(&other);
    })?;
    let emptied = in_time("all is let go of", &server, || Ok(manager.names().is_empty()));
    off.kill()?;
    off.wait()?;
    emptied?;
    server.restart()?;
    ensure!(served(&server, 1..10).await? == 0);
    Ok(())
}

/// Offloads and reads back until it is told to stop; any call that fails ends it.
async fn load(address: String, first: u64, stop: Arc<AtomicBool>) -> Result<u64> {
    let user = User::connect(&address, DataPlane::Shm, PAGE).await?;
    let options = OffloadOptions { wait: Duration::from_secs(10), ..Default::default() };
    let mut calls = 0;
    while !stop.load(Ordering::Relaxed) {
        let hashes = chain(first + calls % 10, PAGES);
        let report = user.offload(&options, &hashes).await.context("offload")?;
        ensure!(report.stored + report.present == PAGES, "{report:?}");
        let report = user.reload(&hashes).await.context("reload")?; // checks every byte
        ensure!(report.pages == PAGES, "{report:?}");
        calls += 1;
    }
    Ok(calls)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_hand_memory_and_sockets_down_and_fail_no_call() -> Result<()> {
    let upgrades = std::env::var("TURNKV_UPGRADES").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let (manager, _folder) = manager(64)?;
    let tcp = free_address()?;
    let setup = Setup { tcp: Some(tcp.to_string()), ..setup(&manager) };
    let server = Server::start(setup)?;
    let owner = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    owner.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
    // Pages that this process has mapped, and slots that it writes into.
    let mut span = PageSpan::new(&owner.namespace, 1, PAGES + 2, 1)?;
    ensure!(span.hold(0, 0, &ReloadOptions::default(), &chain(1, PAGES)).await?.pages == PAGES);
    ensure!(span.reserve(0, PAGES, 2, None).await? == 2);
    let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = [1_000, 2_000]
        .map(|first| tokio::spawn(load(server.address(), first, Arc::clone(&stop))))
        .into_iter()
        .collect();
    let pid = server.pid();
    for number in 0..upgrades {
        let page = bytes(&chain(9_000 + number, 1)[0], PAGE as usize);
        memory.write_all_at(&page, span.memory().address(PAGES) as u64)?;
        let before = owner.client.state().instance;
        let said = tokio::task::block_in_place(|| server.upgrade(&[]))?;
        ensure!(said.status.success(), "upgrade {number}: {said:?}\n{}", server.log());
        let report = owner.reload(&chain(1, PAGES)).await?;
        ensure!((report.pages, report.from_dram) == (PAGES, PAGES), "{number}: {report:?}\n{}", server.log());
        ensure!(owner.client.state().instance != before, "another program serves");
        for (place, hash) in chain(1, PAGES).iter().enumerate() {
            let mut found = vec![0; PAGE as usize];
            memory.read_exact_at(&mut found, span.memory().address(place) as u64)?;
            ensure!(found == bytes(hash, PAGE as usize), "WRONG BYTES: {number}: page {place}");
        }
        ensure!(manager.names().len() == ALL + 1, "{number}: {:?}", manager.names());
    }
    // What was written before upgrades is committed after them.
    let last = chain(9_000 + upgrades - 1, 1);
    let report =
        span.commit(0, PAGES, &CommitOptions { keep: true, ..CommitOptions::default() }, &last).await?;
    ensure!(report.stored == 1, "{report:?}");
    ensure!(owner.reload(&last).await?.pages == 1);
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        ensure!(client.await?? > 0);
    }
    ensure!(server.pid() == pid, "in the same process");
    let said = manager.said();
    let count = |what: &str| said.iter().filter(|text| text.starts_with(what)).count() as u64;
    ensure!((count("RELOADING=1"), count("READY=1")) == (upgrades, upgrades + 1), "{said:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_program_before_comes_back_to_the_memory_that_it_had() -> Result<()> {
    let (manager, folder) = manager(64)?;
    let tcp = free_address()?;
    let mut server = Server::start(Setup { tcp: Some(tcp.to_string()), ..setup(&manager) })?;
    offload(&server, 1..10).await?;
    let config = server.config();
    let good = std::fs::read_to_string(&config)?;
    let (place, real) = (config.display(), server_binary()?.display());
    // One whose start fails, before it has memory, and after: the metrics' address is taken by then.
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?;
    for spoil in ["nonsense = 1".to_owned(), format!("metrics = \\\"{address}\\\"")] {
        let lies = folder.path().join("lies");
        let text = format!(
            "#!/bin/sh\n[ \"$1\" = serve ] || exec {real} \"$@\"\nsed -i \"1i {spoil}\" {place}\nexec {real} \"$@\"\n"
        );
        std::fs::write(&lies, text)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&lies, mode)?;
        let output = server.upgrade(&["--binary", &lies.display().to_string()])?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(said.contains("the new program did not come up"), "{spoil}: {said}\n{}", server.log());
        ensure!(served(&server, 1..10).await? == 9 * PAGES, "{spoil}: {}", server.log());
        ensure!(manager.names().len() == ALL + 1, "{:?}", manager.names());
        std::fs::write(&config, &good)?;
    }
    // And a kill finds all of it.
    server.kill()?;
    server.restart()?;
    ensure!(served(&server, 1..10).await? == 9 * PAGES, "{}", server.log());
    // Another way of keeping is a stop and a start.
    std::fs::write(&config, good.replace("\"systemd\"", "\"auto\""))?;
    let said = String::from_utf8(server.upgrade(&[])?.stderr)?;
    ensure!(said.contains("keep.dram is other than before"), "{said}");
    Ok(())
}
