//! Three hosts with a pool each, a real etcd, a store that speaks S3, engines on every host, and again and again something is killed: a
//! pool, etcd, the store, a host's wire. Nobody ever reads a wrong byte, waits longer than they said, or loses what the archive has.
//!
//! `TURNKV_CLUSTER_KILLS` sets how many times (5 unless told), `TURNKV_CLUSTER_KILLS_SEED` what. Left out, loudly, where there is no etcd
//! or no store. Hosts have networks of their own where `unshare` and `ip` can make them; else pools are on the loopback, and said to be.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, EndTurn, OffloadOptions, ReloadOptions};
use turnkv_mutate::Random;
use turnkv_tests::cluster::{AGREE_MAX, Cluster};
use turnkv_tests::etcd::Etcd;
use turnkv_tests::hosts::{Network, hosts_for};
use turnkv_tests::object_store::ObjectStore;
use turnkv_tests::pages::chain;
use turnkv_tests::server::Setup;
use turnkv_tests::user::User;

const PAGE: u64 = 16 << 10;
const HOSTS: usize = 3;
/// Engines that have a turn now on one host, now on another.
const ENGINES: usize = 6;
/// Engines that have no pool on their host, and are given a list.
const ELSEWHERE: usize = 2;
/// Sessions of each engine.
const SESSIONS: usize = 6;
/// Pages that a turn adds, and that a session has at most before it begins anew.
const STEP: usize = 4;
const PAGES_MAX: usize = 40;
/// What an engine gives a reload.
const RELOAD: Duration = Duration::from_secs(2);
/// What a client gives any other call.
const CALL: Duration = Duration::from_secs(20);
/// Turns in which nothing is killed: those that pass until every session has had some, and those of which pages are counted.
const SETTLING: u64 = 150;
const COUNTED: u64 = 300;
/// How long these may take.
const QUIET_MAX: Duration = Duration::from_secs(120);
/// What a busy machine may add to either.
const SLACK: Duration = Duration::from_secs(3);

/// A session as its engine knows it.
#[derive(Clone)]
struct Talk {
    name: String,
    /// Whether every reload says whose pages these are, as one has to where turns go to their session's home.
    follows_home: bool,
    seed: u64,
    pages: usize,
    ended: u32,
}

/// What the engines did and saw.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    turns: AtomicU64,
    reloaded: AtomicU64,
    asked: AtomicU64,
    failed_calls: AtomicU64,
    longest_ms: AtomicU64,
    /// What is kept in the archive, by session: the chain's seed and pages.
    archived: Mutex<BTreeMap<String, (u64, usize)>>,
}

fn number(name: &str, usual: u64) -> Result<u64> {
    std::env::var(name).map_or(Ok(usual), |text| text.parse().with_context(|| format!("{name}={text}")))
}

/// A call within its time; one that fails says so in time, too.
async fn timed<T, E>(
    seen: &Seen,
    most: Duration,
    call: impl Future<Output = std::result::Result<T, E>>,
) -> Result<Option<T>> {
    let began = Instant::now();
    let answer = call.await;
    let took = began.elapsed();
    ensure!(took < most + SLACK, "a call that had {most:?} took {took:?}");
    seen.longest_ms.fetch_max(took.saturating_sub(most).as_millis() as u64, Ordering::Relaxed);
    if answer.is_err() {
        seen.failed_calls.fetch_add(1, Ordering::Relaxed);
    }
    Ok(answer.ok())
}

