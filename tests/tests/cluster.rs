//! Three real pools as one cluster: they see one another, whoever dies leaves and comes back, and where a session is, is found.
#![allow(clippy::expect_used, reason = "a test says what it expected by failing")]
#![forbid(unsafe_code)]

use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, EndTurn, OffloadOptions};

use turnkv_proto::wire::note::Says;
use turnkv_proto::wire::{
    Member, MemberState, NameSessionRequest, Note, OutdoneNote, PublishNote, StandingReply, StandingRequest,
    TellRequest, WatchMembersRequest,
};
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_tests::cluster::{AGREE_MAX, Cluster, Known};
use turnkv_tests::http::free_address;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const PAGE: u64 = 16 << 10;
/// How long a member may take to say where a session is, ms.
const FIND_MS: u64 = 200;
/// The same of a prefix.
const LOOKUP_MS: u64 = 100;

/// A session of so many pages whose turn ends at a member; which turn it is there.
async fn turn(user: &User, session: &str, hashes: &[BlockHash]) -> Result<u32> {
    let begun = user.namespace.begin_turn(session).await?;
    user.offload(&OffloadOptions::default(), hashes).await?;
    let end = EndTurn { hashes: hashes.to_vec(), ..EndTurn::default() };
    user.namespace.end_turn(session, &end).await?;
    Ok(begun.turn)
}

async fn users(cluster: &Cluster) -> Result<(Vec<User>, NamespaceId)> {
    let mut users = Vec::new();
    for server in &cluster.servers {
        users.push(User::connect(&server.address(), DataPlane::Shm, PAGE).await?);
    }
    let namespace = users[0].namespace.id();
    Ok((users, namespace))
}

