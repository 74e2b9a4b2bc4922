//! Requests that are well formed and mean nonsense, on the local socket: every verb, its fields changed. The server stays up, keeps
//! what it had, and answers others.

use anyhow::{Context, Result, ensure};
use prost::Message;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_mutate::{each_seed, mutate_bytes, mutate_message};
use turnkv_proto::{pack_hashes, wire};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_transfer::{FLAG_FAILURE, FLAG_MORE, LocalSocket};
use wire::Verb;

const PAGE: u64 = 64 << 10;
const PAGES: usize = 8;
/// How long one nonsensical request is waited for: some ask to wait long, which is their right.
const PATIENCE: Duration = Duration::from_millis(300);

/// Verbs that have no answer.
const UNANSWERED: [Verb; 4] = [Verb::AbortOffload, Verb::EndReload, Verb::Release, Verb::Settled];

/// A connection, and leases that it was given.
struct Caller {
    socket: LocalSocket,
    client: u64,
    /// Of an offload, a reload and a reservation.
    leases: [u64; 3],
    /// Chains that were offered so far.
    chains: u64,
}

impl Caller {
    fn connect(server: &Server, namespace: &bytes::Bytes) -> Result<Caller> {
        let deadline = Instant::now() + Duration::from_secs(10);
        let socket = LocalSocket::connect(&server.local_socket(), deadline)?;
        let mut caller = Caller { socket, client: 0, leases: [0; 3], chains: 0 };
        let hello = wire::HelloRequest { protocol: 1, rings: true, ..Default::default() };
        caller.tell(Verb::Hello, &hello)?;
        let reply = caller.socket.recv(Some(deadline))?;
        caller.client = wire::HelloReply::decode(reply.body.as_slice())?.client;
        if let Some(rings) = reply.fd {
            caller.socket.take_rings(&rings)?;
        }
        caller.lease(namespace)?;
        Ok(caller)
    }

    /// Takes leases, so that requests name some that there are, and gives back those of before: nobody but their client does.
    fn lease(&mut self, namespace: &bytes::Bytes) -> Result<()> {
        let (client, namespace, [offload, reload, lease]) = (self.client, namespace.clone(), self.leases);
        self.tell(Verb::AbortOffload, &wire::AbortOffloadRequest { lease: offload, client })?;
        self.tell(Verb::EndReload, &wire::EndReloadRequest { lease: reload, client, corrupt: Vec::new() })?;
        self.tell(Verb::Release, &wire::ReleaseRequest { lease, client, ..Default::default() })?;
        self.chains += 1;
        let fresh: bytes::Bytes = pack_hashes(&chain(1_000 + self.chains, 2)).into();
        let offload = wire::BeginOffloadRequest {
            namespace: namespace.clone(),
            hashes: fresh,
            client,
            ..Default::default()
        };
        let hashes = pack_hashes(&chain(1, 2)).into();
        let reload =
            wire::BeginReloadRequest { namespace: namespace.clone(), hashes, client, ..Default::default() };
        let reserve = wire::ReserveRequest { namespace, client, pages: 2, ..Default::default() };
        self.leases = [
            self.ask::<wire::BeginOffloadReply>(Verb::BeginOffload, &offload)?.lease,
            self.ask::<wire::BeginReloadReply>(Verb::BeginReload, &reload)?.lease,
            self.ask::<wire::ReserveReply>(Verb::Reserve, &reserve)?.lease,
        ];
        Ok(())
    }

