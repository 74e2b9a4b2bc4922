//! Starts on what a disk may have left of a catalog: every one succeeds, and serves every page whose namespace is opened.
//! `TURNKV_DAMAGED_CATALOGS` sets how many damaged ones are tried.

use super::*;
use std::path::Path;
use tempfile::TempDir;
use turnkv_proto::{BlockHash, SessionId, Spec};
use turnkv_tier::{Done, ExtentMeta};
use turnkv_transfer::Region;
use turnkv_transfer::{HugePages, RegionOptions};

const PAGE: u32 = 4096;
const PAGES: usize = 20;
const NAMESPACES: usize = 3;

fn damages() -> u64 {
    std::env::var("TURNKV_DAMAGED_CATALOGS").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

fn spec(at: usize) -> Spec {
    Spec::opaque(format!("model {at}"), 16, u64::from(PAGE))
}

fn settings(dir: &Path) -> Settings {
    let config = dir.join("turnkv.toml");
    let text = format!(
        "[dram]\nbytes = \"16MiB\"\nslab_bytes = \"1MiB\"\nlock = false\nhuge_pages = false\n[nvme]\npath = \"{}\"\n\
         bytes = \"64MiB\"\nsegment_bytes = \"4MiB\"\nengine = \"blocking\"\n",
        dir.join("nvme").display()
    );
    std::fs::write(&config, text).unwrap();
    let mut settings = crate::config::load(Some(&config)).unwrap();
    if let Some(nvme) = &mut settings.nvme {
        (nvme.bytes, nvme.segment_bytes) = (16 << 20, 1 << 20); // less than is sensible: it is copied often
    }
    settings
}

fn chain(at: usize) -> Vec<BlockHash> {
    let mut hashes: Vec<BlockHash> = Vec::new();
    for page in 0..PAGES as u32 {
        hashes.push(BlockHash::chain(hashes.last(), &[at as u32, page]));
    }
    hashes
}

/// Segments with the pages of some namespaces, and the catalog that goes with them.
fn make(dir: &Path) -> Vec<u8> {
    let settings = settings(dir);
    let engine = Engine::start(settings, |_| None, None).unwrap();
    let options = RegionOptions {
        bytes: 1 << 20,
        huge_pages: HugePages::Off,
        touch: false,
        lock: false,
        name: "test".to_owned(),
    };
    let region = Region::create(&options).unwrap().0;
    let (nvme, catalog) = (engine.nvme.as_ref().unwrap(), engine.catalog.as_ref().unwrap());
    for at in 0..NAMESPACES {
        let checked = spec(at).check().unwrap();
        engine.open_namespace(&checked).unwrap();
        let hashes = chain(at);
        for (page, hash) in hashes.iter().enumerate() {
            let slot = region.slot(0, PAGE as usize).unwrap();
            let (_, checksum) = slot.claim().unwrap().fill(&[page as u8; PAGE as usize]);
            let meta = ExtentMeta {
                namespace: checked.id(),
                hash: *hash,
                parent: page.checked_sub(1).map(|before| hashes[before]),
                shard: 0,
                shards: 1,
                tail_tokens: 0,
                payload_bytes: PAGE,
                checksum,
            };
            wait(|done| nvme.write(meta, slot, done));
        }
        let ns = engine.decide().pool.namespace(&checked.id()).unwrap();
        for name in 0..40 {
            let session = SessionId::parse(&format!("session {name}")).unwrap();
            engine.decide().pool.begin_turn(ns, &session, 0).unwrap();
            catalog.mark(ns, session);
        }
        let record = turnkv_pool::PinRecord { base: None, hashes: hashes.clone(), ends_in_ms: 3_600_000 };
        let source = crate::catalog::ListSource { chunks: &|_, _| Vec::new(), chunks_max: 0 };
        catalog.put_pins(&[(checked.id(), hashes[PAGES - 1], Some(record))], &source).unwrap();
    }
    engine.flush_catalog();
    wait(|done| nvme.flush(done));
    nvme.shutdown().unwrap();
    drop(engine);
    std::fs::read(dir.join("nvme/catalog.redb")).unwrap()
}

fn wait<T: Send + 'static>(start: impl FnOnce(Done<T>)) -> T {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    start(Box::new(move |outcome| sender.send(outcome).unwrap()));
    receiver.recv().unwrap().unwrap()
}

