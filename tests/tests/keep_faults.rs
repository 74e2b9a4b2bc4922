//! Keepers that cannot be used while they hold the listening sockets: the next start goes on without, cold, and says so. A server that
//! lives is never taken for one that is gone.

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::time::{Duration, Instant};
use turnkv_client::DataPlane;
use turnkv_tests::child::Running;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const PAGE: u64 = 60 << 10;
const PAGES: usize = 6;

fn setup() -> Setup {
    Setup { dram_mib: 32, nvme_mib: 0, keep: true, ..Setup::default() }
}

/// A keeper that ends with the test, whatever became of its socket.
struct Ends(Pid);

impl Drop for Ends {
    fn drop(&mut self) {
        if kill_process(self.0, Signal::KILL).is_err() {
            // It had ended already.
        }
    }
}

async fn serves(server: &Server) -> Result<()> {
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.go_and_come_back(&chain(1, PAGES)).await.with_context(|| server.log())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_whose_socket_is_gone_is_in_nobodys_way() -> Result<()> {
    let mut server = Server::start(setup())?;
    serves(&server).await?;
    let _old = Ends(server.keeper()?);
    std::fs::remove_file(server.keep_socket())?;
    server.kill()?;
    server.restart()?;
    serves(&server).await?;
    // And the new one keeps.
    server.kill()?;
    server.restart()?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let report = user.reload(&chain(1, PAGES)).await?;
    ensure!(report.from_dram == PAGES, "{report:?}\n{}", server.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_is_stopped_is_gone_on_without_until_it_answers() -> Result<()> {
    let http = free_address()?;
    let mut server = Server::start(setup())?;
    server.kill()?;
    server.kill_keeper()?;
    // Not the server's own, which the system would end with it when it is stopped.
    let mut keeper = Command::new(server_binary()?);
    let _keeper = Running::start(keeper.arg("keep").arg("--socket").arg(server.keep_socket()))?;
    server.restart()?;
    serves(&server).await?;
    let keeper = server.keeper()?;
    kill_process(keeper, Signal::STOP)?;
    server.kill()?;
    server.restart_with(Setup { metrics: Some(http.to_string()), ..setup() })?;
    serves(&server).await?;
    ensure!(server.log().contains("DRAM begins cold"), "{}", server.log());
    let failing = || -> Result<f64> { value(&get(http, "/metrics")?.1, "turnkv_keep_failing_servers") };
    ensure!(failing()? == 1.0);
    kill_process(keeper, Signal::CONT)?;
    let deadline = Instant::now() + Duration::from_secs(90);
    while failing()? != 0.0 {
        ensure!(Instant::now() < deadline, "{}", server.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_is_to_keep_nothing_has_what_was_kept_let_go() -> Result<()> {
    let addresses = || -> Result<Setup> {
        let (tcp, metrics) = (Some(free_address()?.to_string()), Some(free_address()?.to_string()));
        Ok(Setup { tcp, metrics, ..setup() })
    };
    let setup = addresses()?;
    let mut server = Server::start(setup.clone())?;
    serves(&server).await?;
    let _old = Ends(server.keeper()?);
    server.kill()?;
    server.restart_with(Setup { keep: false, ..setup })?;
    serves(&server).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lives_is_never_replaced() -> Result<()> {
    for keep in [true, false] {
        let mut server = Server::start(Setup { keep, ..setup() })?;
        if keep {
            // One that has its sockets from a keeper as well.
            server.kill()?;
            server.restart()?;
        }
        for stopped in [false, true] {
            if stopped {
                server.signal(Signal::STOP)?;
            }
            let mut second = Command::new(server_binary()?);
            let second = second.args(["serve", "--config"]).arg(server.config()).output()?;
            let said = String::from_utf8(second.stderr)?;
            ensure!(!second.status.success() && said.contains("another server answers"), "{said}");
            ensure!(!said.contains("page memory"), "it is said before memory is taken: {said}");
        }
        server.signal(Signal::CONT)?;
        serves(&server).await?;
    }
    Ok(())
}
