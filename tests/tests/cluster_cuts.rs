//! Three hosts with a pool each and a real etcd; the wire of one is pulled for some seconds. Soon after it is back, its sessions are found
//! on the others, by name and by their pages.
//!
//! `TURNKV_CLUSTER_CUTS` sets for how many seconds, one cut after the other (`6` unless told, such as `2,4,6,9,12,15`). Left out, loudly, where
//! there is no etcd. Hosts have networks of their own where `unshare` and `ip` can make them; else pools are on the loopback, behind proxies.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, DataPlane, EndTurn, OffloadOptions, ReloadOptions};
use turnkv_tests::cluster::{AGREE_MAX, Cluster};
use turnkv_tests::etcd::Etcd;
use turnkv_tests::hosts::{Network, hosts_for};
use turnkv_tests::pages::chain;
use turnkv_tests::server::Setup;
use turnkv_tests::user::User;

const PAGE: u64 = 16 << 10;
const HOSTS: usize = 3;
const PAGES: usize = 3;
/// Sessions of a host, for each cut.
const SESSIONS: u64 = 500;
/// What is found is found so many times in a row: no chance.
const IN_A_ROW: u32 = 3;
const RELOAD: Duration = Duration::from_secs(1);
/// Less than a host that was away is careful of itself (ten rounds of a second), and more than a slow machine needs.
const FOUND_MAX: Duration = Duration::from_secs(9);
/// The name by which the test is run again, in a network of its own.
const TEST: &str = "what_a_host_has_is_found_soon_after_its_wire_is_back";

/// How sessions of the host whose wire was pulled are looked for: each by a turn or a lookup of its own, at another host.
#[derive(Clone, Copy, Debug)]
enum Way {
    TurnAt(usize),
    LookupAt(usize),
}

/// The sessions of one cut, of which each is looked for once.
struct Sessions {
    cut: u64,
    next: u64,
}

impl Sessions {
    async fn start(user: &User, cut: u64) -> Result<Sessions> {
        for at in 0..SESSIONS {
            let (name, hashes) = named(cut, at);
            user.namespace.begin_turn(&name).await?;
            let options = OffloadOptions { session: Some(name.clone()), ..OffloadOptions::default() };
            user.offload(&options, &hashes).await?;
            user.namespace.end_turn(&name, &EndTurn { hashes, ..EndTurn::default() }).await?;
        }
        Ok(Sessions { cut, next: 0 })
    }

    /// Whether the next one is found, whole and right.
    async fn is_found(&mut self, users: &[User], way: Way) -> Result<bool> {
        ensure!(self.next < SESSIONS, "none of {SESSIONS} sessions is found {IN_A_ROW} times in a row");
        let (name, hashes) = named(self.cut, self.next);
        self.next += 1;
        let (Way::TurnAt(at) | Way::LookupAt(at)) = way;
        let user = &users[at];
        match way {
            Way::TurnAt(_) => {
                user.namespace.begin_turn_after(&name, "", 1).await?;
            }
            Way::LookupAt(_) => {
                user.namespace.lookup(&hashes).await?;
            }
        }
        let options = ReloadOptions { deadline: Some(RELOAD), ..ReloadOptions::default() };
        // Every byte of what is called good is compared.
        Ok(user.reload_with(&options, &hashes).await?.pages == PAGES)
    }
}

fn named(cut: u64, at: u64) -> (String, Vec<BlockHash>) {
    (format!("talk-{cut}-{at}"), chain(1 + cut * SESSIONS + at, PAGES))
}

/// Pulls the wire of the first host, and puts it back; how long it then takes until its sessions are found, by each way.
async fn pull_wire(
    network: &Network,
    users: &[User],
    cut: u64,
    wait: Duration,
) -> Result<Vec<(Way, Duration)>> {
    let ways = [Way::TurnAt(1), Way::TurnAt(2), Way::LookupAt(1)];
    let mut sessions = Sessions::start(&users[0], cut).await?;
    for way in ways {
        ensure!(sessions.is_found(users, way).await?, "{way:?}: nothing is found though no wire was pulled");
    }
    network.cut(0, true)?;
    let until = Instant::now() + wait;
    while Instant::now() < until {
        ensure!(!sessions.is_found(users, Way::TurnAt(1)).await?, "a wire that is pulled carries pages");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    network.cut(0, false)?;
    let back = Instant::now();
    let mut found: Vec<(Way, u32, Duration)> = ways.map(|way| (way, 0, Duration::ZERO)).to_vec();
    while found.iter().any(|(_, times, _)| *times < IN_A_ROW) {
        for (way, times, first) in &mut found {
            let began = back.elapsed();
            let is_found = sessions.is_found(users, *way).await?;
            *first = if *times == 0 { began } else { *first };
            *times = if is_found { *times + 1 } else { 0 };
        }
        ensure!(back.elapsed() < 3 * FOUND_MAX, "not found again: {found:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(found.into_iter().map(|(way, _, first)| (way, first)).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_host_has_is_found_soon_after_its_wire_is_back() -> Result<()> {
    let Some((hosts, around)) = hosts_for(TEST, HOSTS as u8)? else { return Ok(()) };
    let Some(etcd) = Etcd::start_at(around)? else { return Ok(()) };
    let setup = Setup { dram_mib: 128, ..Setup::default() };
    let (cluster, network) = Cluster::start_joined(HOSTS, hosts, &etcd.address(), &setup).await?;
    let mut users = Vec::new();
    for server in &cluster.servers {
        users.push(User::connect(&server.address(), DataPlane::Shm, PAGE).await?);
    }
    let told = std::env::var("TURNKV_CLUSTER_CUTS").unwrap_or_else(|_| "6".to_owned());
    for (cut, seconds) in told.split(',').enumerate() {
        let seconds: u64 = seconds.trim().parse().context("TURNKV_CLUSTER_CUTS is seconds, with commas")?;
        let found = pull_wire(&network, &users, cut as u64, Duration::from_secs(seconds)).await?;
        writeln!(std::io::stderr(), "pulled for {seconds} s, found after {found:.1?}")?;
        for (way, after) in found {
            ensure!(after < FOUND_MAX, "{way:?} finds nothing for {after:?}");
        }
        cluster.agree(&[0, 1, 2], 3 * AGREE_MAX).await?;
    }
    Ok(())
}