/// One turn of a session on a host. False: its pool does not answer, and the engine computes by itself.
async fn turn(seen: &Seen, user: &User, talk: &mut Talk) -> Result<bool> {
    let hashes = chain(talk.seed, talk.pages + STEP);
    let begun = user.namespace.begin_turn_after(&talk.name, "", talk.ended);
    if timed(seen, CALL, begun).await?.is_none() {
        return Ok(false);
    }
    if talk.pages > 0 {
        let names = talk.follows_home || talk.ended.is_multiple_of(2);
        let session = names.then(|| talk.name.clone());
        let options = ReloadOptions { session, deadline: Some(RELOAD), ..ReloadOptions::default() };
        let began = Instant::now();
        // Every byte of what is called good is compared.
        let report = user.reload_with(&options, &hashes[..talk.pages]).await;
        let took = began.elapsed();
        ensure!(took < RELOAD + SLACK, "a reload took {took:?}");
        if let Err(error) = &report {
            ensure!(!error.to_string().contains("WRONG BYTES"), "{error}");
        }
        seen.asked.fetch_add(talk.pages as u64, Ordering::Relaxed);
        seen.reloaded.fetch_add(report.map_or(0, |report| report.pages) as u64, Ordering::Relaxed);
    }
    let session = Some(talk.name.clone());
    let options = OffloadOptions { session, ..OffloadOptions::default() };
    let began = Instant::now();
    let stored = user.offload(&options, &hashes).await;
    ensure!(began.elapsed() < CALL + SLACK, "an offload took {:?}", began.elapsed());
    if stored.is_err() {
        return Ok(false);
    }
    let ended = EndTurn { hashes, ..EndTurn::default() };
    if timed(seen, CALL, user.namespace.end_turn(&talk.name, &ended)).await?.is_none() {
        return Ok(false);
    }
    (talk.pages, talk.ended) = (talk.pages + STEP, talk.ended + 1);
    seen.turns.fetch_add(1, Ordering::Relaxed);
    Ok(true)
}

