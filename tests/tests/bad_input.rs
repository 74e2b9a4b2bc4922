//! Malformed requests of every RPC, on both doors: a clear error kind, nothing changed, the server alive.

use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_proto::limits::HASHES_PER_CALL_MAX;
use turnkv_proto::{ErrorKind, wire};
use turnkv_tests::cluster::Cluster;
use turnkv_tests::pages::{bytes, chain, namespace};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_transfer::{FLAG_FAILURE, LocalSocket};
use wire::admin_client::AdminClient;
use wire::pool_client::PoolClient;
use wire::sessions_client::SessionsClient;

async fn channel(server: &Server) -> Result<Channel> {
    Ok(Endpoint::from_shared(server.address())?.connect().await?)
}

async fn open(pool: &mut PoolClient<Channel>) -> Result<Vec<u8>> {
    let spec = Some(wire::NamespaceSpec::from(&namespace("m", 64 << 10)));
    Ok(pool.open_namespace(wire::OpenNamespaceRequest { spec }).await?.into_inner().namespace.to_vec())
}

fn refused<T>(result: Result<T, Status>, kind: ErrorKind, what: &str) -> Result<()> {
    let status = result.err().with_context(|| format!("{what}: accepted"))?;
    let error = turnkv_proto::Error::from_status(&status)
        .with_context(|| format!("{what}: no detail in {status:?}"))?;
    ensure!(error.kind == kind, "{what}: {error:?} ({status:?})");
    ensure!(status.code() != Code::Internal && status.code() != Code::Unknown, "{what}: {status:?}");
    ensure!(status.message().len() > 10, "{what}: says too little: {status:?}");
    Ok(())
}

fn packed(pages: usize) -> bytes::Bytes {
    turnkv_proto::pack_hashes(&chain(1, pages)).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_rpc_refuses_nonsense_and_changes_nothing() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let channel = channel(&server).await?;
    let mut pool = PoolClient::new(channel.clone());
    let mut sessions = SessionsClient::new(channel.clone());
    let mut admin = AdminClient::new(channel);
    let ns: bytes::Bytes = open(&mut pool).await?.into();
    let before = admin.stats(wire::StatsRequest {}).await?.into_inner();
    namespaces(&mut pool).await?;
    pages(&mut pool, &ns).await?;
    inline(&mut pool, &ns).await?;
    session_verbs(&mut sessions, &ns).await?;
    let evict = wire::EvictRequest { namespace: vec![7; 5].into(), tier: 0 };
    refused(admin.evict(evict).await, ErrorKind::Invalid, "evict of a short id")?;
    let evict = wire::EvictRequest { namespace: ns.clone(), tier: wire::TierKind::Nvme.into() };
    refused(admin.evict(evict).await, ErrorKind::Invalid, "evict from nvme")?;
    let after = admin.stats(wire::StatsRequest {}).await?.into_inner();
    let state = |stats: &wire::StatsReply| {
        (
            stats.index_pages,
            stats.leases,
            stats.sessions,
            stats.namespaces,
            stats.tiers[0].used_bytes,
            stats.dirty_bytes,
        )
    };
    ensure!(state(&before) == state(&after), "state changed: {before:?} -> {after:?}");
    Ok(())
}

async fn namespaces(pool: &mut PoolClient<Channel>) -> Result<()> {
    let good = wire::NamespaceSpec::from(&namespace("m", 64 << 10));
    let group = wire::AttentionGroup {
        kind: 1,
        layers: u32::MAX,
        kv_heads: u32::MAX,
        head_dim: u32::MAX,
        window_tokens: 0,
    };
    let bad = [
        ("no spec", None),
        ("no model", Some(wire::NamespaceSpec { model: String::new(), ..good.clone() })),
        ("no tokens", Some(wire::NamespaceSpec { page_tokens: 0, ..good.clone() })),
        ("a page of no bytes", Some(wire::NamespaceSpec { opaque_shard_bytes: 0, ..good.clone() })),
        ("a page of 2^63 bytes", Some(wire::NamespaceSpec { opaque_shard_bytes: 1 << 63, ..good.clone() })),
        ("an unknown dtype", Some(wire::NamespaceSpec { dtype: 99, ..good.clone() })),
        (
            "an overflowing shape",
            Some(wire::NamespaceSpec {
                layout: 1,
                dtype: 1,
                opaque_shard_bytes: 0,
                groups: vec![group],
                ..good.clone()
            }),
        ),
        ("a long tenant", Some(wire::NamespaceSpec { tenant: "x".repeat(10_000), ..good.clone() })),
    ];
    for (what, spec) in bad {
        refused(pool.open_namespace(wire::OpenNamespaceRequest { spec }).await, ErrorKind::Invalid, what)?;
    }
    let huge = wire::NamespaceSpec { opaque_shard_bytes: 60 << 20, ..good };
    let result = pool.open_namespace(wire::OpenNamespaceRequest { spec: Some(huge) }).await;
    refused(result, ErrorKind::Limit, "a page larger than a slab")
}

