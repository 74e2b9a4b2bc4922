//! Sessions as users see them: shared prefixes are never prefilled again, forks share pages, what is superseded goes before what
//! is closed before what waits, pins and priorities hold under pressure, a session that was said to return is in DRAM when
//! it does, routes follow the pages.

use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use turnkv_client::{
    BlockHash, DataPlane, EndTurn, EngineState, ErrorKind, OffloadOptions, PinFor, TierKind,
};
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 256 << 10;
/// Pages of DRAM.
const SLOTS: usize = 64;

fn setup(nvme_mib: u64) -> Setup {
    Setup { dram_mib: SLOTS as u64 / 4, nvme_mib, ..Setup::default() }
}

/// `prefix`, then pages of one's own.
fn branch(prefix: &[BlockHash], seed: u64, pages: usize) -> Vec<BlockHash> {
    let mut list = prefix.to_vec();
    for page in 0..pages as u32 {
        list.push(BlockHash::chain(list.last(), &[seed as u32, 77, page]));
    }
    list
}

/// One turn as an engine makes it: what is there is reloaded, the rest is prefilled and offloaded. Returns the pages prefilled.
async fn turn(user: &User, session: &str, list: &[BlockHash], end: EndTurn) -> Result<usize> {
    user.namespace.begin_turn(session).await?;
    let found = if user.namespace.lookup(list).await? == 0 { 0 } else { user.reload(list).await?.pages };
    if found < list.len() {
        let parent = found.checked_sub(1).map(|at| list[at]);
        let options = OffloadOptions {
            session: Some(session.to_owned()),
            parent,
            wait: Duration::from_secs(5),
            deadline: Some(Duration::from_secs(10)),
            ..OffloadOptions::default()
        };
        let report = user.offload(&options, &list[found..]).await?;
        ensure!(report.declined == 0, "{report:?}");
    }
    let end = EndTurn { hashes: list.to_vec(), ..end };
    ensure!(user.namespace.end_turn(session, &end).await? == list.len());
    Ok(list.len() - found)
}

