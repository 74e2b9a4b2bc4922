//! What snapshots share: forks and captures of the same cost next to nothing, and what one of them needs stays when another goes.

use crate::support::{Keeper, Shelf, converse, is_refused, sessions, user};
use anyhow::{Context, Result, ensure};
use std::time::Duration;
use turnkv_client::DataPlane;
use turnkv_proto::{ErrorKind, wire};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

#[tokio::test(flavor = "multi_thread")]
async fn ten_forks_cost_less_than_one_percent() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = Server::start(Setup { dram_mib: 96, ..shelf.setup("") })?;
    let user = User::connect(&server.address(), DataPlane::Shm, 512 << 10).await?;
    let keeper = Keeper::connect(&server.address()).await?;
    let hashes = chain(41, 48);
    converse(&user, "talk", &hashes).await?;
    let made = keeper.session(&user, "talk").await?;
    let before = shelf.bytes()?;
    let mut forks = Vec::new();
    for fork in 0..5 {
        let request = wire::ForkSnapshotRequest {
            snapshot: made.snapshot.clone(),
            pages: 40 + fork,
            name: format!("fork-{fork}"),
            ..Default::default()
        };
        let fork = keeper.client.clone().fork(request).await?.into_inner();
        forks.push(fork.snapshot.context("a fork")?);
        // A fork in the pool, captured: its pages' bytes are there.
        let name = format!("twin-{}", forks.len());
        user.namespace.fork("talk", &name, None).await?;
        keeper.session(&user, &name).await?;
    }
    let more = shelf.bytes()? - before;
    ensure!(more * 100 < before, "{more} bytes beside {before}");
    ensure!(keeper.list().await?.total == 11);
    user.client.evict(None, None).await?;
    let done = keeper.restore(keeper.wish(&forks[2].snapshot)).await?;
    ensure!(done.sessions == ["fork-2"] && done.stored_pages == 42, "{done:?}");
    ensure!(user.reload(&hashes[..42]).await?.pages == 42);
    ensure!(user.namespace.lookup(&hashes).await? == 42);
    let beyond = wire::ForkSnapshotRequest { snapshot: made.snapshot, pages: 49, ..Default::default() };
    is_refused(keeper.client.clone().fork(beyond).await, ErrorKind::Invalid, &["48 pages"])
}

#[tokio::test(flavor = "multi_thread")]
async fn captures_of_one_session_at_once_are_all_whole() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = Server::start(shelf.setup("operations_max = 4"))?;
    let (user, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    let hashes = chain(42, 100);
    converse(&user, "talk", &hashes).await?;
    let captures = [(); 4].map(|()| keeper.session(&user, "talk"));
    let [one, two, three, four] = captures;
    let made = tokio::try_join!(one, two, three, four)?;
    let mut names = vec![made.0.snapshot, made.1.snapshot, made.2.snapshot, made.3.snapshot];
    names.sort();
    names.dedup();
    ensure!(names.len() == 4, "{names:?}");
    ensure!(keeper.verify("").await?.faults_found == 0);
    user.namespace.close("talk").await?;
    for (at, name) in names.iter().enumerate() {
        user.client.evict(None, None).await?;
        let session = format!("copy-{at}");
        let wish = wire::RestoreSnapshotRequest { session: session.clone(), ..keeper.wish(name) };
        ensure!(keeper.restore(wish).await?.sessions == [session]);
        ensure!(user.reload(&hashes).await?.pages == 100);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_deleted_snapshot_alone_needed_goes_after_the_grace_time() -> Result<()> {
    let shelf = Shelf::new()?;
    // Short: captures must be done within three quarters of it.
    let server = Server::start(shelf.setup("grace_s = 4"))?;
    let (user, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    let (stays, goes) = (chain(43, 20), chain(44, 30));
    converse(&user, "stays", &stays).await?;
    converse(&user, "goes", &goes).await?;
    let kept = keeper.session(&user, "stays").await?;
    let gone = keeper.session(&user, "goes").await?;
    keeper.delete(&gone.snapshot).await?;
    let full = shelf.bytes()?;
    ensure!(keeper.collect().await?.packs_condemned == 0, "nothing is old enough yet");
    tokio::time::sleep(Duration::from_millis(5_500)).await;
    let condemned = keeper.collect().await?;
    ensure!(condemned.packs_condemned == 1 && condemned.grace_ms == 4_000, "{condemned:?}");
    ensure!(shelf.bytes()? > full / 2, "it stays for a grace time");
    tokio::time::sleep(Duration::from_millis(5_500)).await;
    let collected = keeper.collect().await?;
    ensure!(collected.packs_deleted == 1 && collected.snapshots == 1, "{collected:?}");
    ensure!(shelf.bytes()? < full / 2, "{} of {full}", shelf.bytes()?);
    ensure!(keeper.verify("").await?.faults_found == 0);
    user.namespace.close("stays").await?;
    user.client.evict(None, None).await?;
    keeper.restore(keeper.wish(&kept.snapshot)).await?;
    ensure!(user.reload(&stays).await?.pages == 20);
    ensure!(sessions(&user).await? == ["goes", "stays"]);
    Ok(())
}
