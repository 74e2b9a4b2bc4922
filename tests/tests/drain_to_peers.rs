//! A host is emptied while others use what it has: its sessions are with other members then, whole, and it can be killed.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, DataPlane, EndTurn, OffloadOptions};
use turnkv_tests::cluster::{AGREE_MAX, Cluster, Known};
use turnkv_tests::pages::chain;
use turnkv_tests::server::Setup;
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const PAGE: u64 = 16 << 10;
/// Sessions of the host that is emptied.
const SESSIONS: u64 = 40;
const PAGES: usize = 24;

async fn turn(user: &User, session: &str, ended: u32, hashes: &[BlockHash]) -> Result<()> {
    user.namespace.begin_turn_after(session, "", ended).await?;
    user.offload(&OffloadOptions::default(), hashes).await?;
    let end = EndTurn { hashes: hashes.to_vec(), ..EndTurn::default() };
    user.namespace.end_turn(session, &end).await?;
    Ok(())
}

async fn user_of(cluster: &Cluster, at: usize) -> Result<User> {
    User::connect(&cluster.servers[at].address(), DataPlane::Shm, PAGE).await
}

/// `turnkv drain --to-peers`: whether it says that all is done, and what it said.
fn drain(cluster: &Cluster, at: usize, more: &[&str]) -> Result<(bool, String)> {
    let mut command = Command::new(server_binary()?);
    command.args(["drain", "--to-peers", "--address", &cluster.tcp(at)]).args(more);
    let output = command.output().context("the command runs")?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8(said)?))
}

