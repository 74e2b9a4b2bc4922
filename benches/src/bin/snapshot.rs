//! Snapshots of sessions that are in DRAM: time of one, rates of hashing, compressing and writing per core beside `sha256sum` and
//! `zstd -1`, bytes that forks cost. Must not know: how the archive lays out its bytes.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "the table is the product")]

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Parser;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use turnkv_archive::{Archive, ArchiveSettings, CapturedPage, Header, Place, Split};
use turnkv_benches::connection::{Connection, page_hashes};
use turnkv_benches::kv::{Kind, page};
use turnkv_benches::options::Common;
use turnkv_benches::server::{Budget, Server};
use turnkv_benches::snapshots::Keeper;
use turnkv_benches::stats::{Series, Table};
use turnkv_client::{Attention, Dtype, Group, Layout, NamespaceId, NamespaceSpec};

/// What the published format's own bench says of a snapshot of 64 pages of 4 KiB, p50, in milliseconds.
const PUBLISHED_MS: f64 = 42.37;
const PAGE_TOKENS: u32 = 16;
/// Tokens of the session that is forked ten times.
const FORKED_TOKENS: u32 = 10_000;
const FORKS: usize = 10;

/// Snapshots, their rates and forks.
#[derive(Parser, Debug)]
struct Options {
    #[command(flatten)]
    common: Common,
}

/// A model's pages of 16 tokens, and how many a session has.
struct Shape {
    what: &'static str,
    layers: u32,
    heads: u32,
    head_dim: u32,
    pages: usize,
    /// What a snapshot of it is to take at most, in milliseconds.
    wanted_ms: Option<f64>,
}

const SHAPES: [Shape; 4] = [
    Shape {
        what: "4 KiB, as the published bench",
        layers: 1,
        heads: 1,
        head_dim: 64,
        pages: 64,
        wanted_ms: Some(PUBLISHED_MS),
    },
    Shape {
        what: "22 layers, 4 heads of 64",
        layers: 22,
        heads: 4,
        head_dim: 64,
        pages: 64,
        wanted_ms: None,
    },
    Shape {
        what: "32 layers, 8 heads of 128",
        layers: 32,
        heads: 8,
        head_dim: 128,
        pages: 32,
        wanted_ms: None,
    },
    Shape {
        what: "80 layers, 64 heads of 128, as the published document",
        layers: 80,
        heads: 64,
        head_dim: 128,
        pages: 4,
        wanted_ms: None,
    },
];

impl Shape {
    /// K and V of 16 tokens as bf16.
    fn page_bytes(&self) -> usize {
        2 * 2 * PAGE_TOKENS as usize * (self.layers * self.heads * self.head_dim) as usize
    }

    /// A pool with room for so many bytes of its pages, and an archive.
    fn budget(&self, bytes: usize) -> Budget {
        const LEAST: usize = 64 << 20;
        let slab_bytes = self.page_bytes().max(LEAST / 16).next_multiple_of(1 << 20);
        let dram_bytes = bytes.max(LEAST).next_multiple_of(slab_bytes);
        Budget { slab_bytes, archive: true, ..Budget::dram(dram_bytes) }
    }

    fn spec(&self) -> NamespaceSpec {
        let group = Group {
            kind: Attention::Full,
            layers: self.layers,
            kv_heads: self.heads,
            head_dim: self.head_dim,
            window_tokens: 0,
        };
        NamespaceSpec {
            model: "bench".to_owned(),
            dtype: Dtype::Bf16,
            page_tokens: PAGE_TOKENS,
            tp_size: 1,
            layout: Layout::LayerKvHeadToken,
            groups: vec![group],
            opaque_shard_bytes: 0,
            tenant: String::new(),
            salt: Vec::new(),
        }
    }
}

/// Pages that no snapshot had: of one content, but for a number in K and in V.
struct Content {
    pages: Vec<Vec<u8>>,
    made: u64,
}

impl Content {
    fn new(page_bytes: usize, count: usize) -> Content {
        let pages = (0..count).map(|seed| page(Kind::Bf16, page_bytes, seed as u64)).collect();
        Content { pages, made: 0 }
    }

    /// The next so many.
    fn next(&mut self, count: usize) -> Vec<&[u8]> {
        for page in self.pages.iter_mut().take(count) {
            self.made += 1;
            let end = page.len() - 8;
            page[..8].copy_from_slice(&self.made.to_le_bytes());
            page[end..].copy_from_slice(&self.made.to_le_bytes());
        }
        self.pages.iter().take(count).map(Vec::as_slice).collect()
    }
}

