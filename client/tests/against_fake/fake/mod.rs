//! A scripted server for the client's tests: a small pool behind a local socket and a gRPC socket, which can stall, die, restart,
//! lie, and count what it handed out. Owns: its pages, leases and connections. Must not know: the real server.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cluster;
mod grpc;
mod held;
mod lies;
mod local;

pub use held::some_memory;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, Client, ClientConfig, DataPlane, Namespace, NamespaceSpec};
use turnkv_proto::wire::{self, OffloadOutcome};
use turnkv_transfer::{HugePages, LocalListener, LocalSocket, Region, RegionOptions, Slot};

pub const PAGE_BYTES: usize = 4096;
pub const SLOTS: usize = 64;

/// A running fake server; dropping it kills it.
pub struct Fake {
    pub dir: PathBuf,
    temporary: Option<tempfile::TempDir>,
    pub core: Arc<Core>,
    running: Option<Running>,
}

struct Running {
    listener: Arc<LocalListener>,
    stop: tokio::sync::oneshot::Sender<()>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// What the fake does wrong, changed while it runs.
#[derive(Default)]
pub struct Script {
    /// Answers nothing while set (what it received is answered once it is cleared).
    pub stalled: AtomicBool,
    /// Answers with bytes that are no frame.
    pub garbage: AtomicBool,
    /// Cuts the connection instead of this many answers.
    pub cuts: AtomicU32,
    /// Answers with another verb.
    pub wrong_verb: AtomicBool,
    /// Gives wrong checksums in reloads.
    pub wrong_checksums: AtomicBool,
    /// Names slots outside the slab.
    pub wild_slots: AtomicBool,
    /// Declines this many BeginOffloads for want of space.
    pub no_space: AtomicU32,
    /// Refuses every connection, with words, and hangs up.
    pub no_room: AtomicBool,
    /// Refuses this many BeginOffloads, BeginReloads and AttachSlabs for now.
    pub busy: AtomicU32,
    /// Waits so long before each answer, in microseconds.
    pub delay_us: AtomicU64,
    /// One page a frame, with the delay before each.
    pub page_frames: AtomicBool,
    /// How long leases last; 0: a minute.
    pub lease_ms: AtomicU32,
    /// Positions one BeginReload covers; 0: all.
    pub covered_max: AtomicU32,
    /// Positions one BeginOffload grants; 0: all.
    pub granted_max: AtomicU32,
    /// Says of every turn that may go that its session is at home there.
    pub home: Mutex<Option<String>>,
    /// Tells so late who the members are, in microseconds.
    pub tells_late_us: AtomicU64,
    /// Has leases of mapped slots; else it is a server of before these verbs.
    pub holds: AtomicBool,
    /// What it does wrong with them.
    pub held: held::HeldScript,
    /// What it does as a member of a cluster.
    pub member: lies::MemberScript,
    /// What it answers instead.
    pub lies: lies::Lies,
}

pub struct Core {
    pub script: Script,
    pub pool: Mutex<Pool>,
    pub region: Arc<Region>,
    pub instance: AtomicU64,
    pub connections: AtomicU32,
    pub accepted: AtomicU32,
    pub refused: AtomicU32,
    pub lookups: AtomicU32,
    /// Offloads and reloads that were begun.
    pub begun: AtomicU32,
    pub opens: AtomicU32,
    /// Turns that were asked for, and those of them that began.
    pub turns_asked: AtomicU32,
    pub turns_begun: AtomicU32,
    /// Times that somebody asked who the members are.
    pub watches: AtomicU32,
    /// When renewals came.
    pub renewals: Mutex<Vec<Instant>>,
    /// What was settled, by the process that was told, and whether that was of what is mapped too.
    pub settled: Mutex<Vec<(u64, bool)>>,
    sockets: Mutex<Vec<std::sync::Weak<LocalSocket>>>,
}

#[derive(Default)]
pub struct Pool {
    pub namespaces: HashSet<Vec<u8>>,
    /// Hash to slot and checksum; a shard has a hash of its own, see [`shards_of`].
    pub pages: HashMap<BlockHash, (usize, u64)>,
    pub writes: HashMap<u64, Write>,
    /// Leases, each with the slots of its pages.
    pub reads: HashMap<u64, Vec<usize>>,
    pub held: HashMap<u64, held::SlotsHeld>,
    pub corrupt: Vec<u32>,
    pub aborted: u32,
    pub committed: u32,
    pub ended: u32,
    next_lease: u64,
}

/// A write lease: positions, their hashes and slots.
pub struct Write {
    pub granted: Vec<(u32, BlockHash, usize)>,
}

impl Fake {
    pub fn start() -> Fake {
        let own = tempfile::tempdir().unwrap();
        let mut fake = Fake::start_in(own.path());
        fake.temporary = Some(own);
        fake
    }

