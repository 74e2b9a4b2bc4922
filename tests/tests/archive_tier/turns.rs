//! What turns find of archived sessions, and are told.

use crate::support::{PAGE, Shelf, archived, converse, until, until_archived, user};
use anyhow::{Result, ensure};
use turnkv_client::{BlockHash, DataPlane, EndTurn};
use turnkv_tests::pages::chain;
use turnkv_tests::user::User;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_asked_for_is_found_by_its_next_turn_at_another_server() -> Result<()> {
    let shelf = Shelf::new()?;
    let hashes = chain(51, 100);
    {
        let server = shelf.server("asked", "")?;
        let first = user(&server).await?;
        ensure!(!converse(&first, "quiet", &chain(52, 10), EndTurn::default()).await?);
        ensure!(converse(&first, "talk", &hashes, EndTurn { tail_tokens: 5, ..archived() }).await?);
        until_archived(&shelf, 1).await?;
    } // The server, its memory and its disk are gone.
    let server = shelf.server("asked", "")?;
    let user = user(&server).await?;
    until("the session is known", async || Ok(user.namespace.lookup(&hashes).await? == 100)).await?;
    ensure!(user.namespace.lookup(&chain(52, 10)).await? == 0, "nobody asked for it");
    // The lookup had it fetched. Pages may be here by now, but its list came back with none of them: its owner names them.
    let begun = user.namespace.begin_turn("talk").await?;
    ensure!((begun.turn, begun.pages) == (1, 0) && [0, 100].contains(&begun.archived), "{begun:?}");
    let report = user.reload(&hashes).await?;
    ensure!((report.pages, report.miss) == (100, None), "{report:?}");
    ensure!(
        user.namespace.end_turn("talk", &EndTurn { hashes, tail_tokens: 5, ..EndTurn::default() }).await?
            == 100
    );
    Ok(())
}

/// Everything that the pool has is gone; the archive has the session.
async fn forget(user: &User) -> Result<()> {
    user.settle().await?;
    user.client.evict(None, None).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_begins_has_its_pages_brought_back() -> Result<()> {
    let shelf = Shelf::new()?;
    let server = shelf.server("asked", "wait_ms = 0")?;
    let user = user(&server).await?;
    let hashes = chain(53, 40);
    converse(&user, "talk", &hashes, archived()).await?;
    until_archived(&shelf, 1).await?;
    until("it is known", async || {
        forget(&user).await?;
        let begun = user.namespace.begin_turn("talk").await?;
        ensure!(begun.pages == 0, "{begun:?}");
        Ok(begun.archived == 40)
    })
    .await?;
    // With no wait nobody is told before they are here.
    until("they are here", async || Ok(user.namespace.lookup(&hashes).await? == 40)).await?;
    ensure!(user.reload(&hashes).await?.pages == 40);
    // A prefetch has them brought back as well.
    user.namespace.end_turn("talk", &EndTurn { hashes: hashes.clone(), ..EndTurn::default() }).await?;
    forget(&user).await?;
    user.namespace.prefetch_hashes(&hashes).await?;
    until("they are here again", async || Ok(user.namespace.lookup(&hashes).await? == 40)).await?;
    // So has a reload, which does not wait; and a lookup, which does not count them.
    forget(&user).await?;
    ensure!(user.reload(&hashes).await?.pages == 0 && user.namespace.lookup(&hashes).await? == 0);
    until("a lookup brings them back", async || Ok(user.namespace.lookup(&hashes).await? == 40)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_beginning_is_found_by_other_sessions_inline_and_after_a_restart() -> Result<()> {
    let shelf = Shelf::new()?;
    let mut server = shelf.server("asked", "")?;
    let hashes = chain(54, 30);
    {
        let user = user(&server).await?;
        converse(&user, "talk", &hashes, archived()).await?;
        until_archived(&shelf, 1).await?;
        forget(&user).await?;
    }
    server.kill()?;
    server.restart()?;
    let user = User::connect(&server.address(), DataPlane::Inline, PAGE).await?;
    // Another conversation begins with the same 20 pages.
    let mut other = hashes[..20].to_vec();
    other.push(BlockHash::chain(other.last(), &[7, 7, 7]));
    until("the beginning is known", async || Ok(user.namespace.lookup(&other).await? == 20)).await?;
    let report = user.reload(&other[..20]).await?;
    ensure!((report.pages, report.miss) == (20, None), "{report:?}");
    until("no more than that came", async || Ok(user.client.stats().await?.leases == 0)).await?;
    ensure!(user.reload(&other).await?.pages == 20, "what nobody has is a miss at once");
    Ok(())
}
