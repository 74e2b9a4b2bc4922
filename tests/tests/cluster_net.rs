//! Three real pools whose network fails: cut in one direction and in both, and TLS between members.
#![forbid(unsafe_code)]

use anyhow::{Result, ensure};
use std::process::Command;
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, DataPlane, EndTurn, OffloadOptions, ReloadOptions};
use turnkv_proto::wire::MemberState;
use turnkv_tests::cluster::{AGREE_MAX, Cluster, Linked};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const PAGE: u64 = 16 << 10;
const PAGES: usize = 12;
/// What a busy machine may add to a call's own bound.
const SLACK: Duration = Duration::from_millis(2_500);
/// How long a turn's begin may look elsewhere.
const FIND_TURN: Duration = Duration::from_millis(400);
/// How long all may take to be as before.
const HEALED_MAX: Duration = Duration::from_secs(60);

async fn users(servers: &[Server]) -> Result<Vec<User>> {
    let mut users = Vec::new();
    for server in servers {
        users.push(User::connect(&server.address(), DataPlane::Shm, PAGE).await?);
    }
    Ok(users)
}

async fn end(user: &User, session: &str, hashes: &[BlockHash]) -> Result<()> {
    user.offload(&OffloadOptions::default(), hashes).await?;
    let end = EndTurn { hashes: hashes.to_vec(), ..EndTurn::default() };
    user.namespace.end_turn(session, &end).await?;
    Ok(())
}

async fn first_turn(user: &User, session: &str, hashes: &[BlockHash]) -> Result<()> {
    user.namespace.begin_turn(session).await?;
    end(user, session, hashes).await
}

/// A turn begins within its bound, whatever the network is like. Returns how many pages it found.
async fn next_turn(user: &User, session: &str, ended: u32, hashes: &[BlockHash]) -> Result<usize> {
    let began = Instant::now();
    user.namespace.begin_turn_after(session, "", ended).await?;
    ensure!(began.elapsed() < FIND_TURN + SLACK, "{session} took {:?} to begin", began.elapsed());
    let wait = Duration::from_secs(5);
    let options = ReloadOptions { deadline: Some(wait), ..ReloadOptions::default() };
    let report = user.reload_with(&options, hashes).await.unwrap_or_default();
    ensure!(began.elapsed() < FIND_TURN + wait + 2 * SLACK, "{session} took {:?}", began.elapsed());
    end(user, session, hashes).await?;
    Ok(report.pages)
}

/// Sessions find all of their pages at a member, each in a turn of its own, some time soon.
async fn found_soon(user: &User, sessions: &[(String, Vec<BlockHash>)]) -> Result<()> {
    let until = Instant::now() + HEALED_MAX;
    for (session, hashes) in sessions {
        let mut found = 0;
        while found < hashes.len() {
            ensure!(Instant::now() < until, "{session}: {found} pages");
            user.namespace.begin_turn(session).await?;
            found = user.reload(hashes).await?.pages;
        }
    }
    Ok(())
}