async fn pages(pool: &mut PoolClient<Channel>, ns: &bytes::Bytes) -> Result<()> {
    let lookup = |namespace: Vec<u8>, hashes: Vec<u8>| wire::LookupRequest {
        namespace: namespace.into(),
        hashes: hashes.into(),
        ..Default::default()
    };
    refused(pool.lookup(lookup(vec![1; 31], vec![])).await, ErrorKind::Invalid, "a short namespace")?;
    refused(
        pool.lookup(lookup(vec![1; 32], vec![])).await,
        ErrorKind::NamespaceUnknown,
        "an unknown namespace",
    )?;
    refused(pool.lookup(lookup(ns.to_vec(), vec![1; 33])).await, ErrorKind::Invalid, "ragged hashes")?;
    refused(
        pool.lookup(lookup(ns.to_vec(), vec![0; 32 * 70_000])).await,
        ErrorKind::Invalid,
        "70,000 hashes",
    )?;
    let session =
        wire::LookupRequest { namespace: ns.clone(), session: "nobody".into(), ..Default::default() };
    refused(pool.lookup(session).await, ErrorKind::SessionUnknown, "an unknown session")?;
    let begin = wire::BeginOffloadRequest {
        namespace: ns.clone(),
        hashes: packed(2),
        client: 12_345,
        ..Default::default()
    };
    refused(pool.begin_offload(begin).await, ErrorKind::LeaseUnknown, "a client that never said Hello")?;
    let commit = wire::CommitOffloadRequest {
        lease: 1,
        client: 1,
        pages: vec![0],
        checksums: vec![1, 2],
        durable: false,
    };
    refused(pool.commit_offload(commit.clone()).await, ErrorKind::LeaseUnknown, "a foreign commit")?;
    refused(
        pool.abort_offload(wire::AbortOffloadRequest { lease: 9, client: 9 }).await,
        ErrorKind::LeaseUnknown,
        "a foreign abort",
    )?;
    let begin = wire::BeginReloadRequest {
        namespace: ns.clone(),
        hashes: packed(2),
        client: 77,
        ..Default::default()
    };
    refused(pool.begin_reload(begin).await, ErrorKind::LeaseUnknown, "a reload by nobody")?;
    let end = wire::EndReloadRequest { lease: 5, client: 5, corrupt: vec![u32::MAX] };
    refused(pool.end_reload(end).await, ErrorKind::LeaseUnknown, "the end of nothing")
}

async fn offload_stream(
    pool: &mut PoolClient<Channel>,
    messages: Vec<wire::OffloadRequest>,
) -> Result<Vec<wire::OffloadReply>, Status> {
    let mut stream = pool.offload(tokio_stream::iter(messages)).await?.into_inner();
    let mut replies = Vec::new();
    while let Some(reply) = stream.message().await? {
        replies.push(reply);
    }
    Ok(replies)
}

