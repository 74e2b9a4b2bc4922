//! Three real pools whose members a real etcd knows, and what becomes of them while it is down, empty, old, or has lost a lease.
//! Left out, loudly, where there is no etcd.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, EndTurn, OffloadOptions};
use turnkv_proto::wire::StandingReply;
use turnkv_tests::cluster::{AGREE_MAX, Cluster, Known};
use turnkv_tests::etcd::Etcd;
use turnkv_tests::http::free_address;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 16 << 10;
const ALL: [usize; 3] = [0, 1, 2];
/// Longer than etcd keeps a silent member's key.
const LEASE_OVER: Duration = Duration::from_secs(8);

async fn pools(etcd: &Etcd) -> Result<Cluster> {
    Cluster::start_with(3, &Known::Etcd(etcd.address()), &Setup::default()).await
}

fn life(standing: &StandingReply, name: &str) -> Result<u64> {
    let view = standing.view.as_ref().context("a view")?;
    let found = view.members.iter().find(|member| member.name == name);
    Ok(found.with_context(|| format!("{name} in {view:?}"))?.incarnation)
}

async fn user_with_turns(cluster: &Cluster, at: usize, sessions: u64) -> Result<User> {
    let user = User::connect(&cluster.servers[at].address(), DataPlane::Shm, PAGE).await?;
    for session in 0..sessions {
        let (name, hashes) = (format!("s-{at}-{session}"), chain(100 * at as u64 + session + 1, 3));
        user.namespace.begin_turn(&name).await?;
        user.offload(&OffloadOptions::default(), &hashes).await?;
        user.namespace.end_turn(&name, &EndTurn { hashes, ..EndTurn::default() }).await?;
    }
    Ok(user)
}

