//! A private pool's memory survives its server's crash, and is free when its server leaves, because nobody uses it or it was told to.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::child::Running;
use turnkv_tests::pages::chain;
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const PAGE: u64 = 64 << 10;
const PAGES: usize = 40;

/// The options of a private pool.
const PRIVATE: &[&str] = &["--embedded", "--embedded-idle-s", "2"];

/// Starts `turnkv serve` in a folder and waits until it answers.
fn start(folder: &Path, options: &[&str]) -> Result<Running> {
    let mut command = Command::new(server_binary()?);
    command.arg("serve").args(options).arg("--config").arg(folder.join("turnkv.toml"));
    let log = std::fs::File::options().create(true).append(true).open(folder.join("log"))?;
    let before = ready(folder);
    let mut server = Running::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log))?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while ready(folder) == before {
        ensure!(server.try_wait()?.is_none() && Instant::now() < deadline, "{}", said(folder));
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(server)
}

fn said(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("log")).unwrap_or_default()
}

fn ready(folder: &Path) -> usize {
    said(folder).matches(" ready socket=").count()
}

/// Slabs that its keeper has; none: there is no keeper any more.
fn kept_slabs(folder: &Path) -> Result<Option<usize>> {
    let Ok(stream) = UnixStream::connect(folder.join("t.sock.keep")) else { return Ok(None) };
    let keeper = rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero();
    let files = std::fs::read_dir(format!("/proc/{keeper}/fd"))?;
    let is_slab = |file: &std::fs::DirEntry| {
        std::fs::read_link(file.path()).is_ok_and(|to| to.display().to_string().contains("turnkv-slab"))
    };
    Ok(Some(files.filter_map(Result::ok).filter(is_slab).count()))
}

/// Where a server of a test is to be, and its address.
fn folder() -> Result<(TempDir, String)> {
    let folder = tempfile::Builder::new().prefix("turnkv-private").tempdir()?;
    let address = format!("unix:{}", folder.path().join("t.sock").display());
    let config = format!(
        "listen = \"{address}\"\n[dram]\nbytes = \"32MiB\"\nlock = false\n[keep]\nwithout_server_ms = 20000\n"
    );
    std::fs::write(folder.path().join("turnkv.toml"), config)?;
    Ok((folder, address))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_frees_a_private_pools_memory_at_once_and_no_other_pools() -> Result<()> {
    for (options, kept) in [(PRIVATE, 0), (&[][..], 8)] {
        let (folder, address) = folder()?;
        let here = folder.path();
        let mut server = start(here, options)?;
        // Somebody uses it: it does not leave by itself.
        let user = User::connect(&address, DataPlane::Shm, PAGE).await?;
        ensure!(user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?.stored == PAGES);
        ensure!(kept_slabs(here)? == Some(8), "{:?} slabs are kept", kept_slabs(here)?);
        kill_process(Pid::from_raw(server.id().try_into()?).context("pid 0")?, Signal::TERM)?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while server.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "it does not leave: {}", said(here));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let slabs = kept_slabs(here)?.context("the keeper ends later")?;
        ensure!(slabs == kept, "{options:?}: {slabs} slabs are kept\n{}", said(here));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_kept_over_a_crash_and_free_after_the_last_client() -> Result<()> {
    let (folder, address) = folder()?;
    let here = folder.path();
    let mut server = start(here, PRIVATE)?;
    let user = User::connect(&address, DataPlane::Shm, PAGE).await?;
    ensure!(user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?.stored == PAGES);
    server.kill()?;
    server.wait()?;
    ensure!(kept_slabs(here)? == Some(8), "{:?} slabs are kept", kept_slabs(here)?);
    let mut server = start(here, PRIVATE)?;
    let report = user.reload(&chain(1, PAGES)).await?; // checks every byte
    ensure!((report.pages, report.from_dram) == (PAGES, PAGES), "{report:?}\n{}", said(here));
    drop(user);
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.try_wait()?.is_none() {
        ensure!(Instant::now() < deadline, "it does not leave: {}", said(here));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(
        kept_slabs(here)?.context("the keeper ends later")? == 0,
        "{:?} slabs are kept",
        kept_slabs(here)?
    );
    Ok(())
}
