//! Which sessions are archived, and how fast.

use crate::support::{Shelf, archived, converse, until, until_archived, user};
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use turnkv_client::EndTurn;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_are_idle_and_large_enough_are_archived_once() -> Result<()> {
    let shelf = Shelf::new()?;
    let (large, small) = (chain(61, 12), chain(62, 4));
    {
        let server = shelf.server("all", "idle_s = 1\npages_min = 8")?;
        let user = user(&server).await?;
        ensure!(!converse(&user, "large", &large, EndTurn::default()).await?, "nobody asked");
        converse(&user, "small", &small, EndTurn::default()).await?;
        user.namespace.begin_turn("in a turn").await?;
        ensure!(shelf.objects("manifests")?.is_empty(), "it is not idle for long enough");
        until_archived(&shelf, 1).await?;
        let first = shelf.objects("manifests")?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        ensure!(shelf.objects("manifests")? == first, "nothing is archived twice");
        // The same content again: a turn that added nothing.
        user.namespace.begin_turn("large").await?;
        user.namespace.end_turn("large", &EndTurn { hashes: large.clone(), ..archived() }).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        ensure!(shelf.objects("manifests")? == first, "nor when it is asked for");
    }
    let server = shelf.server("all", "")?;
    let user = user(&server).await?;
    until("the session is known", async || Ok(user.namespace.lookup(&large).await? == 12)).await?;
    ensure!(user.reload(&large).await?.pages == 12 && user.namespace.lookup(&small).await? == 0);
    Ok(())
}

/// Sessions of which the first must leave NVMe when the last have come.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_leave_nvme_are_archived_before() -> Result<()> {
    let shelf = Shelf::new()?;
    let talks: Vec<_> = (0..60).map(|seed| chain(6_300 + seed, 16)).collect();
    let kept = {
        let setup =
            Setup { dram_mib: 16, nvme_mib: 48, segment_mib: 4, ..shelf.setup("all", "idle_s = 86400") };
        let server = Server::start(Setup { nvme: "codec = \"none\"\n".to_owned(), ..setup })?;
        let user = user(&server).await?;
        for (at, talk) in talks.iter().enumerate() {
            until("it is taken", async || {
                Ok(converse(&user, &format!("talk {at}"), talk, EndTurn::default()).await.is_ok())
            })
            .await?;
            user.settle().await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        until("sessions that leave are archived", async || Ok(shelf.objects("manifests")?.len() > 5)).await?;
        shelf.objects("manifests")?.len()
    };
    ensure!(kept < talks.len(), "those that stay are not archived: {kept}");
    let server = shelf.server("all", "")?;
    let user = user(&server).await?;
    until("they are found", async || {
        let mut found = 0;
        for talk in &talks {
            found += usize::from(user.namespace.lookup(talk).await? > 0);
        }
        Ok(found >= kept)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn archiving_keeps_to_its_rate() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = shelf.server("asked", "bytes_per_second = \"1MiB\"")?;
    let user = user(&server).await?;
    let began = Instant::now();
    // Three parts of 1 MiB each: the last may not begin before two seconds.
    ensure!(converse(&user, "talk", &chain(64, 48), archived()).await?);
    until_archived(&shelf, 1).await?;
    ensure!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_closed_to_be_archived_is_there_until_it_is() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = shelf.server("asked", "bytes_per_second = \"1MiB\"")?;
    let user = user(&server).await?;
    converse(&user, "first", &chain(65, 32), EndTurn::default()).await?;
    let last = EndTurn { last: true, ..archived() };
    let sessions = async || Ok::<_, anyhow::Error>(user.client.sessions(None, 0).await?.total);
    ensure!(converse(&user, "second", &chain(66, 32), last).await?);
    ensure!(user.namespace.close_archived("first").await? && sessions().await? == 2);
    until_archived(&shelf, 2).await?;
    until("both are closed", async || Ok(sessions().await? == 0)).await?;
    // Where nothing is archived, a close is a close.
    let server = shelf.server("off", "")?;
    let user = crate::support::user(&server).await?;
    ensure!(!converse(&user, "third", &chain(67, 2), archived()).await?);
    ensure!(
        !user.namespace.close_archived("third").await? && user.client.sessions(None, 0).await?.total == 0
    );
    Ok(())
}