    pub fn start_in(dir: &Path) -> Fake {
        let options = RegionOptions {
            bytes: PAGE_BYTES * SLOTS,
            huge_pages: HugePages::Off,
            touch: true,
            lock: false,
            name: "fake".to_owned(),
        };
        let core = Core {
            script: Script::default(),
            pool: Mutex::default(),
            region: Region::create(&options).unwrap().0,
            instance: AtomicU64::new(1),
            connections: AtomicU32::new(0),
            accepted: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            lookups: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            opens: AtomicU32::new(0),
            turns_asked: AtomicU32::new(0),
            turns_begun: AtomicU32::new(0),
            watches: AtomicU32::new(0),
            renewals: Mutex::default(),
            settled: Mutex::default(),
            sockets: Mutex::default(),
        };
        let mut fake = Fake { dir: dir.to_path_buf(), temporary: None, core: Arc::new(core), running: None };
        fake.run();
        fake
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("turnkv.sock")
    }

    pub fn address(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// Serves gRPC over TCP as well, for as long as this runtime lives.
    pub async fn over_tcp(&self) -> String {
        grpc::serve_tcp(&self.core).await
    }

    /// Starts to listen (again).
    pub fn run(&mut self) {
        assert!(self.running.is_none());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (listener, acceptor) = local::serve(&self.dir.join("turnkv.sock.local"), &self.core);
        let server = grpc::serve(&self.socket(), &self.core, stopped);
        self.running = Some(Running { listener, stop, threads: vec![acceptor, server] });
    }

    /// As kill -9 does: every connection ends at once; the socket files stay.
    pub fn kill(&mut self) {
        let Some(running) = self.running.take() else { return };
        running.listener.shutdown();
        for socket in self.core.sockets.lock().unwrap().drain(..) {
            if let Some(socket) = socket.upgrade() {
                socket.shutdown();
            }
        }
        drop(running.stop);
        self.core.script.stalled.store(false, Ordering::SeqCst);
        for thread in running.threads {
            thread.join().unwrap();
        }
    }

    /// A new process on the same sockets: it knows no namespace, client or lease. Pages stay if `warm`.
    pub fn restart(&mut self, warm: bool) {
        self.kill();
        self.core.instance.fetch_add(1, Ordering::SeqCst);
        let mut pool = self.core.pool.lock().unwrap();
        let pages = std::mem::take(&mut pool.pages);
        *pool = Pool::default();
        if warm {
            pool.pages = pages;
        }
        drop(pool);
        self.run();
    }

    pub fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::at(self.address());
        config.call_ms = 3000;
        config
    }

    pub fn leases(&self) -> usize {
        let pool = self.core.pool.lock().unwrap();
        pool.writes.len() + pool.reads.len()
    }