/// An engine that has turns, now at one address, now at another, until it is told to stop.
async fn engine(seen: Arc<Seen>, addresses: Vec<String>, plane: DataPlane, number: usize) -> Result<()> {
    let mut random = Random::new(number as u64 + 1);
    let mut talks: Vec<Talk> = (0..SESSIONS)
        .map(|at| Talk {
            name: format!("talk-{number}-{at}"),
            follows_home: plane == DataPlane::Auto,
            seed: 1 + (number * SESSIONS + at) as u64,
            pages: 0,
            ended: 0,
        })
        .collect();
    let mut users: Vec<Option<User>> = addresses.iter().map(|_| None).collect();
    while !seen.stop.load(Ordering::Relaxed) {
        let host = random.below(users.len());
        if users[host].is_none() {
            users[host] = User::connect(&addresses[host], plane, PAGE).await.ok();
        }
        let talk = &mut talks[random.below(SESSIONS)];
        if talk.pages >= PAGES_MAX {
            (talk.seed, talk.pages) = (talk.seed + 10_000, 0);
        }
        match &users[host] {
            Some(user) => drop(turn(&seen, user, talk).await?),
            None => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    Ok(())
}

/// The share of what engines ask for that they get while nothing is killed.
async fn hit_ratio(seen: &Seen) -> Result<f64> {
    let count = |counted: &AtomicU64| counted.load(Ordering::Relaxed);
    let until = Instant::now() + QUIET_MAX;
    let pass = async |turns: u64| {
        let to = count(&seen.turns) + turns;
        while count(&seen.turns) < to {
            ensure!(Instant::now() < until, "{} of {to} turns in {QUIET_MAX:?}", count(&seen.turns));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok((count(&seen.reloaded), count(&seen.asked)))
    };
    let (had, asked) = pass(SETTLING).await?;
    let (has, asks) = pass(COUNTED).await?;
    Ok((has - had) as f64 / (asks - asked).max(1) as f64)
}

/// Keeps sessions in the archive, now and then, of a host that answers.
async fn archivist(seen: Arc<Seen>, address: String, shelf: PathBuf) -> Result<()> {
    let mut user = None;
    for number in 0_u64.. {
        if seen.stop.load(Ordering::Relaxed) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        if user.is_none() {
            user = User::connect(&address, DataPlane::Shm, PAGE).await.ok();
        }
        let Some(user) = &user else { continue };
        let (name, seed) = (format!("kept-{number}"), 1_000_000 + number);
        // Objects of one page and of some: not every store says of small ones what it should.
        let pages = 1 + number as usize % STEP;
        let hashes = chain(seed, pages);
        if user.namespace.begin_turn(&name).await.is_err() {
            continue;
        }
        let options = OffloadOptions { session: Some(name.clone()), ..OffloadOptions::default() };
        let stored = user.offload(&options, &hashes).await;
        let end = EndTurn { hashes, archive: true, ..EndTurn::default() };
        let ended = user.namespace.end_turn_told(&name, &end).await;
        if stored.is_err() || !ended.is_ok_and(|ended| ended.archiving) {
            continue;
        }
        // Asked for is not kept yet: a pool that dies meanwhile may have had the only copy.
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until && !is_kept(&shelf, &name) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        if is_kept(&shelf, &name) {
            seen.archived.lock().unwrap_or_else(PoisonError::into_inner).insert(name, (seed, pages));
        }
    }
    Ok(())
}

/// What is killed: pools twice as often as anything else.
const KINDS: [&str; 5] = ["pool", "store", "wire", "etcd", "pool"];
/// How long it is away at most, and how long now and then.
const AWAY_MS: usize = 1_500;
const AWAY_LONG_MS: usize = 15_000;

/// What can be killed.
struct Victims {
    cluster: Cluster,
    etcd: Etcd,
    store: ObjectStore,
    network: Network,
    /// How often each was.
    killed: BTreeMap<&'static str, u64>,
}

impl Victims {
    /// Kills something, and has it come back.
    async fn kill(&mut self, round: usize, random: &mut Random) -> Result<()> {
        // Each once, then whatever comes; now and then for longer than the others take somebody for alive.
        let what = KINDS.get(round).copied().unwrap_or(KINDS[random.below(KINDS.len())]);
        let most = if random.below(8) == 0 { AWAY_LONG_MS } else { AWAY_MS };
        let (at, pause) = (random.below(HOSTS), Duration::from_millis(random.below(most) as u64));
        match what {
            "pool" => self.cluster.servers[at].kill()?,
            "etcd" => self.etcd.kill()?,
            "store" => self.store.kill()?,
            _ => self.network.cut(at, true)?,
        }
        tokio::time::sleep(pause).await;
        match what {
            "pool" => self.cluster.servers[at].restart()?,
            "etcd" => self.etcd.restart()?,
            "store" => self.store.restart()?,
            _ => self.network.cut(at, false)?,
        }
        *self.killed.entry(what).or_default() += 1;
        Ok(())
    }
}

/// Whether a manifest among the store's objects is of this session.
fn is_kept(folder: &Path, session: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return is_kept(&path, session);
        }
        let is_manifest = path.components().any(|part| part.as_os_str() == "manifests");
        is_manifest
            && std::fs::read_to_string(&path).is_ok_and(|text| text.contains(&format!("\"{session}\"")))
    })
}

