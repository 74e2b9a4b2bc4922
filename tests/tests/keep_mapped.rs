//! Pages that a process has mapped when its server ends: nothing else is ever written into their slots, they serve others meanwhile,
//! and they are the process's again as soon as it has said what it has. `TURNKV_KILLS` sets how many kills (8 unless told).

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, CommitOptions, DataPlane, OffloadOptions, PageSpan, ReloadOptions, Standing};
use turnkv_tests::child::Running;
use turnkv_tests::pages::{bytes, chain};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 128 << 10;
const HELD: usize = 24;
const RESERVED: usize = 6;

fn setup(nvme_mib: u64) -> Setup {
    let limits = "lease_ms = 1000\nlease_grace_ms = 300\n".to_owned();
    // What comes is taken, however often its place was given to others.
    Setup {
        dram_mib: 48,
        nvme_mib,
        keep: true,
        top: "policy = \"lru\"\n".to_owned(),
        limits,
        ..Setup::default()
    }
}

/// A process's own view of what it has mapped.
struct Mapped {
    span: PageSpan,
    hashes: Vec<BlockHash>,
    memory: File,
}

impl Mapped {
    /// Maps pages to read, and slots to write behind them.
    async fn hold(user: &User, hashes: Vec<BlockHash>, reserved: usize) -> Result<Mapped> {
        let places = hashes.len() + reserved;
        let mut span = PageSpan::new(&user.namespace, 1, places, 1)?;
        let report = span.hold(0, 0, &ReloadOptions::default(), &hashes).await?;
        ensure!(report.pages == hashes.len(), "{report:?}");
        ensure!(span.reserve(0, hashes.len(), reserved, None).await? == reserved);
        ensure!(span.counts().held as usize == hashes.len(), "{:?}", span.counts());
        let memory = File::options().read(true).write(true).open("/proc/self/mem")?;
        Ok(Mapped { span, hashes, memory })
    }

    fn read(&self, place: usize) -> Result<Vec<u8>> {
        let mut page = vec![0; PAGE as usize];
        self.memory.read_exact_at(&mut page, self.span.memory().address(place) as u64)?;
        Ok(page)
    }

    fn write(&self, place: usize, page: &[u8]) -> Result<()> {
        Ok(self.memory.write_all_at(page, self.span.memory().address(place) as u64)?)
    }

    /// Every mapped page is what it was when it was mapped.
    fn check(&self, when: &str) -> Result<()> {
        for (place, hash) in self.hashes.iter().enumerate() {
            ensure!(self.read(place)? == bytes(hash, PAGE as usize), "WRONG BYTES: {when}: page {place}");
        }
        Ok(())
    }

    fn standing(&self, place: usize) -> Standing {
        self.span.standing(0, place)
    }
}

/// Waits until this is so of the bytes that are leased, and of those in quarantine.
async fn leased(user: &User, server: &Server, wanted: impl Fn(u64, u64) -> bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let stats = user.client.stats().await?;
        let (leased, quarantined) =
            (stats.tiers.first().map_or(0, |dram| dram.leased_bytes), stats.quarantined_bytes);
        if wanted(leased, quarantined) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{leased} leased, {quarantined} in quarantine: {}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Gives all of DRAM to others, more than once.
async fn crowd(user: &User, first: u64) -> Result<()> {
    for seed in first..first + 16 {
        let report = user.offload(&OffloadOptions::default(), &chain(seed, 64)).await?;
        ensure!(report.stored == 64, "{report:?}");
        ensure!(user.reload(&chain(seed, 64)).await?.pages == 64);
    }
    Ok(())
}

/// A process that has mapped some pages and says nothing for now.
struct Silent {
    process: Running,
    pid: Pid,
}

impl Silent {
    fn start(server: &Server, seed: u64) -> Result<Silent> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_victim"));
        let process = Running::start(command.args([&server.address(), &seed.to_string(), "hold"]))?;
        let pid = Pid::from_raw(process.id().try_into()?).context("pid 0")?;
        Ok(Silent { process, pid })
    }
}