    pub fn connections(&self) -> u32 {
        self.core.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Core {
    /// Waits as the script says. False: the connection is to be cut.
    pub fn pace(&self) -> bool {
        std::thread::sleep(Duration::from_micros(self.script.delay_us.load(Ordering::SeqCst)));
        while self.script.stalled.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let cuts = &self.script.cuts;
        cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err()
    }

    pub fn lease_ms(&self) -> u32 {
        match self.script.lease_ms.load(Ordering::SeqCst) {
            0 => 60_000,
            lease_ms => lease_ms,
        }
    }

    pub fn slot(&self, slot: usize) -> Slot {
        self.region.slot(slot * PAGE_BYTES, PAGE_BYTES).unwrap()
    }

    pub fn slot_ref(&self, slot: usize) -> wire::SlotRef {
        let wild = self.script.wild_slots.load(Ordering::SeqCst);
        let offset = if wild { u64::MAX - 100 } else { (slot * PAGE_BYTES) as u64 };
        wire::SlotRef { slab: 3, generation: 7, offset }
    }

    pub fn begin_offload(&self, ask: &wire::BeginOffloadRequest) -> wire::BeginOffloadReply {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let hashes = shards_of(&ask.hashes, ask.shard, ask.shards);
        let starved = self
            .script
            .no_space
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok();
        let mut pool = self.pool.lock().unwrap();
        let parent = BlockHash::parse_optional(&ask.parent).unwrap();
        let mut declined =
            parent.filter(|parent| !pool.pages.contains_key(parent)).map(|_| OffloadOutcome::NoParent);
        let granted_max = match self.script.granted_max.load(Ordering::SeqCst) {
            0 => usize::MAX,
            most => most as usize,
        };
        let mut reply =
            wire::BeginOffloadReply { lease_ms: self.lease_ms(), retry_after_ms: 2, ..Default::default() };
        let mut granted = Vec::new();
        for (position, hash) in hashes.iter().enumerate() {
            let taken =
                pool.writes.values().flat_map(|write| &write.granted).any(|(_, other, _)| other == hash);
            let outcome = match declined {
                Some(outcome) => outcome,
                None if pool.pages.contains_key(hash) => OffloadOutcome::Present,
                None if taken => OffloadOutcome::InFlight,
                None if starved => OffloadOutcome::NoSpace,
                None if granted.len() == granted_max => OffloadOutcome::LeaseLimit,
                None => match pool.free_slot(&granted) {
                    Some(slot) => {
                        granted.push((position as u32, *hash, slot));
                        reply.slots.push(self.slot_ref(slot));
                        OffloadOutcome::Granted
                    }
                    None => OffloadOutcome::NoSpace,
                },
            };
            if !matches!(outcome, OffloadOutcome::Present | OffloadOutcome::Granted) {
                declined = Some(outcome);
            }
            reply.outcomes.push(outcome as i32);
        }
        if !granted.is_empty() {
            reply.lease = pool.lease();
            pool.writes.insert(reply.lease, Write { granted });
        }
        lies::tell(&self.script.lies.begin_offload, &mut reply);
        reply
    }

    pub fn commit(
        &self,
        ask: &wire::CommitOffloadRequest,
    ) -> Result<wire::CommitOffloadReply, turnkv_proto::Error> {
        let mut pool = self.pool.lock().unwrap();
        let unknown = || turnkv_proto::Error::new(turnkv_proto::ErrorKind::LeaseUnknown, "no such lease");
        let write = pool.writes.remove(&ask.lease).ok_or_else(unknown)?;
        for (page, checksum) in ask.pages.iter().zip(&ask.checksums) {
            let (_, hash, slot) = *write.granted.iter().find(|(position, ..)| position == page).unwrap();
            assert_eq!(self.slot(slot).page().checksum(), *checksum, "what was committed is what was copied");
            pool.pages.insert(hash, (slot, *checksum));
        }
        pool.committed += 1;
        let mut reply = wire::CommitOffloadReply { durable: ask.durable, ..Default::default() };
        lies::tell(&self.script.lies.commit, &mut reply);
        Ok(reply)
    }

    /// The pages of a reload, and its lease.
    pub fn begin_reload(&self, hashes: &[BlockHash], lease: bool) -> wire::BeginReloadReply {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let covered = match self.script.covered_max.load(Ordering::SeqCst) {
            0 => hashes.len(),
            most => hashes.len().min(most as usize),
        };
        let mut pool = self.pool.lock().unwrap();
        let mut reply = wire::BeginReloadReply {
            covered: covered as u32,
            lease_ms: self.lease_ms(),
            ..Default::default()
        };
        for (index, hash) in hashes[..covered].iter().enumerate() {
            let index = index as u32;
            let Some((slot, checksum)) = pool.pages.get(hash).copied() else {
                let miss = wire::MissCause::Absent as i32;
                reply.pages.push(wire::ReloadedPage { index, miss, ..Default::default() });
                break;
            };
            let checksum = checksum ^ u64::from(self.script.wrong_checksums.load(Ordering::SeqCst));
            let slot = Some(self.slot_ref(slot));
            reply.pages.push(wire::ReloadedPage {
                index,
                slot,
                checksum,
                tier: 1 + index as i32 % 2,
                ..Default::default()
            });
        }
        if lease && reply.pages.iter().any(|page| page.miss == 0) {
            reply.lease = pool.lease();
            let slots = hashes.iter().map_while(|hash| pool.pages.get(hash)).map(|(slot, _)| *slot);
            let slots = slots.take(covered).collect();
            pool.reads.insert(reply.lease, slots);
        }
        reply
    }

    pub fn lookup(&self, ask: &wire::LookupRequest) -> Result<wire::LookupReply, turnkv_proto::Error> {
        self.check_namespace(&ask.namespace)?;
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let pool = self.pool.lock().unwrap();
        let hashes = turnkv_proto::unpack_hashes(&ask.hashes).unwrap();
        let present = hashes.iter().take_while(|hash| pool.pages.contains_key(hash)).count() as u32;
        self.script.member.posts.fetch_add(ask.only_posts.into(), Ordering::SeqCst);
        let mut reply = wire::LookupReply { present, dram: present, wants_posts: false };
        lies::tell(&self.script.lies.lookup, &mut reply);
        Ok(reply)
    }

    /// Whether the script refuses a call that would lease something.
    pub fn check_busy(&self) -> Result<(), turnkv_proto::Error> {
        let busy = &self.script.busy;
        match busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => {
                Err(turnkv_proto::Error::new(turnkv_proto::ErrorKind::Busy { retry_after_ms: 2 }, "no lease"))
            }
            Err(_) => Ok(()),
        }
    }

    pub fn check_namespace(&self, id: &[u8]) -> Result<(), turnkv_proto::Error> {
        if self.pool.lock().unwrap().namespaces.contains(id) {
            return Ok(());
        }
        Err(turnkv_proto::Error::new(turnkv_proto::ErrorKind::NamespaceUnknown, "open it first"))
    }
}

impl Pool {
    /// The number of the lease that was given last.
    pub fn last_lease(&self) -> u64 {
        self.next_lease
    }