/// splitmix64: a seed replays.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// One of the things that happen to files.
fn damage(whole: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    // The database's own pages are where it hurts: headers and roots, as often as anything else.
    let hot = [320, 4096 * 8, whole.len()][random.below(3)].min(whole.len());
    match random.below(6) {
        0 => (0..1 + random.below(4)).for_each(|_| bytes[random.below(hot)] ^= 1 << random.below(8)),
        1 => (0..1 + random.below(64)).for_each(|_| bytes[random.below(hot)] = random.next() as u8),
        2 => bytes.truncate(random.below(whole.len())),
        3 => {
            let from = random.below(hot);
            let to = (from + 1 + random.below(16 << 10)).min(bytes.len());
            bytes[from..to].fill(if random.below(2) == 0 { 0 } else { 0xff });
        }
        4 => {
            let (from, to, len) = (random.below(hot), random.below(hot), 1 + random.below(4096));
            let len = len.min(bytes.len() - from.max(to));
            bytes.copy_within(from..from + len, to);
        }
        _ => {
            bytes = (0..random.below(200_000)).map(|_| random.next() as u8).collect();
            let head = random.below(2) * 9.min(bytes.len());
            bytes[..head].copy_from_slice(&whole[..head]);
        }
    }
    bytes
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Opens every namespace and counts the pages that are there.
fn pages_served(engine: &Engine) -> Vec<u32> {
    let served = |at: usize| {
        let checked = spec(at).check().unwrap();
        engine.open_namespace(&checked).unwrap();
        let ns = engine.decide().pool.namespace(&checked.id()).unwrap();
        engine.decide().pool.lookup(ns, &chain(at), 0).unwrap().present
    };
    (0..NAMESPACES).map(served).collect()
}

fn work_dir() -> TempDir {
    TempDir::new_in(std::env::temp_dir()).unwrap()
}

#[test]
fn every_start_succeeds_and_serves_every_page_whatever_became_of_the_catalog() {
    let home = work_dir();
    let whole = make(home.path());
    let (mut set_aside, mut restored) = (0, 0);
    for seed in 0..damages() {
        let dir = work_dir();
        copy_dir(&home.path().join("nvme"), &dir.path().join("nvme"));
        let bytes = if seed == 0 { whole.clone() } else { damage(&whole, &mut Random(seed)) };
        std::fs::write(dir.path().join("nvme/catalog.redb"), bytes).unwrap();
        let engine = Engine::start(settings(dir.path()), |_| None, None);
        let engine = engine.unwrap_or_else(|error| panic!("seed {seed}: it does not start: {error:#}"));
        let sessions = engine.decide().pool.stats().sessions;
        assert_eq!(pages_served(&engine), [PAGES as u32; NAMESPACES], "seed {seed}");
        engine.decide().pool.check().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        engine.flush_catalog();
        let catalog = engine.catalog.as_ref().unwrap();
        assert_eq!((catalog.trouble(), catalog.waiting_len()), (None, 0), "seed {seed}: it works afterwards");
        let told = engine.health().notes.iter().any(|note| note.contains("set aside"));
        assert_eq!(
            told,
            catalog.set_aside() > 0,
            "seed {seed}: /healthz names it as long as the process lives"
        );
        set_aside += catalog.set_aside();
        restored += u64::from(sessions == 40 * NAMESPACES as u64);
        if seed == 0 {
            assert_eq!((restored, set_aside), (1, 0), "one that is whole comes back whole");
        }
        engine.nvme.as_ref().unwrap().shutdown().unwrap();
    }
    println!("{} starts, {set_aside} catalogs set aside, {restored} with every session", damages());
    assert!(set_aside > damages() / 4, "damage that nobody notices proves nothing: {set_aside}");
}