/// All pages of a session are read, and none of them computed, on a turn of it.
async fn goes_on_whole(user: &User, session: &str, ended: u32, hashes: &[BlockHash]) -> Result<()> {
    let begun = user.namespace.begin_turn_after(session, "", ended).await?;
    let report = user.reload(hashes).await?;
    ensure!(report.pages == hashes.len(), "{session}: {begun:?}, then {report:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_emptied_under_load_is_missed_by_nobody() -> Result<()> {
    let setup = Setup { dram_mib: 64, ..Setup::default() };
    let mut cluster = Cluster::start_with(3, &Known::Listed, &setup).await?;
    let user = user_of(&cluster, 0).await?;
    let name = |session: u64| format!("talk-{session}");
    for session in 0..SESSIONS {
        turn(&user, &name(session), 0, &chain(session, PAGES)).await?;
    }
    // Engines of other hosts have turns of their own all the while.
    let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut load = Vec::new();
    for at in [1, 2] {
        let (user, stop, turns) = (user_of(&cluster, at).await?, Arc::clone(&stop), Arc::clone(&turns));
        load.push(tokio::spawn(async move {
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let session = 1_000 + 100 * at as u64 + round % 8;
                let hashes = chain(session, PAGES);
                user.namespace.begin_turn(&format!("other-{session}")).await?;
                user.reload(&hashes).await?;
                turn(&user, &format!("other-{session}"), 0, &hashes).await?;
                turns.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), anyhow::Error>(())
        }));
    }
    let (done, said) = tokio::task::block_in_place(|| drain(&cluster, 0, &["--json"]))?;
    let last: serde_json::Value = serde_json::from_str(said.lines().last().context("a last line")?)?;
    ensure!(done && last["moved_sessions"] == SESSIONS && last["left_sessions"] == 0, "{said}");
    let card = cluster.standing(1).await?.view.unwrap_or_default();
    ensure!(
        card.members.iter().any(|member| member.name == "pool-0" && member.state() as i32 == 3),
        "{card:?}"
    );
    cluster.servers[0].kill()?;
    stop.store(true, Ordering::Relaxed);
    for load in load {
        load.await??;
    }
    ensure!(turns.load(Ordering::Relaxed) > 2, "there was no load");
    cluster.agree(&[1, 2], AGREE_MAX).await?;
    let users = [user_of(&cluster, 1).await?, user_of(&cluster, 2).await?];
    for session in 0..SESSIONS {
        let user = &users[(session % 2) as usize];
        goes_on_whole(user, &name(session), 1, &chain(session, PAGES)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_moved_is_told_and_goes_when_it_is_asked_for_again() -> Result<()> {
    let mut cluster = Cluster::start_with(2, &Known::Listed, &Setup::default()).await?;
    let user = user_of(&cluster, 0).await?;
    for session in 0..6 {
        turn(&user, &format!("talk-{session}"), 0, &chain(session, PAGES)).await?;
    }
    cluster.servers[1].kill()?;
    cluster.agree(&[0], AGREE_MAX).await?;
    let (done, said) = tokio::task::block_in_place(|| drain(&cluster, 0, &[]))?;
    ensure!(
        !done && said.contains("6 that there is no member for") && said.contains("6 sessions are still here"),
        "{said}"
    );
    cluster.servers[1].restart()?;
    cluster.agree(&[0, 1], AGREE_MAX).await?;
    let (done, said) = tokio::task::block_in_place(|| drain(&cluster, 0, &[]))?;
    ensure!(done && said.contains("done: 6 sessions"), "{said}");
    // Taken back, it takes pages again, and its sessions are found where they went.
    let mut undo = Command::new(server_binary()?);
    ensure!(undo.args(["drain", "--undo", "--address", &cluster.tcp(0)]).output()?.status.success());
    for session in 0..6 {
        let (found, _) = cluster.find(0, &user.namespace.id(), &format!("talk-{session}"), 1).await?;
        ensure!(found.at.as_ref().is_some_and(|at| at.name == "pool-1") && found.turn == 1, "{found:?}");
        goes_on_whole(&user, &format!("talk-{session}"), 1, &chain(session, PAGES)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_leaves_in_a_second_than_was_said() -> Result<()> {
    let cluster = Cluster::start_with(2, &Known::Listed, &Setup::default()).await?;
    let user = user_of(&cluster, 0).await?;
    for session in 0..10 {
        turn(&user, &format!("talk-{session}"), 0, &chain(session, PAGES)).await?;
    }
    // Ten sessions of 384 KiB at 1 MiB a second; the last one may leave once nine have.
    let began = Instant::now();
    let (done, said) = tokio::task::block_in_place(|| drain(&cluster, 0, &["--bytes-per-s", "1048576"]))?;
    ensure!(done, "{said}");
    ensure!(began.elapsed() >= Duration::from_millis(9 * 375), "{:?}: {said}", began.elapsed());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_have_nothing_taken_over() -> Result<()> {
    use turnkv_proto::wire::{HoldPrefixRequest, Life, TakeSessionRequest, Tip};
    let cluster = Cluster::start(2).await?;
    let user = user_of(&cluster, 0).await?;
    let spec = turnkv_tests::pages::namespace("test-model", PAGE);
    let tip = Tip { home: Some(Life { member: 7, incarnation: 1 }), turn: 1, ..Tip::default() };
    let asked = TakeSessionRequest {
        cluster: "tests".to_owned(),
        spec: Some((&spec).into()),
        session: "s".to_owned(),
        tip: Some(tip),
    };
    let mut client = cluster.client(0).await?;
    for wrong in [
        TakeSessionRequest { cluster: "others".to_owned(), ..asked.clone() },
        TakeSessionRequest { tip: None, ..asked.clone() },
        TakeSessionRequest { spec: None, ..asked.clone() },
        TakeSessionRequest { session: String::new(), ..asked.clone() },
        asked,
    ] {
        let refused = client.take_session(wrong.clone()).await.err().map(|status| status.code());
        ensure!(refused == Some(tonic::Code::InvalidArgument), "{wrong:?}: {refused:?}");
    }
    let last = chain(1, 1)[0].0.to_vec().into();
    let asked = HoldPrefixRequest {
        cluster: "tests".to_owned(),
        from: 7,
        spec: Some((&spec).into()),
        last,
        ttl_ms: 1,
    };
    for wrong in [
        HoldPrefixRequest { cluster: "others".to_owned(), ..asked.clone() },
        HoldPrefixRequest { spec: None, ..asked.clone() },
        HoldPrefixRequest { last: vec![1; 31].into(), ..asked.clone() },
        HoldPrefixRequest { last: Default::default(), ..asked.clone() },
        asked,
    ] {
        let refused = client.hold_prefix(wrong.clone()).await.err().map(|status| status.code());
        ensure!(refused == Some(tonic::Code::InvalidArgument), "{wrong:?}: {refused:?}");
    }
    drop(user);
    Ok(())
}
