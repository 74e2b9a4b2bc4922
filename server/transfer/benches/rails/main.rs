//! Rails over libfabric and verbs against the bare thing on the same path, in the same rounds, between two processes of
//! this host. Must not know: servers, pages, leases.
//!
//!     cargo bench -p turnkv-transfer --bench rails -- libfabric       beside a loop of fi_writemsg and fi_readmsg
//!     cargo bench -p turnkv-transfer --bench rails -- verbs           beside ib_write_bw and ib_read_bw (perftest)
//!
//! `--rounds N`, `--span-kib N` (2048), `--total-mib N` (1024), `--under-way N` (16), `--provider NAME` (tcp;ofi_rxm).
//! For libfabric both ways have the same depth and sizes; the bare loop's target polls, ours is woken by the provider.
#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a bench says what it expected by failing"
)]

mod bare;
mod client;
#[path = "../../tests/two_processes/control.rs"]
#[allow(dead_code, reason = "shared with the tests")]
mod control;
#[path = "../../src/fabric/libfabric/tests/folder.rs"]
mod folder;
mod perftest;
#[path = "../../src/fabric/libfabric/sys.rs"]
#[allow(dead_code, unused_imports, reason = "shared with the engine")]
mod sys;

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use turnkv_transfer::Region;
use turnkv_transfer::fabric::{
    CompletionQueue, Initiator, Op, Operation, Outcome, RailAnswers, RegionKey, RemoteSpan,
};

use self::bare::Bare;
use self::control::{Wanted, Wire, hex, region, unhex};

/// What to measure.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) engine: Wanted,
    pub(crate) provider: String,
    pub(crate) rounds: usize,
    pub(crate) span_bytes: usize,
    pub(crate) total_bytes: usize,
    pub(crate) under_way: usize,
}

/// Bytes of the memory at each end.
pub(crate) const MEMORY_BYTES: usize = 256 << 20;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "--client") {
        client::serve(&words[1]);
        return;
    }
    let plan = plan(&words);
    let mut stage = match Stage::open(&plan) {
        Ok(stage) => stage,
        Err(why) => {
            println!("rails over {}: not measured here: {why}", plan.engine.name());
            return;
        }
    };
    let mut rows = vec![Vec::new(); 4];
    for round in 0..=plan.rounds {
        for (way, reads) in [(0, false), (1, true)] {
            let bare = stage.bare(&plan, reads);
            let ours = stage.ours(&plan, reads);
            if let (Some(bare), true) = (bare, round > 0) {
                rows[way * 2].push(bare);
                rows[way * 2 + 1].push(ours);
            } else if round > 0 {
                rows[way * 2 + 1].push(ours);
            }
        }
    }
    print(&plan, &rows);
}

fn plan(words: &[String]) -> Plan {
    let value = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1).cloned()
    };
    let number = |name: &str, usual: usize| {
        value(name).map_or(usual, |text| text.parse().expect("a number follows the option"))
    };
    Plan {
        engine: Wanted::by_name(words.first().map_or("libfabric", String::as_str)),
        provider: value("--provider").unwrap_or_else(|| "tcp;ofi_rxm".to_owned()),
        rounds: number("--rounds", 7),
        span_bytes: number("--span-kib", 2048) << 10,
        total_bytes: number("--total-mib", 1024) << 20,
        under_way: number("--under-way", 16),
    }
}

/// Both ends of both ways.
struct Stage {
    nic: Box<dyn RailAnswers>,
    rail: Arc<dyn Initiator>,
    queue: Arc<CompletionQueue>,
    slab: Arc<Region>,
    key: RegionKey,
    wire: Wire,
    bare: Option<(Bare, RegionKey)>,
    child: std::process::Child,
}