/// Stores a session of new pages.
fn converse(
    connection: &Connection,
    session: &str,
    seed: u64,
    content: &mut Content,
    pages: usize,
) -> Result<()> {
    let hashes = page_hashes(seed, 0..pages);
    connection.begin_turn(session)?;
    for at in (0..pages).step_by(content.pages.len()) {
        let count = content.pages.len().min(pages - at);
        let parent = at.checked_sub(1).map(|before| hashes[before]);
        connection.offload_all(parent, &hashes[at..at + count], &content.next(count))?;
    }
    connection.end_turn(session, &hashes, 0)
}

fn bench_shape(shape: &Shape, rounds: u32, common: &Common) -> Result<()> {
    let bytes = shape.page_bytes() * shape.pages;
    let server = Server::start(common, shape.budget(2 * bytes))?;
    let connection = Connection::open_spec(&server.address(), shape.spec())?;
    let keeper = Keeper::new(&common.server, &server.address());
    let mut content = Content::new(shape.page_bytes(), shape.pages);
    let (mut took, mut rate, mut each) = (Series::new(), Series::new(), Series::new());
    for round in 0..=u64::from(rounds) {
        let session = format!("session-{round}");
        converse(&connection, &session, round, &mut content, shape.pages)?;
        let began = Instant::now();
        keeper.create(&session, shape.pages, true)?;
        let seconds = began.elapsed().as_secs_f64();
        // The first round opens the archive.
        if round > 0 {
            took.push(seconds * 1e3);
            each.push(seconds * 1e3 / shape.pages as f64);
            rate.push(bytes as f64 / seconds / 1e9);
        }
        connection.drop_all()?;
    }
    keeper.verify()?;
    let kib = shape.page_bytes() >> 10;
    let mut table = Table::new(format!("A snapshot of {} pages of {kib} KiB ({})", shape.pages, shape.what));
    let wanted = shape.wanted_ms.map(|most| format!("<= {most}")).unwrap_or_default();
    table.row("snapshot", "ms", &took, &wanted);
    table.row("a page", "ms", &each, "");
    table.row("pages, as engines have them", "GB/s", &rate, "");
    println!("{table}");
    Ok(())
}

/// Seconds of processor time, of this process or of its children that have ended.
fn processor_seconds(of_children: bool) -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> =
        stat.rsplit_once(')').context("a name in brackets")?.1.split_whitespace().collect();
    // utime and stime are fields 14 and 15, those of children the next two; the state, field 3, comes first here.
    let first = if of_children { 13 } else { 11 };
    let ticks = |at: usize| -> Result<f64> { Ok(fields.get(at).context("a field")?.parse::<f64>()?) };
    const TICKS_PER_SECOND: f64 = 100.0;
    Ok((ticks(first)? + ticks(first + 1)?) / TICKS_PER_SECOND)
}

/// Runs a command over a file; its processor seconds.
fn command_seconds(file: &Path, command: &[&str]) -> Result<f64> {
    let before = processor_seconds(true)?;
    let mut child = Command::new(command[0]);
    child.args(&command[1..]).stdin(std::fs::File::open(file)?).stdout(Stdio::null());
    ensure!(
        child.status().with_context(|| format!("running {}", command[0]))?.success(),
        "{command:?} failed"
    );
    Ok(processor_seconds(true)? - before)
}

/// Captures pages into a directory; processor seconds of all of it.
fn capture_seconds(folder: &Path, header: &Header, pages: &[Bytes]) -> Result<f64> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let settings = ArchiveSettings { workers: 1, ..ArchiveSettings::default() };
    let place = Place::Directory(folder.to_owned());
    let archive = runtime.block_on(Archive::open(&place, "bench", settings))?;
    let before = processor_seconds(false)?;
    let counts = runtime.block_on(async {
        let mut capture = archive.capture(header.clone()).await?;
        for (at, page) in pages.iter().enumerate() {
            let parent = at.checked_sub(1).map(|parent| parent as u32);
            let hash = page_hashes(0, at..at + 1)[0];
            capture.page(CapturedPage { hash, parent, shards: vec![page.clone()] }).await?;
        }
        capture.finish().await.map(|(_, counts)| counts)
    })?;
    let seconds = processor_seconds(false)? - before;
    ensure!(counts.blobs_reused == 0, "these pages are new: {counts:?}");
    Ok(seconds)
}