async fn flood(user: &User, seed: u64) -> Result<()> {
    for at in 0..8 {
        turn(user, &format!("flood-{seed}-{at}"), &chain(seed * 100 + at, 12), EndTurn::default()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_system_prompt_is_prefilled_once() -> Result<()> {
    let server = Server::start(setup(0))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let prompt = chain(1, 8);
    let mut prefilled = 0;
    // 40 sessions of 4 own pages: more than twice what DRAM holds beside the prompt.
    for at in 0..40 {
        let list = branch(&prompt, at, 4);
        prefilled += turn(&user, &format!("chat-{at}"), &list, EndTurn::default()).await?;
    }
    ensure!(prefilled == 8 + 40 * 4, "{prefilled} pages prefilled: the prompt more than once");
    let stats = user.client.stats().await?;
    ensure!(stats.evicted_pages >= 100, "there was no pressure: {stats:?}");
    ensure!(user.namespace.lookup(&prompt).await? == 8);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn forks_share_pages() -> Result<()> {
    let server = Server::start(setup(0))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let list = chain(1, 20);
    turn(&user, "root", &list, EndTurn::default()).await?;
    for at in 0..10 {
        ensure!(user.namespace.fork("root", &format!("fork-{at}"), Some(16)).await? == 16);
    }
    ensure!(user.client.stats().await?.index_pages == 20, "eleven sessions, the pages of one");
    let mine = branch(&list[..16], 5, 2);
    ensure!(
        turn(&user, "fork-5", &mine, EndTurn::default()).await? == 2,
        "a fork prefills its own pages only"
    );
    ensure!(user.client.stats().await?.index_pages == 22);
    let detail = user.namespace.describe_session("fork-5").await?;
    ensure!((detail.info.pages, detail.shared_pages, detail.bytes) == (18, 16, 18 * PAGE), "{detail:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn superseded_goes_before_closed_before_waiting() -> Result<()> {
    let server = Server::start(setup(0))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let present = async |seed| user.namespace.lookup(&chain(seed, 16)).await;
    for seed in 1..=3 {
        turn(&user, &format!("s{seed}"), &chain(seed, 16), EndTurn::default()).await?;
    }
    user.namespace.close("s2").await?;
    user.namespace.supersede("s3", 6).await?;
    // 48 of 64 slots are taken; 26 more need the ten pages of the branch, and no other.
    turn(&user, "new", &chain(4, 26), EndTurn::default()).await?;
    ensure!(present(3).await? == 6, "the superseded branch went, and its stem stayed");
    ensure!((present(1).await?, present(2).await?) == (16, 16));
    turn(&user, "newer", &chain(5, 16), EndTurn::default()).await?;
    ensure!(present(2).await? == 0, "then the closed session");
    ensure!(present(1).await? == 16, "and not the one that waits, though it is older");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_and_a_priority_hold_under_pressure() -> Result<()> {
    // With this order everything new is taken, whatever must go for it.
    let server = Server::start(Setup { top: "policy = \"lru\"\n".to_owned(), ..setup(0) })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let prompt = chain(1, 6);
    turn(&user, "first", &prompt, EndTurn::default()).await?;
    let pinned = user.namespace.pin(&prompt, PinFor::ms(60_000)).await?;
    ensure!((pinned.pages, pinned.pin, pinned.ends_in_ms) == (6, prompt[5], 60_000), "{pinned:?}");
    turn(&user, "vip", &chain(2, 8), EndTurn { priority: 1, ..EndTurn::default() }).await?;
    turn(&user, "usual", &chain(3, 8), EndTurn::default()).await?;
    user.namespace.close("first").await?;
    flood(&user, 1).await?;
    ensure!(user.namespace.lookup(&prompt).await? == 6, "pinned");
    ensure!(user.namespace.lookup(&chain(2, 8)).await? == 8, "protected by its priority");
    ensure!(user.namespace.lookup(&chain(3, 8)).await? == 0, "neither");
    let detail = user.namespace.describe_session("vip").await?;
    ensure!(detail.protected_pages > 0 && detail.protected_for_ms > 0 && detail.priority == 1, "{detail:?}");
    // A quarter of 64 pages is the tenant's budget.
    turn(&user, "greedy", &chain(4, 30), EndTurn { priority: 1, ..EndTurn::default() }).await?;
    ensure!(user.namespace.describe_session("greedy").await?.protected_pages == 2, "what is left of 16");
    ensure!(user.namespace.unpin(&pinned.pin).await? && !user.namespace.unpin(&pinned.pin).await?);
    flood(&user, 2).await?;
    let left = user.namespace.lookup(&prompt).await?;
    ensure!(left == 0, "given up, and {left} are there");
    let pin = user.namespace.pin_session("nobody", None, PinFor::ms(0)).await;
    ensure!(pin.is_err_and(|error| error.kind == ErrorKind::SessionUnknown));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn protection_outlives_a_restart() -> Result<()> {
    for clean in [true, false] {
        let mut server = Server::start(setup(64))?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        turn(&user, "first", &chain(1, 4), EndTurn::default()).await?;
        turn(&user, "vip", &chain(2, 6), EndTurn { priority: 3, ttl_ms: 90_000, ..EndTurn::default() })
            .await?;
        ensure!(user.namespace.pin(&chain(1, 4), PinFor::ms(60_000)).await?.pages == 4);
        let over = user.namespace.pin(&chain(2, 2), PinFor::ms(60_000)).await?;
        ensure!(user.namespace.unpin(&over.pin).await?);
        user.namespace.pin(&chain(2, 3), PinFor::ms(1)).await?;
        let before = user.client.stats().await?;
        ensure!(before.protected_bytes == 10 * PAGE, "{before:?}");
        user.settle().await?;
        tokio::time::sleep(Duration::from_secs(1)).await; // the catalog is written twice a second
        if clean {
            server.terminate()?
        } else {
            server.kill()?
        }
        server.restart()?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        let stats = user.client.stats().await?;
        ensure!((stats.pins, stats.protections) == (1, 2), "one pin ended, one was taken back: {stats:?}");
        ensure!(stats.protected_bytes == 10 * PAGE, "{stats:?}");
        let detail = user.namespace.describe_session("vip").await?;
        ensure!(detail.priority == 3 && detail.protected_pages == 6, "{detail:?}");
        ensure!((1..=90_000).contains(&detail.protected_for_ms), "no longer than it was told: {detail:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_in_dram_before_its_turn() -> Result<()> {
    let server = Server::start(setup(128))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    turn(&user, "told", &chain(1, 16), EndTurn { expected_return_ms: 4_000, ..EndTurn::default() }).await?;
    turn(&user, "asked", &chain(2, 16), EndTurn::default()).await?;
    turn(&user, "silent", &chain(3, 16), EndTurn::default()).await?;
    user.settle().await?;
    user.client.evict(None, Some(TierKind::Dram)).await?;
    user.namespace.prefetch_in("asked", 3_000).await?;
    let dram = async |session| {
        Ok::<usize, anyhow::Error>(user.namespace.describe_session(session).await?.dram_pages)
    };
    ensure!(dram("told").await? == 0, "not long before it must be");
    let until = Instant::now() + Duration::from_secs(20);
    while (dram("told").await?, dram("asked").await?) != (16, 16) {
        ensure!(Instant::now() < until, "nobody read them: {}", server.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(dram("silent").await? == 0, "nobody said that it returns");
    ensure!(user.namespace.begin_turn("told").await?.dram == 16);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_follow_the_pages_and_then_the_load() -> Result<()> {
    let server = Server::start(setup(0))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let engine =
        |name: &str| EngineState { name: name.to_owned(), capacity_pages: 1_000, ..EngineState::default() };
    let engines = [engine("gpu-0"), engine("gpu-1")];
    let list = chain(1, 24);
    user.namespace.begin_turn_at("chat", "gpu-1").await?;
    user.offload(&OffloadOptions::default(), &list).await?;
    user.namespace.end_turn("chat", &EndTurn { hashes: list.clone(), ..EndTurn::default() }).await?;
    let by_session = user.namespace.route(Some("chat"), &[], &engines).await?;
    let best = &by_session.choices[0];
    ensure!((best.name.as_str(), best.held_pages, best.home) == ("gpu-1", 24, true), "{by_session:?}");
    ensure!(by_session.pool_pages == 24, "any other engine could reload it");
    let by_pages = user.namespace.route(None, &branch(&list[..16], 9, 8), &engines).await?;
    ensure!(
        (by_pages.choices[0].name.as_str(), by_pages.choices[0].held_pages) == ("gpu-1", 16),
        "{by_pages:?}"
    );
    let stranger = user.namespace.route(None, &chain(7, 24), &engines).await?;
    ensure!(stranger.choices[0].name == "gpu-0", "where less was done: {stranger:?}");
    let full = [engine("gpu-0"), EngineState { used_pages: 1_000, running: 9, ..engine("gpu-1") }];
    let away = user.namespace.route(Some("chat"), &[], &full).await?;
    ensure!(away.choices[0].name == "gpu-0" && away.choices[1].overflow_pages == 24, "{away:?}");
    ensure!(user.namespace.describe_session("chat").await?.engine.as_deref() == Some("gpu-1"));
    user.namespace.close("chat").await?;
    let none = user.namespace.route(None, &[], &[]).await;
    ensure!(none.is_err_and(|error| error.kind == ErrorKind::Invalid), "no engine to choose");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_that_one_tenant_never_ends_do_not_shut_out_another() -> Result<()> {
    const SESSIONS: usize = 50;
    let limits = format!("sessions_max = {SESSIONS}\n");
    let server = Server::start(Setup { limits, ..setup(0) })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let spec = |tenant: &str| namespace("sessions", PAGE).with_tenant(tenant);
    let hostile = user.client.open_namespace(spec("hostile")).await?;
    turn(&user, "old", &chain(1, 2), EndTurn::default()).await?;
    let mut refused = 0;
    for at in 0..2 * SESSIONS {
        match hostile.begin_turn(&format!("h{at}")).await {
            Err(error) if error.kind == ErrorKind::Limit => refused += 1,
            begun => drop(begun?),
        }
    }
    ensure!(refused == SESSIONS + 1, "{refused} turns refused");
    ensure!(user.namespace.begin_turn("old").await?.pages == 2, "it made way for another tenant's");
    for at in 0..SESSIONS as u64 / 2 - 1 {
        turn(&user, &format!("s{at}"), &chain(10 + at, 1), EndTurn::default()).await?;
    }
    ensure!(user.namespace.begin_turn("old").await?.pages == 2, "its share is not used up");
    Ok(())
}
