//! DRAM survives kill -9: every page that was acknowledged is served after the restart with its exact bytes, from DRAM where it was
//! in DRAM. Kept memory that is damaged, cut short or of another version is refused or missed, never wrong. `TURNKV_KILLS`
//! sets how many kills (20 unless told).

use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::io::BufRead;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, MissCause, OffloadOptions};
use turnkv_proto::{pack_hashes, wire};
use turnkv_tests::local::Local;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_transfer::LocalSocket;
use wire::Verb;

const PAGE: u64 = 60 << 10;
const PAGES: usize = 6;

fn kills() -> usize {
    std::env::var("TURNKV_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

fn setup(dram_mib: u64, nvme_mib: u64) -> Setup {
    Setup { dram_mib, nvme_mib, keep: true, ..Setup::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_in_dram_survive_kill_9_and_are_served_from_dram() -> Result<()> {
    for nvme_mib in [0, 256] {
        let mut server = Server::start(setup(32, nvme_mib))?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        let chains: Vec<_> = (1..=20).map(|seed| chain(seed, PAGES)).collect();
        for pages in &chains {
            ensure!(user.offload(&OffloadOptions::default(), pages).await?.stored == PAGES);
        }
        for round in 0..3 {
            server.kill()?;
            server.restart()?;
            let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
            for pages in &chains {
                let report = user.reload(pages).await?; // checks every byte
                ensure!(
                    (report.pages, report.from_dram) == (PAGES, PAGES),
                    "round {round}: {report:?}\n{}",
                    server.log()
                );
            }
            let stats = user.client.stats().await?;
            ensure!(stats.kept.contains("keeps DRAM"), "{:?}", stats.kept);
        }
    }
    Ok(())
}

/// What a round of writers and readers was told.
#[derive(Default)]
struct Round {
    stop: AtomicBool,
    stored: Mutex<Vec<u64>>,
}

/// Chains of one writer in one life of the server, at most: all rounds fit DRAM.
const CHAINS_A_WRITER: u64 = 12;

/// Two writers, readers among them, until a kill at a random moment; the DRAM is large enough for what all rounds write, so that
/// whatever was acknowledged must be served from it, in this round and in all later ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_was_acknowledged_is_served_from_dram_after_kill_9_at_any_moment() -> Result<()> {
    let written_mib = kills() as u64 * 2 * CHAINS_A_WRITER * PAGES as u64 * 64 / 1024;
    for (plane, nvme_mib) in
        [(DataPlane::Shm, 0), (DataPlane::Inline, 0), (DataPlane::Shm, written_mib * 2 + 256)]
    {
        let mut server = Server::start(setup(written_mib + 64, nvme_mib))?;
        let mut acknowledged: BTreeSet<u64> = BTreeSet::new();
        for kill in 0..kills() as u64 {
            let round = Arc::new(Round::default());
            let writer = |writer: u64| {
                let first = 1 + kill * 1_000 + writer * 1_000_000;
                tokio::spawn(write_until_dead(server.address(), plane, first, Arc::clone(&round)))
            };
            let writers = [writer(0), writer(1)];
            tokio::time::sleep(Duration::from_micros(500 + kill * 7_919 % 60_000)).await;
            server.kill()?;
            round.stop.store(true, Ordering::Relaxed);
            // Who is in the middle of a call waits for the next server.
            server.restart()?;
            for writer in writers {
                writer.await??;
            }
            acknowledged.extend(round.stored.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.iter());
            let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
            let every = acknowledged.len() / 20 + 1;
            let sample = acknowledged.iter().rev().take(40).chain(acknowledged.iter().step_by(every));
            for seed in sample {
                let report = user.reload(&chain(*seed, PAGES)).await?; // checks every byte
                ensure!(
                    (report.pages, report.from_dram) == (PAGES, PAGES),
                    "kill {kill}: chain {seed} was acknowledged: {report:?}\n{}",
                    server.log()
                );
            }
            let stats = user.client.stats().await?;
            ensure!(stats.corrupt_pages == 0, "kill {kill}: {} pages did not verify", stats.corrupt_pages);
        }
        no_slot_is_lost(&server).await?;
        ensure!(acknowledged.len() >= kills() / 2, "only {} chains were acknowledged", acknowledged.len());
        println!(
            "{plane:?}: {} kills, {} chains of {PAGES} pages, all from DRAM",
            kills(),
            acknowledged.len()
        );
    }
    Ok(())
}

/// Once leases are over nothing takes slots but pages: all of DRAM can be filled again. Writers of every life were of this process,
/// which lives: it has said at each start that none of them writes any more.
async fn no_slot_is_lost(server: &Server) -> Result<()> {
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.client.evict(None, None).await?;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let stats = user.client.stats().await?;
        let dram = stats.tiers.first().context("a DRAM tier")?;
        if (dram.used_bytes, dram.leased_bytes, stats.quarantined_bytes) == (0, 0, 0) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "slots are lost: {dram:?}, {} in quarantine",
            stats.quarantined_bytes
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Offloads chains and reads some back, until the server dies. Only wrong bytes are an error.
async fn write_until_dead(address: String, plane: DataPlane, first: u64, round: Arc<Round>) -> Result<()> {
    let Ok(user) = User::connect(&address, plane, PAGE).await else { return Ok(()) };
    let mut seed = first;
    while !round.stop.load(Ordering::Relaxed) && seed < first + CHAINS_A_WRITER {
        let options = OffloadOptions { wait: Duration::from_secs(1), ..Default::default() };
        let Ok(report) = user.offload(&options, &chain(seed, PAGES)).await else { return Ok(()) };
        if report.stored == PAGES {
            round.stored.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.push(seed);
        }
        match user.reload(&chain(seed, PAGES)).await {
            Err(error) if error.to_string().contains("WRONG BYTES") => return Err(error),
            Err(_) => return Ok(()),
            Ok(_) => {}
        }
        seed += 1;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_keeper_a_server_begins_as_cold_as_ever_and_with_a_new_one_it_is_kept_again() -> Result<()>
{
    let mut server = Server::start(setup(32, 0))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
    server.kill()?;
    server.kill_keeper()?;
    server.restart()?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    ensure!(user.reload(&chain(1, PAGES)).await?.pages == 0, "nobody kept it");
    user.go_and_come_back(&chain(2, PAGES)).await?;
    // Its keeper dies under it: it finds another one, and has all of it kept. Who that is, is in the words.
    let before = user.client.stats().await?.kept;
    server.kill_keeper()?;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let now = user.client.stats().await?.kept;
        if now != before && now.contains("keeps DRAM") {
            break;
        }
        ensure!(Instant::now() < deadline, "DRAM is not kept again: {}", server.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.kill()?;
    server.restart()?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let report = user.reload(&chain(2, PAGES)).await?;
    ensure!((report.pages, report.from_dram) == (PAGES, PAGES), "{report:?}\n{}", server.log());
    Ok(())
}

/// A client that was granted slots and lives on may write to them whatever became of the server: nobody else gets them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_living_process_may_still_write_is_given_to_nobody() -> Result<()> {
    let mut server = Server::start(setup(32, 0))?;
    let local = Local::connect(&server, PAGE).await?;
    let begin = |local: &Local, seed: u64| wire::BeginOffloadRequest {
        namespace: local.ns.clone(),
        client: local.client,
        hashes: pack_hashes(&chain(seed, PAGES)).into(),
        ..Default::default()
    };
    // One page that is complete (whatever its bytes), and some that are being written.
    let begun: wire::BeginOffloadReply = local.ask(Verb::BeginOffload, &begin(&local, 1))?;
    let (lease, pages) = (begun.lease, (0..PAGES as u32).collect());
    let commit = wire::CommitOffloadRequest {
        lease,
        client: local.client,
        pages,
        checksums: vec![7; PAGES],
        ..Default::default()
    };
    let done: wire::CommitOffloadReply = local.ask(Verb::CommitOffload, &commit)?;
    ensure!(done.dropped.is_empty());
    let begun: wire::BeginOffloadReply = local.ask(Verb::BeginOffload, &begin(&local, 2))?;
    let granted: BTreeSet<(u32, u64)> = begun.slots.iter().map(|slot| (slot.slab, slot.offset)).collect();
    ensure!(granted.len() == PAGES, "{begun:?}");
    for life in 0..2 {
        server.kill()?;
        server.restart()?;
        let next = Local::connect(&server, PAGE).await?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        let quarantined = user.client.stats().await?.quarantined_bytes;
        ensure!(quarantined >= PAGES as u64 * PAGE, "life {life}: {quarantined}\n{}", server.log());
        let again: wire::BeginOffloadReply = next.ask(Verb::BeginOffload, &begin(&next, 3 + life))?;
        ensure!(again.slots.len() == PAGES, "{again:?}");
        let twice = again.slots.iter().find(|slot| granted.contains(&(slot.slab, slot.offset)));
        ensure!(twice.is_none(), "life {life}: {twice:?} may still be written by this process");
    }
    Ok(())
}

/// Once such a process is gone its slots are free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_in_quarantine_is_free_when_its_process_is_gone() -> Result<()> {
    let mut server = Server::start(setup(32, 0))?;
    let local = Local::connect(&server, 64 << 10).await?;
    let hashes = pack_hashes(&chain(900, 1)).into();
    let ask = wire::BeginOffloadRequest {
        namespace: local.ns.clone(),
        hashes,
        client: local.client,
        ..Default::default()
    };
    let begun: wire::BeginOffloadReply = local.ask(Verb::BeginOffload, &ask)?;
    let commit = wire::CommitOffloadRequest {
        lease: begun.lease,
        client: local.client,
        pages: vec![0],
        checksums: vec![7],
        ..Default::default()
    };
    let _: wire::CommitOffloadReply = local.ask(Verb::CommitOffload, &commit)?;
    let socket = server.local_socket();
    let mut hog = std::process::Command::new(env!("CARGO_BIN_EXE_hog"))
        .args([server.address().as_str(), &socket.display().to_string(), "1", "1", "write", "8"])
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let said = std::io::BufReader::new(hog.stdout.take().context("what it says")?).lines().next();
    ensure!(said.context("it leases")??.split(' ').next() != Some("0"));
    server.kill()?;
    server.restart()?;
    let local = Local::connect(&server, 64 << 10).await?; // the namespace is open again
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    ensure!(user.client.stats().await?.quarantined_bytes >= 8 << 16, "{}", server.log());
    hog.kill()?;
    hog.wait()?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while user.client.stats().await?.quarantined_bytes > 0 {
        ensure!(Instant::now() < deadline, "its slots stay in quarantine");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(local);
    Ok(())
}

/// What the keeper has, asked as a server would ask; it ends with what is returned.
fn kept_of(server: &Server) -> Result<(LocalSocket, Vec<(String, OwnedFd)>)> {
    kept_for(server, 30_000)
}

/// The same, by a server that wants it kept for so long after its end.
fn kept_for(server: &Server, without_server_ms: u64) -> Result<(LocalSocket, Vec<(String, OwnedFd)>)> {
    let socket = LocalSocket::connect(&server.keep_socket(), Instant::now() + Duration::from_secs(5))?;
    let hello = [&1u32.to_le_bytes()[..], &without_server_ms.to_le_bytes()[..]].concat();
    socket.send(1, 0, &hello, &[])?;
    let mut kept = Vec::new();
    loop {
        let frame = socket.recv(Some(Instant::now() + Duration::from_secs(10)))?;
        match frame.fd {
            Some(fd) => kept.push((String::from_utf8(frame.body)?, fd)),
            None => return Ok((socket, kept)),
        }
    }
}

fn table_of(kept: &[(String, OwnedFd)]) -> Result<&OwnedFd> {
    kept.iter().find(|(name, _)| name == "slot-table").map(|(_, fd)| fd).context("a slot table is kept")
}

#[test]
fn who_only_looks_at_a_keeper_does_not_make_it_keep_for_longer() -> Result<()> {
    let mut server = Server::start(setup(32, 0))?;
    server.kill()?;
    let (socket, kept) = kept_for(&server, 1_500)?;
    ensure!(!kept.is_empty());
    drop(socket);
    let began = Instant::now();
    while LocalSocket::connect(&server.keep_socket(), Instant::now() + Duration::from_secs(5)).is_ok() {
        ensure!(began.elapsed() < Duration::from_secs(20), "looks keep it");
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(began.elapsed() > Duration::from_millis(1_400), "it kept for {:?} only", began.elapsed());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_table_costs_pages_and_never_a_wrong_byte() -> Result<()> {
    let mut server = Server::start(setup(32, 0))?;
    let mut rng = 0x9E37_79B9_7F4A_7C15u64;
    for round in 0..6u64 {
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        let seeds: Vec<u64> = (0..10).map(|at| 1 + round * 100 + at).collect();
        for seed in &seeds {
            user.offload(&OffloadOptions::default(), &chain(*seed, PAGES)).await?;
        }
        server.kill()?;
        let (socket, kept) = kept_of(&server)?;
        damage(table_of(&kept)?, round, &mut rng)?;
        drop((socket, kept));
        server.restart()?;
        let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
        let mut served = 0;
        for seed in &seeds {
            served += user.reload(&chain(*seed, PAGES)).await?.pages; // checks every byte
        }
        let whole = round >= 3; // header, magic, version: nothing of it is believed
        ensure!(!whole || served == 0, "round {round}: {served} pages were served\n{}", server.log());
        ensure!(whole || served > 0, "round {round}: no page was served\n{}", server.log());
        ensure!(!whole || server.log().contains("DRAM begins cold"), "{}", server.log());
        user.go_and_come_back(&chain(50_000 + round, PAGES)).await?;
    }
    Ok(())
}

/// Turns some bits of the entries (rounds 0 to 2), or spoils the header.
fn damage(table: &OwnedFd, round: u64, rng: &mut u64) -> Result<()> {
    let flip = |at: u64, bit: u64| -> Result<()> {
        let mut byte = [0];
        rustix::io::pread(table, &mut byte, at)?;
        rustix::io::pwrite(table, &[byte[0] ^ 1 << (bit % 8)], at)?;
        Ok(())
    };
    match round {
        0..3 => {
            // Entries follow the header and the words of 65,536 slabs; each slab has 192 bytes for each 4 KiB. What was never
            // written is passed over.
            let mut at = 4096 + 65_536 * 24;
            for _ in 0..30 {
                *rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let Ok(data) = rustix::fs::seek(table, rustix::fs::SeekFrom::Data(at)) else { break };
                flip(data + (*rng >> 33) % 4096, *rng >> 20)?;
                at = data + 4096;
            }
            Ok(())
        }
        3 => flip(20, 0),
        4 => flip(0, 3),
        _ => Ok(rustix::io::pwrite(table, &99u32.to_le_bytes(), 8).map(|_| ())?),
    }
}

/// Slabs whose bytes are not what the table says are misses, counted, and the page is taken again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_changed_while_they_were_kept_are_misses() -> Result<()> {
    let mut server = Server::start(setup(32, 0))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
    server.kill()?;
    let (socket, kept) = kept_of(&server)?;
    for (_, fd) in kept.iter().filter(|(name, _)| name.starts_with("slab-")) {
        if rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(0)).is_ok() {
            rustix::io::pwrite(fd, b"other bytes", 3 * 61_440 + 100)?;
        }
    }
    drop((socket, kept));
    server.restart()?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let report = user.reload(&chain(1, PAGES)).await?; // checks every byte
    ensure!(report.miss == Some(MissCause::Checksum), "{report:?}");
    let deadline = Instant::now() + Duration::from_secs(10);
    while user.client.stats().await?.corrupt_pages == 0 {
        ensure!(Instant::now() < deadline, "a page that did not verify is not counted");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    user.offload(&OffloadOptions::default(), &chain(1, PAGES)).await?;
    ensure!(user.reload(&chain(1, PAGES)).await?.pages == PAGES, "it is taken again");
    Ok(())
}

/// Memory of another geometry is let go of, and said to be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_of_another_geometry_is_refused_in_one_line_and_nvme_is_warm() -> Result<()> {
    let mut server = Server::start(setup(32, 256))?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let durable = OffloadOptions { durable: true, ..Default::default() };
    user.offload(&durable, &chain(1, PAGES)).await?;
    server.kill()?;
    server.restart_with(Setup { dram: "slab_bytes = \"8MiB\"\n".to_owned(), ..setup(48, 256) })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let report = user.reload(&chain(1, PAGES)).await?;
    ensure!((report.pages, report.from_dram) == (PAGES, 0), "{report:?}");
    let lines = server.log().matches("DRAM begins cold").count();
    ensure!(lines == 1, "{}", server.log());
    // Nothing of before is left with the keeper.
    server.kill()?;
    let (socket, kept) = kept_of(&server)?;
    let bytes = |fd: &OwnedFd| rustix::fs::fstat(fd.as_fd()).map(|stat| stat.st_size as u64);
    let slabs = kept.iter().filter(|(name, _)| name.starts_with("slab-"));
    let total: u64 = slabs.map(|(_, fd)| bytes(fd)).sum::<Result<u64, _>>()?;
    ensure!(total == 48 << 20, "{total} bytes of slabs are kept");
    drop((socket, kept));
    Ok(())
}
