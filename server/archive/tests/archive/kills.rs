//! Killed with -9 in the middle of captures, collections, forks and imports: what was acknowledged is there, and all that is there is
//! whole.
//!
//! The test starts itself as the process to be killed; that one tells on a pipe what it did. `TURNKV_ARCHIVE_KILLS` says how often.

use crate::support::*;
use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use turnkv_archive::{Archive, ArchiveSettings, CollectLimits, CollectReport, Cut, Error, ObjectId, Place};
use turnkv_mutate::Random;

const PLACE: &str = "TURNKV_ARCHIVE_VICTIM";
const GRACE: Duration = Duration::from_secs(1);
const KEPT_MAX: usize = 8;
const PAGES: usize = 24;

async fn open_directory(place: &Path) -> Archive {
    let settings = ArchiveSettings { grace: GRACE, pack_bytes: 32 << 10, ..settings() };
    Archive::open(&Place::Directory(place.join("archive")), "tenant", settings).await.unwrap()
}

fn say(words: String) {
    std::io::stdout().write_all(format!("\n{words}\n").as_bytes()).unwrap();
}

/// Works until killed. Does nothing unless it is started as the victim.
#[test]
fn victim() {
    let Ok(told) = std::env::var(PLACE) else { return };
    let (seed, place) = told.split_once(' ').unwrap();
    let mut random = Random::new(seed.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let archive = open_directory(Path::new(place)).await;
        say("opened".to_owned());
        loop {
            match one_work(&archive, Path::new(place), &mut random).await {
                // The machine was busy for longer than the grace time allows.
                Ok(()) | Err(Error::TooLate { .. }) => {}
                Err(fault) => {
                    say(format!("failed {fault}"));
                    std::thread::sleep(Duration::from_secs(60));
                }
            }
        }
    });
}

/// `kept ID SEED PAGES` when a snapshot is there, `deleting ID` before one is not.
async fn one_work(archive: &Archive, place: &Path, random: &mut Random) -> Result<(), Error> {
    let seed = random.below(5) as u64;
    let pages = 1 + random.below(PAGES);
    let header = plain_header();
    match random.below(6) {
        0 | 1 => {
            let manifest = capture(archive, &header, &chain(&header, seed, PAGES)[..pages]).await?;
            say(format!("kept {} {seed} {pages}", manifest.id));
        }
        2 => {
            let (manifest, _) = import(archive, &place.join("export")).await?;
            say(format!("kept {} 99 {PAGES}", manifest.id));
        }
        3 => {
            let listed = archive.list().await?;
            let Some(source) = random.pick(&listed) else { return Ok(()) };
            let source = archive.describe(source.id).await?;
            let seed = u64::from_le_bytes(source.pages[0].hash.0[..8].try_into().unwrap());
            let pages = 1 + random.below(source.pages.len());
            let fork = archive.fork(source.id, "session", Cut::Pages(pages as u32), "session").await?;
            say(format!("kept {} {seed} {pages}", fork.id));
        }
        _ => {
            let listed = archive.list().await?;
            for old in listed.iter().take(listed.len().saturating_sub(KEPT_MAX)) {
                say(format!("deleting {}", old.id));
                archive.delete(old.id).await?;
            }
            archive.collect(CollectLimits::default()).await?;
        }
    }
    Ok(())
}

/// Runs a victim and kills it; adds what it kept, takes away what it may have deleted. How much it did.
fn one_life(place: &Path, life: u64, kept: &mut HashMap<ObjectId, (u64, usize)>) -> usize {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kills::victim", "--nocapture"])
        .env(PLACE, format!("{life} {}", place.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut done = 0;
    let mut random = Random::new(life);
    for line in lines.map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["opened"] => {
                let id = child.id();
                // Now and then long enough for a grace time to pass.
                let wait = if random.one_in(6) { 1500 } else { 10 + random.below(200) as u64 };
                let killer = std::thread::Builder::new();
                killer
                    .spawn(move || {
                        std::thread::sleep(Duration::from_millis(wait));
                        Command::new("kill").args(["-9", &id.to_string()]).status().unwrap();
                    })
                    .unwrap();
            }
            ["kept", id, seed, pages] => {
                let id = ObjectId::parse(id).unwrap();
                kept.insert(id, (seed.parse().unwrap(), pages.parse().unwrap()));
                done += 1;
            }
            ["deleting", id] => drop(kept.remove(&ObjectId::parse(id).unwrap())),
            ["failed", ..] => panic!("life {life}: {line}"),
            _ => {}
        }
    }
    child.wait().unwrap();
    done
}

async fn check(place: &Path, kept: &HashMap<ObjectId, (u64, usize)>, what: &str) {
    let archive = open_directory(place).await;
    let report = archive.verify(None, |_| {}).await.unwrap();
    assert!(report.faults.is_empty(), "{what}: {report:?}");
    let listed: HashSet<ObjectId> = archive.list().await.unwrap().iter().map(|one| one.id).collect();
    for (id, (seed, pages)) in kept {
        assert!(listed.contains(id), "{what}: {id} was kept and is gone");
        assert_restores(&archive, *id, &chain(&plain_header(), *seed, PAGES)[..*pages]).await;
    }
}

/// A collection: one that a busy machine made too late is made again.
async fn collect_in_time(archive: &Archive) -> CollectReport {
    for _ in 0..20 {
        match archive.collect(CollectLimits::default()).await {
            Ok(report) => return report,
            Err(Error::TooLate { .. }) => {}
            Err(fault) => panic!("{fault}"),
        }
    }
    panic!("no collection was in time");
}

/// All files of a directory, with the bytes of each.
fn files(place: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(place).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push((entry.path().display().to_string(), entry.metadata().unwrap().len()));
        }
    }
    found
}

#[test]
fn what_was_acknowledged_survives_kill_9() {
    let lives = std::env::var("TURNKV_ARCHIVE_KILLS").ok().and_then(|it| it.parse().ok()).unwrap_or(30);
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let archive =
            Archive::open(&Place::Directory(place.join("elsewhere")), "tenant", settings()).await.unwrap();
        let manifest = capture(&archive, &plain_header(), &chain(&plain_header(), 99, PAGES)).await.unwrap();
        archive.export(manifest.id, &place.join("export"), 1).await.unwrap();
    });
    let (mut kept, mut done) = (HashMap::new(), 0);
    for life in 0..lives {
        done += one_life(place, life, &mut kept);
        runtime.block_on(check(place, &kept, &format!("life {life}")));
    }
    println!("{lives} kills, {done} snapshots acknowledged");
    assert!(done as u64 > lives, "the victims get something done: {done}");
    runtime.block_on(async {
        let archive = open_directory(place).await;
        for _ in 0..4 {
            tokio::time::sleep(GRACE + Duration::from_millis(200)).await;
            collect_in_time(&archive).await;
        }
        check(place, &kept, "collected").await;
        let idle = collect_in_time(&archive).await;
        assert_eq!(idle.packs_condemned + idle.packs_deleted + idle.litter_deleted, 0, "{idle:?}");
        let left = files(&place.join("archive"));
        for word in ["#", "/intents/", "/condemned/", "/collections/"] {
            assert!(!left.iter().any(|(name, _)| name.contains(word)), "{word} is left: {left:?}");
        }
        let packs: u64 =
            left.iter().filter(|(name, _)| name.contains("/packs/")).map(|(_, bytes)| bytes).sum();
        assert!(packs <= 2 * idle.bytes_needed + 20_000, "{packs} bytes for {}", idle.bytes_needed);
    });
}