    fn lease(&mut self) -> u64 {
        self.next_lease += 1;
        self.next_lease
    }

    fn free_slot(&self, granted: &[(u32, BlockHash, usize)]) -> Option<usize> {
        let used: HashSet<usize> = self
            .pages
            .values()
            .map(|(slot, _)| *slot)
            .chain(self.held.values().flat_map(|held| held.slots.values().copied()))
            .chain(
                self.writes.values().flat_map(|write| &write.granted).chain(granted).map(|(.., slot)| *slot),
            )
            .collect();
        (0..SLOTS).find(|slot| !used.contains(slot))
    }
}

pub fn spec() -> NamespaceSpec {
    NamespaceSpec::opaque("fake", 16, PAGE_BYTES as u64)
}

pub async fn open(fake: &Fake, plane: DataPlane) -> (Client, Namespace) {
    let client = Client::new(ClientConfig { data_plane: plane, ..fake.config() }).unwrap();
    let namespace = client.open_namespace(spec()).await.unwrap();
    (client, namespace)
}

/// A chain of page names, and pages whose bytes tell them apart.
pub fn chain(count: usize, seed: u32) -> (Vec<BlockHash>, Vec<Vec<u8>>) {
    let mut hashes: Vec<BlockHash> = Vec::new();
    for index in 0..count {
        hashes.push(BlockHash::chain(hashes.last(), &[seed, index as u32]));
    }
    let pages = (0..count)
        .map(|index| (0..PAGE_BYTES).map(|at| (at * 7 + index * 13 + seed as usize) as u8).collect());
    (hashes, pages.collect())
}

/// What a call over packed hashes is about, position by position. Shard 0 has its page's own name.
pub fn shards_of(hashes: &[u8], shard: u32, shards: u32) -> Vec<BlockHash> {
    let of_page = |page: BlockHash| {
        (shard..shard + shards.max(1)).map(move |shard| {
            let mut name = page;
            name.0[0] ^= shard as u8;
            name
        })
    };
    turnkv_proto::unpack_hashes(hashes).unwrap().into_iter().flat_map(of_page).collect()
}

/// Waits until something holds, for at most two seconds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(2);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// As [`eventually`], while tasks of this runtime run.
pub async fn eventually_async(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(2);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

pub fn remove_stale(path: &Path) {
    if path.exists() {
        std::fs::remove_file(path).unwrap();
    }
}
