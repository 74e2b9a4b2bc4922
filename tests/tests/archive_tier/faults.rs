//! Stores that do not answer, are slow, full, or have wrong bytes: turns go on, and nothing wrong comes back.

use crate::support::{Shelf, archived, converse, counted, until, until_archived, user};
use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use turnkv_client::{EndTurn, ReloadOptions};
use turnkv_tests::http::free_address;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

/// A service that says the same of every request; none: nothing at all.
async fn service(answer: Option<&'static str>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {
                    let Some(answer) = answer else { continue };
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    Ok(address)
}

/// A server whose archive is such a service.
fn server_of(service: SocketAddr, keys: &str, metrics: Option<SocketAddr>) -> Result<Server> {
    let sections = format!(
        "[archive]\nplace = \"s3://bucket\"\nendpoint = \"http://{service}\"\nregion = \"here\"\nsessions = \"asked\"\nrequest_ms = 500\nretries_max = 0\nrefresh_ms = 200\n{keys}\n"
    );
    let keys = [("AWS_ACCESS_KEY_ID", "one"), ("AWS_SECRET_ACCESS_KEY", "two")];
    let environment = keys.map(|(name, value)| (name, value.to_owned())).to_vec();
    let metrics = metrics.map(|address| address.to_string());
    Server::start(Setup { dram_mib: 64, sections, environment, metrics, ..Setup::default() })
}

