//! Sessions and pins of a server without NVMe come back with the DRAM that is kept for it, and never without.

use anyhow::{Context, Result, ensure};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, DataPlane, EndTurn, OffloadOptions, PinFor};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_transfer::LocalSocket;

const PAGE: u64 = 60 << 10;
/// More than a flush of what is to be saved takes.
const SAVED: Duration = Duration::from_millis(1_500);

fn setup() -> Setup {
    Setup { dram_mib: 32, nvme_mib: 0, keep: true, ..Setup::default() }
}

/// One turn of a session, which adds pages of its chain up to so many.
async fn turn(user: &User, session: &str, hashes: &[BlockHash], priority: u32) -> Result<()> {
    user.namespace.begin_turn(session).await?;
    let options = OffloadOptions { session: Some(session.to_owned()), ..OffloadOptions::default() };
    let report = user.offload(&options, hashes).await?;
    ensure!(report.stored + report.present == hashes.len(), "{report:?}");
    let end = EndTurn { hashes: hashes.to_vec(), priority, ..EndTurn::default() };
    user.namespace.end_turn(session, &end).await?;
    Ok(())
}

/// Sessions and their turns, by name.
async fn sessions(user: &User) -> Result<Vec<(String, u32, usize)>> {
    let listed = user.client.sessions(None, 0).await?;
    let mut found: Vec<_> =
        listed.sessions.into_iter().map(|info| (info.session, info.turn, info.pages)).collect();
    found.sort();
    Ok(found)
}

async fn connect(server: &Server) -> Result<User> {
    User::connect(&server.address(), DataPlane::Shm, PAGE).await
}