async fn inline(pool: &mut PoolClient<Channel>, ns: &bytes::Bytes) -> Result<()> {
    let begin = |hashes: bytes::Bytes, shard: u32, tail_tokens: u32| wire::OffloadRequest {
        begin: Some(wire::BeginOffloadRequest {
            namespace: ns.clone(),
            hashes,
            shard,
            tail_tokens,
            ..Default::default()
        }),
        ..Default::default()
    };
    let piece = |index: u32, offset: u64, len: usize| wire::OffloadRequest {
        index,
        offset,
        payload: vec![3; len].into(),
        ..Default::default()
    };
    let commit = |checksums: Vec<u64>| wire::OffloadRequest { commit: true, checksums, ..Default::default() };
    let cases = [
        ("no header", vec![piece(0, 0, 10)]),
        ("no hashes", vec![begin(bytes::Bytes::new(), 0, 0)]),
        ("a shard that is not", vec![begin(packed(1), 9, 0)]),
        ("a shard beyond all", vec![begin(packed(1), 1 << 20, 0)]),
        ("a tail longer than a page", vec![begin(packed(1), 0, 5_000)]),
        ("a page not granted", vec![begin(packed(1), 0, 0), piece(5, 0, 10)]),
        ("bytes beyond the page", vec![begin(packed(1), 0, 0), piece(0, 0, 70_000)]),
        ("bytes at a wild offset", vec![begin(packed(1), 0, 0), piece(0, u64::MAX, 10)]),
        ("a page half sent", vec![begin(packed(1), 0, 0), piece(0, 0, 10), commit(vec![1])]),
        ("too many checksums", vec![begin(packed(1), 0, 0), piece(0, 0, 64 << 10), commit(vec![1, 2])]),
    ];
    for (what, messages) in cases {
        refused(offload_stream(pool, messages).await, ErrorKind::Invalid, what)?;
    }
    let damaged = vec![begin(packed(1), 0, 0), piece(0, 0, 64 << 10), commit(vec![42])];
    refused(offload_stream(pool, damaged).await, ErrorKind::Unavailable, "bytes of another checksum")?;
    // A stream that ends before its commit keeps nothing.
    offload_stream(pool, vec![begin(packed(1), 0, 0), piece(0, 0, 10)]).await?;
    let reload =
        wire::ReloadRequest { namespace: ns.clone(), hashes: vec![1; 31].into(), ..Default::default() };
    refused(pool.reload(reload).await, ErrorKind::Invalid, "an inline reload of ragged hashes")
}

async fn session_verbs(sessions: &mut SessionsClient<Channel>, ns: &bytes::Bytes) -> Result<()> {
    for (what, session) in [
        ("no name", String::new()),
        ("a long name", "x".repeat(1_000)),
        ("control characters", "a\nb".into()),
    ] {
        let begin = wire::BeginTurnRequest { namespace: ns.clone(), session, ..Default::default() };
        refused(sessions.begin_turn(begin).await, ErrorKind::Invalid, what)?;
    }
    let end = wire::EndTurnRequest { namespace: ns.clone(), session: "nobody".into(), ..Default::default() };
    refused(sessions.end_turn(end).await, ErrorKind::SessionUnknown, "the end of no turn")?;
    let fork =
        wire::ForkRequest { namespace: ns.clone(), session: "nobody".into(), fork: "x".into(), pages: 0 };
    refused(sessions.fork(fork).await, ErrorKind::SessionUnknown, "a fork of nobody")?;
    let supersede = wire::SupersedeRequest { namespace: ns.clone(), session: "nobody".into(), keep: 3 };
    refused(sessions.supersede(supersede).await, ErrorKind::SessionUnknown, "supersede of nobody")?;
    let close = wire::CloseRequest { namespace: ns.clone(), session: "nobody".into(), archive: false };
    refused(sessions.close(close).await, ErrorKind::SessionUnknown, "close of nobody")?;
    let prefetch =
        wire::PrefetchRequest { namespace: ns.clone(), session: "nobody".into(), ..Default::default() };
    refused(sessions.prefetch(prefetch).await, ErrorKind::SessionUnknown, "prefetch of nobody")?;
    let by_time = wire::PrefetchRequest {
        namespace: ns.clone(),
        hashes: vec![1; 32].into(),
        in_ms: 5,
        ..Default::default()
    };
    refused(sessions.prefetch(by_time).await, ErrorKind::Invalid, "a prefetch by time of no session")?;
    let describe = wire::DescribeRequest { namespace: ns.clone(), session: "nobody".into() };
    refused(sessions.describe(describe).await, ErrorKind::SessionUnknown, "nobody described")?;
    let named = |session: &str, hashes: usize| wire::PinRequest {
        namespace: ns.clone(),
        session: session.into(),
        hashes: vec![1; hashes].into(),
        ..Default::default()
    };
    refused(sessions.pin(named("", 0)).await, ErrorKind::Invalid, "a pin of nothing")?;
    refused(sessions.pin(named("nobody", 32)).await, ErrorKind::Invalid, "a pin of two things")?;
    refused(sessions.pin(named("", 31)).await, ErrorKind::Invalid, "a pin of a ragged hash")?;
    refused(sessions.pin(named("nobody", 0)).await, ErrorKind::SessionUnknown, "a pin of nobody")?;
    let unpin = wire::UnpinRequest { namespace: ns.clone(), ..Default::default() };
    refused(sessions.unpin(unpin).await, ErrorKind::Invalid, "an unpin of nothing")?;
    let engine = |name: String| wire::RouteEngine { name, ..Default::default() };
    let among = |engines| wire::RouteRequest { namespace: ns.clone(), engines, ..Default::default() };
    refused(sessions.route(among(vec![])).await, ErrorKind::Invalid, "a route among none")?;
    let crowd = (0..257).map(|at| engine(format!("e{at}"))).collect();
    refused(sessions.route(among(crowd)).await, ErrorKind::Invalid, "a route among too many")?;
    let long = vec![engine("x".repeat(129))];
    refused(sessions.route(among(long)).await, ErrorKind::Invalid, "a route to a long name")?;
    let (namespace, engine) = (ns.clone(), "x".repeat(129));
    let at_long = wire::BeginTurnRequest { namespace, session: "s".into(), engine, ..Default::default() };
    refused(sessions.begin_turn(at_long).await, ErrorKind::Invalid, "a turn at an engine with a long name")?;
    let list = wire::ListRequest { namespace: vec![0; 3].into(), limit: u32::MAX };
    refused(sessions.list(list).await, ErrorKind::Invalid, "list of a short id")
}