impl Stage {
    fn open(plan: &Plan) -> Result<Self, String> {
        let nic = plan.engine.server().map_err(|why| why.to_string())?;
        let listener = TcpListener::bind("127.0.0.1:0").expect("there are ports");
        let address = listener.local_addr().expect("it is bound").to_string();
        let program = std::env::current_exe().expect("a process has a program");
        let child = Command::new(program)
            .args(["--client", &address])
            .stdout(Stdio::null())
            .spawn()
            .expect("another process can be started");
        let mut wire = Wire::new(listener.accept().expect("the client connects").0);
        wire.say(&format!("{} {}", plan.engine.name(), plan.provider));
        let queue = CompletionQueue::new(plan.under_way);
        let offer = wire.hear().expect("the client offers a rail");
        let answer = nic.answer(&unhex(&offer[0]), &queue).expect("its address is good");
        wire.say(&hex(&answer.address));
        let key = heard_key(&mut wire);
        let slab = region(MEMORY_BYTES);
        nic.attach(&slab).expect("the NIC takes one more");
        let bare = (plan.engine == Wanted::Libfabric).then(|| {
            let mut bare = Bare::open(&plan.provider, &slab, false);
            let address = wire.hear().expect("the client's bare end has an address");
            bare.learn(unhex(&address[0]).as_bytes());
            (bare, heard_key(&mut wire))
        });
        Ok(Self { nic, rail: answer.rail, queue, slab, key, wire, bare, child })
    }

    /// Our rail, in GB/s.
    fn ours(&mut self, plan: &Plan, reads: bool) -> f64 {
        let spans = plan.total_bytes / plan.span_bytes;
        let started = Instant::now();
        let (mut posted, mut done, mut taken) = (0, 0, Vec::new());
        while done < spans {
            while posted < spans && self.queue.admitted() < plan.under_way {
                let at = posted * plan.span_bytes % MEMORY_BYTES;
                let bytes = u32::try_from(plan.span_bytes).expect("a span is small");
                let remote = RemoteSpan::new(self.key, at as u64, bytes).expect("it lies inside");
                let slot = self.slab.slot(at, plan.span_bytes).expect("it lies inside");
                let operation = if reads {
                    Operation::read(remote, slot, Op(0))
                } else {
                    Operation::write(slot, remote, Op(0))
                };
                self.rail.post(operation.expect("one length")).expect("there is room");
                posted += 1;
            }
            done += self.queue.poll(&mut taken, Duration::from_secs(10));
            assert!(taken.drain(..).all(|done| done.outcome == Outcome::Done), "A TRANSFER FAILED");
        }
        plan.total_bytes as f64 / started.elapsed().as_secs_f64() / 1e9
    }

    /// The bare thing, in GB/s; none where it cannot be measured.
    fn bare(&mut self, plan: &Plan, reads: bool) -> Option<f64> {
        let Some((bare, key)) = &mut self.bare else { return perftest::run(plan, reads) };
        self.wire.say("poll");
        let rate = bare.run(plan, *key, reads);
        self.wire.say("rest");
        Some(rate)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.wire.say("end");
        self.child.wait().expect("it is ours");
        self.nic.detach(&self.slab);
    }
}

fn heard_key(wire: &mut Wire) -> RegionKey {
    let words = wire.hear().expect("the client lends memory");
    let number = |at: usize| words[at].parse().expect("a number");
    RegionKey { key: number(0), base: number(1), bytes: number(2) }
}

fn print(plan: &Plan, rows: &[Vec<f64>]) {
    let over = match plan.engine {
        Wanted::Libfabric => format!("libfabric, provider {}", plan.provider),
        Wanted::Verbs => "verbs".to_owned(),
    };
    println!(
        "\n### rails over {over}: {} KiB spans, {} under way, two processes of one host\n",
        plan.span_bytes >> 10,
        plan.under_way
    );
    println!("| what | unit | min | median | max | wanted |\n|---|---|---|---|---|---|");
    for (way, at) in [("write", 0), ("read", 2)] {
        let (bare, ours) = (&rows[at], &rows[at + 1]);
        row(&format!("bare {way}"), "GB/s", bare, "");
        row(way, "GB/s", ours, "");
        let ratios: Vec<f64> = ours.iter().zip(bare).map(|(ours, bare)| ours / bare).collect();
        row(&format!("{way} / bare {way}"), "x", &ratios, ">= 0.9");
    }
}

fn row(what: &str, unit: &str, samples: &[f64], wanted: &str) {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.first(), sorted.get(sorted.len() / 2), sorted.last()) {
        (Some(min), Some(median), Some(max)) => {
            println!("| {what} | {unit} | {min:.2} | {median:.2} | {max:.2} | {wanted} |");
        }
        _ => println!("| {what} | {unit} | not measured: perftest is not installed | | | {wanted} |"),
    }
}
