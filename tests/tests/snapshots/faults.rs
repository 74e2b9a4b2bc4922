//! Damaged objects, callers and servers that end half-way: what is wrong is named, and no session is there that is not whole.

use crate::support::{Keeper, Shelf, converse, is_refused, sessions, user};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use turnkv_proto::{ErrorKind, wire};
use turnkv_tests::pages::chain;
use turnkv_tests::user::User;

/// One bit of a file changes, so far from its beginning.
fn flip(file: &Path, at: impl Fn(usize) -> usize) -> Result<()> {
    let mut bytes = std::fs::read(file)?;
    let at = at(bytes.len());
    bytes[at] ^= 4;
    Ok(std::fs::write(file, bytes)?)
}

/// Nothing of the session is in the pool any more.
async fn forget(user: &User, session: &str) -> Result<()> {
    user.namespace.close(session).await?;
    user.client.evict(None, None).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_is_found_and_named() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = shelf.server()?;
    let (user, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    let hashes = chain(31, 30);
    converse(&user, "talk", &hashes).await?;
    let made = keeper.session(&user, "talk").await?;
    forget(&user, "talk").await?;
    let pack = shelf.objects("packs")?.pop().context("a pack")?;
    let id = pack.file_stem().context("a name")?.to_string_lossy().into_owned();
    flip(&pack, |bytes| bytes / 2)?;
    let words = [id.as_str(), "page ", "shard 0"];
    is_refused(keeper.restore(keeper.wish(&made.snapshot)).await, ErrorKind::Internal, &words)?;
    ensure!(sessions(&user).await?.is_empty(), "no session of it is there");
    let report = keeper.verify(&made.snapshot).await?;
    ensure!(report.faults_found == 1 && report.faults[0].in_page, "{report:?}");
    ensure!(report.faults[0].fault.contains(&id), "{report:?}");
    // Put back as it was, it is good again; pages that were stored before the fault are found.
    flip(&pack, |bytes| bytes / 2)?;
    let done = keeper.restore(keeper.wish(&made.snapshot)).await?;
    ensure!(done.stored_pages + done.present_pages == 30 && done.sessions == ["talk"], "{done:?}");
    ensure!(user.reload(&hashes).await?.pages == 30);
    forget(&user, "talk").await?;
    let manifest = shelf.objects("manifests")?.pop().context("a manifest")?;
    for at in [20, 2000] {
        flip(&manifest, |_| at)?;
        let refused = keeper.restore(keeper.wish(&made.snapshot)).await;
        is_refused(refused, ErrorKind::Internal, &["manifest ", "is damaged"])?;
        let listed = keeper.list().await?;
        ensure!(listed.snapshots[0].summary.is_none() && listed.snapshots[0].fault.contains("damaged"));
        flip(&manifest, |_| at)?;
    }
    std::fs::remove_file(&pack)?;
    is_refused(keeper.restore(keeper.wish(&made.snapshot)).await, ErrorKind::Internal, &["no pack has it"])?;
    ensure!(sessions(&user).await?.is_empty());
    Ok(())
}

/// A restore under way, some of whose pages are there.
async fn half_way(
    keeper: &Keeper,
    request: wire::RestoreSnapshotRequest,
) -> Result<tonic::Streaming<wire::RestoreSnapshotReply>> {
    let mut answers = keeper.client.clone().restore(request).await?.into_inner();
    loop {
        let answer = answers.message().await?.context("it goes on")?;
        let progress = answer.progress.context("it is not done yet")?;
        if progress.pages_done > 0 {
            ensure!(progress.pages_done < progress.pages, "{progress:?}");
            return Ok(answers);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_ends_half_way_leaves_no_session() -> Result<()> {
    let shelf = Shelf::new()?;
    let mut server = shelf.server()?;
    let (first, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    let hashes = chain(32, 400);
    converse(&first, "talk", &hashes).await?;
    let made = keeper.session(&first, "talk").await?;
    first.settle().await?;
    forget(&first, "talk").await?;
    // Its caller leaves.
    drop(half_way(&keeper, keeper.wish(&made.snapshot)).await?);
    let began = Instant::now();
    while first.client.stats().await?.leases > 0 {
        ensure!(began.elapsed() < Duration::from_secs(10), "its leases stay");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    ensure!(sessions(&first).await?.is_empty(), "nobody waits for the session any more");
    ensure!(first.namespace.lookup(&hashes).await? < 400);
    // The server dies.
    let answers = half_way(&keeper, keeper.wish(&made.snapshot)).await?;
    server.kill()?;
    drop(answers);
    server.restart()?;
    let (second, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    ensure!(sessions(&second).await?.is_empty(), "a killed restore left a session");
    let done = keeper.restore(keeper.wish(&made.snapshot)).await?;
    ensure!(done.sessions == ["talk"] && done.stored_pages + done.present_pages == 400, "{done:?}");
    ensure!(second.reload(&hashes).await?.pages == 400);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_that_ends_half_way_leaves_no_snapshot() -> Result<()> {
    let shelf = Shelf::new()?;
    let mut server = shelf.server()?;
    let (first, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    converse(&first, "talk", &chain(33, 400)).await?;
    first.settle().await?;
    for kill in [false, true] {
        let keeper = Keeper::connect(&server.address()).await?;
        let request = wire::CreateSnapshotRequest {
            namespace: first.namespace.id().0.to_vec().into(),
            what: Some(wire::create_snapshot_request::What::Session("talk".to_owned())),
            tokens: Vec::new(),
        };
        let mut answers = keeper.client.clone().create(request).await?.into_inner();
        let first_message = answers.message().await?.context("a message")?;
        ensure!(first_message.snapshot.is_none(), "{first_message:?}");
        if kill {
            server.kill()?;
            server.restart()?;
        }
        drop(answers);
        tokio::time::sleep(Duration::from_millis(500)).await;
        let keeper = Keeper::connect(&server.address()).await?;
        ensure!(keeper.list().await?.total == 0, "killed: {kill}");
    }
    drop(keeper);
    let (second, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    let made = keeper.session(&second, "talk").await?;
    ensure!(made.pages == 400 && keeper.verify("").await?.faults_found == 0, "{made:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_leave_while_they_are_captured_end_the_sequence() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = shelf.server()?;
    let (user, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    let hashes = chain(36, 400);
    for attempt in 0..10 {
        converse(&user, "talk", &hashes).await?;
        let request = wire::CreateSnapshotRequest {
            namespace: user.namespace.id().0.to_vec().into(),
            what: Some(wire::create_snapshot_request::What::Session("talk".to_owned())),
            tokens: vec![wire::SequenceTokens { sequence: "talk".to_owned(), tokens: vec![7; 6400] }],
        };
        let mut answers = keeper.client.clone().create(request).await?.into_inner();
        let mut made = None;
        while let Some(answer) = answers.message().await? {
            if answer.progress.is_some_and(|progress| progress.pages_done > 0) {
                user.client.evict(None, None).await?;
            }
            made = Some(answer);
        }
        let made = made.context("an answer")?;
        let (missing, summary) = (made.missing_pages, made.snapshot.context("a snapshot")?);
        ensure!(summary.pages + missing == 400, "{missing} are missing of {summary:?}");
        if missing == 0 {
            continue; // it was quicker
        }
        forget(&user, "talk").await?;
        let told = keeper.describe(&summary.snapshot, "talk").await?;
        ensure!(told.tokens.len() as u64 == summary.pages * 16, "{} ids", told.tokens.len());
        ensure!(keeper.restore(keeper.wish(&summary.snapshot)).await?.sessions == ["talk"]);
        let report = user.reload(&hashes).await?;
        ensure!(report.pages as u64 == summary.pages, "{report:?} after {attempt}");
        return Ok(());
    }
    anyhow::bail!("every capture was quicker than an eviction")
}

/// A file system of its own for an archive; unmounted when it is dropped.
struct Mounted(std::path::PathBuf);

impl Mounted {
    /// None: this user may not mount.
    fn new(place: std::path::PathBuf, bytes: u64) -> Result<Option<Mounted>> {
        std::fs::create_dir_all(&place)?;
        let size = format!("size={bytes}");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&place).output();
        Ok(mount.is_ok_and(|done| done.status.success()).then_some(Mounted(place)))
    }

    fn make_read_only(&self) -> Result<()> {
        let done = Command::new("mount").args(["-o", "remount,ro"]).arg(&self.0).output()?;
        ensure!(done.status.success(), "{done:?}");
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if Command::new("umount").arg("-l").arg(&self.0).output().is_err() {
            // It goes with the machine.
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_full_or_read_only_refuses_and_says_so() -> Result<()> {
    let shelf = Shelf::new()?;
    let Some(mounted) = Mounted::new(shelf.archive(), 4 << 20)? else {
        eprintln!("LEFT OUT: a store that is full or read-only; it needs the right to mount");
        return Ok(());
    };
    let server = shelf.server()?;
    let (user, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    converse(&user, "large", &chain(34, 100)).await?;
    converse(&user, "small", &chain(35, 10)).await?;
    let session = |name: &str| wire::create_snapshot_request::What::Session(name.to_owned());
    is_refused(keeper.create(&user, session("large")).await, ErrorKind::Limit, &["there is no room"])?;
    let made = keeper.session(&user, "small").await?;
    mounted.make_read_only()?;
    let refused = keeper.create(&user, session("small")).await;
    is_refused(
        refused,
        ErrorKind::Internal,
        &["the store does not allow it", "check keys, permissions and mounts"],
    )?;
    is_refused(keeper.delete(&made.snapshot).await, ErrorKind::Internal, &["the store does not allow it"])?;
    ensure!(keeper.list().await?.total == 1 && keeper.verify("").await?.faults_found == 0);
    forget(&user, "small").await?;
    ensure!(keeper.restore(keeper.wish(&made.snapshot)).await?.sessions == ["small"], "it can be read");
    ensure!(user.reload(&chain(35, 10)).await?.pages == 10);
    drop(server);
    drop(mounted);
    Ok(())
}