fn bench_rates(options: &Options) -> Result<()> {
    let shape = &SHAPES[2];
    let count = (options.common.total_bytes() / shape.page_bytes()).clamp(1, 256);
    let pages: Vec<Bytes> =
        (0..count).map(|seed| page(Kind::Bf16, shape.page_bytes(), seed as u64).into()).collect();
    std::fs::create_dir_all(&options.common.dir)?;
    let folder = tempfile::Builder::new().prefix("bench.").tempdir_in(options.common.dir.canonicalize()?)?;
    let file = folder.path().join("pages");
    std::fs::write(&file, pages.concat())?;
    let bytes = (count * shape.page_bytes()) as f64;
    let header = Header {
        namespace: NamespaceId([7; 32]),
        spec: serde_json::json!({"model": "bench", "dtype": "bf16"}),
        page_layout: "layer_kv_head_token".to_owned(),
        page_tokens: PAGE_TOKENS,
        layers: shape.layers,
        heads: shape.heads,
        head_dim: shape.head_dim,
        dtype: "bf16".to_owned(),
        groups: Vec::new(),
        shards: 1,
        shard_bytes: shape.page_bytes() as u64,
        split: Split::by_layers(shape.layers, shape.page_bytes() as u64).context("whole layers")?,
    };
    let target = folder.path().join("pages.zst").display().to_string();
    let (mut ours, mut theirs, mut sha, mut zstd) =
        (Series::new(), Series::new(), Series::new(), Series::new());
    for round in 0..options.common.rounds {
        let archive = folder.path().join(format!("archive-{round}"));
        let rate = |seconds: f64| bytes / seconds / 1e9;
        ours.push(rate(capture_seconds(&archive, &header, &pages)?));
        let hashing = command_seconds(&file, &["sha256sum"])?;
        let packing = command_seconds(&file, &["zstd", "-1", "-q", "-f", "-", "-o", &target])?;
        theirs.push(rate(hashing + packing));
        sha.push(rate(hashing));
        zstd.push(rate(packing));
        std::fs::remove_dir_all(&archive)?;
    }
    let mut table = Table::new(format!(
        "{count} pages of {} KiB into a directory, GB a second of processor time",
        shape.page_bytes() >> 10
    ));
    table.row("capture: hash, compress, write", "GB/s", &ours, "");
    table.row("sha256sum, then zstd -1", "GB/s", &theirs, "");
    table.row("capture / these", "x", &ours.over(&theirs), "");
    table.row("sha256sum alone", "GB/s", &sha, "");
    table.row("zstd -1 alone", "GB/s", &zstd, "");
    println!("{table}");
    Ok(())
}

fn bench_forks(shape: &Shape, common: &Common) -> Result<()> {
    let pages = (FORKED_TOKENS / PAGE_TOKENS) as usize;
    let bytes = pages * shape.page_bytes();
    let server = Server::start(common, shape.budget(bytes + bytes / 8))?;
    let connection = Connection::open_spec(&server.address(), shape.spec())?;
    let keeper = Keeper::new(&common.server, &server.address());
    let mut content = Content::new(shape.page_bytes(), 32);
    converse(&connection, "talk", 0, &mut content, pages)?;
    let name = keeper.create("talk", pages, true)?;
    let before = server.archive_bytes()?;
    for fork in 0..FORKS {
        keeper.fork(&name, &format!("fork-{fork}"))?;
    }
    let forked = server.archive_bytes()?;
    for fork in 0..FORKS {
        let session = format!("twin-{fork}");
        connection.fork("talk", &session)?;
        keeper.create(&session, pages, false)?;
    }
    let percent = |more: u64| {
        let mut one = Series::new();
        one.push(more as f64 * 100.0 / before as f64);
        one
    };
    let (forks, captures) = (percent(forked - before), percent(server.archive_bytes()? - forked));
    keeper.verify()?;
    let kib = shape.page_bytes() >> 10;
    let mut table = Table::new(format!(
        "{FORKED_TOKENS} tokens, {pages} pages of {kib} KiB ({}): {} MiB stored",
        shape.what,
        before >> 20
    ));
    table.row("ten forks of the snapshot", "% more", &forks, "< 1");
    table.row("ten forked sessions, captured", "% more", &captures, "< 1");
    println!("{table}");
    Ok(())
}

fn main() -> Result<()> {
    let options = Options::parse();
    for shape in &SHAPES {
        bench_shape(shape, options.common.rounds, &options.common)?;
    }
    bench_rates(&options)?;
    SHAPES[1..3].iter().try_for_each(|shape| bench_forks(shape, &options.common))
}
