//! What turns find of archived sessions, and are told.

use crate::support::{Shelf, archived, converse, until, until_archived, user};
use anyhow::{Result, ensure};
use turnkv_client::EndTurn;
use turnkv_tests::pages::chain;

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
