//! The largest legal requests, one after the other, and a clock beside them: how long another client waits for a cheap call while
//! one sends nothing else. Owns: the requests, the measuring. Must not know: what is too long.

mod sessions;

use crate::local::Local;
use crate::server::{Server, Setup};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use prost::Message;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use turnkv_proto::limits::{HASHES_PER_CALL_MAX, LEASE_PAGES_MAX, RENEW_LEASES_MAX, RESERVE_PAGES_MAX};
use turnkv_proto::{BlockHash, pack_hashes, wire};
use turnkv_transfer::checksum;
use wire::Verb;
use wire::admin_client::AdminClient;
use wire::sessions_client::SessionsClient;

/// Bytes of a page here: as many pages as possible.
pub const PAGE: u64 = 4096;
/// DRAM that such a server wants beside the pages of its longest session, MiB.
const ROOM_MIB: u64 = 128;
/// How long a request may wait for slots that are being given back.
const SLOTS_WAIT: Duration = Duration::from_secs(10);
/// The name of that session.
const LONG: &str = "long";

/// One kind of largest request, by its name.
pub type Request = (&'static str, fn(&mut Heavy) -> Result<()>);

/// Every verb that a caller chooses the size of.
pub const REQUESTS: &[Request] = &[
    ("idle", |_| {
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    }),
    ("lookup", Heavy::lookup),
    ("offload_present", Heavy::offload_present),
    ("offload_new", Heavy::offload_new),
    ("reload", Heavy::reload),
    ("reload_corrupt", Heavy::reload_corrupt),
    ("reserve_release", Heavy::reserve_release),
    ("release_corrupt", Heavy::release_corrupt),
    ("release_too_large", Heavy::release_too_large),
    ("renew", Heavy::renew),
    ("prefetch", Heavy::prefetch),
    ("pin", Heavy::pin),
    ("route", Heavy::route),
    ("stats", Heavy::stats),
    ("evict", Heavy::evict),
];

/// The verbs of sessions, on the longest one and on many.
pub const SESSION_REQUESTS: &[Request] = &[
    ("turn", Heavy::turn),
    ("turn_expected", Heavy::turn_expected),
    ("turn_that_leaves", Heavy::turn_that_leaves),
    ("describe", Heavy::describe),
    ("lookup_session", Heavy::lookup_session),
    ("expect", Heavy::expect),
    ("fork_supersede", Heavy::fork_supersede),
    ("close", Heavy::close),
    ("list", Heavy::list),
];

/// What waits for NVMe: for a server that has some.
pub const NVME_REQUESTS: &[Request] =
    &[("offload_durable", Heavy::offload_durable), ("expect", Heavy::expect), ("demote", Heavy::demote)];

/// How large the largest is.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Pages of the longest session.
    pub pages: usize,
    /// Sessions that are listed.
    pub sessions: usize,
}

/// What a cheap call of another client took.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    /// Calls.
    pub calls: usize,
    /// Half of them took less.
    pub p50: Duration,
    /// All but one in a hundred took less.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

/// A client that sends nothing but largest requests.
pub struct Heavy {
    local: Local,
    runtime: Runtime,
    channel: Channel,
    socket: PathBuf,
    /// The pages of the longest session, and the first of them as a call may name them.
    chain: Vec<BlockHash>,
    packed: Bytes,
    sessions: usize,
    /// Sessions that there are.
    begun: usize,
    /// Pages of the chain that are stored.
    stored: usize,
    next: u64,
}

/// A server that has room for these requests.
#[must_use]
pub fn setup(size: Size, nvme_mib: u64) -> Setup {
    let limits = "client_slots_percent = 100\nprotected_percent = 50\npages_max = 300000\n".to_owned();
    let dram_mib = ((size.pages as u64 * PAGE) >> 20) + ROOM_MIB;
    Setup { dram_mib, nvme_mib, limits, ..Setup::default() }
}

