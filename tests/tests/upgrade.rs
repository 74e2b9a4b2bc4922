//! Another program takes a running server's place: who calls meanwhile waits a moment and is served, what was in DRAM is in DRAM, and
//! one that cannot take the place leaves the old one serving. `TURNKV_UPGRADES` sets how many there are under load (20 unless
//! told).

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::http::{free_address, get};
use turnkv_tests::pages::chain;
use turnkv_tests::process::Holdings;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const PAGE: u64 = 60 << 10;
const PAGES: usize = 6;
/// Chains that a client offloads and reads by turns.
const CHAINS: u64 = 40;

fn upgrades() -> usize {
    std::env::var("TURNKV_UPGRADES").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

fn setup(nvme_mib: u64) -> Result<Setup> {
    let metrics = Some(free_address()?.to_string());
    let tcp = Some(free_address()?.to_string());
    Ok(Setup { dram_mib: 256, nvme_mib, keep: true, metrics, tcp, ..Setup::default() })
}

fn upgrade(address: &str) -> Result<Output> {
    Ok(Command::new(server_binary()?).args(["upgrade", "--address", address]).output()?)
}

fn upgraded(server: &Server, arguments: &[&str]) -> Result<String> {
    let output = server.upgrade(arguments)?;
    ensure!(output.status.success(), "{output:?}\n{}", server.log());
    Ok(String::from_utf8(output.stdout)?)
}

fn refused(server: &Server, arguments: &[&str]) -> Result<String> {
    let output = server.upgrade(arguments)?;
    ensure!(!output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stderr)?)
}

/// What clients met.
#[derive(Default)]
struct Load {
    stop: AtomicBool,
    calls: AtomicU64,
}