/// Whoever names more pages than a call may, or than a message has room for, is told how many may be named, whatever it asks.
#[tokio::test(flavor = "multi_thread")]
async fn more_hashes_than_a_call_may_name_are_refused_with_the_limit_and_what_to_do() -> Result<()> {
    let cluster = Cluster::start(1).await?;
    let channel = Endpoint::from_shared(cluster.tcp(0).replace("tcp", "http"))?.connect().await?;
    let (mut pool, mut sessions) = (PoolClient::new(channel.clone()), SessionsClient::new(channel));
    let mut members = cluster.client(0).await?;
    let namespace: bytes::Bytes = open(&mut pool).await?.into();
    for count in [HASHES_PER_CALL_MAX + 1, 70_000, 90_000, 300_000] {
        let hashes = bytes::Bytes::from(vec![1; 32 * count]);
        let told = |what: &str, status: Option<Status>| -> Result<()> {
            let said = status.as_ref().map(|status| status.message().to_owned()).unwrap_or_default();
            refused(status.map_or(Ok(()), Err), ErrorKind::Invalid, what)?;
            let limit = format!("at most {HASHES_PER_CALL_MAX} ");
            let says_all =
                said.contains(&limit) && said.contains("HASHES_PER_CALL_MAX") && said.contains("split");
            ensure!(says_all, "{what} of {count}: {said}");
            Ok(())
        };
        macro_rules! of {
            ($request:ident { $($field:ident: $value:expr),* }) => {
                wire::$request { namespace: namespace.clone(), hashes: hashes.clone(), $($field: $value,)* ..Default::default() }
            };
        }
        told("a lookup", pool.lookup(of!(LookupRequest {})).await.err())?;
        told("an inline reload", pool.reload(of!(ReloadRequest {})).await.err())?;
        let begin = Some(of!(BeginOffloadRequest {}));
        let offered = vec![wire::OffloadRequest { begin, ..Default::default() }];
        told("an inline offload", offload_stream(&mut pool, offered).await.err())?;
        told("a prefetch", sessions.prefetch(of!(PrefetchRequest {})).await.err())?;
        told("a pin", sessions.pin(of!(PinRequest {})).await.err())?;
        told("a turn's end", sessions.end_turn(of!(EndTurnRequest { session: "s".into() })).await.err())?;
        told("a search", members.find(of!(FindRequest {})).await.err())?;
        let (namespace, hashes) = (namespace.clone(), hashes.clone());
        let counted = members.count_pages(wire::CountPagesRequest { namespace, hashes }).await;
        told("a count", counted.err())?;
    }
    Ok(())
}

