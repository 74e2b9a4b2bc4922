//! Upgrades beside a keeper of no use: one that is stopped, or whose socket file was removed. Another takes its place first, and has all
//! that it had; where none can, the upgrade is refused, and the server serves on. TCP addresses are where it shows: the keeper has their
//! listening sockets too.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::http::free_address;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 60 << 10;
const PAGES: usize = 6;

fn setup() -> Result<Setup> {
    let (tcp, metrics) = (Some(free_address()?.to_string()), Some(free_address()?.to_string()));
    Ok(Setup { dram_mib: 32, nvme_mib: 0, keep: true, tcp, metrics, ..Setup::default() })
}

/// A keeper that ends with the test, whatever became of it.
struct Ends(Pid);

impl Ends {
    /// Whether its process has ended; one that nobody has waited for yet has.
    fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.as_raw_pid()));
        stat.map_or(true, |stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim().starts_with('Z')))
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if !self.has_ended() && kill_process(self.0, Signal::KILL).is_err() {
            // It had ended already.
        }
    }
}

/// Users over shared memory and over TCP, with pages in DRAM.
async fn users(server: &Server, tcp: &str) -> Result<[User; 2]> {
    let local = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let remote = User::connect(&format!("tcp://{tcp}"), DataPlane::Auto, PAGE).await?;
    for (user, seed) in [&local, &remote].into_iter().zip(1..) {
        let report = user.offload(&OffloadOptions::default(), &chain(seed, PAGES)).await?;
        ensure!(report.stored == PAGES, "{report:?}");
    }
    Ok([local, remote])
}

async fn all_in_dram(server: &Server, users: &[User]) -> Result<()> {
    for user in users {
        for seed in 1..=2 {
            let report = user.reload(&chain(seed, PAGES)).await.with_context(|| server.log())?;
            ensure!(report.from_dram == PAGES, "{report:?}\n{}", server.log());
        }
    }
    Ok(())
}

fn upgraded(server: &Server) -> Result<String> {
    let output = server.upgrade(&[])?;
    ensure!(output.status.success(), "{output:?}\n{}", server.log());
    Ok(String::from_utf8(output.stdout)?)
}

fn in_time(what: &str, server: &Server, is: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is() {
        ensure!(Instant::now() < deadline, "{what}\n{}", server.log());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_is_stopped_is_no_end_of_a_server_that_is_upgraded() -> Result<()> {
    let setup = setup()?;
    let tcp = setup.tcp.clone().context("an address")?;
    let mut server = Server::start(setup)?;
    let users = users(&server, &tcp).await?;
    // The server's own, then one that a server before started.
    for own in [true, false] {
        let stopped = Ends(server.keeper()?);
        kill_process(stopped.0, Signal::STOP)?;
        let said = upgraded(&server)?;
        ensure!(said.contains("does not answer") && said.contains("another one keeps"), "{own}: {said}");
        all_in_dram(&server, &users).await?;
        if own {
            in_time("it was the server's own to end", &server, || stopped.has_ended())?;
        } else {
            ensure!(said.contains(&stopped.0.as_raw_pid().to_string()), "who has memory still: {said}");
            kill_process(stopped.0, Signal::CONT)?;
            in_time("nobody needs it any more", &server, || stopped.has_ended())?;
        }
        // The one that took its place has everything.
        server.kill()?;
        server.restart()?;
        all_in_dram(&server, &users).await?;
    }
    // One that does not answer keeps nobody waiting for a server that was stopped, and no address from the next one.
    let stopped = Ends(server.keeper()?);
    kill_process(stopped.0, Signal::STOP)?;
    server.terminate()?;
    ensure!(std::net::TcpStream::connect(&tcp).is_err(), "nobody waits for a server that was stopped");
    server.restart()?;
    let report = users[1].offload(&OffloadOptions::default(), &chain(2, PAGES)).await?;
    ensure!(report.stored == PAGES, "{report:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_nobody_finds_is_no_end_of_a_server_that_is_upgraded() -> Result<()> {
    let setup = setup()?;
    let tcp = setup.tcp.clone().context("an address")?;
    let mut server = Server::start(setup)?;
    let users = users(&server, &tcp).await?;
    for round in 0..3 {
        let lost = Ends(server.keeper()?);
        std::fs::remove_file(server.keep_socket())?;
        upgraded(&server)?;
        all_in_dram(&server, &users).await?;
        in_time("nobody needs it any more", &server, || lost.has_ended())?;
        if round > 0 {
            server.kill()?;
            server.restart()?;
            all_in_dram(&server, &users).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_nobody_finds_is_replaced_without_being_asked_for() -> Result<()> {
    let setup = setup()?;
    let tcp = setup.tcp.clone().context("an address")?;
    let mut server = Server::start(setup)?;
    let users = users(&server, &tcp).await?;
    let lost = Ends(server.keeper()?);
    std::fs::remove_file(server.keep_socket())?;
    in_time("another keeper", &server, || server.log().contains("page memory is kept again"))?;
    in_time("nobody needs it any more", &server, || lost.has_ended())?;
    server.kill()?;
    server.restart()?;
    all_in_dram(&server, &users).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_other_keeper_can_be_had_the_upgrade_is_refused_and_the_server_serves_on() -> Result<()> {
    let setup = setup()?;
    let tcp = setup.tcp.clone().context("an address")?;
    let mut server = Server::start(setup)?;
    let users = users(&server, &tcp).await?;
    let _old = Ends(server.keeper()?);
    std::fs::remove_file(server.keep_socket())?;
    std::fs::write(server.keep_socket(), "somebody's notes")?;
    let before = users[0].client.state().instance;
    let output = server.upgrade(&[])?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success() && said.lines().count() == 2, "two lines: {said}");
    let place = server.keep_socket().display().to_string();
    ensure!(said.contains("no upgrade") && said.contains(&place), "{said}");
    ensure!(said.contains("nothing has changed"), "{said}");
    all_in_dram(&server, &users).await?;
    ensure!(users[0].client.state().instance == before, "the same program serves");
    ensure!(std::fs::read_to_string(server.keep_socket())? == "somebody's notes");
    // What was in the way is gone: it is kept again, and then upgraded.
    std::fs::remove_file(server.keep_socket())?;
    upgraded(&server)?;
    all_in_dram(&server, &users).await?;
    server.terminate()
}