/// Offloads, looks up and reads back, turn after turn; any call that fails ends it. Returns how long each took.
async fn client(address: String, plane: DataPlane, first: u64, load: Arc<Load>) -> Result<Vec<Duration>> {
    let user = User::connect(&address, plane, PAGE).await?;
    let mut took = Vec::new();
    let options = OffloadOptions { wait: Duration::from_secs(10), ..Default::default() };
    let session = format!("session-{first}");
    for turn in 0.. {
        if load.stop.load(Ordering::Relaxed) {
            break;
        }
        let hashes = chain(first + turn % CHAINS, PAGES);
        let mut began = Instant::now();
        let mut done = || {
            load.calls.fetch_add(1, Ordering::Relaxed);
            took.push(std::mem::replace(&mut began, Instant::now()).elapsed());
        };
        user.namespace.begin_turn(&session).await.context("begin a turn")?;
        done();
        let report = user.offload(&options, &hashes).await.context("offload")?;
        ensure!(report.stored + report.present == PAGES, "{report:?}");
        done();
        ensure!(user.namespace.lookup(&hashes).await.context("lookup")? == PAGES);
        done();
        let report = user.reload(&hashes).await.context("reload")?; // checks every byte
        ensure!(report.pages == PAGES, "{report:?}");
        done();
    }
    Ok(took)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_under_load_fail_no_call() -> Result<()> {
    for nvme_mib in [0, 256] {
        let server = Server::start(setup(nvme_mib)?)?;
        let load = Arc::new(Load::default());
        let planes = [DataPlane::Shm, DataPlane::Shm, DataPlane::Inline, DataPlane::Auto];
        let mut clients: Vec<_> = planes
            .into_iter()
            .zip(1u64..)
            .map(|(plane, number)| {
                tokio::spawn(client(server.address(), plane, number * 100_000, Arc::clone(&load)))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let (mut before, mut longest) = (None, Duration::ZERO);
        for number in 0..upgrades() {
            let (address, began) = (server.address(), Instant::now());
            let said = tokio::task::spawn_blocking(move || upgrade(&address)).await??;
            ensure!(said.status.success(), "upgrade {number}: {said:?}\n{}", server.log());
            longest = longest.max(began.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
            if let Some(at) = clients.iter().position(tokio::task::JoinHandle::is_finished) {
                clients
                    .swap_remove(at)
                    .await?
                    .with_context(|| format!("upgrade {number}\n{}", server.log()))?;
            }
            let now = Holdings::of(server.pid())?;
            before.get_or_insert(now);
        }
        load.stop.store(true, Ordering::Relaxed);
        let mut took = Vec::new();
        for client in clients {
            took.extend(client.await??);
        }
        let (first, last) = (before.context("one upgrade")?, Holdings::of(server.pid())?);
        ensure!(last.descriptors <= first.descriptors + 8, "descriptors leak: {first:?}, then {last:?}");
        took.sort();
        let at = |part: usize| took[(took.len() * part / 1000).min(took.len() - 1)];
        println!(
            "nvme {nvme_mib} MiB: {} upgrades, {} calls of 4 clients, none failed; a call took {:?} (p50), {:?} (p99), {:?} (p99.9), {:?} (max); \
             the longest upgrade {longest:?}",
            upgrades(),
            load.calls.load(Ordering::Relaxed),
            at(500),
            at(990),
            at(999),
            took[took.len() - 1],
        );
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        ensure!(user.client.stats().await?.corrupt_pages == 0);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_in_dram_is_served_from_dram_by_the_next_program_in_the_same_process() -> Result<()> {
    let server = Server::start(setup(0)?)?;
    let pid = server.pid();
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
    let before = user.client.state().instance;
    ensure!(upgraded(&server, &[])?.starts_with("upgraded from "));
    let report = user.reload(&chain(1, PAGES)).await?;
    ensure!((report.pages, report.from_dram) == (PAGES, PAGES), "{report:?}\n{}", server.log());
    ensure!(user.client.state().instance != before, "another program serves");
    ensure!(Holdings::of(pid)?.threads > 1, "in the same process");
    // The same by a signal.
    let before = user.client.state().instance;
    server.signal(Signal::USR2)?;
    server.signal(Signal::USR2)?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while user.client.state().instance == before {
        ensure!(Instant::now() < deadline, "no other program serves: {}", server.log());
        let report = user.reload(&chain(1, PAGES)).await?;
        ensure!((report.pages, report.from_dram) == (PAGES, PAGES), "{report:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_connects_while_no_server_runs_waits_for_the_next_one() -> Result<()> {
    let setup = setup(0)?;
    let http = setup.metrics.clone().context("an address")?.parse()?;
    let mut server = Server::start(setup)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
    server.kill()?;
    let address = server.address();
    let waiting = tokio::spawn(async move {
        let user = User::connect(&address, DataPlane::Shm, PAGE).await?;
        user.reload(&chain(1, PAGES)).await
    });
    let page = tokio::task::spawn_blocking(move || get(http, "/healthz"));
    tokio::time::sleep(Duration::from_millis(300)).await;
    ensure!(!waiting.is_finished() && !page.is_finished(), "they wait");
    server.restart()?;
    ensure!(waiting.await??.from_dram == PAGES, "{}", server.log());
    ensure!(page.await??.0 == 200);
    // Who stops a server does not leave anybody waiting.
    server.terminate()?;
    let refused = std::os::unix::net::UnixStream::connect(server.local_socket());
    ensure!(refused.is_err(), "nobody listens");
    ensure!(std::net::TcpStream::connect(http).is_err());
    Ok(())
}

fn program(dir: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_cannot_take_over_leaves_the_old_one_serving() -> Result<()> {
    let server = Server::start(setup(0)?)?;
    let dir = server.socket().parent().context("its directory")?.to_path_buf();
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
    let name = |path: &Path| path.display().to_string();
    // Refused before anything ends.
    let open = program(&dir, "open", "#!/bin/sh\n")?;
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777))?;
    let fifo = dir.join("fifo");
    ensure!(Command::new("mkfifo").arg(&fifo).status()?.success());
    for (path, why) in [
        ("turnkv".to_owned(), "absolute path"),
        (name(&dir.join("nothing")), "name a program"),
        (name(&open), "nobody else may write to"),
        (name(&dir), "is a directory"),
        (name(&fifo), "is a FIFO"),
        (name(&server.socket()), "is a socket"),
        ("/dev/null".to_owned(), "is a device"),
        (name(&program(&dir, "silent", "#!/bin/sh\nexit 0\n")?), "is no turnkv that takes over"),
        (name(&program(&dir, "broken", "\u{7f}ELF")?), "does not run"),
        (name(&program(&dir, "failing", "#!/bin/sh\necho why >&2\nexit 3\n")?), "why"),
    ] {
        let before = user.client.state().instance;
        let said = refused(&server, &["--binary", &path])?;
        ensure!(said.contains(why), "{path}: {said}");
        user.reload(&chain(1, PAGES)).await?;
        ensure!(user.client.state().instance == before, "{path}: nothing changed");
    }
    // A configuration that the next program would refuse.
    let config = dir.join("turnkv.toml");
    let good = std::fs::read_to_string(&config)?;
    std::fs::write(&config, format!("nonsense = 1\n{good}"))?;
    let said = refused(&server, &[])?;
    ensure!(said.contains("nonsense"), "{said}");
    // What no program could start with, this one neither.
    std::fs::write(&config, format!("{good}\n[access]\nusers = {{ \"no-such-user\" = [\"operator\"] }}\n"))?;
    let said = refused(&server, &[])?;
    ensure!(said.contains("no program could start now") && said.contains("no-such-user"), "{said}");
    std::fs::write(&config, &good)?;
    // One that cannot start, because the configuration is not what it was a moment ago: the old one is there again.
    let (place, real) = (config.display(), server_binary()?.display());
    let lies = format!(
        "#!/bin/sh\n[ \"$1\" = serve ] || exec {real} \"$@\"\necho nonsense = 1 >> {place}\nexec {real} \"$@\"\n"
    );
    for round in 0..2 {
        let before = user.client.state().instance;
        let said = refused(&server, &["--binary", &name(&program(&dir, "lies", &lies)?)])?;
        ensure!(
            said.contains("the new program did not come up") && said.contains("nonsense"),
            "{round}: {said}"
        );
        let report = user.reload(&chain(1, PAGES)).await?;
        ensure!((report.pages, report.from_dram) == (PAGES, PAGES), "{round}: {report:?}\n{}", server.log());
        ensure!(user.client.state().instance != before, "{round}: it started again");
        let notes = user.client.stats().await?.notes;
        ensure!(notes.iter().any(|note| note.contains("did not come up")), "{notes:?}");
        std::fs::write(&config, &good)?;
    }
    // And a good one after that.
    ensure!(upgraded(&server, &[])?.starts_with("upgraded from "));
    ensure!(user.client.stats().await?.notes.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_keeper_there_is_no_upgrade() -> Result<()> {
    let server = Server::start(Setup { nvme_mib: 0, ..Setup::default() })?;
    let said = refused(&server, &[])?;
    ensure!(said.contains("nobody keeps memory and sockets") && said.contains("keep.dram"), "{said}");
    server.signal(Signal::USR2)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.go_and_come_back(&chain(1, PAGES)).await
}