/// A sender that stalls in the middle of an inline offload is told so when its lease ends, and its slots come back.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_inline_offload_gives_its_slots_back() -> Result<()> {
    let limits = "lease_ms = 300\n".to_owned();
    let server = Server::start(Setup { limits, ..Setup::default() })?;
    let channel = channel(&server).await?;
    let mut pool = PoolClient::new(channel.clone());
    let ns: bytes::Bytes = open(&mut pool).await?.into();
    let begin = wire::BeginOffloadRequest { namespace: ns, hashes: packed(4), ..Default::default() };
    let first = wire::OffloadRequest { begin: Some(begin), ..Default::default() };
    let stalled = tokio_stream::StreamExt::chain(tokio_stream::once(first), tokio_stream::pending());
    let mut replies = pool.offload(stalled).await?.into_inner();
    ensure!(replies.message().await?.is_some_and(|reply| reply.begin.is_some()));
    let began = Instant::now();
    refused(replies.message().await, ErrorKind::LeaseUnknown, "a stalled stream")?;
    ensure!(began.elapsed() < Duration::from_secs(3));
    let stats = AdminClient::new(channel).stats(wire::StatsRequest {}).await?.into_inner();
    ensure!(stats.leases == 0 && stats.quarantined_bytes == 0 && stats.tiers[0].used_bytes == 0, "{stats:?}");
    Ok(())
}

/// A reader that stalls past its lease, while its pages' slots get other pages: what was not sent in time is a miss, never
/// the other pages' bytes, and the server goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_inline_reload_is_a_miss_and_never_other_bytes() -> Result<()> {
    const PAGE_BYTES: u64 = 256 << 10;
    let limits = "lease_ms = 300\nlease_grace_ms = 100\n".to_owned();
    let server = Server::start(Setup { limits, nvme_mib: 0, ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Auto, PAGE_BYTES).await?;
    let hashes = chain(1, 40);
    let stored = user.offload(&OffloadOptions::default(), &hashes).await?.stored;
    ensure!(stored == hashes.len(), "only {stored} were stored");

    // So small a window that the server cannot send ahead of the reader.
    let narrow = Endpoint::from_shared(server.address())?.initial_stream_window_size(64 << 10);
    let ask = wire::ReloadRequest {
        namespace: user.namespace.id().0.to_vec().into(),
        hashes: turnkv_proto::pack_hashes(&hashes).into(),
        ..Default::default()
    };
    let mut stream = PoolClient::new(narrow.connect().await?).reload(ask).await?.into_inner();
    let mut messages = vec![stream.message().await?.context("no first message")?];
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    user.client.evict(None, None).await?;
    let options = OffloadOptions { wait: Duration::from_secs(5), ..OffloadOptions::default() };
    for seed in 2..6 {
        let stored = user.offload(&options, &chain(seed, 30)).await?.stored;
        ensure!(stored == 30, "only {stored} of the pages that take the slots were stored");
    }
    while let Some(message) = stream.message().await? {
        messages.push(message);
    }
    let miss = messages.pop().context("no messages")?;
    ensure!(miss.miss() == wire::MissCause::Busy && miss.payload.is_empty(), "ended with {miss:?}");
    ensure!((miss.index as usize) < hashes.len(), "all was sent: the test's stream is too short");
    for message in messages {
        let page = bytes(&hashes[message.index as usize], PAGE_BYTES as usize);
        let sent = &page[message.offset as usize..][..message.payload.len()];
        ensure!(message.miss == 0 && message.payload == sent, "WRONG BYTES at page {}", message.index);
    }
    let report = user.reload(&chain(5, 30)).await?;
    ensure!(report.pages == 30, "the server goes on: {report:?}");
    Ok(())
}

fn ask(socket: &LocalSocket, verb: wire::Verb, body: &impl prost::Message) -> Result<turnkv_transfer::Frame> {
    socket.send(verb as u8, 0, &body.encode_to_vec(), &[])?;
    Ok(socket.recv(Some(Instant::now() + Duration::from_secs(5)))?)
}

