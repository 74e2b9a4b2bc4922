//! Pins that another pool has too.

use crate::support::{PAGE, Pool, Pools, end, turn, until};
use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::time::Duration;
use turnkv_client::{BlockHash, DataPlane, ErrorKind, OffloadOptions, PinFor};
use turnkv_tests::pages::chain;
use turnkv_tests::proxy::Fault;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const PAGES: usize = 60;
/// Of a pool whose host is gone: its peers notice it first.
const GONE_SECONDS_MAX: Duration = Duration::from_secs(30);
const TWICE: PinFor = PinFor { ttl_ms: 60_000, second_copy: true };

/// Which pool a pin names.
fn at(name: &str) -> Result<usize> {
    Ok(name.strip_prefix("pool-").context("the name of a pool")?.parse()?)
}

/// Waits until a pool protects so many pages.
async fn protects(pool: &Pool, pages: usize) -> Result<()> {
    until(&format!("{pages} pages are protected"), async || {
        Ok(pool.counted("turnkv_protection_protected_bytes")? == pages as u64 * PAGE)
    })
    .await
}

/// Has a prefix pinned at the first pool and another one, which is returned.
async fn pin(user: &User, hashes: &[BlockHash]) -> Result<usize> {
    let pinned = user.namespace.pin(hashes, TWICE).await?;
    ensure!(pinned.pages == hashes.len(), "{pinned:?}");
    let second = pinned.second.context("it was asked for")?;
    at(&second.map_err(anyhow::Error::msg)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_prefix_is_found_when_its_host_is_gone() -> Result<()> {
    let mut pools = Pools::start(3, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let hashes = chain(1, PAGES);
    users[0].offload(&OffloadOptions::default(), &hashes).await?;
    let second = pin(&users[0], &hashes).await?;
    let third = 3 - second;
    ensure!(second != 0 && pools.0[second].pulled()? == PAGES as u64 && pools.0[third].pulled()? == 0);
    protects(&pools.0[0], PAGES).await?;
    protects(&pools.0[second], PAGES).await?;
    // Pinned again, it is renewed at the same member, and no page travels.
    ensure!(pin(&users[0], &hashes).await? == second && pools.0[second].pulled()? == PAGES as u64);
    pools.0[0].server.kill()?;
    let began = std::time::Instant::now();
    while users[third].namespace.lookup(&hashes).await? < PAGES {
        ensure!(began.elapsed() < GONE_SECONDS_MAX, "the second copy is not found");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    ensure!(users[third].reload(&hashes).await?.pages == PAGES);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_ends_in_both_places_and_its_member_may_change() -> Result<()> {
    let pools = Pools::start(3, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let hashes = chain(2, PAGES);
    users[0].offload(&OffloadOptions::default(), &hashes).await?;
    let second = pin(&users[0], &hashes).await?;
    protects(&pools.0[second], PAGES).await?;
    ensure!(users[0].namespace.unpin(&hashes[PAGES - 1]).await?);
    protects(&pools.0[0], 0).await?;
    protects(&pools.0[second], 0).await?;
    // A member that is being emptied holds nothing new.
    users[second].client.drain().await?;
    until("another one has it", async || Ok(pin(&users[0], &hashes).await? == 3 - second)).await?;
    protects(&pools.0[3 - second], PAGES).await?;
    // Where it was before, it is no longer, whichever way it hops.
    protects(&pools.0[second], 0).await?;
    users[second].client.resume().await?;
    until("the first one has it again", async || Ok(pin(&users[0], &hashes).await? == second)).await?;
    protects(&pools.0[3 - second], 0).await?;
    ensure!(users[0].namespace.unpin(&hashes[PAGES - 1]).await?);
    protects(&pools.0[second], 0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_unpinned_on_its_way_is_pinned_nowhere() -> Result<()> {
    let pools = Pools::start(2, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    for round in 0..30 {
        let hashes = chain(100 + round, 20);
        users[0].offload(&OffloadOptions::default(), &hashes).await?;
        let ended = async {
            tokio::time::sleep(Duration::from_millis(round % 10)).await;
            users[0].namespace.unpin(&hashes[19]).await
        };
        let (pinned, found) = tokio::join!(users[0].namespace.pin(&hashes, TWICE), ended);
        // An Unpin that came before the Pin found none.
        if !found? {
            users[0].namespace.unpin(&hashes[19]).await?;
        }
        ensure!(pinned?.pages == 20);
    }
    protects(&pools.0[0], 0).await?;
    protects(&pools.0[1], 0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_is_not_lost_to_one_that_pins_nothing_nor_shortened_by_a_copy() -> Result<()> {
    let pools = Pools::start(2, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let hashes = chain(7, 20);
    for user in &users {
        user.offload(&OffloadOptions::default(), &hashes).await?;
        ensure!(user.namespace.pin(&hashes, PinFor::ms(3_600_000)).await?.pages == 20);
    }
    // The same last page after another beginning: nothing of that is here.
    let other = [&chain(8, 5)[..], &hashes[19..]].concat();
    ensure!(users[0].namespace.pin(&other, PinFor::ms(1_000)).await?.pages == 0);
    let copied = users[0].namespace.pin(&hashes, PinFor { ttl_ms: 1_000, second_copy: true }).await?;
    ensure!(copied.second == Some(Ok("pool-1".to_owned())), "{copied:?}");
    protects(&pools.0[0], 0).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    protects(&pools.0[1], 20).await
}

/// The second copy that finds no room for all of it leaves what that member had pinned itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_pin_of_ones_own_outlives_a_second_copy_that_has_no_room() -> Result<()> {
    let few = Setup { dram_mib: 64, limits: "protected_percent = 5\n".to_owned(), ..Setup::default() };
    let pools = Pools::start(2, &few).await?;
    let users = pools.users().await?;
    let (hashes, others) = (chain(9, 200), chain(10, 200));
    for user in &users {
        user.offload(&OffloadOptions::default(), &hashes).await?;
        user.offload(&OffloadOptions::default(), &others).await?;
    }
    let most = users[1].namespace.pin(&others, PinFor::ms(60_000)).await?.pages;
    ensure!((20..150).contains(&most), "{most} pages may be protected");
    ensure!(users[1].namespace.unpin(&others[199]).await?);
    // There some of the same prefix has room beside another one, at the first pool all of it.
    let (all, own) = (most * 3 / 4, most / 2);
    ensure!(users[1].namespace.pin(&others[..most - own], PinFor::ms(60_000)).await?.pages == most - own);
    ensure!(users[1].namespace.pin(&hashes[..all], PinFor::ms(60_000)).await?.pages == own);
    let pinned = users[0].namespace.pin(&hashes[..all], TWICE).await?;
    let why = pinned.second.and_then(Result::err).unwrap_or_default();
    ensure!(pinned.pages == all && why.contains("budget"), "{why}");
    protects(&pools.0[0], all).await?;
    protects(&pools.0[1], most).await?;
    // What the second copy alone would have placed ends.
    ensure!(users[1].namespace.unpin(&hashes[all - 1]).await?);
    let pinned = users[0].namespace.pin(&hashes[..all], TWICE).await?;
    ensure!(pinned.second.is_some_and(|second| second.is_err()));
    protects(&pools.0[1], most - own).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_of_a_session_that_is_elsewhere_says_where_and_one_on_its_way_is_pinned_when_it_came()
-> Result<()> {
    let pools = Pools::start(2, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let hashes = chain(11, PAGES);
    turn(&users[0], "talk", 0, &hashes, 0).await?;
    let elsewhere = async |at: usize, home: &str| -> Result<bool> {
        let pinned = users[at].namespace.pin_session("talk", None, PinFor::ms(60_000)).await;
        Ok(pinned.is_err_and(|it| it.kind == ErrorKind::SessionUnknown && it.message.contains(home)))
    };
    until("it is said where it is", async || elsewhere(1, "pool-0").await).await?;
    pools.0[0].fail(Fault::None, Fault::Slow(PAGE as usize, Duration::from_millis(10)));
    let begun = users[1].namespace.begin_turn_after("talk", "", 1).await?;
    ensure!(begun.afar == PAGES, "{begun:?}");
    let pinned = users[1].namespace.pin_session("talk", None, PinFor::ms(60_000)).await?;
    ensure!(pinned.pages == PAGES, "{pinned:?}");
    protects(&pools.0[1], PAGES).await?;
    // Once it has ended a turn there, it is not at home where it was.
    end(&users[1], "talk", &begun, &hashes).await?;
    until("it is said where it is now", async || elsewhere(0, "pool-1").await).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_without_a_second_place_holds_here_and_says_why() -> Result<()> {
    let alone = Server::start(Setup::default())?;
    let user = User::connect(&alone.address(), DataPlane::Shm, PAGE).await?;
    let hashes = chain(3, 8);
    user.offload(&OffloadOptions::default(), &hashes).await?;
    let pinned = user.namespace.pin(&hashes, TWICE).await?;
    let why = pinned.second.and_then(Result::err).unwrap_or_default();
    ensure!(pinned.pages == 8 && why.contains("no cluster"), "{why}");
    ensure!(user.namespace.pin(&hashes, PinFor::ms(1_000)).await?.second.is_none());

    let mut pools = Pools::start(2, &Setup::default()).await?;
    let user = pools.0[0].user().await?;
    user.offload(&OffloadOptions::default(), &hashes).await?;
    pools.0[1].server.kill()?;
    let pinned = user.namespace.pin(&hashes, TWICE).await?;
    let why = pinned.second.and_then(Result::err).unwrap_or_default();
    ensure!(pinned.pages == 8 && !why.is_empty(), "{why}");
    let nothing = user.namespace.pin(&chain(4, 3), TWICE).await?;
    let why = nothing.second.and_then(Result::err).unwrap_or_default();
    ensure!(nothing.pages == 0 && why.contains("no page"), "{why}");
    Ok(())
}

/// A hash as people write it.
fn digits(hash: &BlockHash) -> String {
    hash.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `turnkv pin` at a pool: whether it says that all is well, and what it said.
fn command(pool: &Pool, words: &[&str]) -> Result<(bool, String)> {
    let address = pool.server.address();
    let output = Command::new(server_binary()?).args(["pin", "--address", &address]).args(words).output()?;
    Ok((output.status.success(), String::from_utf8([output.stdout, output.stderr].concat())?))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_pins_a_session_or_a_prefix_and_takes_that_back() -> Result<()> {
    let pools = Pools::start(2, &Setup { dram_mib: 64, ..Setup::default() }).await?;
    let users = pools.users().await?;
    let hashes = chain(5, PAGES);
    turn(&users[0], "system prompt", 0, &hashes, 0).await?;
    let (is_well, said) =
        command(&pools.0[0], &["--session", "system prompt", "--pages", "40", "--second-copy", "--json"])?;
    ensure!(is_well, "{said}");
    let json: serde_json::Value = serde_json::from_str(&said)?;
    let name = digits(&hashes[39]);
    ensure!(json["pages"] == 40 && json["pin"] == name && json["second_at"] == "pool-1", "{said}");
    protects(&pools.0[0], 40).await?;
    protects(&pools.0[1], 40).await?;
    let (is_well, said) = command(&pools.0[0], &["--undo", &name, "--session", "system prompt"])?;
    ensure!(is_well && said.contains("ended"), "{said}");
    protects(&pools.0[0], 0).await?;
    protects(&pools.0[1], 0).await?;
    let (is_well, said) = command(&pools.0[0], &["--undo", &name])?;
    ensure!(is_well && said.contains("no such pin"), "{said}");

    let folder = tempfile::tempdir()?;
    let prefix = folder.path().join("prefix");
    let lines: Vec<String> = hashes[..7].iter().map(digits).collect();
    std::fs::write(&prefix, lines.join("\n"))?;
    let prefix = prefix.to_str().context("a path")?;
    let (is_well, said) = command(&pools.0[0], &["--prefix", prefix, "--for-s", "60"])?;
    ensure!(
        is_well && said.contains("7 pages are pinned for 60 s") && said.contains("not asked for"),
        "{said}"
    );
    protects(&pools.0[0], 7).await?;
    // Where none of it is, whoever asked in a script learns it, and so does whoever means a session that is not there.
    std::fs::write(prefix, digits(&chain(6, 1)[0]))?;
    let (is_well, said) = command(&pools.0[0], &["--prefix", prefix])?;
    ensure!(!is_well && said.contains("nothing is pinned"), "{said}");
    for wrong in [
        &["--session", "nobody"][..],
        &[],
        &["--prefix", prefix, "--pages", "1"],
        &["--undo", "xyz"],
        &["--session", "a", "--for-s", "0"],
    ] {
        let (is_well, said) = command(&pools.0[0], wrong)?;
        ensure!(!is_well && said.lines().count() == 2, "{wrong:?}: {said}");
    }
    Ok(())
}
