//! Upgrades under bad circumstances: whatever becomes of the configuration file, of the new program or of who asked, the server serves
//! with what it had, or has been stopped because somebody asked for that; and nobody is told that it went well before it did.

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::child::Running;
use turnkv_tests::http::free_address;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const PAGE: u64 = 60 << 10;
const PAGES: usize = 6;

fn setup() -> Result<Setup> {
    let metrics = Some(free_address()?.to_string());
    let tcp = Some(free_address()?.to_string());
    let keeping = "start_ms = 2000\n".to_owned();
    Ok(Setup { dram_mib: 64, nvme_mib: 0, keep: true, keeping, metrics, tcp, ..Setup::default() })
}

fn dir(server: &Server) -> Result<PathBuf> {
    Ok(server.socket().parent().context("its directory")?.to_path_buf())
}

/// A program that does something before it serves, and is the server's own otherwise.
fn program(server: &Server, name: &str, before_it_serves: &str) -> Result<String> {
    let (path, real) = (dir(server)?.join(name), server_binary()?.display());
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = serve ] || exec {real} \"$@\"\n{before_it_serves}\nexec {real} \"$@\"\n"
    );
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path.display().to_string())
}

fn refused(server: &Server, arguments: &[&str]) -> Result<String> {
    let output = server.upgrade(arguments)?;
    ensure!(!output.status.success(), "{output:?}\n{}", server.log());
    let said = String::from_utf8(output.stderr)?;
    let plain = said.chars().all(|char| char == '\n' || !char.is_control());
    ensure!(plain && said.len() < 4096 && said.lines().count() == 2, "two short lines: {said:?}");
    Ok(said)
}