fn failure(frame: &turnkv_transfer::Frame) -> Result<wire::Failure> {
    ensure!(frame.flags & FLAG_FAILURE != 0, "accepted: verb {}", frame.verb);
    Ok(prost::Message::decode(frame.body.as_slice())?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_door_refuses_nonsense_and_goes_on() -> Result<()> {
    // Without NVMe nobody looks at the pages, whose checksums are made up here.
    let server = Server::start(Setup { nvme_mib: 0, ..Setup::default() })?;
    let mut pool = PoolClient::new(channel(&server).await?);
    let ns: bytes::Bytes = open(&mut pool).await?.into();
    let deadline = Instant::now() + Duration::from_secs(5);
    let socket = LocalSocket::connect(&server.local_socket(), deadline)?;
    let lookup = wire::LookupRequest {
        namespace: ns.clone(),
        hashes: packed(1),
        session: String::new(),
        ..Default::default()
    };
    failure(&ask(&socket, wire::Verb::Lookup, &lookup)?)?; // before Hello
    failure(&ask(&socket, wire::Verb::Hello, &wire::HelloRequest { protocol: 99, ..Default::default() })?)?;
    let hello = ask(&socket, wire::Verb::Hello, &wire::HelloRequest { protocol: 1, ..Default::default() })?;
    let hello: wire::HelloReply = prost::Message::decode(hello.body.as_slice())?;
    let foreign = wire::BeginOffloadRequest {
        namespace: ns.clone(),
        hashes: packed(1),
        client: hello.client ^ 1,
        ..Default::default()
    };
    ensure!(
        failure(&ask(&socket, wire::Verb::BeginOffload, &foreign)?)?.kind() == wire::ErrorKind::LeaseUnknown
    );
    let attach = wire::AttachSlabRequest { namespace: ns.clone(), slab: u32::MAX, generation: 3 };
    failure(&ask(&socket, wire::Verb::AttachSlab, &attach)?)?;
    socket.send(wire::Verb::Lookup as u8, 0, &[0xff; 40], &[])?;
    failure(&socket.recv(Some(Instant::now() + Duration::from_secs(5)))?)?;
    socket.send(200, 0, &[], &[])?;
    failure(&socket.recv(Some(Instant::now() + Duration::from_secs(5)))?)?;
    // A commit twice, and one that names a page twice: the second is refused, the first stands.
    let begin = wire::BeginOffloadRequest {
        namespace: ns.clone(),
        hashes: packed(2),
        client: hello.client,
        ..Default::default()
    };
    let granted = ask(&socket, wire::Verb::BeginOffload, &begin)?;
    let granted: wire::BeginOffloadReply = prost::Message::decode(granted.body.as_slice())?;
    let twice = wire::CommitOffloadRequest {
        lease: granted.lease,
        client: hello.client,
        pages: vec![0, 0],
        checksums: vec![1, 1],
        durable: false,
    };
    ensure!(failure(&ask(&socket, wire::Verb::CommitOffload, &twice)?)?.kind() == wire::ErrorKind::Invalid);
    let commit = wire::CommitOffloadRequest { pages: vec![0], checksums: vec![1], ..twice };
    ensure!(ask(&socket, wire::Verb::CommitOffload, &commit)?.flags & FLAG_FAILURE == 0);
    ensure!(
        failure(&ask(&socket, wire::Verb::CommitOffload, &commit)?)?.kind() == wire::ErrorKind::LeaseUnknown
    );
    let reply = ask(&socket, wire::Verb::Lookup, &lookup)?;
    let reply: wire::LookupReply = prost::Message::decode(reply.body.as_slice())?;
    ensure!(reply.present == 1, "the connection and the server go on");
    Ok(())
}

/// Bytes that are no frames, on a raw socket: the connection ends, the server does not.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_local_socket_ends_only_its_connection() -> Result<()> {
    use std::io::{Read, Write};
    let server = Server::start(Setup::default())?;
    for garbage in
        [vec![0xff; 64], vec![0; 7], b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0, 0, 0, 0x7f, 1, 0, 0, 0]]
    {
        let mut raw = std::os::unix::net::UnixStream::connect(server.local_socket())?;
        raw.set_read_timeout(Some(Duration::from_secs(5)))?;
        raw.write_all(&garbage)?;
        raw.shutdown(std::net::Shutdown::Write)?;
        let mut answer = Vec::new();
        raw.read_to_end(&mut answer).ok();
    }
    let mut pool = PoolClient::new(channel(&server).await?);
    open(&mut pool).await?;
    Ok(())
}
