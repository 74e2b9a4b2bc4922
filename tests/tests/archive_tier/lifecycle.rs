//! What supersedes what, what ages and limits delete, and servers that share a place.

use crate::support::{Shelf, archived, converse, until, until_archived, user};
use anyhow::{Context, Result, ensure};
use std::time::{Duration, SystemTime};
use turnkv_client::EndTurn;
use turnkv_tests::pages::chain;

#[tokio::test(flavor = "multi_thread")]
async fn the_last_turn_counts_and_servers_on_one_place_find_one_anothers() -> Result<()> {
    let shelf = Shelf::new()?;
    let (one, other) = (shelf.server("asked", "")?, shelf.server("asked", "")?);
    let (here, there) = (user(&one).await?, user(&other).await?);
    let talk = chain(71, 30);
    converse(&here, "talk", &talk[..10], archived()).await?;
    until_archived(&shelf, 1).await?;
    until("the other server knows", async || Ok(there.namespace.lookup(&talk).await? == 10)).await?;
    let begun = there.namespace.begin_turn("talk").await?;
    ensure!(begun.pages + begun.archived <= 10, "{begun:?}");
    ensure!(there.reload(&talk[..10]).await?.pages == 10);
    // It goes on there, and comes back.
    converse(&there, "talk", &talk, archived()).await?;
    until("the later turn is archived, and alone", async || {
        Ok(shelf.objects("manifests")?.len() == 1 && here.namespace.lookup(&talk).await? == 30)
    })
    .await?;
    // The manifest goes first.
    until("its bookmark is alone", async || Ok(shelf.objects("sessions")?.len() == 1)).await?;
    ensure!(here.namespace.begin_turn("talk").await?.pages == 10, "what is here of it");
    ensure!(here.reload(&talk).await?.pages == 30);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_old_goes_and_is_not_found_any_more() -> Result<()> {
    let shelf = Shelf::new()?;
    let (old, new) = (chain(72, 6), chain(73, 6));
    {
        let server = shelf.server("asked", "grace_s = 1")?;
        let user = user(&server).await?;
        converse(&user, "old", &old, archived()).await?;
        until_archived(&shelf, 1).await?;
        let days = Duration::from_secs(3 * 24 * 3600);
        let manifest = shelf.objects("manifests")?.pop().context("a manifest")?;
        std::fs::File::options().write(true).open(manifest)?.set_modified(SystemTime::now() - days)?;
        converse(&user, "new", &new, archived()).await?;
        until_archived(&shelf, 2).await?;
    }
    let server = shelf.server("asked", "grace_s = 1\ncollect_s = 1\nolder_than_days = 2")?;
    let user = user(&server).await?;
    until("it went", async || Ok(shelf.objects("manifests")?.len() == 1)).await?;
    until("its bookmark went", async || Ok(shelf.objects("sessions")?.len() == 1)).await?;
    until("only the new one is found", async || {
        Ok(user.namespace.lookup(&old).await? == 0 && user.namespace.lookup(&new).await? == 6)
    })
    .await?;
    ensure!(user.reload(&new).await?.pages == 6);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_session_goes_when_there_is_too_much_and_snapshots_stay() -> Result<()> {
    use turnkv_proto::wire;
    let shelf = Shelf::new()?;
    let server = shelf.server("asked", "grace_s = 1\ncollect_s = 1\nstored_max = \"3MiB\"")?;
    let user = user(&server).await?;
    converse(&user, "kept by hand", &chain(74, 8), EndTurn::default()).await?;
    let channel = tonic::transport::Endpoint::from_shared(server.address())?.connect().await?;
    let request = wire::CreateSnapshotRequest {
        namespace: user.namespace.id().0.to_vec().into(),
        what: Some(wire::create_snapshot_request::What::Session("kept by hand".to_owned())),
        tokens: Vec::new(),
    };
    let mut made = wire::snapshots_client::SnapshotsClient::new(channel).create(request).await?.into_inner();
    while made.message().await?.is_some() {}
    let by_hand = shelf.objects("manifests")?;
    // 1.5 MiB each, beside half a MiB: not all of these fit.
    for seed in 0..4 {
        converse(&user, &format!("talk {seed}"), &chain(7_500 + seed, 24), archived()).await?;
        until("it is archived", async || {
            Ok(shelf.objects("sessions")?.iter().any(|file| {
                std::fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("talk {seed}")))
            }))
        })
        .await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    until("what is too much went", async || Ok(shelf.objects("manifests")?.len() == 2)).await?;
    let left = shelf.objects("manifests")?;
    ensure!(by_hand.iter().all(|one| left.contains(one)), "a snapshot that somebody made stays");
    until("the last one is there", async || {
        let texts = shelf.objects("sessions")?;
        Ok(texts.len() == 1 && std::fs::read_to_string(&texts[0])?.contains("talk 3"))
    })
    .await?;
    until("packs that nothing needs went", async || {
        let packs = shelf.objects("packs")?;
        let bytes: u64 = packs.iter().map(|pack| std::fs::metadata(pack).map_or(0, |it| it.len())).sum();
        Ok(bytes < 3 << 20)
    })
    .await
}
