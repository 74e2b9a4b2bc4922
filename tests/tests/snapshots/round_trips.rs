//! What was captured comes back, after the server and its NVMe are gone.

use crate::support::{Keeper, PAGE, Shelf, converse, converse_with_tail, sessions, user};
use anyhow::{Context, Result, ensure};
use turnkv_client::{
    BlockHash, Dtype, EndTurn, NamespaceSpec, OffloadOptions, PageSource, PageTarget, ReloadOptions, TierKind,
};
use turnkv_proto::{pack_hashes, wire};
use turnkv_tests::pages::{self, chain};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use wire::create_snapshot_request::What;

/// The server is killed, and what it had on NVMe is gone.
fn lose_everything(mut server: Server) -> Result<()> {
    server.kill()?;
    std::fs::remove_dir_all(server.nvme_dir())?;
    Ok(())
}

async fn has_all(user: &User, hashes: &[BlockHash]) -> Result<()> {
    let report = user.reload(hashes).await?;
    ensure!(report.pages == hashes.len(), "{} of {} pages: {report:?}", report.pages, hashes.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_comes_back_from_dram_and_from_nvme() -> Result<()> {
    for from_nvme in [false, true] {
        let shelf = Shelf::new()?;
        let server = shelf.server()?;
        let (first, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
        let hashes = chain(11, 40);
        converse_with_tail(&first, "talk", &hashes, 5).await?;
        if from_nvme {
            first.settle().await?;
            first.client.evict(None, Some(TierKind::Dram)).await?;
        }
        let made = keeper.session(&first, "talk").await?;
        ensure!(made.pages == 40 && made.bytes == 40 * PAGE && made.first_sequence == "talk", "{made:?}");
        let was = first.namespace.describe_session("talk").await?.info;
        lose_everything(server)?;

        let server = shelf.server()?;
        let keeper = Keeper::connect(&server.address()).await?;
        let listed = keeper.list().await?;
        ensure!(listed.total == 1 && listed.snapshots[0].snapshot == made.snapshot, "{listed:?}");
        // Nobody has opened the namespace here: the snapshot says what it is.
        let done = keeper.restore(keeper.wish(&made.snapshot)).await?;
        ensure!(done.sessions == ["talk"] && done.stored_pages == 40, "{done:?}");
        let second = user(&server).await?;
        let is = second.namespace.describe_session("talk").await?.info;
        ensure!(
            (is.pages, is.tail_tokens, is.in_turn) == (was.pages, was.tail_tokens, false),
            "{is:?}, {was:?}"
        );
        ensure!(is.tail_tokens == 5);
        has_all(&second, &hashes).await?;
        let begun = second.namespace.begin_turn("talk").await?;
        ensure!(begun.turn == 2 && begun.tail == Some((hashes[39], 5)), "{begun:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_session_outlives_a_restart() -> Result<()> {
    let shelf = Shelf::new()?;
    let mut server = shelf.server()?;
    let (first, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    let hashes = chain(12, 70);
    converse(&first, "talk", &hashes).await?;
    let made = keeper.session(&first, "talk").await?;
    first.namespace.close("talk").await?;
    first.client.evict(None, None).await?;
    ensure!(first.namespace.lookup(&hashes).await? == 0);
    keeper.restore(keeper.wish(&made.snapshot)).await?;
    first.settle().await?;
    server.terminate()?;
    server.restart()?;
    let second = user(&server).await?;
    ensure!(second.namespace.describe_session("talk").await?.info.pages == 70);
    has_all(&second, &hashes).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_comes_back_with_its_token_ids_and_without_what_was_not_there() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = shelf.server()?;
    let (first, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    let hashes = chain(13, 12);
    first.offload(&OffloadOptions::default(), &hashes[..9]).await?;
    let prefix = |hashes: &[BlockHash]| {
        What::Prefix(wire::SnapshotPrefix { hashes: pack_hashes(hashes).into(), name: "system".to_owned() })
    };
    let ids: Vec<u32> = (0..12 * 16).map(|id| id * 7).collect();
    let tokens = vec![wire::SequenceTokens { sequence: "system".to_owned(), tokens: ids.clone() }];
    let made = keeper.create_with(&first, prefix(&hashes), tokens).await?;
    let missing = made.missing_pages;
    let summary = made.snapshot.context("a snapshot")?;
    ensure!(missing == 3 && summary.pages == 9, "{missing} missing: {summary:?}");
    let told = keeper.describe(&summary.snapshot, "system").await?;
    ensure!(told.tokens == ids[..9 * 16] && told.hashes == pack_hashes(&hashes[..9]), "{told:?}");
    ensure!(told.sequences.len() == 1 && told.sequences[0].has_tokens && told.next_page == 0);
    // Pages that do not follow one another are no prefix.
    let mixed = [hashes[0], chain(99, 1)[0], hashes[1]];
    let made = keeper.create(&first, prefix(&mixed)).await?;
    ensure!(made.missing_pages == 2 && made.snapshot.context("a snapshot")?.pages == 1);
    lose_everything(server)?;

    let server = shelf.server()?;
    let keeper = Keeper::connect(&server.address()).await?;
    let wish = wire::RestoreSnapshotRequest { pages_only: true, ..keeper.wish(&summary.snapshot) };
    let done = keeper.restore(wish).await?;
    ensure!(done.sessions.is_empty() && done.stored_pages == 9, "{done:?}");
    let second = user(&server).await?;
    ensure!(sessions(&second).await?.is_empty());
    has_all(&second, &hashes[..9]).await?;
    // The pages are there already: a session of them costs nothing.
    let wish = wire::RestoreSnapshotRequest { session: "mine".to_owned(), ..keeper.wish(&summary.snapshot) };
    let done = keeper.restore(wish).await?;
    ensure!(done.sessions == ["mine"] && (done.stored_pages, done.present_pages) == (0, 9), "{done:?}");
    ensure!(second.namespace.describe_session("mine").await?.info.pages == 9);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_comes_back_with_all_sessions_and_all_pages() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = shelf.server()?;
    let (first, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    let (shared, lone) = (chain(14, 20), chain(15, 6));
    converse(&first, "one", &shared).await?;
    first.namespace.fork("one", "two", Some(8)).await?;
    let mut branch = shared[..8].to_vec();
    branch.push(BlockHash::chain(branch.last(), &[1, 2, 3]));
    converse_with_tail(&first, "two", &branch, 3).await?;
    first.offload(&OffloadOptions::default(), &lone).await?;
    let made = keeper.create(&first, What::Everything(true)).await?;
    let summary = made.snapshot.context("a snapshot")?;
    ensure!(summary.pages == 20 + 1 + 6 && summary.sequences == 2, "{summary:?}");
    lose_everything(server)?;

    let server = shelf.server()?;
    let keeper = Keeper::connect(&server.address()).await?;
    // One of them alone first, under another name: only its pages.
    let wish = wire::RestoreSnapshotRequest {
        sequence: "two".to_owned(),
        session: "copy".to_owned(),
        ..keeper.wish(&summary.snapshot)
    };
    let done = keeper.restore(wish).await?;
    ensure!(done.stored_pages == 9 && done.sessions == ["copy"], "{done:?}");
    let done = keeper.restore(keeper.wish(&summary.snapshot)).await?;
    ensure!((done.stored_pages, done.present_pages) == (18, 9), "{done:?}");
    let second = user(&server).await?;
    ensure!(sessions(&second).await? == ["copy", "one", "two"]);
    for hashes in [&shared, &branch, &lone] {
        has_all(&second, hashes).await?;
    }
    let two = second.namespace.describe_session("two").await?.info;
    ensure!((two.pages, two.tail_tokens) == (9, 3), "{two:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_shard_of_a_page_comes_back() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = shelf.server()?;
    let spec = NamespaceSpec::full("sharded", Dtype::Bf16, 16, 3, 4, 64).with_tp_size(2);
    let opened = |server: &Server| {
        let (address, spec) = (server.address(), spec.clone());
        async move {
            let client = turnkv_client::Client::new(turnkv_client::ClientConfig::at(address))?;
            let namespace = client.open_namespace(spec).await?;
            anyhow::Ok(User { client, namespace })
        }
    };
    let first = opened(&server).await?;
    let keeper = Keeper::connect(&server.address()).await?;
    let hashes = chain(16, 7);
    let bytes: Vec<Vec<u8>> = hashes
        .iter()
        .flat_map(|hash| [*hash, BlockHash::chain(Some(hash), &[1])])
        .map(|seed| pages::bytes(&seed, first.page_bytes()))
        .collect();
    let sources: Vec<PageSource<'_>> = bytes.iter().map(|page| PageSource::Bytes(page)).collect();
    let options = OffloadOptions { shards: 2, ..OffloadOptions::default() };
    let report = first.namespace.offload(&options, &hashes, &sources).await?;
    ensure!(report.stored == 7, "{report:?}");
    let what = wire::SnapshotPrefix { hashes: pack_hashes(&hashes).into(), name: "p".to_owned() };
    let made = keeper.create(&first, What::Prefix(what)).await?.snapshot.context("a snapshot")?;
    ensure!((made.shards, made.pages) == (2, 7), "{made:?}");
    lose_everything(server)?;

    let server = Server::start(Setup { nvme_mib: 0, ..shelf.setup("") })?;
    let keeper = Keeper::connect(&server.address()).await?;
    keeper.restore(keeper.wish(&made.snapshot)).await?;
    let second = opened(&server).await?;
    let mut found = vec![vec![0u8; second.page_bytes()]; bytes.len()];
    let mut targets: Vec<PageTarget<'_>> = found.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
    let options = ReloadOptions { shards: 2, ..ReloadOptions::default() };
    let report = second.namespace.reload(&options, &hashes, &mut targets).await?;
    ensure!(report.pages == 7 && found == bytes, "{report:?}");
    Ok(())
}

/// What is larger than DRAM goes through it, both ways.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_larger_than_dram_comes_back() -> Result<()> {
    let shelf = Shelf::new()?;
    let small = || Setup { dram_mib: 16, ..shelf.setup("") };
    let server = Server::start(small())?;
    let (first, keeper) = (user(&server).await?, Keeper::connect(&server.address()).await?);
    let hashes = chain(17, 600);
    first.namespace.begin_turn("talk").await?;
    for (at, some) in hashes.chunks(50).enumerate() {
        let parent = (at > 0).then(|| hashes[at * 50 - 1]);
        let session = Some("talk".to_owned());
        let report =
            first.offload(&OffloadOptions { session, parent, ..OffloadOptions::default() }, some).await?;
        ensure!(report.stored == some.len(), "{report:?}");
        first.settle().await?;
    }
    let end = EndTurn { hashes: hashes.clone(), ..EndTurn::default() };
    ensure!(first.namespace.end_turn("talk", &end).await? == 600);
    let made = keeper.session(&first, "talk").await?;
    ensure!(made.pages == 600, "{made:?}");
    lose_everything(server)?;

    let server = Server::start(small())?;
    let keeper = Keeper::connect(&server.address()).await?;
    let done = keeper.restore(keeper.wish(&made.snapshot)).await?;
    ensure!(done.stored_pages == 600 && done.sessions == ["talk"], "{done:?}");
    let second = user(&server).await?;
    ensure!(second.client.stats().await?.leases == 0);
    has_all(&second, &hashes).await
}