/// A server with some sessions, of two turns each, and a pin; and what it says of them.
async fn begun() -> Result<(Server, Vec<(String, u32, usize)>)> {
    let server = Server::start(setup())?;
    let user = connect(&server).await?;
    for name in 0..5u64 {
        for pages in [4, 8] {
            turn(&user, &format!("chat-{name}"), &chain(name + 1, pages), 3).await?;
        }
    }
    ensure!(user.namespace.pin(&chain(9, 1), PinFor::ms(3_600_000)).await?.pages == 0, "it is absent");
    user.offload(&OffloadOptions::default(), &chain(9, 4)).await?;
    ensure!(user.namespace.pin(&chain(9, 4), PinFor::ms(3_600_000)).await?.pages == 4);
    let before = sessions(&user).await?;
    ensure!(
        before.len() == 5 && before.iter().all(|(_, turn, pages)| (*turn, *pages) == (2, 8)),
        "{before:?}"
    );
    tokio::time::sleep(SAVED).await;
    Ok((server, before))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_and_pins_come_back_with_kept_dram() -> Result<()> {
    let (mut server, before) = begun().await?;
    for life in 0..3 {
        if life == 1 {
            server.terminate()?
        } else {
            server.kill()?
        }
        server.restart()?;
        let user = connect(&server).await?;
        let (now, stats) = (sessions(&user).await?, user.client.stats().await?);
        ensure!(now == before, "life {life}: {now:?}\n{}", server.log());
        ensure!(stats.protected_bytes == 44 * PAGE, "life {life}: {stats:?}");
        for name in 0..5u64 {
            let detail = user.namespace.describe_session(&format!("chat-{name}")).await?;
            ensure!((detail.priority, detail.dram_pages) == (3, 8), "life {life}: {detail:?}");
            let report = user.reload(&chain(name + 1, 8)).await?;
            ensure!((report.pages, report.from_dram) == (8, 8), "{report:?}");
        }
    }
    // They go on where they were.
    let user = connect(&server).await?;
    turn(&user, "chat-0", &chain(1, 12), 3).await?;
    ensure!(sessions(&user).await?.contains(&("chat-0".to_owned(), 3, 12)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_pages_there_are_no_sessions_either() -> Result<()> {
    let (mut server, _) = begun().await?;
    server.kill()?;
    server.kill_keeper()?;
    server.restart()?;
    ensure!(sessions(&connect(&server).await?).await?.is_empty());
    // Memory of another geometry is let go of with what was saved beside it.
    let user = connect(&server).await?;
    turn(&user, "chat-0", &chain(1, 4), 0).await?;
    tokio::time::sleep(SAVED).await;
    server.kill()?;
    server.restart_with(Setup { dram: "slab_bytes = \"8MiB\"\n".to_owned(), ..setup() })?;
    ensure!(sessions(&connect(&server).await?).await?.is_empty());
    Ok(())
}

/// The catalog that the keeper has, asked as a server would ask; the keeper is free again when the socket is dropped.
fn kept_catalog(server: &Server) -> Result<(LocalSocket, OwnedFd)> {
    let socket = LocalSocket::connect(&server.keep_socket(), Instant::now() + Duration::from_secs(5))?;
    let hello = [&1u32.to_le_bytes()[..], &30_000u64.to_le_bytes()[..]].concat();
    socket.send(1, 0, &hello, &[])?;
    let mut catalog = None;
    loop {
        let frame = socket.recv(Some(Instant::now() + Duration::from_secs(10)))?;
        let Some(fd) = frame.fd else { return Ok((socket, catalog.context("a catalog is kept")?)) };
        if frame.body == b"catalog" {
            catalog = Some(fd);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_catalog_costs_sessions_and_no_page() -> Result<()> {
    let (mut server, before) = begun().await?;
    for damage in 0..3u64 {
        server.kill()?;
        let (socket, catalog) = kept_catalog(&server)?;
        let bytes = rustix::fs::fstat(catalog.as_fd())?.st_size as u64;
        match damage {
            0 => rustix::fs::ftruncate(&catalog, bytes / 3)?,
            1 => rustix::fs::ftruncate(&catalog, 0)?,
            _ => {
                for at in (0..bytes).step_by(997) {
                    rustix::io::pwrite(&catalog, b"other", at)?;
                }
            }
        }
        drop((socket, catalog));
        server.restart()?;
        let user = connect(&server).await?;
        for name in 0..5u64 {
            let report = user.reload(&chain(name + 1, 8)).await?; // checks every byte
            ensure!((report.pages, report.from_dram) == (8, 8), "{report:?}\n{}", server.log());
        }
        let now = sessions(&user).await?;
        ensure!(now.iter().all(|session| before.contains(session)), "damage {damage}: {now:?}");
        // It is saved anew.
        for name in 0..5u64 {
            turn(&user, &format!("chat-{name}"), &chain(name + 1, 8), 3).await?;
        }
        tokio::time::sleep(SAVED).await;
        server.kill()?;
        server.restart()?;
        ensure!(sessions(&connect(&server).await?).await?.len() == 5, "damage {damage}: {}", server.log());
        if damage < 2 {
            let user = connect(&server).await?;
            for name in 0..5u64 {
                user.namespace.close(&format!("chat-{name}")).await?;
            }
            for name in 0..5u64 {
                for pages in [4, 8] {
                    turn(&user, &format!("chat-{name}"), &chain(name + 1, pages), 3).await?;
                }
            }
            tokio::time::sleep(SAVED).await;
        }
    }
    Ok(())
}

/// More DRAM than this machine has is refused before anything that was kept is let go of.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_refused_takes_nothing_from_the_next() -> Result<()> {
    let mut server = Server::start(setup())?;
    let hashes = chain(1, 6);
    turn(&connect(&server).await?, "talk", &hashes, 0).await?;
    tokio::time::sleep(SAVED).await;
    server.kill()?;
    let refused = server.restart_with(Setup { dram_mib: 900 << 10, ..setup() });
    ensure!(refused.is_err_and(|error| error.to_string().contains("are available")), "{}", server.log());
    server.restart_with(setup())?;
    let user = connect(&server).await?;
    let report = user.reload(&hashes).await?;
    ensure!((report.pages, report.from_dram) == (6, 6), "{report:?}\n{}", server.log());
    ensure!(sessions(&user).await?.len() == 1, "{}", server.log());
    Ok(())
}
