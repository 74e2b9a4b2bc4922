//! Slots that a client maps, over the local socket as a client speaks it: bad input, clients that die, servers that stop.

use anyhow::{Result, ensure};
use std::process::Command;
use std::time::{Duration, Instant};
use turnkv_proto::{ErrorKind, pack_hashes, wire};
use turnkv_tests::child::Running;
use turnkv_tests::local::Local;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use wire::{OffloadOutcome as Outcome, Verb};

const PAGE: u64 = 64 << 10;

async fn stats(server: &Server) -> Result<wire::StatsReply> {
    let channel = tonic::transport::Endpoint::from_shared(server.address())?.connect().await?;
    Ok(wire::admin_client::AdminClient::new(channel).stats(wire::StatsRequest {}).await?.into_inner())
}

async fn eventually(server: &Server, true_of: impl Fn(&wire::StatsReply) -> bool, what: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let now = stats(server).await?;
        if true_of(&now) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{what}: {now:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn short_leases() -> Setup {
    Setup { limits: "lease_ms = 200\nlease_grace_ms = 100\n".to_owned(), ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_refused_and_changes_nothing() -> Result<()> {
    // Without NVMe: what is committed here has checksums that are none, and such pages are given up when they are written.
    let server = Server::start(Setup { nvme_mib: 0, ..Setup::default() })?;
    let (local, other) = (Local::connect(&server, PAGE).await?, Local::connect(&server, PAGE).await?);
    let invalid = ErrorKind::Invalid;
    let ask = local.reserve(0, 0);
    local.refused(Verb::Reserve, &ask, invalid, "no pages")?;
    local.refused(Verb::Reserve, &local.reserve(u32::MAX, 0), invalid, "4 billion pages")?;
    local.refused(Verb::Reserve, &local.reserve(1, 77), ErrorKind::LeaseUnknown, "an unknown lease")?;
    local.refused(
        Verb::Reserve,
        &wire::ReserveRequest { shard: 9, ..local.reserve(1, 0) },
        invalid,
        "a shard",
    )?;
    let foreign = wire::ReserveRequest { namespace: vec![1; 32].into(), ..local.reserve(1, 0) };
    local.refused(Verb::Reserve, &foreign, ErrorKind::NamespaceUnknown, "an unknown namespace")?;
    ensure!(other.client == local.client, "connections of one process are one client");
    let stolen = wire::ReserveRequest { client: local.client ^ 1, ..local.reserve(1, 0) };
    local.refused(Verb::Reserve, &stolen, ErrorKind::LeaseUnknown, "another's number")?;
    let before = stats(&server).await?;
    ensure!(before.leases == 0 && before.tiers[0].used_bytes == 0, "something was reserved: {before:?}");

    let reply: wire::ReserveReply = local.ask(Verb::Reserve, &local.reserve(3, 0))?;
    ensure!(reply.slots.len() == 3 && reply.first == 0 && local.renew(reply.lease)?.gone.is_empty());
    let lease = reply.lease;
    local.refused(Verb::CommitReserved, &local.commit(lease, 2, &[0]), invalid, "2 pages, 1 position")?;
    local.refused(Verb::CommitReserved, &local.commit(lease, 2, &[0, 0]), invalid, "a position twice")?;
    local.refused(Verb::CommitReserved, &local.commit(lease, 1, &[3]), invalid, "a position that is none")?;
    local.refused(
        Verb::CommitReserved,
        &local.commit(lease + 1, 1, &[0]),
        ErrorKind::LeaseUnknown,
        "a lease",
    )?;
    let siblings =
        wire::CommitReservedRequest { siblings: true, session: "s".into(), ..local.commit(lease, 1, &[0]) };
    local.refused(Verb::CommitReserved, &siblings, invalid, "siblings in a session")?;
    let theirs = wire::CommitReservedRequest { client: local.client ^ 1, ..local.commit(lease, 1, &[0]) };
    local.refused(Verb::CommitReserved, &theirs, ErrorKind::LeaseUnknown, "another's lease")?;
    let many = wire::RenewRequest { client: local.client, leases: vec![1; 5000] };
    local.refused(Verb::Renew, &many, invalid, "5000 leases")?;
    for positions in [vec![5], vec![1, 0], vec![1, 1]] {
        let release = wire::ReleaseRequest { lease, client: local.client, positions, corrupt: vec![] };
        local.tell(Verb::Release, &release)?; // no reply, and no effect
    }
    let done: wire::CommitReservedReply =
        local.ask(Verb::CommitReserved, &local.commit(lease, 2, &[2, 0]))?;
    ensure!(done.outcomes == [Outcome::Stored as i32; 2], "{done:?}");
    local.refused(
        Verb::CommitReserved,
        &local.commit(lease, 1, &[2]),
        invalid,
        "a slot that is a page's already",
    )?;
    let again: wire::CommitReservedReply = local.ask(Verb::CommitReserved, &local.commit(lease, 1, &[1]))?;
    ensure!(again.outcomes == [Outcome::Present as i32], "{again:?}");
    local.tell(Verb::Release, &wire::ReleaseRequest { lease, client: local.client, ..Default::default() })?;
    eventually(&server, |now| now.leases == 0 && now.tiers[0].used_bytes == 2 * PAGE, "two pages stay").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_held_from_its_first_renewal_and_no_time_ends_it() -> Result<()> {
    let server = Server::start(short_leases())?;
    let local = Local::connect(&server, PAGE).await?;
    let lost: wire::ReserveReply = local.ask(Verb::Reserve, &local.reserve(2, 0))?;
    let held: wire::ReserveReply = local.ask(Verb::Reserve, &local.reserve(3, 0))?;
    ensure!(local.renew(held.lease)?.gone.is_empty());
    eventually(&server, |now| now.leases == 1, "an answer that nobody took up holds nothing").await?;
    ensure!(local.renew(lost.lease)?.gone == [lost.lease], "and cannot be taken up any more");
    eventually(&server, |now| now.quarantined_bytes == 3 * PAGE, "what is not renewed is counted").await?;
    tokio::time::sleep(Duration::from_millis(800)).await;
    ensure!(stats(&server).await?.tiers[0].leased_bytes == 3 * PAGE, "and stays");
    let done: wire::CommitReservedReply =
        local.ask(Verb::CommitReserved, &local.commit(held.lease, 1, &[1]))?;
    ensure!(done.outcomes == [Outcome::Stored as i32], "its slots never left it: {done:?}");
    ensure!(local.renew(held.lease)?.gone.is_empty());
    ensure!(stats(&server).await?.quarantined_bytes == 0, "who is heard of again is not missed any more");
    let more: wire::ReserveReply = local.ask(Verb::Reserve, &local.reserve(1, held.lease))?;
    ensure!(more.lease == held.lease && more.first == 3, "{more:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_holds_only_its_share() -> Result<()> {
    // Without NVMe, as above: the checksums are none.
    let limits = "client_slots_percent = 25\n".to_owned();
    let server = Server::start(Setup { limits, nvme_mib: 0, ..Setup::default() })?;
    let local = Local::connect(&server, PAGE).await?;
    let share = (32 << 20) / PAGE / 4;
    let reply: wire::ReserveReply = local.ask(Verb::Reserve, &local.reserve(400, 0))?;
    ensure!(reply.slots.len() as u64 == share * 3 / 4, "{} of {share}", reply.slots.len());
    ensure!(reply.short == Outcome::LeaseLimit as i32);
    ensure!(local.renew(reply.lease)?.refused.is_empty());
    // What it may not map it can still copy: the rest of its share is for that.
    let done: wire::CommitReservedReply =
        local.ask(Verb::CommitReserved, &local.commit(reply.lease, 2, &[0, 1]))?;
    ensure!(done.outcomes == [Outcome::Stored as i32; 2], "{done:?}");
    let begin = wire::BeginReloadRequest {
        namespace: local.ns.clone(),
        hashes: pack_hashes(&chain(1, 2)).into(),
        client: local.client,
        ..Default::default()
    };
    let begun: wire::BeginReloadReply = local.ask(Verb::BeginReload, &begin)?;
    ensure!(begun.covered == 2 && begun.lease != 0, "{begun:?}");
    let renewed = local.renew(begun.lease)?;
    ensure!(renewed.refused == [begun.lease] && renewed.gone.is_empty(), "{renewed:?}");
    let first = wire::ReleaseRequest {
        lease: reply.lease,
        client: local.client,
        positions: vec![2],
        corrupt: vec![],
    };
    local.tell(Verb::Release, &first)?;
    local.tell(
        Verb::EndReload,
        &wire::EndReloadRequest { lease: begun.lease, client: local.client, ..Default::default() },
    )?;
    let begun: wire::BeginReloadReply =
        local.ask(Verb::BeginReload, &wire::BeginReloadRequest { hold: true, ..begin })?;
    ensure!(begun.covered == 1, "a slot given back is room for one: {begun:?}");
    let renewed = local.renew(begun.lease)?;
    ensure!(renewed.refused.is_empty() && renewed.gone.is_empty(), "{renewed:?} of {begun:?}");
    let other = Local::connect(&server, PAGE).await?;
    let more: wire::ReserveReply = other.ask(Verb::Reserve, &other.reserve(1, 0))?;
    ensure!(
        more.slots.is_empty() || other.client != local.client,
        "another connection is another client here"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_dies_leaves_its_pages_and_nothing_else() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let victim = env!("CARGO_BIN_EXE_victim");
    let mut child = Running::start(Command::new(victim).arg(server.address()).args(["1", "hold"]))?;
    eventually(&server, |now| now.index_pages >= 4 && now.tiers[0].leased_bytes >= 8 * PAGE, "it maps")
        .await?;
    child.kill()?;
    child.wait()?;
    eventually(&server, |now| now.leases == 0 && now.tiers[0].leased_bytes == 0, "its leases end").await?;
    ensure!(stats(&server).await?.index_pages == 4, "what it committed stays");
    Ok(())
}
