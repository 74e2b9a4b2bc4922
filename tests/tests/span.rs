//! Pages written in place and committed: from then on their slots are the pool's.

use anyhow::{Context, Result, ensure};
use turnkv_client::{CommitOptions, DataPlane, OffloadOptions, PageSpan, Standing};
use turnkv_proto::limits::LEASE_PAGES_MAX;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 1 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_page_was_committed_is_not_reserved_any_more() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let mut span = PageSpan::new(&user.namespace, 1, 4, 2)?;
    let commit = CommitOptions { offload: OffloadOptions::default(), siblings: false, keep: false };
    for (round, hashes) in [chain(1, 2), chain(2, 2)].iter().enumerate() {
        ensure!(span.reserve(0, 0, 2, None).await? == 2, "round {round}");
        ensure!(span.standing(0, 0) == Standing::Writable);
        let report = span.commit(0, 0, &commit, hashes).await.context("a slot is written once")?;
        ensure!(report.stored == 2, "{report:?}");
        ensure!(span.standing(0, 1) == Standing::ReadOnly, "the page is the pool's");
        span.vacate(0, 0, 2)?;
        ensure!(span.mapped() == (0, 0), "what is the pool's is given back, not kept to be written again");
    }
    for hashes in [chain(1, 2), chain(2, 2)] {
        ensure!(user.namespace.lookup(&hashes).await? == 2, "both are here");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn more_slots_than_one_lease_has_are_reserved_at_once_and_one_by_one() -> Result<()> {
    const SMALL: u64 = 4096;
    let server = Server::start(Setup::default())?;
    let user = User::connect(&server.address(), DataPlane::Shm, SMALL).await?;
    let (first, more) = (LEASE_PAGES_MAX + 300, 4);
    let mut span = PageSpan::new(&user.namespace, 1, 2 * LEASE_PAGES_MAX + more, 1)?;
    let got = span.reserve(0, 0, first, None).await?;
    ensure!(got == first, "{got} of {first}: the pool has room for all");
    for place in first..2 * LEASE_PAGES_MAX + more {
        ensure!(span.reserve(0, place, 1, None).await? == 1, "place {place}");
    }
    let commit = CommitOptions { offload: OffloadOptions::default(), siblings: false, keep: false };
    let hashes = chain(3, 2 * LEASE_PAGES_MAX + more);
    let report = span.commit(0, 0, &commit, &hashes).await?;
    ensure!(report.stored == hashes.len(), "{report:?}");
    ensure!(user.namespace.lookup(&hashes).await? == hashes.len(), "all are here");
    Ok(())
}