async fn live_through_kills(nvme_mib: u64, upgrades: bool) -> Result<()> {
    let kills = std::env::var("TURNKV_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(8u64);
    let mut server = Server::start(setup(nvme_mib))?;
    let owner = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    owner.offload(&OffloadOptions::default(), &chain(1, HELD)).await?;
    let mut mapped = Mapped::hold(&owner, chain(1, HELD), RESERVED).await?;
    let held_bytes = PAGE * (HELD + RESERVED) as u64;
    let mut committed = 0;
    for kill in 0..kills {
        let page = bytes(&chain(9_000 + kill, 1)[0], PAGE as usize);
        let place = HELD + committed;
        mapped.write(place, &page)?;
        if upgrades && kill % 2 == 1 {
            server.signal(Signal::USR2)?;
            tokio::time::sleep(Duration::from_millis(300)).await;
        } else {
            server.kill()?;
            mapped.check("nobody serves")?;
            server.restart()?;
        }
        let other = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        // Others are served from the very slots, said or not.
        ensure!(other.reload(&chain(1, HELD)).await?.from_dram == HELD, "{}", server.log());
        crowd(&other, 100 + kill * 100).await?;
        mapped.check("all of DRAM was given to others")?;
        ensure!(mapped.read(place)? == page, "WRONG BYTES: a reserved slot was somebody else's");
        // It renews its leases by itself: nothing waits for it any more, and all of it is its own.
        leased(&other, &server, |leased, quarantined| (leased, quarantined) == (held_bytes, 0)).await?;
        for at in 0..HELD {
            ensure!(mapped.standing(at) == Standing::ReadOnly, "page {at} is {:?}", mapped.standing(at));
        }
        ensure!(mapped.standing(place) == Standing::Writable, "{:?}", mapped.standing(place));
        ensure!(!mapped.span.is_lost());
        if committed < RESERVED - 1 {
            // What was written before the server's end is committed after it.
            let options = CommitOptions { keep: true, ..CommitOptions::default() };
            let report = mapped.span.commit(0, place, &options, &chain(9_000 + kill, 1)).await?;
            ensure!(report.stored == 1, "{report:?}");
            ensure!(other.reload(&chain(9_000 + kill, 1)).await?.pages == 1);
            committed += 1;
        }
    }
    mapped.span.release_all()?;
    let other = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    leased(&other, &server, |leased, quarantined| (leased, quarantined) == (0, 0)).await?;
    other.client.evict(None, None).await?;
    let stats = other.client.stats().await?;
    ensure!(stats.tiers[0].used_bytes == 0, "slots are lost: {stats:?}\n{}", server.log());
    ensure!(stats.corrupt_pages == 0, "{} pages did not verify", stats.corrupt_pages);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mapped_pages_are_their_processes_again_after_each_kill() -> Result<()> {
    live_through_kills(0, false).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mapped_pages_are_their_processes_again_after_upgrades_with_nvme() -> Result<()> {
    live_through_kills(256, true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_a_process_that_says_nothing_are_nobodys_until_it_is_gone() -> Result<()> {
    let mut server = Server::start(setup(0))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let mut silent = Silent::start(&server, 5)?;
    leased(&user, &server, |leased, _| leased == 8 * PAGE).await?;
    // Half of what it reserved is committed.
    let deadline = Instant::now() + Duration::from_secs(20);
    while user.namespace.lookup(&chain(5, 4)).await? < 4 {
        ensure!(Instant::now() < deadline, "nothing is committed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    kill_process(silent.pid, Signal::STOP)?;
    for life in 0..3 {
        server.kill()?;
        server.restart()?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        // Others are served from them, as long as the policy keeps the pages.
        ensure!(life > 0 || user.namespace.lookup(&chain(5, 4)).await? == 4, "{}", server.log());
        leased(&user, &server, |_, quarantined| quarantined == 8 * PAGE).await?;
        crowd(&user, 1_000 + life * 100).await?;
        leased(&user, &server, |_, quarantined| quarantined == 8 * PAGE).await?;
    }
    // It goes on, and says what it has: that is not in quarantine any more, and still its own.
    kill_process(silent.pid, Signal::CONT)?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    leased(&user, &server, |leased, quarantined| (leased, quarantined) == (8 * PAGE, 0)).await?;
    silent.process.kill()?;
    silent.process.wait()?;
    leased(&user, &server, |leased, quarantined| (leased, quarantined) == (0, 0)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_no_room_beside_newer_leases_is_taken_over_once_these_end() -> Result<()> {
    // Renewals are far enough apart for others to come first.
    let limits = "lease_ms = 12000\n".to_owned();
    let mut server = Server::start(Setup { limits, ..setup(0) })?;
    let owner = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let many = 100;
    for part in chain(1, many).chunks(50) {
        let parent = (part[0] != chain(1, 1)[0]).then(|| chain(1, many)[49]);
        owner.offload(&OffloadOptions { parent, ..OffloadOptions::default() }, part).await?;
    }
    let mapped = Mapped::hold(&owner, chain(1, many), 0).await?;
    server.kill()?;
    server.restart()?;
    // The same process, and so the same share, by another client of it: most of it is used up.
    let newer = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let most = 96;
    let mut own = PageSpan::new(&newer.namespace, 1, most, 1)?;
    ensure!(own.reserve(0, 0, most, None).await? == most, "it came too late: {}", server.log());
    tokio::time::sleep(Duration::from_millis(4500)).await;
    let (bytes, beside) = (PAGE * many as u64, PAGE * (many + most) as u64);
    leased(&newer, &server, |leased, quarantined| (leased, quarantined) == (beside, bytes)).await?;
    mapped.check("there is no room for it")?;
    ensure!(mapped.standing(0) == Standing::Orphan, "{:?}", mapped.standing(0));
    own.release_all()?;
    leased(&newer, &server, |leased, quarantined| (leased, quarantined) == (bytes, 0)).await?;
    ensure!(mapped.standing(0) == Standing::ReadOnly && !mapped.span.is_lost(), "{:?}", mapped.standing(0));
    mapped.check("it is taken over")
}

/// When a client gives all up and goes, beside a restart of its server; its process goes on.
#[derive(Clone, Copy, Debug)]
enum Goes {
    WhileNobodyServes,
    AfterTheRestart,
    AfterAnotherClientCame,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_around_a_restart_leaves_nothing_in_quarantine() -> Result<()> {
    for upgrades in [false, true] {
        for goes in [Goes::WhileNobodyServes, Goes::AfterTheRestart, Goes::AfterAnotherClientCame] {
            // Its renewals do not come to its help.
            let limits = "lease_ms = 60000\n".to_owned();
            let mut server = Server::start(Setup { limits, ..setup(0) })?;
            let other = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
            other.offload(&OffloadOptions::default(), &chain(1, HELD)).await?;
            let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
            let mut mapped = Mapped::hold(&user, chain(1, HELD), RESERVED).await?;
            let away = async move || -> Result<()> {
                mapped.span.release_all()?;
                drop((mapped, user));
                Ok(())
            };
            if upgrades {
                ensure!(server.upgrade(&[])?.status.success(), "{}", server.log());
            } else {
                server.kill()?;
                if let Goes::WhileNobodyServes = goes {
                    away().await?;
                    server.restart()?;
                    let other = User::connect(&server.address(), DataPlane::Inline, PAGE).await?;
                    leased(&other, &server, |leased, quarantined| (leased, quarantined) == (0, 0)).await?;
                    continue;
                }
                server.restart()?;
            }
            if let Goes::AfterAnotherClientCame = goes {
                ensure!(other.reload(&chain(1, HELD)).await?.pages == HELD);
            }
            away().await?;
            let gone = leased(&other, &server, |leased, quarantined| (leased, quarantined) == (0, 0)).await;
            gone.with_context(|| format!("{goes:?}, upgrades: {upgrades}"))?;
        }
    }
    Ok(())
}