#[tokio::test(flavor = "multi_thread")]
async fn members_see_one_another_and_whoever_dies_leaves_and_comes_back_later() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let before = cluster.standing(0).await?;
    let life = |standing: &StandingReply, name: &str| {
        let view = standing.view.clone().unwrap_or_default();
        view.members.iter().find(|member| member.name == name).map(|member| member.incarnation)
    };
    let first = life(&before, "pool-2").expect("it is there");
    ensure!(before.peers.iter().all(|peer| peer.answers) && before.notes.is_empty(), "{before:?}");
    cluster.servers[2].kill()?;
    cluster.agree(&[0, 1], AGREE_MAX).await?;
    let without = cluster.standing(0).await?;
    ensure!(without.peers.iter().any(|peer| peer.name == "pool-2" && !peer.answers), "{without:?}");
    cluster.servers[2].restart()?;
    cluster.agree(&[0, 1, 2], AGREE_MAX).await?;
    let again = life(&cluster.standing(0).await?, "pool-2").expect("it is there again");
    ensure!(again > first, "incarnation {again} after {first}");
    ensure!(cluster.value(0, "turnkv_cluster_view_servers")? == 3.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_found_from_every_member_where_its_last_turn_ended() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let (users, namespace) = users(&cluster).await?;
    for (at, user) in users.iter().enumerate() {
        for session in 0..8 {
            turn(user, &format!("s-{at}-{session}"), &chain(1000 + 10 * at as u64 + session, 4)).await?;
        }
    }
    for home in 0..3 {
        for session in 0..8 {
            for asked in 0..3 {
                let name = format!("s-{home}-{session}");
                let (found, took) = cluster.find(asked, &namespace, &name, 1).await?;
                let at = found.at.clone().unwrap_or_default();
                ensure!(at.name == Cluster::name(home), "{name} asked of {asked}: {found:?}");
                ensure!(found.here == (asked == home) && (found.turn, found.pages) == (1, 4), "{found:?}");
                ensure!(took < Duration::from_millis(FIND_MS + 100), "{took:?}");
            }
        }
    }
    // Nobody has it: said at once where no turn is known of, and after a bounded wait where one is.
    let (found, took) = cluster.find(0, &namespace, "nobody's", 0).await?;
    ensure!(found.at.is_none() && took < Duration::from_millis(FIND_MS), "{found:?} {took:?}");
    let (found, took) = cluster.find(0, &namespace, "nobody's", 3).await?;
    ensure!(found.at.is_none() && took < Duration::from_millis(FIND_MS + 200), "{found:?} {took:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_turn_elsewhere_moves_the_home_and_the_old_one_hears_of_it() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let (users, namespace) = users(&cluster).await?;
    let hashes = chain(7, 6);
    let until = Instant::now() + Duration::from_secs(60);
    let mut numbers = 0..;
    // Turns elsewhere are counted from the first one on, where its home answered in time: on a busy machine it may not have.
    let session = loop {
        ensure!(Instant::now() < until, "no turn elsewhere is counted from the first one on");
        let session = format!("s-{}", numbers.next().unwrap_or(0));
        turn(&users[0], &session, &hashes).await?;
        while cluster.find(1, &namespace, &session, 1).await?.0.at.is_none() {
            ensure!(Instant::now() < until, "the first turn is not known of");
        }
        if turn(&users[1], &session, &hashes).await? == 2 {
            break session;
        }
        users[0].namespace.close(&session).await?;
        users[1].namespace.close(&session).await?;
    };
    ensure!(turn(&users[1], &session, &hashes).await? == 3);
    for asked in [0, 1, 2] {
        loop {
            let (found, _) = cluster.find(asked, &namespace, &session, 3).await?;
            let at = found.at.clone().unwrap_or_default();
            if at.name == "pool-1" && found.turn == 3 {
                break;
            }
            ensure!(Instant::now() < until, "asked of {asked}: {found:?}");
        }
    }
    // What was here of it is not counted as home any more, and what a member asks of it names the next.
    let until = Instant::now() + Duration::from_secs(5);
    while cluster.value(0, "turnkv_cluster_home_sessions")? > 0.0 {
        ensure!(Instant::now() < until, "the old home publishes it still");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_without_a_session_is_found_at_whoever_has_most_of_it() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let (users, namespace) = users(&cluster).await?;
    let hashes = chain(9, 200);
    turn(&users[1], "long", &hashes).await?;
    turn(&users[2], "short", &hashes[..50]).await?;
    for (asked, here) in [(0, false), (1, true), (2, false)] {
        let (found, took) = cluster.find_pages(asked, &namespace, &hashes).await?;
        let at = found.at.clone().unwrap_or_default();
        ensure!(at.name == "pool-1" && found.pages == 200 && found.here == here, "{asked}: {found:?}");
        ensure!(took < Duration::from_millis(LOOKUP_MS + 100), "{took:?}");
    }
    let (found, _) = cluster.find_pages(0, &namespace, &chain(10, 20)).await?;
    ensure!(found.at.is_none(), "{found:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_start_brings_back_is_published_again() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let (users, namespace) = users(&cluster).await?;
    let hashes = chain(11, 12);
    turn(&users[2], "kept", &hashes).await?;
    users[2].settle().await?;
    cluster.servers[2].terminate()?;
    cluster.servers[2].restart()?;
    cluster.agree(&[0, 1, 2], AGREE_MAX).await?;
    let _again = User::connect(&cluster.servers[2].address(), DataPlane::Shm, PAGE).await?;
    let until = Instant::now() + Duration::from_secs(12);
    loop {
        let (found, _) = cluster.find(0, &namespace, "kept", 1).await?;
        if found.at.as_ref().is_some_and(|at| at.name == "pool-2") && found.pages == 12 {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{found:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits until no member names a home of a session, and its last one publishes nothing.
async fn nobody_names(cluster: &Cluster, namespace: &NamespaceId, session: &str, home: usize) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    for asked in 0..cluster.servers.len() {
        loop {
            let (found, _) = cluster.find(asked, namespace, session, 0).await?;
            if found.at.is_none() {
                break;
            }
            ensure!(Instant::now() < until, "asked of {asked}: {found:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    while cluster.value(home, "turnkv_cluster_home_sessions")? > 0.0 {
        ensure!(Instant::now() < until, "{session} is published still");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_its_home_loses_is_named_no_more() -> Result<()> {
    let small = Setup { dram_mib: 16, nvme_mib: 0, ..Setup::default() };
    let cluster = Cluster::start_with(3, &Known::Listed, &small).await?;
    let (users, namespace) = users(&cluster).await?;
    // Its time to live is over.
    let hashes = chain(50, 4);
    users[0].namespace.begin_turn("short-lived").await?;
    users[0].offload(&OffloadOptions::default(), &hashes).await?;
    let end = EndTurn { hashes, ttl_ms: 1_000, ..EndTurn::default() };
    users[0].namespace.end_turn("short-lived", &end).await?;
    nobody_names(&cluster, &namespace, "short-lived", 0).await?;
    // Its last turn ended.
    let hashes = chain(51, 4);
    turn(&users[1], "last", &hashes).await?;
    let end = EndTurn { hashes, last: true, ..EndTurn::default() };
    users[1].namespace.begin_turn("last").await?;
    users[1].namespace.end_turn("last", &end).await?;
    nobody_names(&cluster, &namespace, "last", 1).await?;
    // It is evicted: nobody asked for that, and the pool tells nobody.
    turn(&users[2], "evicted", &chain(52, 4)).await?;
    let (found, _) = cluster.find(0, &namespace, "evicted", 1).await?;
    ensure!(found.at.as_ref().is_some_and(|at| at.name == "pool-2"), "{found:?}");
    for seed in 0..8 {
        users[2].offload(&OffloadOptions::default(), &chain(60 + seed, 256)).await?;
    }
    ensure!(users[2].namespace.lookup(&chain(52, 4)).await? == 0, "it is there still");
    nobody_names(&cluster, &namespace, "evicted", 2).await?;
    ensure!(cluster.value(2, "turnkv_cluster_lost_sessions_total")? == 1.0);
    Ok(())
}

fn turnkv(cluster: &Cluster, at: usize, words: &[&str]) -> Result<(bool, String)> {
    let mut command = std::process::Command::new(server_binary()?);
    let output = command.arg("cluster").args(words).args(["--address", &cluster.tcp(at)]).output()?;
    let said = if output.status.success() { &output.stdout } else { &output.stderr };
    Ok((output.status.success(), String::from_utf8(said.clone())?))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_sees_who_is_there_and_who_is_silent() -> Result<()> {
    let mut cluster = Cluster::start(2).await?;
    let (_, status) = turnkv(&cluster, 0, &["status"])?;
    ensure!(status.contains("2 members, epoch ") && status.contains("serving  pool-1"), "{status}");
    let (_, members) = turnkv(&cluster, 1, &["members", "--json"])?;
    let members: serde_json::Value = serde_json::from_str(&members)?;
    ensure!(members["own"] == "pool-1" && members["members"][0]["state"] == "serving", "{members}");
    let (done, said) = turnkv(&cluster, 0, &["forget", "pool-1"])?;
    ensure!(!done && said.contains("cluster.members"), "{said}");
    cluster.servers[1].kill()?;
    cluster.agree(&[0], AGREE_MAX).await?;
    let (_, status) = turnkv(&cluster, 0, &["status"])?;
    ensure!(status.contains("out      pool-1") && status.contains("SILENT"), "{status}");
    let (_, status) = turnkv(&cluster, 0, &["status", "--json"])?;
    let status: serde_json::Value = serde_json::from_str(&status)?;
    ensure!(status["peers"][0]["answers"] == false && status["membership"] == "static", "{status}");
    // A server without [cluster] says so.
    let alone = Server::start(Setup::default())?;
    let mut command = std::process::Command::new(server_binary()?);
    let output = command.args(["cluster", "status", "--address", &alone.address()]).output()?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success() && said.contains("no cluster") && said.lines().count() == 2, "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_watches_members_is_told_of_each_change_and_is_in_nobodys_way() -> Result<()> {
    let mut cluster = Cluster::start(2).await?;
    let mut views = cluster.client(0).await?.watch_members(WatchMembersRequest {}).await?.into_inner();
    let mut count = async || -> Result<usize> {
        let view = tokio::time::timeout(AGREE_MAX, views.message()).await??;
        Ok(view.map_or(0, |view| view.members.len()))
    };
    ensure!(count().await? == 2);
    cluster.servers[1].kill()?;
    while count().await? != 1 {}
    cluster.servers[1].restart()?;
    while count().await? != 2 {}
    let began = Instant::now();
    cluster.servers[0].terminate()?;
    ensure!(began.elapsed() < Duration::from_secs(10), "{:?} to leave", began.elapsed());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_and_nonsense_are_refused_and_change_nothing() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let epoch = cluster.agree(&[0, 1], AGREE_MAX).await?;
    let to = number_of(&cluster, 0, 1).await?;
    let from = |name: &str| Member {
        name: name.to_owned(),
        endpoint: "tcp://127.0.0.1:1".to_owned(),
        weight: 100,
        state: MemberState::Serving.into(),
        incarnation: 1,
        ..Member::default()
    };
    let tell = |cluster: &str, name: &str, notes| TellRequest {
        cluster: cluster.to_owned(),
        from: Some(from(name)),
        to,
        notes,
    };
    let keys = |bytes: usize| Note {
        says: Some(Says::Publish(PublishNote { posts: vec![1; bytes].into(), ..PublishNote::default() })),
    };
    let no_tip = Note { says: Some(Says::Outdone(OutdoneNote { session: vec![1; 16].into(), tip: None })) };
    let mut client = cluster.client(0).await?;
    for (what, told) in [
        ("another cluster", tell("others", "pool-1", vec![])),
        ("a stranger", tell("tests", "pool-9", vec![])),
        ("somebody else", TellRequest { to: to ^ 1, ..tell("tests", "pool-1", vec![]) }),
        ("nobody", TellRequest { from: None, ..tell("tests", "pool-1", vec![]) }),
        ("half a key", tell("tests", "pool-1", vec![keys(17)])),
        ("too many keys", tell("tests", "pool-1", vec![keys(16 * 1025)])),
        ("no tip", tell("tests", "pool-1", vec![no_tip])),
        ("nothing", tell("tests", "pool-1", vec![Note { says: None }])),
    ] {
        let refused = client.tell(told).await.err().map(|status| status.code());
        ensure!(refused == Some(tonic::Code::InvalidArgument), "{what}: {refused:?}");
    }
    // What is well-formed, of a member in an earlier life, is not heard: that life is over.
    client.tell(tell("tests", "pool-1", vec![keys(16)])).await?;
    let until = Instant::now() + Duration::from_secs(5);
    while cluster.value(0, "turnkv_cluster_fenced_messages_total")? < 1.0 {
        ensure!(Instant::now() < until, "the words of a life that is over were heard");
    }
    ensure!(cluster.agree(&[0, 1], AGREE_MAX).await? == epoch);
    Ok(())
}

/// The number by which members name one, as another one says it of a session at home there.
async fn number_of(cluster: &Cluster, home: usize, asked: usize) -> Result<u64> {
    let (users, namespace) = users(cluster).await?;
    turn(&users[home], "numbered", &chain(77, 2)).await?;
    let ask = |turn_begins| NameSessionRequest {
        namespace: namespace.0.to_vec().into(),
        session: "numbered".to_owned(),
        turn_begins,
    };
    let held = cluster.client(home).await?.name_session(ask(false)).await?.into_inner();
    ensure!(!held.not_home && held.turn == 1 && held.hashes.len() == 2 * 32, "{held:?}");
    ensure!(held.waited_ms == 0, "no turn begins: {held:?}");
    tokio::time::sleep(Duration::from_millis(20)).await;
    let held = cluster.client(home).await?.name_session(ask(true)).await?.into_inner();
    ensure!(!held.not_home && (20..600_000).contains(&held.waited_ms), "{held:?}");
    cluster.number_of_home(asked, &namespace, "numbered").await
}

/// Two that live and have one name, and one entry of the list, are counted and named where both are heard; one that begins again is not.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_of_one_name_are_told_of_by_those_that_hear_both() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let twice = |cluster: &Cluster, at: usize| cluster.value(at, "turnkv_cluster_lives_total");
    cluster.servers[2].kill()?;
    cluster.servers[2].restart()?;
    cluster.agree(&[0, 1, 2], AGREE_MAX).await?;
    let restarted = Instant::now();
    while restarted.elapsed() < Duration::from_secs(5) {
        ensure!(twice(&cluster, 0)? + twice(&cluster, 1)? == 0.0, "a restart was counted");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let other = Setup {
        tcp: Some(free_address()?.to_string()),
        metrics: Some(free_address()?.to_string()),
        ..cluster.setup(2).clone()
    };
    let _other = Server::start(other)?;
    for at in [0, 1] {
        let until = Instant::now() + Duration::from_secs(60);
        while twice(&cluster, at)? < 2.0 {
            ensure!(Instant::now() < until, "{at} does not count that two servers are pool-2");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let log = cluster.servers[at].log();
        let said = log.lines().filter(|line| line.contains("two servers speak as one member"));
        ensure!(said.clone().any(|line| line.contains("pool-2")), "{at} does not say it");
        ensure!(said.count() < 10, "{at} says it all the time");
        let standing = cluster.client(at).await?.standing(StandingRequest {}).await?.into_inner();
        let is_told = |note: &String| note.contains("two servers speak as pool-2");
        ensure!(standing.notes.iter().any(is_told), "{at} does not tell it: {:?}", standing.notes);
    }
    Ok(())
}