/// How long each of these turns takes, sorted.
async fn turns(user: &User, session: &str, count: usize, archive: bool) -> Result<Vec<Duration>> {
    let hashes = chain(81, 8);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = Instant::now();
        ensure!(user.namespace.lookup(&hashes).await? <= 8);
        converse(user, session, &hashes, EndTurn { archive, ..EndTurn::default() }).await?;
        ensure!(user.reload(&hashes).await?.pages == 8);
        times.push(began.elapsed());
    }
    times.sort();
    Ok(times)
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_take_as_long_beside_a_store_that_does_not_answer() -> Result<()> {
    let metrics = free_address()?;
    let plain = Server::start(Setup { dram_mib: 64, ..Setup::default() })?;
    let silent = server_of(service(None).await?, "", Some(metrics))?;
    let (plain, silent) = (user(&plain).await?, user(&silent).await?);
    let (mut without, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..10 {
        without.extend(turns(&plain, "talk", 10, false).await?);
        beside.extend(turns(&silent, "talk", 10, true).await?);
    }
    without.sort();
    beside.sort();
    let (without, beside) = (without[98], beside[98]);
    println!("p99 of turns: {beside:?} beside a silent store, {without:?} without");
    ensure!(beside < without * 4 + Duration::from_millis(50), "{beside:?} beside {without:?}");
    until("it is said that archiving waits", async || {
        Ok(counted(metrics, "turnkv_archive_postponed_total")? > 0
            && counted(metrics, "turnkv_archive_distrusting_servers")? == 1)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_store_is_waited_for_and_what_waits_has_a_bound_that_is_told() -> Result<()> {
    let full = "HTTP/1.1 507 Insufficient Storage\r\ncontent-length: 0\r\n\r\n";
    let metrics = free_address()?;
    let server = server_of(service(Some(full)).await?, "queue_max = 2", Some(metrics))?;
    let user = user(&server).await?;
    let mut taken = 0;
    for at in 0..6 {
        taken += usize::from(converse(&user, &format!("talk {at}"), &chain(82 + at, 4), archived()).await?);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(taken == 3, "one is tried, two wait, and more are told that they will not be archived: {taken}");
    until("it is counted", async || {
        let failed = counted(metrics, "turnkv_archive_failures_total{cause=\"full\"}")?;
        Ok(failed > 0 && counted(metrics, "turnkv_archive_archived_sessions_total")? == 0)
    })
    .await?;
    // A close that can not be archived is one at once.
    ensure!(
        !user.namespace.close_archived("talk 5").await? && user.client.sessions(None, 0).await?.total == 5
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_store_never_takes_keeps_no_other_waiting_and_is_given_up() -> Result<()> {
    let (shelf, metrics) = (Shelf::new()?, free_address()?);
    let metrics_of = |name: &str| counted(metrics, name);
    let setup = Setup { metrics: Some(metrics.to_string()), ..shelf.setup("asked", "retries_max = 0") };
    let server = Server::start(setup)?;
    let user = user(&server).await?;
    converse(&user, "never", &chain(93, 4), archived()).await?;
    until_archived(&shelf, 1).await?;
    let bookmark = shelf.objects("sessions")?.pop().context("a bookmark")?;
    let folder = bookmark.parent().context("its folder")?;
    // From now on the store says of this one session that it can not be reached: its folder leads to itself.
    std::fs::remove_dir_all(folder)?;
    std::os::unix::fs::symlink(folder, folder)?;
    converse(&user, "never", &chain(93, 8), archived()).await?;
    let (mut others, began) = (0, Instant::now());
    while metrics_of("turnkv_archive_given_up_sessions_total")? == 0 {
        ensure!(began.elapsed() < Duration::from_secs(60), "{others} others later: {}", server.log());
        let (failed, session) = (metrics_of("turnkv_archive_postponed_total")?, format!("other {others}"));
        converse(&user, &session, &chain(94 + others, 4), archived()).await?;
        others += 1;
        let archived = others + 1;
        until("another session is archived", async || {
            Ok(metrics_of("turnkv_archive_archived_sessions_total")? == archived)
        })
        .await?;
        until("the late one is tried again, or given up", async || {
            Ok(metrics_of("turnkv_archive_postponed_total")? > failed
                || metrics_of("turnkv_archive_given_up_sessions_total")? > 0)
        })
        .await?;
    }
    ensure!((7..=12).contains(&others), "given up when {others} others had been archived");
    until("nothing waits", async || Ok(metrics_of("turnkv_archive_waiting_sessions")? == 0)).await?;
    ensure!(metrics_of("turnkv_archive_given_up_sessions_total")? == 1, "{}", server.log());
    // It is asked for by its next turn, and archived once the store takes it.
    std::fs::remove_file(folder)?;
    converse(&user, "never", &chain(93, 8), archived()).await?;
    until("it is archived", async || Ok(metrics_of("turnkv_archive_archived_sessions_total")? == others + 2))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_that_can_not_be_read_is_a_miss_for_a_while_and_is_found_again() -> Result<()> {
    let shelf = Shelf::new()?;
    let hashes = chain(91, 20);
    {
        let server = shelf.server("asked", "")?;
        let user = user(&server).await?;
        converse(&user, "talk", &hashes, archived()).await?;
        until_archived(&shelf, 1).await?;
    }
    let server = shelf.server("asked", "wait_ms = 10000")?;
    let user = user(&server).await?;
    // A pipe that nobody writes to: whoever opened it to read would wait for ever.
    let manifest = shelf.objects("manifests")?.pop().context("a manifest")?;
    let aside = shelf.archive().join("aside");
    std::fs::rename(&manifest, &aside)?;
    ensure!(Command::new("mkfifo").arg(&manifest).status()?.success());
    until("the session is known", async || Ok(user.namespace.lookup(&hashes).await? == 20)).await?;
    let options = ReloadOptions { deadline: Some(Duration::from_secs(20)), ..ReloadOptions::default() };
    let began = Instant::now();
    ensure!(user.reload_with(&options, &hashes).await?.pages == 0);
    ensure!(began.elapsed() < Duration::from_secs(8), "nobody waits for a pipe: {:?}", began.elapsed());
    ensure!(user.namespace.lookup(&hashes).await? == 0, "it is not told of for a while");
    std::fs::rename(&aside, &manifest)?;
    until("it is found again", async || Ok(user.namespace.lookup(&hashes).await? == 20)).await?;
    let back =
        until("it comes back", async || Ok(user.reload_with(&options, &hashes).await?.pages == 20)).await;
    back.with_context(|| server.log())
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_in_a_pack_are_a_miss() -> Result<()> {
    let shelf = Shelf::new()?;
    let hashes = chain(92, 30);
    {
        let server = shelf.server("asked", "")?;
        let user = user(&server).await?;
        converse(&user, "talk", &hashes, archived()).await?;
        until_archived(&shelf, 1).await?;
    }
    let pack = shelf.objects("packs")?.pop().context("a pack")?;
    let mut bytes = std::fs::read(&pack)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&pack, bytes)?;
    let server = shelf.server("asked", "wait_ms = 5000")?;
    let user = user(&server).await?;
    until("the session is known", async || Ok(user.namespace.lookup(&hashes).await? == 30)).await?;
    // Every byte of what comes back is compared.
    let report = user.reload(&hashes).await?;
    ensure!(report.pages < 30 && report.miss.is_some(), "{report:?}");
    ensure!(user.namespace.lookup(&hashes).await? < 30, "what can not come back is not told of");
    ensure!(server.log().contains("did not come back"), "{}", server.log());
    Ok(())
}