fn sessions(of: &str, seed: u64) -> Vec<(String, Vec<BlockHash>)> {
    (0..6).map(|at| (format!("{of}-{at}"), chain(seed + at, PAGES))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_cannot_be_asked_but_asks_is_in_nobodys_way() -> Result<()> {
    let linked = Linked::start(3, &Setup::default()).await?;
    let users = users(&linked.cluster.servers).await?;
    let (at_0, at_2) = (sessions("zero", 100), sessions("two", 200));
    for (session, hashes) in &at_0 {
        first_turn(&users[0], session, hashes).await?;
    }
    for (session, hashes) in &at_2 {
        first_turn(&users[2], session, hashes).await?;
    }
    // Nothing that the others ask of it arrives; they hear its greetings, and it hears them answer.
    linked.cut(0, 2, true);
    linked.cut(1, 2, true);
    for (session, hashes) in &at_2[..3] {
        let found = next_turn(&users[1], session, 1, hashes).await?;
        ensure!(found < PAGES, "{session} was found at a member that cannot be asked");
    }
    for (session, hashes) in &at_0[..3] {
        let found = next_turn(&users[1], session, 1, hashes).await?;
        ensure!(found == PAGES, "{session}: {found} pages of a member that can");
    }
    // What it asks arrives, and the answers do not: its turns are not held up, and what they compute is right.
    for (session, hashes) in &at_0[3..] {
        next_turn(&users[2], session, 1, hashes).await?;
    }
    linked.cut(0, 2, false);
    linked.cut(1, 2, false);
    found_soon(&users[0], &at_2[3..]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_of_a_cut_go_on_and_find_one_another_again() -> Result<()> {
    let linked = Linked::start(3, &Setup::default()).await?;
    let users = users(&linked.cluster.servers).await?;
    let (at_0, at_2) = (sessions("zero", 300), sessions("two", 400));
    for (session, hashes) in &at_0 {
        first_turn(&users[0], session, hashes).await?;
    }
    for (session, hashes) in &at_2 {
        first_turn(&users[2], session, hashes).await?;
    }
    linked.isolate(2, true);
    linked.cluster.agree(&[0, 1], HEALED_MAX).await?;
    // Each side has what it has, in time; the other's is computed.
    for (session, hashes) in &at_0[..3] {
        ensure!(next_turn(&users[1], session, 1, hashes).await? == PAGES, "{session}");
    }
    for (session, hashes) in &at_2[..3] {
        ensure!(next_turn(&users[2], session, 1, hashes).await? == PAGES, "{session}");
        ensure!(next_turn(&users[1], session, 1, hashes).await? == 0, "{session} passed the cut");
    }
    // It sees two of three fewer: that is believed after three rounds, and it goes on alone.
    linked.cluster.agree(&[2], HEALED_MAX).await?;
    linked.isolate(2, false);
    linked.cluster.agree(&[0, 1, 2], HEALED_MAX).await?;
    found_soon(&users[2], &at_0[3..]).await?;
    found_soon(&users[0], &at_2[3..]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_cut_off_tells_no_list_from_before_turns_that_ended_elsewhere() -> Result<()> {
    let linked = Linked::start(3, &Setup::default()).await?;
    let users = users(&linked.cluster.servers).await?;
    let at_2 = sessions("two", 700);
    for (session, hashes) in &at_2 {
        first_turn(&users[2], session, hashes).await?;
    }
    linked.isolate(2, true);
    linked.cluster.agree(&[0, 1], HEALED_MAX).await?;
    // Three more turns elsewhere, of another branch from the fifth page on.
    for (at, (session, hashes)) in at_2.iter().enumerate() {
        let branch = [&hashes[..4], &chain(800 + at as u64, 2)[..]].concat();
        for ended in 1..4 {
            users[0].namespace.begin_turn_after(session, "", ended).await?;
            end(&users[0], session, &branch).await?;
        }
    }
    linked.isolate(2, false);
    linked.cluster.agree(&[0, 1, 2], HEALED_MAX).await?;
    // It knows within a round or two that it reaches the others, and asks them from then on, whoever tells it what.
    tokio::time::sleep(Duration::from_secs(2)).await;
    for (session, _) in &at_2 {
        let begun = users[2].namespace.begin_turn(session).await?;
        ensure!((begun.turn, begun.pages + begun.afar) == (5, 6), "{session}: {begun:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reaches_nobody_says_that_it_is_away_is_back_with_care_and_is_read_from_meanwhile() -> Result<()>
{
    let linked = Linked::start(3, &Setup::default()).await?;
    let users = users(&linked.cluster.servers).await?;
    let at_2 = sessions("two", 600);
    for (session, hashes) in &at_2 {
        first_turn(&users[2], session, hashes).await?;
    }
    let state = async |asked: usize| -> Result<Option<i32>> {
        let view = linked.cluster.standing(asked).await?.view.unwrap_or_default();
        Ok(view.members.iter().find(|member| member.name == "pool-2").map(|member| member.state))
    };
    // The link that is left lets it say so, but for the answers: what it asks takes longer than they wait for.
    linked.cut(2, 0, true);
    linked.cut(2, 1, true);
    let until = Instant::now() + HEALED_MAX;
    while state(2).await? != Some(MemberState::Away.into()) {
        ensure!(Instant::now() < until, "it does not notice: {:?}", state(2).await?);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    linked.cut(2, 0, false);
    linked.cut(2, 1, false);
    linked.cluster.agree(&[0, 1, 2], HEALED_MAX).await?;
    // Its pages are worth more than the seconds until it is trusted again.
    found_soon(&users[0], &at_2[..3]).await?;
    found_soon(&users[1], &at_2[3..]).await?;
    ensure!(state(0).await? == Some(MemberState::Away.into()), "its pages were found after it was back only");
    for asked in [0, 1, 2] {
        while state(asked).await? != Some(MemberState::Serving.into()) {
            ensure!(Instant::now() < until + HEALED_MAX, "{asked} sees {:?}", state(asked).await?);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    Ok(())
}

/// Pools under TLS, of one list; `certificate`: which of those in the directory each shows.
fn secured(dir: &std::path::Path, certificates: &[&str]) -> Result<(Vec<Server>, Vec<std::net::SocketAddr>)> {
    let count = certificates.len();
    let places = (0..count).map(|_| free_address()).collect::<Result<Vec<_>>>()?;
    let https = (0..count).map(|_| free_address()).collect::<Result<Vec<_>>>()?;
    let members: Vec<String> = (0..count)
        .map(|at| format!("{{ id = \"{}\", endpoint = \"tls://{}\" }}", Cluster::name(at), places[at]))
        .collect();
    let file = |name: &str| dir.join(name).display().to_string();
    let mut servers = Vec::new();
    for (at, own) in certificates.iter().enumerate() {
        let (ca, server) = (file("ca.pem"), file("member-127.0.0.1.pem"));
        let sections = format!(
            "[tls]\ncert = \"{server}\"\nkey = \"{}\"\nclient_ca = \"{ca}\"\n\
             [cluster]\nname = \"tests\"\nid = \"{}\"\nmembers = [{}]\nca = \"{ca}\"\ncert = \"{}\"\nkey = \"{}\"\n",
            file("member-127.0.0.1-key.pem"),
            Cluster::name(at),
            members.join(", "),
            file(&format!("{own}.pem")),
            file(&format!("{own}-key.pem")),
        );
        let (tcp, metrics) = (Some(places[at].to_string()), Some(https[at].to_string()));
        servers.push(Server::start(Setup { tcp, metrics, sections, ..Setup::default() })?);
    }
    Ok((servers, https))
}

#[tokio::test(flavor = "multi_thread")]
async fn members_under_tls_are_known_by_their_certificates() -> Result<()> {
    let made = tempfile::tempdir()?;
    let dir = made.path().join("certs");
    let mut certs = Command::new(server_binary()?);
    let output = certs.arg("certs").arg(&dir).args(["--member", "127.0.0.1", "--engine", "acme"]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (servers, https) = secured(&dir, &["member-127.0.0.1", "member-127.0.0.1", "engine-acme"])?;
    let seen = |at: usize| value(&get(https[at], "/metrics")?.1, "turnkv_cluster_view_servers");
    let until = Instant::now() + AGREE_MAX;
    while seen(0)? < 2.0 || seen(1)? < 2.0 {
        ensure!(Instant::now() < until, "{:?} and {:?} see one another", seen(0), seen(1));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let users = users(&servers).await?;
    for (session, hashes) in sessions("tls", 500) {
        first_turn(&users[0], &session, &hashes).await?;
        ensure!(next_turn(&users[1], &session, 1, &hashes).await? == PAGES, "{session}");
        // Whose certificate says that it is an engine is no member: it is told nothing, and gets no page.
        ensure!(next_turn(&users[2], &session, 0, &hashes).await? == 0, "{session} went to a stranger");
    }
    let log = servers[2].log();
    ensure!(seen(0)? == 2.0 && log.contains("a member of the cluster refuses this one"), "{log}");
    Ok(())
}