async fn found_everywhere(cluster: &Cluster, user: &User, home: usize, sessions: u64) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(15);
    for session in 0..sessions {
        for asked in ALL {
            let name = format!("s-{home}-{session}");
            loop {
                let (found, _) = cluster.find(asked, &user.namespace.id(), &name, 1).await?;
                if found.at.as_ref().is_some_and(|at| at.name == Cluster::name(home)) {
                    break;
                }
                ensure!(Instant::now() < until, "{name} asked of {asked}: {found:?}");
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn members_agree_and_a_killed_one_comes_back_in_a_later_life() -> Result<()> {
    let Some(etcd) = Etcd::start()? else { return Ok(()) };
    let mut cluster = pools(&etcd).await?;
    let keys = etcd.ctl(&["get", "--prefix", "/turnkv/tests/", "--keys-only"])?;
    for key in ["cluster", "marks/pool-0", "members/pool-2"] {
        ensure!(keys.contains(&format!("/turnkv/tests/{key}")), "{keys}");
    }
    let user = user_with_turns(&cluster, 1, 6).await?;
    found_everywhere(&cluster, &user, 1, 6).await?;
    let first = life(&cluster.standing(0).await?, "pool-2")?;
    cluster.servers[2].kill()?;
    cluster.agree(&[0, 1], AGREE_MAX).await?;
    cluster.servers[2].restart()?;
    cluster.agree(&ALL, AGREE_MAX).await?;
    ensure!(life(&cluster.standing(0).await?, "pool-2")? == first + 1, "the next life has the next number");
    found_everywhere(&cluster, &user, 1, 6).await
}

#[tokio::test(flavor = "multi_thread")]
async fn no_turn_asks_etcd_and_while_it_is_down_the_last_view_stays() -> Result<()> {
    let Some(mut etcd) = Etcd::start()? else { return Ok(()) };
    let mut cluster = pools(&etcd).await?;
    let epoch = cluster.agree(&ALL, AGREE_MAX).await?;
    etcd.kill()?;
    let user = user_with_turns(&cluster, 0, 40).await?;
    found_everywhere(&cluster, &user, 0, 40).await?;
    tokio::time::sleep(LEASE_OVER).await;
    ensure!(cluster.agree(&ALL, Duration::from_secs(1)).await? == epoch, "the view is the last one");
    let standing = cluster.standing(1).await?;
    ensure!(!standing.reached && standing.notes.iter().any(|note| note.contains("etcd")), "{standing:?}");
    // Nobody joins meanwhile: a member that starts serves alone.
    cluster.servers[2].kill()?;
    cluster.servers[2].restart()?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let alone = cluster.standing(2).await?.view.unwrap_or_default().members.len();
    ensure!(alone == 0, "{alone} members without etcd");
    etcd.restart()?;
    cluster.agree(&ALL, Duration::from_secs(30)).await?;
    found_everywhere(&cluster, &user, 0, 40).await
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_etcd_do_not_grow_with_turns() -> Result<()> {
    let Some(etcd) = Etcd::start()? else { return Ok(()) };
    let cluster = pools(&etcd).await?;
    let asked = || {
        let verbs = ["range", "put", "txn", "lease_grant", "lease_keep_alive", "watch"];
        let series = |verb| format!("turnkv_cluster_etcd_requests_total{{verb=\"{verb}\"}}");
        let sum = |at| verbs.iter().map(|verb| cluster.value(at, &series(verb)).unwrap_or(0.0)).sum::<f64>();
        ALL.iter().map(|at| sum(*at)).sum::<f64>()
    };
    let (before, began) = (asked(), Instant::now());
    let user = user_with_turns(&cluster, 0, 200).await?;
    found_everywhere(&cluster, &user, 0, 200).await?;
    let (seconds, more) = (began.elapsed().as_secs_f64(), asked() - before);
    // One lease is kept by each of three members a second, and a key put now and then.
    ensure!(
        more <= 3.0 * 2.0 * (seconds + 2.0),
        "{more} requests in {seconds} s, with 200 turns and 600 questions"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_lost_are_there_again_and_nobody_left_meanwhile() -> Result<()> {
    let Some(mut etcd) = Etcd::start()? else { return Ok(()) };
    let cluster = pools(&etcd).await?;
    let epoch = cluster.agree(&ALL, AGREE_MAX).await?;
    let lives = |standing: StandingReply| ALL.map(|at| life(&standing, &Cluster::name(at)).unwrap_or(0));
    let before = lives(cluster.standing(0).await?);
    // Somebody removes the members' keys; then all leases; then everything with etcd's own memory of it.
    etcd.ctl(&["del", "--prefix", "/turnkv/tests/members/"])?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    ensure!(cluster.agree(&ALL, Duration::from_secs(2)).await? == epoch);
    let leases = etcd.ctl(&["lease", "list"])?;
    for lease in leases.lines().skip(1) {
        etcd.ctl(&["lease", "revoke", lease.trim()])?;
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    ensure!(cluster.agree(&ALL, Duration::from_secs(2)).await? == epoch);
    etcd.kill()?;
    etcd.restart_empty()?;
    let until = Instant::now() + Duration::from_secs(20);
    while !ALL.iter().all(|at| {
        etcd.ctl(&["get", &format!("/turnkv/tests/members/pool-{at}")]).is_ok_and(|key| !key.is_empty())
    }) {
        ensure!(Instant::now() < until, "not all keys are there again");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    ensure!(cluster.agree(&ALL, AGREE_MAX).await? == epoch, "nobody left, and nobody began a life");
    ensure!(lives(cluster.standing(1).await?) == before);
    for (at, life) in ALL.iter().zip(before) {
        let mark = etcd.ctl(&["get", &format!("/turnkv/tests/marks/pool-{at}"), "--print-value-only"])?;
        ensure!(mark.trim() == life.to_string(), "the mark of pool-{at} is {mark}, its life {life}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_was_stopped_for_long_leaves_and_is_back_in_the_same_life() -> Result<()> {
    let Some(etcd) = Etcd::start()? else { return Ok(()) };
    let cluster = pools(&etcd).await?;
    let before = life(&cluster.standing(0).await?, "pool-1")?;
    cluster.servers[1].signal(Signal::STOP)?;
    cluster.agree(&[0, 2], Duration::from_secs(30)).await?;
    cluster.servers[1].signal(Signal::CONT)?;
    cluster.agree(&ALL, Duration::from_secs(30)).await?;
    ensure!(life(&cluster.standing(0).await?, "pool-1")? == before, "its lease was lost, not its life");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_gone_for_good_is_forgotten_and_one_that_lives_is_back_at_once() -> Result<()> {
    let Some(etcd) = Etcd::start()? else { return Ok(()) };
    let mut cluster = pools(&etcd).await?;
    let keys = || etcd.ctl(&["get", "--prefix", "/turnkv/tests/", "--keys-only"]);
    let forget = |name: &str| -> Result<String> {
        let mut command = std::process::Command::new(turnkv_tests::workspace::server_binary()?);
        let output = command.args(["cluster", "forget", name, "--address", &cluster.tcp(0)]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    };
    ensure!(forget("pool-9")?.contains("nothing of pool-9"));
    for name in ["", "pool 1", "../members", "poöl"] {
        let refused = forget(name).err().context("a name that no member can have")?.to_string();
        ensure!(refused.contains("letters, digits"), "{refused}");
    }
    // One that lives says again who it is, in the same life.
    let before = life(&cluster.standing(0).await?, "pool-1")?;
    ensure!(forget("pool-1")?.contains("forgotten"));
    let until = Instant::now() + Duration::from_secs(20);
    while !keys()?.contains("members/pool-1") || !keys()?.contains("marks/pool-1") {
        ensure!(Instant::now() < until, "pool-1 does not say again who it is: {}", keys()?);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    cluster.agree(&ALL, AGREE_MAX).await?;
    ensure!(life(&cluster.standing(0).await?, "pool-1")? == before);
    cluster.servers[2].kill()?;
    cluster.agree(&[0, 1], AGREE_MAX).await?;
    ensure!(keys()?.contains("marks/pool-2"), "the mark of a member that is gone stays");
    let mut command = std::process::Command::new(turnkv_tests::workspace::server_binary()?);
    command.args(["cluster", "forget", "pool-2", "--address", &cluster.tcp(0)]);
    ensure!(command.output()?.status.success() && !keys()?.contains("pool-2"), "{}", keys()?);
    cluster.servers[2].restart()?;
    cluster.agree(&ALL, AGREE_MAX).await?;
    Ok(())
}

/// Two that live and have one name are counted and named by those that hear both.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_of_one_name_are_told_of() -> Result<()> {
    let Some(etcd) = Etcd::start()? else { return Ok(()) };
    let cluster = pools(&etcd).await?;
    let (tcp, metrics) = (free_address()?.to_string(), free_address()?.to_string());
    let other = Setup { tcp: Some(tcp), metrics: Some(metrics), ..cluster.setup(2).clone() };
    let _other = Server::start(other)?;
    let until = Instant::now() + Duration::from_secs(60);
    while cluster.value(0, "turnkv_cluster_lives_total")? < 2.0 {
        let own = cluster.value(2, "turnkv_cluster_lives_total")?;
        ensure!(Instant::now() < until, "it is not counted that two servers are pool-2; {own} lives there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ensure!(cluster.servers[0].log().contains("two servers speak as one member"), "it is not said");
    Ok(())
}