impl Heavy {
    /// Connects, and stores the pages of the longest session.
    ///
    /// # Errors
    /// The server is not there, or refuses.
    pub fn new(server: &Server, size: Size) -> Result<Heavy> {
        let runtime = Runtime::new()?;
        let local = runtime.block_on(Local::connect(server, PAGE))?;
        let endpoint = tonic::transport::Endpoint::from_shared(server.address())?;
        let channel = runtime.block_on(endpoint.connect())?;
        let chain = long_chain(0, size.pages);
        let packed = pack_hashes(&chain[..chain.len().min(HASHES_PER_CALL_MAX)]).into();
        let (socket, sessions) = (server.local_socket(), size.sessions);
        let mut heavy =
            Heavy { local, runtime, channel, socket, chain, packed, sessions, begun: 0, stored: 0, next: 1 };
        heavy.store_chain()?;
        Ok(heavy)
    }

    /// Sends a request over and over for so long, while another client looks up one page again and again.
    ///
    /// # Errors
    /// Somebody was refused.
    pub fn beside_a_clock(&mut self, request: Request, time: Duration) -> Result<Waits> {
        // What other requests took the room of comes back first.
        self.stored = self.present()?;
        self.store_chain()?;
        let clock = Local::hello(&self.socket, self.local.ns.clone())?;
        let ask = wire::LookupRequest {
            namespace: self.local.ns.clone(),
            hashes: pack_hashes(&self.chain[..1]).into(),
            ..Default::default()
        };
        let over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&over);
        let clock = std::thread::Builder::new().name("clock".to_owned()).spawn(
            move || -> Result<Vec<Duration>> {
                let mut waits = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    let _found: wire::LookupReply = clock.ask(Verb::Lookup, &ask)?;
                    waits.push(began.elapsed());
                    std::thread::sleep(Duration::from_micros(200));
                }
                Ok(waits)
            },
        )?;
        let end = Instant::now() + time;
        let mut sent = Ok(());
        while Instant::now() < end && sent.is_ok() {
            sent = (request.1)(self).with_context(|| format!("the request {}", request.0));
        }
        over.store(true, Ordering::Relaxed);
        let waits = clock.join().map_err(|_| anyhow::anyhow!("the clock broke"))?;
        sent?;
        let mut waits = waits?;
        waits.sort_unstable();
        ensure!(!waits.is_empty(), "the clock never got an answer");
        let at = |part: f64| waits[((waits.len() - 1) as f64 * part) as usize];
        Ok(Waits { calls: waits.len(), p50: at(0.5), p99: at(0.99), max: at(1.0) })
    }

    fn store_chain(&mut self) -> Result<()> {
        while self.stored < self.chain.len() {
            let at = self.stored;
            let part = self.chain[at..self.chain.len().min(at + LEASE_PAGES_MAX)].to_vec();
            let parent = at.checked_sub(1).map(|before| self.chain[before]);
            self.store(parent, &part, false)?;
            self.stored += part.len();
        }
        Ok(())
    }

    fn begin(&self, parent: Option<BlockHash>, hashes: Bytes) -> wire::BeginOffloadRequest {
        wire::BeginOffloadRequest {
            namespace: self.local.ns.clone(),
            parent: parent.map(|hash| hash.0.to_vec()).unwrap_or_default().into(),
            hashes,
            client: self.local.client,
            ..Default::default()
        }
    }

    fn store(&self, parent: Option<BlockHash>, part: &[BlockHash], durable: bool) -> Result<()> {
        let begin = self.begin(parent, pack_hashes(part).into());
        let begun: wire::BeginOffloadReply = self.local.ask(Verb::BeginOffload, &begin)?;
        if begun.lease == 0 {
            return Ok(()); // all of it is there
        }
        let granted = wire::OffloadOutcome::Granted as i32;
        let outcomes = begun.outcomes.iter().enumerate();
        let pages: Vec<u32> = outcomes.filter(|(_, one)| **one == granted).map(|(at, _)| at as u32).collect();
        let commit = wire::CommitOffloadRequest {
            lease: begun.lease,
            client: self.local.client,
            // Nobody writes to the slots: a new slab is all zeros.
            checksums: vec![checksum(&[0; PAGE as usize]); pages.len()],
            pages,
            durable,
        };
        let done: wire::CommitOffloadReply = self.local.ask(Verb::CommitOffload, &commit)?;
        ensure!(done.durable == durable, "{done:?}");
        Ok(())
    }

    /// A chain that nobody has named before.
    fn fresh(&mut self, pages: usize) -> Vec<BlockHash> {
        self.next += 1;
        long_chain(self.next, pages)
    }

    /// Pages of the chain that are there.
    fn present(&self) -> Result<usize> {
        let mut present = 0;
        for part in self.chain.chunks(HASHES_PER_CALL_MAX) {
            let (namespace, hashes) = (self.local.ns.clone(), pack_hashes(part).into());
            let ask = wire::LookupRequest { namespace, hashes, session: String::new(), ..Default::default() };
            let found: wire::LookupReply = self.local.ask(Verb::Lookup, &ask)?;
            present += found.present as usize;
            if (found.present as usize) < part.len() {
                break;
            }
        }
        Ok(present)
    }

    fn lookup(&mut self) -> Result<()> {
        let present = self.present()?;
        ensure!(present == self.chain.len(), "{present} pages are there");
        Ok(())
    }

    fn offload_present(&mut self) -> Result<()> {
        let begin = self.begin(None, self.packed.clone());
        let begun: wire::BeginOffloadReply = self.local.ask(Verb::BeginOffload, &begin)?;
        if begun.lease != 0 {
            let abort = wire::AbortOffloadRequest { lease: begun.lease, client: self.local.client };
            self.local.tell(Verb::AbortOffload, &abort)?;
        }
        Ok(())
    }

    fn offload_new(&mut self) -> Result<()> {
        let hashes = self.fresh(LEASE_PAGES_MAX);
        self.store(None, &hashes, false)
    }

    fn begin_reload(&self, hashes: Bytes) -> Result<u64> {
        let begin = wire::BeginReloadRequest {
            namespace: self.local.ns.clone(),
            hashes,
            client: self.local.client,
            ..Default::default()
        };
        let begun: wire::BeginReloadReply = self.local.ask(Verb::BeginReload, &begin)?;
        ensure!(begun.pages.len() == begun.covered as usize, "no page here comes from NVMe");
        Ok(begun.lease)
    }

    fn reload(&mut self) -> Result<()> {
        let lease = self.begin_reload(self.packed.clone())?;
        let end = wire::EndReloadRequest { lease, client: self.local.client, corrupt: vec![] };
        self.local.tell(Verb::EndReload, &end)
    }

    fn reload_corrupt(&mut self) -> Result<()> {
        let hashes = self.fresh(LEASE_PAGES_MAX);
        self.store(None, &hashes, false)?;
        let lease = self.begin_reload(pack_hashes(&hashes).into())?;
        let corrupt = (0..LEASE_PAGES_MAX as u32).collect();
        let end = wire::EndReloadRequest { lease, client: self.local.client, corrupt };
        self.local.tell(Verb::EndReload, &end)
    }

    /// As many slots as one lease holds. What the last request gave back may not all be free yet.
    fn reserve(&self) -> Result<wire::ReserveReply> {
        let ask = self.local.reserve(RESERVE_PAGES_MAX, 0);
        let patience = Instant::now() + SLOTS_WAIT;
        let reply: wire::ReserveReply = loop {
            let reply: wire::ReserveReply = self.local.ask(Verb::Reserve, &ask)?;
            if !reply.slots.is_empty() {
                break reply;
            }
            ensure!(reply.retry_after_ms > 0 && Instant::now() < patience, "{reply:?}");
            std::thread::sleep(Duration::from_millis(reply.retry_after_ms.into()));
        };
        ensure!(self.local.renew(reply.lease)?.gone.is_empty());
        Ok(reply)
    }

    fn release(&self, lease: u64, corrupt: Vec<u32>) -> Result<()> {
        let positions = vec![];
        let ask = wire::ReleaseRequest { lease, client: self.local.client, positions, corrupt };
        self.local.tell(Verb::Release, &ask)
    }

    fn reserve_release(&mut self) -> Result<()> {
        let reply = self.reserve()?;
        self.release(reply.lease, vec![])
    }

    fn release_corrupt(&mut self) -> Result<()> {
        let reply = self.reserve()?;
        let hashes = self.fresh(reply.slots.len());
        let positions: Vec<u32> = (0..reply.slots.len() as u32).collect();
        let commit = wire::CommitReservedRequest {
            hashes: pack_hashes(&hashes).into(),
            ..self.local.commit(reply.lease, 0, &positions)
        };
        let done: wire::CommitReservedReply = self.local.ask(Verb::CommitReserved, &commit)?;
        ensure!(done.outcomes.len() == positions.len());
        self.release(reply.lease, positions)
    }

    /// As many positions as a frame has bytes for: more than any lease has, so it is refused.
    fn release_too_large(&mut self) -> Result<()> {
        let reply = self.reserve()?;
        let most = reply.slots.len() as u32 - 1;
        let many = wire::ReleaseRequest { corrupt: vec![most; 2_000_000], ..Default::default() };
        ensure!(many.encoded_len() < turnkv_transfer::FRAME_BYTES_MAX, "a legal frame");
        self.release(reply.lease, many.corrupt)?;
        self.release(reply.lease, vec![])
    }

    fn renew(&mut self) -> Result<()> {
        let reply = self.reserve()?;
        let ask =
            wire::RenewRequest { client: self.local.client, leases: vec![reply.lease; RENEW_LEASES_MAX] };
        for _ in 0..20 {
            let renewed: wire::RenewReply = self.local.ask(Verb::Renew, &ask)?;
            ensure!(renewed.gone.is_empty() && renewed.refused.is_empty(), "{renewed:?}");
        }
        self.release(reply.lease, vec![])
    }

    fn sessions_client(&self) -> SessionsClient<Channel> {
        SessionsClient::new(self.channel.clone())
    }

    fn prefetch(&mut self) -> Result<()> {
        let ask = wire::PrefetchRequest {
            namespace: self.local.ns.clone(),
            hashes: self.packed.clone(),
            ..Default::default()
        };
        let mut client = self.sessions_client();
        self.runtime.block_on(client.prefetch(ask))?;
        Ok(())
    }

    fn pin(&mut self) -> Result<()> {
        let ask = wire::PinRequest {
            namespace: self.local.ns.clone(),
            hashes: self.packed.clone(),
            ttl_ms: 60_000,
            ..Default::default()
        };
        let mut client = self.sessions_client();
        let pinned = self.runtime.block_on(client.pin(ask))?.into_inner();
        ensure!(pinned.pages > 0, "{pinned:?}");
        let ask = wire::UnpinRequest { namespace: self.local.ns.clone(), pin: pinned.pin };
        self.runtime.block_on(client.unpin(ask))?;
        Ok(())
    }

    fn route(&mut self) -> Result<()> {
        let engine = |at: usize| wire::RouteEngine { name: format!("engine-{at}"), ..Default::default() };
        let ask = wire::RouteRequest {
            namespace: self.local.ns.clone(),
            hashes: self.packed.clone(),
            engines: (0..256).map(engine).collect(),
            session: String::new(),
        };
        let mut client = self.sessions_client();
        self.runtime.block_on(client.route(ask))?;
        Ok(())
    }

    fn offload_durable(&mut self) -> Result<()> {
        let hashes = self.fresh(LEASE_PAGES_MAX);
        self.store(None, &hashes, true)
    }

    fn demote(&mut self) -> Result<()> {
        let mut client = AdminClient::new(self.channel.clone());
        let ask = wire::EvictRequest { tier: wire::TierKind::Dram.into(), ..Default::default() };
        self.runtime.block_on(client.evict(ask))?;
        Ok(())
    }

    fn stats(&mut self) -> Result<()> {
        let mut client = AdminClient::new(self.channel.clone());
        self.runtime.block_on(client.stats(wire::StatsRequest {}))?;
        let advice = self.runtime.block_on(client.size_advice(wire::SizeAdviceRequest::default()))?;
        ensure!(advice.into_inner().namespaces.len() == 1);
        Ok(())
    }

    /// Drops everything, and stores it again.
    fn evict(&mut self) -> Result<()> {
        let mut client = AdminClient::new(self.channel.clone());
        self.runtime.block_on(client.evict(wire::EvictRequest::default()))?;
        self.stored = 0;
        self.store_chain()
    }
}

/// A chain whose hashes cost nothing to make.
fn long_chain(seed: u64, pages: usize) -> Vec<BlockHash> {
    let hash = |page: usize| {
        let mut bytes = [0x5a; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        bytes[8..16].copy_from_slice(&(page as u64).to_le_bytes());
        // The server trusts that hashes are spread.
        bytes[16..24]
            .copy_from_slice(&(seed ^ page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        BlockHash(bytes)
    };
    (0..pages).map(hash).collect()
}
