//! Clients that have no pool on their host: they are given a list of members, and turns go on whichever of these are there.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use std::time::{Duration, Instant};
use turnkv_client::{
    BlockHash, BreakerConfig, BreakerState, Client, ClientConfig, DataPlane, EndTurn, ErrorKind,
    OffloadOptions, ReloadOptions, TurnBegun,
};
use turnkv_proto::wire::cluster_client::ClusterClient;
use turnkv_proto::wire::{MemberState, StandingRequest};
use turnkv_tests::cluster::{AGREE_MAX, Cluster};
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::user::User;

const PAGE: u64 = 16 << 10;
/// What a client gives any call.
const CALL: Duration = Duration::from_secs(4);
/// What a busy machine may add to it.
const SLACK: Duration = Duration::from_secs(3);

/// A client of these members, in this order.
fn listing(cluster: &Cluster, members: &[usize]) -> ClientConfig {
    let list: Vec<String> = members.iter().map(|at| cluster.tcp(*at)).collect();
    let breaker = BreakerConfig { failures: 2, cooldown_ms: 300 };
    ClientConfig { call_ms: CALL.as_millis() as u64, breaker, ..ClientConfig::at(list.join(",")) }
}

async fn user_of(config: ClientConfig) -> Result<User> {
    let client = Client::new(config)?;
    let namespace = client.open_namespace(namespace("test-model", PAGE)).await?;
    Ok(User { client, namespace })
}

async fn user(cluster: &Cluster, members: &[usize]) -> Result<User> {
    user_of(listing(cluster, members)).await
}

/// An engine on the host of a member.
async fn neighbour(cluster: &Cluster, at: usize) -> Result<User> {
    User::connect(&cluster.servers[at].address(), DataPlane::Shm, PAGE).await
}

/// The turn after `ended` others: what it found, and how many of the pages that it had came back. Its session has all of `hashes`
/// afterwards.
async fn turn(
    user: &User,
    session: &str,
    ended: u32,
    hashes: &[BlockHash],
    had: usize,
) -> Result<(TurnBegun, usize)> {
    let begun = user.namespace.begin_turn_after(session, "", ended).await?;
    let session_named = Some(session.to_owned());
    let reload = ReloadOptions { session: session_named.clone(), ..ReloadOptions::default() };
    let found = if had == 0 { 0 } else { user.reload_with(&reload, &hashes[..had]).await?.pages };
    let offload = OffloadOptions { session: session_named, ..OffloadOptions::default() };
    let report = user.offload(&offload, hashes).await?;
    ensure!(report.stored + report.present == hashes.len(), "{begun:?}, then {report:?}");
    let end = EndTurn { hashes: hashes.to_vec(), ..EndTurn::default() };
    ensure!(user.namespace.end_turn(session, &end).await? == hashes.len());
    Ok((begun, found))
}