    /// A request that is fine; of an answer in several frames, the last.
    fn ask<M: Message + Default>(&self, verb: Verb, message: &impl Message) -> Result<M> {
        self.tell(verb, message)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let frame = self.socket.recv(Some(deadline))?;
            ensure!(
                frame.flags & FLAG_FAILURE == 0,
                "{verb:?}: {:?}",
                wire::Failure::decode(&frame.body[..])
            );
            if frame.flags & FLAG_MORE == 0 {
                return Ok(M::decode(&frame.body[..])?);
            }
        }
    }

    fn tell(&self, verb: Verb, message: &impl Message) -> std::io::Result<()> {
        self.socket.send(verb as u8, 0, &message.encode_to_vec(), &[])
    }

    /// Sends a request, and waits for its answer; of one that has none, for that of a request after it.
    fn try_ask(&self, verb: u8, body: &[u8], after: &[u8]) -> std::io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        self.socket.send(verb, 0, body, &[])?;
        let unanswered = UNANSWERED.iter().any(|known| *known as u8 == verb);
        if unanswered {
            self.socket.send(Verb::Lookup as u8, 0, after, &[])?;
        }
        while self.socket.recv(Some(deadline))?.flags & FLAG_MORE != 0 {}
        Ok(())
    }

    /// A request of each verb that would be fine.
    fn requests(&self, namespace: &bytes::Bytes) -> Vec<(Verb, Vec<u8>)> {
        let own = [self.requests_for_pages(namespace), self.requests_for_slots(namespace)].concat();
        [own, self.requests_of_a_network(namespace)].concat()
    }

    /// What is for the network is refused here; there, `framed_hostile` asks it.
    fn requests_of_a_network(&self, namespace: &bytes::Bytes) -> Vec<(Verb, Vec<u8>)> {
        let (client, hashes) = (self.client, bytes::Bytes::from(pack_hashes(&chain(7, 1))));
        let rail = wire::OpenRailRequest { client, ..Default::default() };
        let begin = wire::BeginOffloadRequest {
            namespace: namespace.clone(),
            hashes: hashes.clone(),
            client,
            ..Default::default()
        };
        let begin_reload =
            wire::BeginReloadRequest { namespace: namespace.clone(), hashes, client, ..Default::default() };
        let page = wire::RemotePage { spans: vec![wire::RemoteSpan::default()], ..Default::default() };
        let (regions, pages) = (vec![wire::RemoteRegion::default()], vec![page]);
        let offload =
            wire::RemoteOffloadRequest { begin: Some(begin), regions: regions.clone(), pages: pages.clone() };
        let reload =
            wire::RemoteReloadRequest { begin: Some(begin_reload), regions, pages, ..Default::default() };
        vec![
            (Verb::OpenRail, rail.encode_to_vec()),
            (Verb::RemoteOffload, offload.encode_to_vec()),
            (Verb::RemoteReload, reload.encode_to_vec()),
        ]
    }

    fn requests_for_pages(&self, namespace: &bytes::Bytes) -> Vec<(Verb, Vec<u8>)> {
        let (client, namespace, [offload, reload, _]) = (self.client, namespace.clone(), self.leases);
        let hashes: bytes::Bytes = pack_hashes(&chain(7, 4)).into();
        let lookup = wire::LookupRequest {
            namespace: namespace.clone(),
            hashes: hashes.clone(),
            session: "chat".to_owned(),
            ..Default::default()
        };
        let begin = wire::BeginOffloadRequest {
            namespace: namespace.clone(),
            hashes: hashes.clone(),
            client,
            session: "chat".to_owned(),
            shards: 1,
            ..Default::default()
        };
        let commit = wire::CommitOffloadRequest {
            lease: offload,
            client,
            pages: vec![0, 1],
            checksums: vec![1, 2],
            ..Default::default()
        };
        let abort = wire::AbortOffloadRequest { lease: offload, client };
        let begin_reload =
            wire::BeginReloadRequest { namespace, hashes, client, shards: 1, ..Default::default() };
        let end = wire::EndReloadRequest { lease: reload, client, corrupt: vec![1] };
        vec![
            (Verb::Lookup, lookup.encode_to_vec()),
            (Verb::BeginOffload, begin.encode_to_vec()),
            (Verb::CommitOffload, commit.encode_to_vec()),
            (Verb::AbortOffload, abort.encode_to_vec()),
            (Verb::BeginReload, begin_reload.encode_to_vec()),
            (Verb::EndReload, end.encode_to_vec()),
        ]
    }

    fn requests_for_slots(&self, namespace: &bytes::Bytes) -> Vec<(Verb, Vec<u8>)> {
        let (client, namespace, [_, reload, lease]) = (self.client, namespace.clone(), self.leases);
        let hello = wire::HelloRequest { protocol: 1, client, rings: true, library: 9 };
        let attach = wire::AttachSlabRequest { namespace: namespace.clone(), slab: 0, generation: 1 };
        let reserve =
            wire::ReserveRequest { client, namespace: namespace.clone(), lease, pages: 2, shard: 0 };
        let commit = wire::CommitReservedRequest {
            namespace,
            client,
            lease,
            session: "chat".to_owned(),
            hashes: pack_hashes(&chain(9, 2)).into(),
            positions: vec![0, 1],
            checksums: vec![1, 2],
            ..Default::default()
        };
        let slots = [0, 8192].map(|offset| wire::SlotRef { slab: 0, generation: 1, offset }).to_vec();
        let take = wire::TakeOverRequest {
            client,
            namespace: commit.namespace.clone(),
            positions: vec![0, 1],
            slots,
            ..Default::default()
        };
        let renew = wire::RenewRequest { client, leases: vec![lease, reload] };
        let release = wire::ReleaseRequest { lease, client, positions: vec![0, 1], corrupt: vec![1] };
        vec![
            (Verb::Hello, hello.encode_to_vec()),
            (Verb::AttachSlab, attach.encode_to_vec()),
            (Verb::Reserve, reserve.encode_to_vec()),
            (Verb::CommitReserved, commit.encode_to_vec()),
            (Verb::Renew, renew.encode_to_vec()),
            (Verb::Release, release.encode_to_vec()),
            (Verb::Settled, wire::SettledRequest { client, mapped: true }.encode_to_vec()),
            (Verb::TakeOver, take.encode_to_vec()),
        ]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_survives_every_field_of_every_request() -> Result<()> {
    let server = Server::start(Setup { limits: "lease_ms = 500\n".to_owned(), ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let options =
        OffloadOptions { durable: true, wait: Duration::from_secs(20), ..OffloadOptions::default() };
    user.offload(&options, &chain(1, PAGES)).await?;
    let namespace = bytes::Bytes::copy_from_slice(&user.namespace.id().0);
    let mut caller = Caller::connect(&server, &namespace)?;
    let verbs: Vec<Verb> = caller.requests(&namespace).iter().map(|(verb, _)| *verb).collect();
    for verb in (1..).map_while(|number| Verb::try_from(number).ok()) {
        ensure!(verbs.contains(&verb), "{verb:?} has no request here");
    }
    let (mut answered, mut made) = (0, 0);
    each_seed(1_500, |random| {
        let asks = caller.requests(&namespace);
        let Some((verb, body)) = random.pick(&asks) else { return };
        let changed = match random.below(5) {
            0 => mutate_bytes(random, body),
            // As it is, now and then: changed ones then meet leases, slots and pages.
            1 => body.clone(),
            _ => mutate_message(random, body),
        };
        let verb = if random.one_in(20) { random.number() as u8 } else { *verb as u8 };
        let lookup = &asks[0].1;
        made += 1;
        let asked = caller.try_ask(verb, &changed, lookup);
        answered += u32::from(asked.is_ok());
        // It waits, as it was asked to, or closed the door: the next one begins anew. Leases end.
        let again = match asked {
            Err(_) => Caller::connect(&server, &namespace).map(|fresh| caller = fresh),
            Ok(()) if made % 10 == 0 => caller.lease(&namespace),
            Ok(()) => Ok(()),
        };
        again.unwrap_or_else(|error| panic!("{error:#}: {}", server.log()));
    });
    ensure!(made == 1 || answered * 10 > made * 7, "only {answered} of {made} were answered");
    let report = user.reload(&chain(1, PAGES)).await?;
    ensure!(report.pages == PAGES, "{report:?}");
    user.client.stats().await.context("it is up")?;
    ensure!(!server.log().contains("panicked"), "{}", server.log());
    Ok(())
}