/// Files that no program could serve with beside what it had, and what is said of each.
fn bad_files(good: &str, taken: &TcpListener) -> Result<Vec<(String, &'static str)>> {
    let metrics = good.lines().find(|line| line.starts_with("metrics")).context("metrics")?;
    let at_taken = format!("metrics = \"{}\"", taken.local_addr()?);
    Ok(vec![
        (format!("{good}\n[nvme]\npath = \"/proc/none/such\"\nbytes = \"64MiB\"\n"), "/proc/none/such"),
        (good.replace(metrics, &at_taken), "metrics"),
        (good.replace("bytes = \"64MiB\"", "bytes = \"64TiB\""), "bytes of slabs are asked for"),
        (good.replace("dram = \"auto\"", "dram = \"off\""), "keep.dram"),
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_no_program_can_serve_with_is_refused_before_anything_changes() -> Result<()> {
    let server = Server::start(setup()?)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
    let (good, taken) = (std::fs::read_to_string(server.config())?, TcpListener::bind("127.0.0.1:0")?);
    let before = user.client.state().instance;
    for (bad, why) in bad_files(&good, &taken)? {
        std::fs::write(server.config(), bad)?;
        let said = refused(&server, &[])?;
        ensure!(said.contains("no program could start now") && said.contains(why), "{why}: {said}");
        ensure!(said.contains("nothing has changed"), "{said}");
        let report = user.reload(&chain(1, PAGES)).await?;
        ensure!(report.from_dram == PAGES && user.client.state().instance == before, "{why}: {report:?}");
    }
    std::fs::write(server.config(), good)?;
    ensure!(server.upgrade(&[])?.status.success(), "{}", server.log());
    ensure!(user.reload(&chain(1, PAGES)).await?.from_dram == PAGES);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_finds_such_a_file_gives_way_to_the_old_one_with_the_settings_that_it_had()
-> Result<()> {
    let server = Server::start(setup()?)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
    let (good, taken) = (std::fs::read_to_string(server.config())?, TcpListener::bind("127.0.0.1:0")?);
    // Without a keeper the new program serves, so the last one is no fault of its start.
    let bad = bad_files(&good, &taken)?;
    for (number, (bad, why)) in bad.iter().take(3).enumerate() {
        let other = dir(&server)?.join("other.toml");
        std::fs::write(&other, bad)?;
        let changes = format!("cat {} > {}", other.display(), server.config().display());
        let binary = program(&server, &format!("changes-{number}"), &changes)?;
        let before = user.client.state().instance;
        let said = refused(&server, &["--binary", &binary])?;
        ensure!(said.contains("did not come up") && said.contains(why), "{why}: {said}");
        let report = user.reload(&chain(1, PAGES)).await?;
        ensure!(report.from_dram == PAGES, "{why}: {report:?}\n{}", server.log());
        ensure!(user.client.state().instance != before, "{why}: it started again");
        // The file is as bad as it was: the next upgrade says so, and the server serves on.
        ensure!(refused(&server, &[])?.contains(why));
        std::fs::write(server.config(), &good)?;
    }
    ensure!(server.upgrade(&[])?.status.success(), "{}", server.log());
    ensure!(user.reload(&chain(1, PAGES)).await?.from_dram == PAGES);
    ensure!(user.client.stats().await?.notes.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_hangs_in_its_start_gives_way_again() -> Result<()> {
    let server = Server::start(setup()?)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
    let (fifo, other) = (dir(&server)?.join("fifo"), dir(&server)?.join("other.toml"));
    ensure!(Command::new("mkfifo").arg(&fifo).status()?.success());
    let place = fifo.display();
    let good = std::fs::read_to_string(server.config())?;
    // Whoever opens the certificate waits for ever.
    let tls = format!("[tls]\ncert = \"{place}\"\nkey = \"{place}\"\nclient_ca = \"{place}\"\n");
    std::fs::write(&other, format!("{good}\n{tls}"))?;
    let hangs = format!("cat {} > {}", other.display(), server.config().display());
    let binary = program(&server, "hangs", &hangs)?;
    let said = refused(&server, &["--binary", &binary])?;
    ensure!(said.contains("did not serve within 2000 ms"), "{said}");
    let report = user.reload(&chain(1, PAGES)).await?;
    ensure!(report.from_dram == PAGES, "{report:?}\n{}", server.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_ends_before_it_serves_is_no_upgrade() -> Result<()> {
    let mut server = Server::start(setup()?)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
    let binary = program(&server, "dies", "exit 3")?;
    let said = refused(&server, &["--binary", &binary, "--wait-s", "2"])?;
    ensure!(said.contains("no other program serves within 2 s"), "{said}");
    for raw in ["h2", "transport", "Status", "fix the request"] {
        ensure!(!said.contains(raw), "{said}");
    }
    ensure!(server.ended()?.code() == Some(3));
    // Whoever looks after the process starts it again, and nothing is lost.
    server.restart()?;
    ensure!(user.reload(&chain(1, PAGES)).await?.from_dram == PAGES, "{}", server.log());
    Ok(())
}

#[test]
fn a_program_that_refuses_without_a_word_or_with_wild_ones_is_quoted_in_plain_words() -> Result<()> {
    let server = Server::start(setup()?)?;
    let real = server_binary()?.display();
    for (name, refuses, why) in [
        ("silent", "exit 1", "it does not say why"),
        ("wild", "printf 'no\\033[2J\\007%05000d' 1 >&2; exit 1", "no [2J"),
    ] {
        let path = dir(&server)?.join(name);
        let text = format!("#!/bin/sh\n[ \"$1\" = config ] || exec {real} \"$@\"\n{refuses}\n");
        std::fs::write(&path, text)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        let said = refused(&server, &["--binary", &path.display().to_string()])?;
        ensure!(said.contains(why) && !said.contains(":\n"), "{said}");
    }
    Ok(())
}

/// Whether a process is there and runs.
fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

#[test]
fn a_program_that_says_nothing_or_leaves_others_behind_is_ended_with_all_it_started() -> Result<()> {
    let server = Server::start(setup()?)?;
    let left = dir(&server)?.join("left");
    let starts = format!("sleep 600 &\necho $! >> {}\n", left.display());
    for (name, then, why) in
        [("hangs", "wait", "does not answer within"), ("leaves", "exit 0", "is no turnkv that takes over")]
    {
        let path = dir(&server)?.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{starts}{then}\n"))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        let said = refused(&server, &["--binary", &path.display().to_string()])?;
        ensure!(said.contains(why), "{name}: {said}");
    }
    let left = std::fs::read_to_string(left)?;
    ensure!(left.lines().count() == 2 && !left.lines().any(lives), "they live on: {left}");
    Ok(())
}

#[test]
fn a_wait_of_no_time_is_refused_with_its_bounds() -> Result<()> {
    let server = Server::start(setup()?)?;
    for wait_s in ["0", "18446744073709551615"] {
        let output = server.upgrade(&["--wait-s", wait_s])?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(
            !output.status.success() && said.contains("--wait-s") && said.contains("1..=86400"),
            "{said}"
        );
    }
    Ok(())
}

#[test]
fn a_second_upgrade_is_told_when_to_ask_again() -> Result<()> {
    let server = Server::start(setup()?)?;
    let real = server_binary()?.display();
    let (slow, asked) = (dir(&server)?.join("slow"), dir(&server)?.join("asked"));
    let text = format!("#!/bin/sh\ntouch {}\nsleep 1\nexec {real} \"$@\"\n", asked.display());
    std::fs::write(&slow, text)?;
    std::fs::set_permissions(&slow, std::fs::Permissions::from_mode(0o755))?;
    let (address, slow) = (server.address(), slow.display().to_string());
    let mut first = Command::new(server_binary()?);
    let mut first = Running::start(first.args(["upgrade", "--address", &address, "--binary", &slow]))?;
    for _ in 0..2_000 {
        if asked.exists() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = refused(&server, &[])?;
    ensure!(said.contains("another upgrade is under way") && said.contains("try again in 1000 ms"), "{said}");
    ensure!(first.wait()?.success(), "{}", server.log());
    Ok(())
}

#[test]
fn a_stop_at_any_moment_of_an_upgrade_stops() -> Result<()> {
    let mut server = Server::start(setup()?)?;
    for ms in [0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 200] {
        server.signal(Signal::USR2)?;
        std::thread::sleep(Duration::from_millis(ms));
        server.signal(Signal::TERM)?;
        server.ended().with_context(|| format!("a SIGTERM after {ms} ms"))?;
        server.restart()?;
    }
    Ok(())
}

/// Whoever asks for an upgrade of a server that leaves is told so, and not that it has begun: nobody would ever answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_that_is_asked_for_while_the_server_leaves_is_refused() -> Result<()> {
    // Much is dirty, and goes slowly: only what comes back is written before a server leaves.
    let nvme = "admit = \"reused\"\ninflight_bytes = \"1MiB\"\n".to_owned();
    let slow = Setup { dram_mib: 192, nvme_mib: 1024, nvme, engine: "blocking", ..setup()? };
    let mut server = Server::start(slow)?;
    for round in 0..2 {
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        for seed in 0..40 {
            user.offload(&OffloadOptions::default(), &chain(1 + round * 1_000 + seed, 50)).await?;
        }
        let leaving = || server.log().matches("leaving: finishing writes").count();
        let (before, deadline) = (leaving(), Instant::now() + Duration::from_secs(30));
        server.signal(Signal::TERM)?;
        while leaving() == before {
            ensure!(Instant::now() < deadline, "{}", server.log());
            std::thread::yield_now();
        }
        let said = refused(&server, &["--wait-s", "5"])?;
        ensure!(said.contains("no upgrade"), "round {round}: {said}\n{}", server.log());
        ensure!(server.ended()?.success(), "{}", server.log());
        ensure!(!server.log().contains("left to another program"), "{}", server.log());
        server.restart()?;
    }
    Ok(())
}

fn run(arguments: &[&str], file: &Path) -> Result<String> {
    let output =
        Command::new("timeout").arg("10").arg(server_binary()?).args(arguments).arg(file).output()?;
    ensure!(output.status.code() == Some(1), "{output:?}");
    Ok(String::from_utf8(output.stderr)?)
}

#[test]
fn a_configuration_that_is_no_file_is_refused_at_once() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fifo = dir.path().join("fifo");
    ensure!(Command::new("mkfifo").arg(&fifo).status()?.success());
    for command in ["serve", "config"] {
        for place in [fifo.as_path(), dir.path(), Path::new("/dev/zero")] {
            let said = run(&[command, "--config"], place)?;
            ensure!(said.contains("no regular file"), "{command} {}: {said}", place.display());
        }
    }
    Ok(())
}

#[test]
fn a_file_that_is_refused_while_the_server_runs_is_not_said_to_be_in_force() -> Result<()> {
    let server = Server::start(setup()?)?;
    let good = std::fs::read_to_string(server.config())?;
    std::fs::write(server.config(), good.replace("bytes = \"64MiB\"", "bytes = \"64TiB\""))?;
    server.signal(Signal::HUP)?;
    for _ in 0..1_000 {
        if server.log().contains("dram.bytes stays as it is") {
            // What would be said next is there, if it is.
            std::thread::sleep(Duration::from_millis(100));
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let log = server.log();
    ensure!(log.contains("dram.bytes stays as it is") && !log.contains("is in force"), "{log}");
    Ok(())
}