/// Waits until a member says that a session is at home at another.
async fn at_home(cluster: &Cluster, asked: usize, user: &User, session: &str, home: usize) -> Result<()> {
    let until = Instant::now() + AGREE_MAX;
    loop {
        let (found, _) = cluster.find(asked, &user.namespace.id(), session, 0).await?;
        let at = found.at.clone().unwrap_or_default();
        if at.name == Cluster::name(home) {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{session} is not at home at {home}: {found:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn pulled(cluster: &Cluster, at: usize) -> Result<f64> {
    cluster.value(at, "turnkv_cluster_pull_pages_total")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_goes_to_its_sessions_home_and_stays_there() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let (local, remote) = (neighbour(&cluster, 2).await?, user(&cluster, &[0, 1, 2]).await?);
    let hashes = chain(1, 30);
    turn(&local, "talk", 0, &hashes[..10], 0).await?;
    at_home(&cluster, 0, &local, "talk", 2).await?;
    for ended in 1..3 {
        let had = 10 * ended as usize;
        let (begun, found) = turn(&remote, "talk", ended, &hashes[..had + 10], had).await?;
        ensure!((begun.turn, begun.pages, begun.afar) == (ended + 1, had, 0), "{begun:?}");
        ensure!(found == had, "{found} of {had} pages");
    }
    at_home(&cluster, 0, &local, "talk", 2).await?;
    for at in 0..3 {
        ensure!(pulled(&cluster, at)? == 0.0, "pages went from pool to pool");
    }
    // A new session is at home where the list begins.
    turn(&remote, "new", 0, &chain(2, 5), 0).await?;
    at_home(&cluster, 1, &remote, "new", 0).await?;
    // Another client knows nothing of where it is, and neither does whoever asks of it without a turn.
    let other = user(&cluster, &[1, 0]).await?;
    ensure!(other.namespace.describe_session("talk").await?.info.turn == 3);
    ensure!(other.namespace.supersede("new", 3).await? == 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stays_has_its_member_pull() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let local = neighbour(&cluster, 1).await?;
    let hashes = chain(3, 20);
    turn(&local, "talk", 0, &hashes[..10], 0).await?;
    let staying = ClientConfig { follow_homes: false, ..listing(&cluster, &[0, 1]) };
    let remote = user_of(staying).await?;
    let (begun, found) = turn(&remote, "talk", 1, &hashes, 10).await?;
    let told = (begun.turn, begun.pages + begun.afar, found);
    ensure!(told == (2, 10, 10), "{begun:?} {found}\n{}", cluster.servers[0].log());
    ensure!(pulled(&cluster, 0)? == 10.0);
    at_home(&cluster, 1, &local, "talk", 0).await
}

/// Waits until a client was told who the members are.
async fn all_are_known(remote: &User, count: usize) -> Result<()> {
    let until = Instant::now() + AGREE_MAX;
    while remote.client.state().members < count {
        ensure!(Instant::now() < until, "nobody tells who the members are: {:?}", remote.client.state());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_dies_is_followed_by_the_next_and_comes_back_first() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let remote = user(&cluster, &[0, 1]).await?;
    let hashes = chain(4, 60);
    turn(&remote, "talk", 0, &hashes[..10], 0).await?;
    all_are_known(&remote, 3).await?;
    cluster.servers[0].kill()?;
    // In the middle of a turn: what it had is gone with its member, its next one is computed anew, elsewhere.
    let began = Instant::now();
    let offload = OffloadOptions { session: Some("talk".to_owned()), ..OffloadOptions::default() };
    let report = remote.offload(&offload, &hashes[..10]).await?;
    ensure!(report.stored == 10 && began.elapsed() < CALL + SLACK, "{report:?} {:?}", began.elapsed());
    let (begun, found) = turn(&remote, "talk", 1, &hashes[..20], 10).await?;
    ensure!((begun.turn, found) == (2, 10), "{begun:?} {found}");
    ensure!(remote.namespace.lookup(&hashes[..20]).await? == 20);
    // Both that were named are gone: the list that they told of says who else there is.
    cluster.agree(&[1, 2], AGREE_MAX).await?;
    cluster.servers[1].kill()?;
    let (begun, _) = turn(&remote, "talk", 2, &hashes[..30], 0).await?;
    ensure!(begun.turn == 3 && remote.namespace.lookup(&hashes[..30]).await? == 30, "{begun:?}");
    ensure!(remote.client.state().address == cluster.tcp(2), "{:?}", remote.client.state());
    cluster.servers[0].restart()?;
    let until = Instant::now() + AGREE_MAX;
    while remote.client.state().address != cluster.tcp(0) {
        ensure!(Instant::now() < until, "it is not asked again: {:?}", remote.client.state());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    turn(&remote, "new", 0, &chain(5, 5), 0).await?;
    at_home(&cluster, 0, &remote, "new", 0).await
}

/// Whoever ends a turn has done nothing wrong where the member that it began at died: it ends where the others of its calls went.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_whose_member_dies_ends_at_the_next_one() -> Result<()> {
    let mut cluster = Cluster::start(2).await?;
    let remote = user(&cluster, &[0, 1]).await?;
    let hashes = chain(10, 20);
    turn(&remote, "talk", 0, &hashes[..10], 0).await?;
    remote.namespace.begin_turn("talk").await?;
    remote.namespace.begin_turn("kept").await?;
    cluster.servers[0].kill()?;
    let offload = OffloadOptions { session: Some("talk".to_owned()), ..OffloadOptions::default() };
    ensure!(remote.offload(&offload, &hashes).await?.stored == 20);
    let end = EndTurn { hashes: hashes.clone(), ..EndTurn::default() };
    ensure!(remote.namespace.end_turn("talk", &end).await? == 20);
    ensure!(remote.namespace.describe_session("talk").await?.info.pages == 20);
    // What is to stay as it was there is known to nobody any more; whoever never began a turn is told so, too.
    let kept = EndTurn { keep: 10, hashes: hashes[10..].to_vec(), ..EndTurn::default() };
    for (session, end) in [("kept", &kept), ("nobody's", &end)] {
        let ended = remote.namespace.end_turn(session, end).await;
        ensure!(
            ended.as_ref().is_err_and(|error| error.kind == ErrorKind::SessionUnknown),
            "{session}: {ended:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_stands_still_costs_a_few_calls_a_part_of_their_time_and_no_answer() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let remote = user(&cluster, &[0, 1]).await?;
    turn(&remote, "talk", 0, &chain(6, 10), 0).await?;
    cluster.servers[0].signal(Signal::STOP)?;
    let mut slow = 0;
    for at in 0..12 {
        let began = Instant::now();
        remote.namespace.begin_turn(&format!("new-{at}")).await?;
        ensure!(began.elapsed() < CALL + SLACK, "{:?}", began.elapsed());
        slow += u32::from(began.elapsed() > CALL / 3);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    ensure!(slow <= 3, "{slow} of 12 calls waited for it");
    cluster.servers[0].signal(Signal::CONT)?;
    let until = Instant::now() + AGREE_MAX;
    while remote.client.state().address != cluster.tcp(0) {
        ensure!(Instant::now() < until, "it is not asked again: {:?}", remote.client.state());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn where_all_are_gone_calls_fail_at_once_and_work_again_when_one_is_back() -> Result<()> {
    let mut cluster = Cluster::start(2).await?;
    let remote = user(&cluster, &[0, 1]).await?;
    let hashes = chain(7, 10);
    turn(&remote, "talk", 0, &hashes, 0).await?;
    cluster.servers[0].kill()?;
    cluster.servers[1].kill()?;
    for _ in 0..10 {
        let began = Instant::now();
        let Err(error) = remote.namespace.begin_turn("talk").await else {
            anyhow::bail!("a turn begins where nobody is")
        };
        ensure!(matches!(error.kind, ErrorKind::Unavailable | ErrorKind::BreakerOpen), "{error:?}");
        ensure!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
    ensure!(remote.client.state().breaker != BreakerState::Closed, "{:?}", remote.client.state());
    cluster.servers[1].restart()?;
    let until = Instant::now() + AGREE_MAX;
    while remote.namespace.begin_turn("talk").await.is_err() {
        ensure!(Instant::now() < until, "{:?}", remote.client.state());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ensure!(remote.client.state().address == cluster.tcp(1), "{:?}", remote.client.state());
    Ok(())
}

/// It has lost most of the others, and says for some seconds that it is away.
#[tokio::test(flavor = "multi_thread")]
async fn the_one_that_is_left_serves_where_all_of_the_list_die_at_once() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let remote = user(&cluster, &[0, 1]).await?;
    let hashes = chain(9, 10);
    turn(&remote, "talk", 0, &hashes, 0).await?;
    all_are_known(&remote, 3).await?;
    cluster.servers[0].kill()?;
    cluster.servers[1].kill()?;
    // Looked for from the kills on: those seconds may have passed before an offload is through.
    let away = async {
        while state_of(&cluster, 2).await? != MemberState::Away {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::Ok(())
    };
    let serves = async {
        remote.offload(&OffloadOptions::default(), &hashes).await?;
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(13) {
            ensure!(remote.namespace.lookup(&hashes).await? == 10, "after {:?}", began.elapsed());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    };
    let away =
        async { tokio::time::timeout(2 * AGREE_MAX, away).await.context("it never says that it is away")? };
    tokio::try_join!(away, serves)?;
    Ok(())
}

/// What a member says of itself.
async fn state_of(cluster: &Cluster, at: usize) -> Result<MemberState> {
    let mut asked =
        ClusterClient::connect(format!("http://{}", cluster.tcp(at).trim_start_matches("tcp://"))).await?;
    let standing = asked.standing(StandingRequest {}).await?.into_inner();
    let members = standing.view.context("a view")?.members;
    let own = members.into_iter().find(|member| cluster.tcp(at) == member.endpoint);
    Ok(own.context("it knows itself")?.state())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_being_emptied_gets_no_new_turn() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let remote = user(&cluster, &[0, 1]).await?;
    let hashes = chain(8, 20);
    turn(&remote, "talk", 0, &hashes[..10], 0).await?;
    User::connect(&cluster.servers[0].address(), DataPlane::Shm, PAGE).await?.client.drain().await?;
    let until = Instant::now() + AGREE_MAX;
    while remote.client.state().address != cluster.tcp(1) {
        ensure!(Instant::now() < until, "it is asked still: {:?}", remote.client.state());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (begun, found) = turn(&remote, "talk", 1, &hashes, 10).await?;
    ensure!((begun.turn, found) == (2, 10), "{begun:?} {found}");
    at_home(&cluster, 0, &remote, "talk", 1).await
}

/// A list is of pools that share: where they do not, each is a pool of its own, and whoever is there is used.
#[tokio::test(flavor = "multi_thread")]
async fn pools_of_no_cluster_follow_one_another_too() -> Result<()> {
    use turnkv_tests::http::free_address;
    use turnkv_tests::server::{Server, Setup};
    let places = [free_address()?, free_address()?];
    let setup = |at: usize| Setup { tcp: Some(places[at].to_string()), ..Setup::default() };
    let mut servers = [Server::start(setup(0))?, Server::start(setup(1))?];
    let list = format!("tcp://{}, tcp://{}", places[0], places[1]);
    let remote = user_of(ClientConfig { call_ms: CALL.as_millis() as u64, ..ClientConfig::at(list) }).await?;
    turn(&remote, "talk", 0, &chain(9, 10), 0).await?;
    servers[0].kill()?;
    let (begun, _) = turn(&remote, "talk", 1, &chain(9, 20), 0).await?;
    ensure!(begun.pages == 0, "{begun:?}");
    ensure!(remote.namespace.lookup(&chain(9, 20)).await? == 20);
    Ok(())
}
