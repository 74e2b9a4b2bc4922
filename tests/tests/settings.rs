//! Settings of the configuration file that change what a running server does: each takes effect, and a bad value is said.

use anyhow::{Context, Result, ensure};
use std::process::Command;
use std::time::Duration;
use turnkv_client::{BlockHash, DataPlane, EndTurn, OffloadOptions, TierKind};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_tests::workspace::server_binary;

const PAGE: u64 = 64 << 10;

/// Pages that a tier holds.
async fn pages_of(user: &User, kind: TierKind) -> Result<u64> {
    let stats = user.client.stats().await?;
    Ok(stats.tiers.iter().find(|tier| tier.tier() == kind).map_or(0, |tier| tier.pages))
}

async fn turn(user: &User, session: &str, list: &[BlockHash]) -> Result<()> {
    user.namespace.begin_turn(session).await?;
    let found = if user.namespace.lookup(list).await? == 0 { 0 } else { user.reload(list).await?.pages };
    if found < list.len() {
        let parent = found.checked_sub(1).map(|at| list[at]);
        let options =
            OffloadOptions { session: Some(session.to_owned()), parent, ..OffloadOptions::default() };
        user.offload(&options, &list[found..]).await?;
    }
    user.namespace.end_turn(session, &EndTurn { hashes: list.to_vec(), ..EndTurn::default() }).await?;
    Ok(())
}

/// How many of 8 pages that were read thrice outlive a scan of twice the memory, under a policy.
async fn left_after_a_scan(policy: &str) -> Result<usize> {
    let top = format!("policy = \"{policy}\"\n");
    let server = Server::start(Setup { top, dram_mib: 16, nvme_mib: 0, ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let used = chain(1, 8);
    let options = OffloadOptions { wait: Duration::from_secs(5), ..OffloadOptions::default() };
    user.offload(&options, &used).await?;
    for _ in 0..3 {
        ensure!(user.reload(&used).await?.pages == 8);
    }
    for seed in 0..32 {
        user.offload(&options, &chain(100 + seed, 16)).await?;
    }
    Ok(user.namespace.lookup(&used).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_decides_who_goes() -> Result<()> {
    let (lru, arc) = (left_after_a_scan("lru").await?, left_after_a_scan("arc").await?);
    ensure!(
        (lru, arc) == (0, 8),
        "a scan sweeps out what lru has and leaves what arc saw twice: {lru}, {arc}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn reused_admission_keeps_one_hit_pages_off_the_disk() -> Result<()> {
    let nvme = "admit = \"reused\"\n".to_owned();
    let server = Server::start(Setup { nvme, ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    turn(&user, "once", &chain(1, 12)).await?;
    user.settle().await?;
    ensure!(pages_of(&user, TierKind::Nvme).await? == 0, "nobody came back yet");
    turn(&user, "once", &chain(1, 14)).await?;
    user.settle().await?;
    ensure!(pages_of(&user, TierKind::Nvme).await? == 14, "its session came back");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_is_written_than_the_budget_allows() -> Result<()> {
    // An hour of it may be spent at once: 16 pages.
    let nvme = "write_bytes_per_day = \"24MiB\"\n".to_owned();
    let server = Server::start(Setup { nvme, ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    for seed in 0..8 {
        user.offload(&OffloadOptions::default(), &chain(seed, 8)).await?;
    }
    user.settle().await?;
    let (dram, nvme) = (pages_of(&user, TierKind::Dram).await?, pages_of(&user, TierKind::Nvme).await?);
    ensure!(dram == 64, "all are in memory: {dram}");
    // A page that is being written counts as spent and as waiting: on a busy disk those that come meanwhile find less.
    ensure!((8..=17).contains(&nvme), "{nvme} pages on NVMe");
    let durable = OffloadOptions { durable: true, ..OffloadOptions::default() };
    user.offload(&durable, &chain(50, 8)).await?;
    ensure!(pages_of(&user, TierKind::Nvme).await? == nvme + 8, "what must be durable is written even so");
    Ok(())
}

#[test]
fn a_bad_value_is_said_with_its_key() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let nvme = format!("[nvme]\npath = \"{}\"\nbytes = \"256MiB\"\n", folder.path().join("n").display());
    let member = |id: &str, host: &str| format!("{{ id = \"{id}\", endpoint = \"tcp://{host}:7411\" }}");
    let cluster = |other: String| {
        let own = member("a", "127.0.0.1");
        format!("tcp = \"127.0.0.1:7411\"\n[cluster]\nid = \"a\"\nmembers = [{own}, {other}]\n")
    };
    let cases: [(String, &[&str]); 6] = [
        ("policy = \"best\"\n".to_owned(), &["policy", "best", "session"]),
        (format!("{nvme}admit = \"some\"\n"), &["admit", "some", "reused"]),
        (
            format!("{nvme}write_bytes_per_day = \"1MiB\"\n"),
            &["nvme.write_bytes_per_day", "less than a segment"],
        ),
        (format!("{nvme}write_bytes_per_day = \"often\"\n"), &["write_bytes_per_day", "often"]),
        (cluster(member("b", "127.0.0.1")), &["cluster.members", "`a` and `b` have one endpoint"]),
        (cluster(member("b", "0.0.0.0")), &["cluster.members", "tcp://0.0.0.0:7411", "name the host"]),
    ];
    for (text, wanted) in cases {
        let path = folder.path().join("turnkv.toml");
        std::fs::write(&path, &text)?;
        let output = Command::new(server_binary()?).args(["serve", "--config"]).arg(&path).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(!output.status.success(), "{text}");
        ensure!(wanted.iter().all(|word| said.contains(word)), "{text}: {said}");
    }
    Ok(())
}

#[test]
fn segments_stay_as_they_were_made_and_what_cannot_be_asked_of_them_is_said() -> Result<()> {
    let nvme = tempfile::tempdir()?;
    let setup = |nvme_mib, segment_mib| {
        let nvme_dir = Some(nvme.path().join("tier"));
        Setup { nvme_mib, segment_mib, nvme_dir, ..Setup::default() }
    };
    let mut server = Server::start(setup(256, 16))?;
    server.kill()?;
    let refused = server.restart_with(setup(48, 4)).err().context("it started on three segments")?;
    let text = refused.to_string();
    let last = text.lines().rev().take(2).collect::<Vec<&str>>().join(" ");
    for word in ["50331648", "from 67108864 to", "another place", &nvme.path().to_string_lossy()] {
        ensure!(last.contains(word), "{word} is not in: {last}");
    }
    ensure!(!last.contains("or segment_bytes"), "that would not help: {last}");
    server.restart_with(setup(64, 4))?;
    let config = nvme.path().join("turnkv.toml");
    for (tier, says) in [("tier", true), ("none", false)] {
        let path = nvme.path().join(tier);
        std::fs::write(&config, format!("[nvme]\npath = \"{}\"\nbytes = \"64MiB\"\n", path.display()))?;
        let output = Command::new(server_binary()?).args(["config", "--config"]).arg(&config).output()?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(printed.contains("segment_bytes = \"4MiB\""), "{printed}");
        ensure!(printed.contains("stay 16MiB long as they were made") == says, "{printed}");
    }
    Ok(())
}