/// What the archive had when everything was over is found, whole, on every host, by a pool that never had it.
async fn archived_is_found(cluster: &Cluster, seen: &Seen) -> Result<usize> {
    let kept = seen.archived.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let (mut found, until) = (0, Instant::now() + Duration::from_secs(120));
    for (at, (name, (seed, pages))) in kept.iter().enumerate() {
        let user = User::connect(&cluster.servers[at % HOSTS].address(), DataPlane::Shm, PAGE).await?;
        loop {
            user.namespace.begin_turn(name).await?;
            if user.reload(&chain(*seed, *pages)).await?.pages == *pages {
                found += 1;
                break;
            }
            ensure!(Instant::now() < until, "{name} is in the archive and is not found");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
    Ok(found)
}

/// The name by which the test is run again, in a network of its own.
const TEST: &str = "whatever_is_killed_nobody_reads_wrong_bytes_or_waits_longer_than_they_said";

/// The hosts, and all that can be killed. None, said loudly: something that it needs is not on this machine.
async fn set_up() -> Result<Option<Victims>> {
    let Some((hosts, around)) = hosts_for(TEST, HOSTS as u8)? else { return Ok(None) };
    let Some(etcd) = Etcd::start_at(around)? else { return Ok(None) };
    let Some(store) = ObjectStore::start_at(around)? else { return Ok(None) };
    let sections = format!("{}sessions = \"asked\"\nrefresh_ms = 200\n", store.section());
    let environment = ObjectStore::environment();
    let setup = Setup { dram_mib: 32, nvme_mib: 128, sections, environment, ..Setup::default() };
    let (cluster, network) = Cluster::start_joined(HOSTS, hosts, &etcd.address(), &setup).await?;
    Ok(Some(Victims { cluster, etcd, store, network, killed: BTreeMap::new() }))
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_killed_nobody_reads_wrong_bytes_or_waits_longer_than_they_said() -> Result<()> {
    let Some(mut victims) = set_up().await? else { return Ok(()) };
    let seen = Arc::new(Seen::default());
    let addresses: Vec<String> =
        victims.cluster.servers.iter().map(turnkv_tests::server::Server::address).collect();
    let list: Vec<String> = (0..HOSTS).map(|at| victims.cluster.tcp(at)).collect();
    let here = (0..ENGINES).map(|number| (number, addresses.clone(), DataPlane::Shm));
    let elsewhere =
        (ENGINES..ENGINES + ELSEWHERE).map(|number| (number, vec![list.join(",")], DataPlane::Auto));
    let mut running: Vec<_> = here
        .chain(elsewhere)
        .map(|(number, at, plane)| tokio::spawn(engine(Arc::clone(&seen), at, plane, number)))
        .collect();
    running.push(tokio::spawn(archivist(Arc::clone(&seen), addresses[0].clone(), victims.store.objects())));
    let before = hit_ratio(&seen).await?;
    ensure!(before > 0.5, "{before:.3} of what is asked for is there though nothing was killed");
    let rounds = number("TURNKV_CLUSTER_KILLS", KINDS.len() as u64)?;
    let mut random = Random::new(number("TURNKV_CLUSTER_KILLS_SEED", 1)?);
    for round in 0..rounds {
        tokio::time::sleep(Duration::from_millis(random.below(600) as u64)).await;
        victims.kill(round as usize, &mut random).await.with_context(|| format!("round {round}"))?;
        ensure!(running.iter().all(|engine| !engine.is_finished()), "round {round}: an engine has ended");
    }
    victims.cluster.agree(&[0, 1, 2], 3 * AGREE_MAX).await?;
    let after = hit_ratio(&seen).await;
    seen.stop.store(true, Ordering::Relaxed);
    for engine in running {
        engine.await??;
    }
    let after = after?;
    let found = archived_is_found(&victims.cluster, &seen).await?;
    let count = |counted: &AtomicU64| counted.load(Ordering::Relaxed);
    writeln!(
        std::io::stderr(),
        "{rounds} kills {:?}{}: {} turns, {} of {} pages reloaded, 0 wrong, {} calls failed, the latest {} ms after its time; {found} \
         sessions of the archive found; of what is asked for {before:.3} is there before, {after:.3} after them",
        victims.killed,
        if matches!(victims.network, Network::Wires(_)) { ", hosts with networks of their own" } else { "" },
        count(&seen.turns),
        count(&seen.reloaded),
        count(&seen.asked),
        count(&seen.failed_calls),
        count(&seen.longest_ms),
    )?;
    ensure!(count(&seen.turns) > rounds && count(&seen.reloaded) > 0);
    ensure!(found > 0, "no session was archived: nothing was asked of the store");
    ensure!(
        after > before - 0.05,
        "members that came back find {after:.3} of what is asked for, and found {before:.3}"
    );
    Ok(())
}
