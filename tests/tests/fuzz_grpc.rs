//! Requests over gRPC that are well formed and mean nonsense: every call of every service, its fields changed. The server answers
//! each with a status, stays up, and a user beside it reads back exactly what it wrote.

use anyhow::{Context, Result, ensure};
use prost::Message;
use std::collections::BTreeSet;
use std::error::Error as _;
use std::time::Duration;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_mutate::{Random, each_seed, mutate_bytes, mutate_message};
use turnkv_proto::{pack_hashes, wire};
use turnkv_tests::pages::{bytes, chain, namespace};
use turnkv_tests::raw::Raw;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_transfer::checksum;

const PAGE: u64 = 4096;
const PAGES: usize = 8;
/// Calls between two looks of the user at its pages.
const LOOK_EVERY: usize = 20;
/// How long a call is waited for that may be asked to wait, or that has no end of its own.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long any other may take. Busy machines get much of it.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// These may wait, as they are asked to, or go on for as long as somebody listens.
const MAY_WAIT: [&str; 8] = [
    "/turnkv.v1.Pool/BeginOffload",
    "/turnkv.v1.Pool/BeginReload",
    "/turnkv.v1.Pool/CommitOffload",
    "/turnkv.v1.Pool/Offload",
    "/turnkv.v1.Pool/Reload",
    "/turnkv.v1.Admin/Record",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];
/// Calls of the services that are not ours.
const STANDARD: [&str; 3] = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];

/// A call that would be fine: its path, and its messages.
type Call = (&'static str, Vec<Vec<u8>>);

fn call(path: &'static str, message: &impl Message) -> Call {
    (path, vec![message.encode_to_vec()])
}

/// An inline offload of two pages.
fn offload(namespace: &bytes::Bytes, seed: u64) -> Call {
    let hashes = chain(seed, 2);
    let pages: Vec<Vec<u8>> = hashes.iter().map(|hash| bytes(hash, PAGE as usize)).collect();
    let begin = wire::BeginOffloadRequest {
        namespace: namespace.clone(),
        hashes: pack_hashes(&hashes).into(),
        session: "chat".to_owned(),
        ..Default::default()
    };
    let mut messages = vec![wire::OffloadRequest { begin: Some(begin), ..Default::default() }];
    for (index, page) in (0u32..).zip(&pages) {
        messages.push(wire::OffloadRequest { index, payload: page.clone().into(), ..Default::default() });
    }
    let checksums = pages.iter().map(|page| checksum(page)).collect();
    messages.push(wire::OffloadRequest { commit: true, checksums, ..Default::default() });
    ("/turnkv.v1.Pool/Offload", messages.iter().map(Message::encode_to_vec).collect())
}

fn pool_calls(namespace: &bytes::Bytes, lease: u64) -> Vec<Call> {
    let hashes: bytes::Bytes = pack_hashes(&chain(7, 4)).into();
    let (namespace, session) = (namespace.clone(), "chat".to_owned());
    let spec = Some(wire::NamespaceSpec::from(&self::namespace("fuzzed", PAGE)));
    vec![
        call("/turnkv.v1.Pool/OpenNamespace", &wire::OpenNamespaceRequest { spec }),
        call(
            "/turnkv.v1.Pool/Lookup",
            &wire::LookupRequest {
                namespace: namespace.clone(),
                hashes: hashes.clone(),
                session: session.clone(),
            },
        ),
        call(
            "/turnkv.v1.Pool/BeginOffload",
            &wire::BeginOffloadRequest {
                namespace: namespace.clone(),
                hashes: hashes.clone(),
                session: session.clone(),
                ..Default::default()
            },
        ),
        call(
            "/turnkv.v1.Pool/CommitOffload",
            &wire::CommitOffloadRequest {
                lease,
                pages: vec![0, 1],
                checksums: vec![1, 2],
                ..Default::default()
            },
        ),
        call("/turnkv.v1.Pool/AbortOffload", &wire::AbortOffloadRequest { lease, client: 0 }),
        call(
            "/turnkv.v1.Pool/BeginReload",
            &wire::BeginReloadRequest {
                namespace: namespace.clone(),
                hashes: hashes.clone(),
                session: session.clone(),
                ..Default::default()
            },
        ),
        call("/turnkv.v1.Pool/EndReload", &wire::EndReloadRequest { lease, client: 0, corrupt: vec![1] }),
        offload(&namespace, 7),
        call(
            "/turnkv.v1.Pool/Reload",
            &wire::ReloadRequest { namespace, hashes, session, ..Default::default() },
        ),
    ]
}

fn session_calls(namespace: &bytes::Bytes) -> Vec<Call> {
    let hashes: bytes::Bytes = pack_hashes(&chain(7, 2)).into();
    let (namespace, session) = (namespace.clone(), "chat".to_owned());
    vec![
        call(
            "/turnkv.v1.Sessions/BeginTurn",
            &wire::BeginTurnRequest {
                namespace: namespace.clone(),
                session: session.clone(),
                engine: "gpu-0".to_owned(),
                ended: 3,
            },
        ),
        call(
            "/turnkv.v1.Sessions/EndTurn",
            &wire::EndTurnRequest {
                namespace: namespace.clone(),
                session: session.clone(),
                hashes: hashes.clone(),
                priority: 1,
                expected_return_ms: 1_000,
                ..Default::default()
            },
        ),
        call(
            "/turnkv.v1.Sessions/Fork",
            &wire::ForkRequest {
                namespace: namespace.clone(),
                session: session.clone(),
                fork: "branch".to_owned(),
                pages: 1,
            },
        ),
        call(
            "/turnkv.v1.Sessions/Supersede",
            &wire::SupersedeRequest { namespace: namespace.clone(), session: session.clone(), keep: 1 },
        ),
        call(
            "/turnkv.v1.Sessions/Close",
            &wire::CloseRequest { namespace: namespace.clone(), session: session.clone(), archive: false },
        ),
        call(
            "/turnkv.v1.Sessions/Prefetch",
            &wire::PrefetchRequest {
                namespace: namespace.clone(),
                session: session.clone(),
                hashes: hashes.clone(),
                in_ms: 1,
            },
        ),
    ]
}

/// Calls about sessions that no turn of theirs makes.
fn other_session_calls(namespace: &bytes::Bytes) -> Vec<Call> {
    let hashes: bytes::Bytes = pack_hashes(&chain(7, 2)).into();
    let (namespace, session) = (namespace.clone(), "chat".to_owned());
    let engine = wire::RouteEngine { name: "gpu-0".to_owned(), capacity_pages: 100, ..Default::default() };
    vec![
        call("/turnkv.v1.Sessions/List", &wire::ListRequest { namespace: namespace.clone(), limit: 10 }),
        call(
            "/turnkv.v1.Sessions/Describe",
            &wire::DescribeRequest { namespace: namespace.clone(), session: session.clone() },
        ),
        call(
            "/turnkv.v1.Sessions/Pin",
            &wire::PinRequest {
                namespace: namespace.clone(),
                hashes: hashes.clone(),
                ttl_ms: 1_000,
                ..Default::default()
            },
        ),
        call(
            "/turnkv.v1.Sessions/Unpin",
            &wire::UnpinRequest { namespace: namespace.clone(), pin: hashes.slice(32..) },
        ),
        call(
            "/turnkv.v1.Sessions/Route",
            &wire::RouteRequest { namespace, session, hashes, engines: vec![engine.clone(), engine] },
        ),
    ]
}

fn admin_calls(namespace: &bytes::Bytes) -> Vec<Call> {
    let namespace = namespace.clone();
    vec![
        call("/turnkv.v1.Admin/Stats", &wire::StatsRequest {}),
        call("/turnkv.v1.Admin/Drain", &wire::DrainRequest {}),
        call("/turnkv.v1.Admin/Resize", &wire::ResizeRequest { dram_bytes: 32 << 20 }),
        call("/turnkv.v1.Admin/Resume", &wire::ResumeRequest {}),
        call("/turnkv.v1.Admin/Upgrade", &wire::UpgradeRequest { binary: "/turnkv".to_owned(), look: true }),
        call("/turnkv.v1.Admin/Evict", &wire::EvictRequest { namespace: namespace.clone(), tier: 1 }),
        call(
            "/turnkv.v1.Admin/SizeAdvice",
            &wire::SizeAdviceRequest { namespace: namespace.clone(), ..Default::default() },
        ),
        call("/turnkv.v1.Admin/Record", &wire::RecordRequest { namespace: namespace.clone() }),
        call(
            "/turnkv.v1.Admin/ReportPrefill",
            &wire::ReportPrefillRequest { namespace, tokens: 1_000, micros: 2_000_000 },
        ),
        // By their fields' numbers: a service's name; a symbol, by its name.
        (STANDARD[0], vec![b"\x0a\x11turnkv.v1.Pool\x00\x00\x00"[..16].to_vec()]),
        (STANDARD[1], vec![Vec::new()]),
        (STANDARD[2], vec![b"\x22\x0eturnkv.v1.Pool".to_vec()]),
    ]
}

fn snapshot_calls(namespace: &bytes::Bytes, snapshot: &str) -> Vec<Call> {
    let (tenant, sequence, snapshot) = (String::new(), "kept".to_owned(), snapshot.to_owned());
    let what = Some(wire::create_snapshot_request::What::Session(sequence.clone()));
    let tokens = vec![wire::SequenceTokens { sequence: sequence.clone(), tokens: (0..48).collect() }];
    let restore = wire::RestoreSnapshotRequest {
        tenant: tenant.clone(),
        snapshot: snapshot.clone(),
        namespace: namespace.clone(),
        sequence: sequence.clone(),
        session: "again".to_owned(),
        pages_only: false,
    };
    let describe = wire::DescribeSnapshotRequest {
        tenant: tenant.clone(),
        snapshot: snapshot.clone(),
        sequence: sequence.clone(),
        from_page: 1,
    };
    let fork = wire::ForkSnapshotRequest {
        tenant: tenant.clone(),
        snapshot: snapshot.clone(),
        sequence,
        pages: 2,
        name: "fork".to_owned(),
    };
    let (after, directory) = (snapshot.clone(), "carried".to_owned());
    let export = wire::ExportSnapshotRequest {
        tenant: tenant.clone(),
        snapshot: snapshot.clone(),
        directory: directory.clone(),
        level: 3,
    };
    let collect =
        wire::CollectSnapshotsRequest { tenant: tenant.clone(), older_than_s: 9, stored_bytes_max: 1 << 30 };
    vec![
        call(
            "/turnkv.v1.Snapshots/Create",
            &wire::CreateSnapshotRequest { namespace: namespace.clone(), what, tokens },
        ),
        call("/turnkv.v1.Snapshots/Restore", &restore),
        call(
            "/turnkv.v1.Snapshots/List",
            &wire::ListSnapshotsRequest { tenant: tenant.clone(), after, limit: 5 },
        ),
        call("/turnkv.v1.Snapshots/Describe", &describe),
        call(
            "/turnkv.v1.Snapshots/Verify",
            &wire::VerifySnapshotsRequest { tenant: tenant.clone(), snapshot: snapshot.clone() },
        ),
        call("/turnkv.v1.Snapshots/Fork", &fork),
        call(
            "/turnkv.v1.Snapshots/Delete",
            &wire::DeleteSnapshotRequest { tenant: tenant.clone(), snapshot: "0".repeat(32) },
        ),
        call("/turnkv.v1.Snapshots/Collect", &collect),
        call("/turnkv.v1.Snapshots/Export", &export),
        call("/turnkv.v1.Snapshots/Import", &wire::ImportSnapshotRequest { tenant, directory }),
    ]
}

fn calls(namespace: &bytes::Bytes, lease: u64, snapshot: &str) -> Vec<Call> {
    let sessions = [session_calls(namespace), other_session_calls(namespace)].concat();
    let snapshots = snapshot_calls(namespace, snapshot);
    [pool_calls(namespace, lease), sessions, admin_calls(namespace), snapshots].concat()
}

/// Changes some of a call's messages.
fn change(random: &mut Random, messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut changed = messages.to_vec();
    let at = random.below(changed.len());
    if random.one_in(10) && changed.len() > 1 {
        let other = random.below(changed.len());
        changed.swap(at, other);
    }
    for (position, message) in changed.iter_mut().enumerate() {
        if position == at || random.one_in(4) {
            *message = if random.one_in(4) {
                mutate_bytes(random, message)
            } else {
                mutate_message(random, message)
            };
        }
    }
    changed
}

/// Makes a call; how it was answered, or nothing, if it waits.
async fn make(channel: &Channel, path: &'static str, messages: Vec<Vec<u8>>) -> Result<Option<tonic::Code>> {
    let waits = MAY_WAIT.contains(&path);
    let answered = async {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.context("the connection is gone")?;
        let request = tonic::Request::new(tokio_stream::iter(messages));
        let told = async {
            let path = http::uri::PathAndQuery::from_static(path);
            let mut answers = grpc.streaming(request, path, Raw).await?.into_inner();
            while answers.message().await?.is_some() {}
            Ok::<(), Status>(())
        };
        match told.await {
            Ok(()) => Ok(tonic::Code::Ok),
            // What a server says has no source: what has one was made here, of a connection that broke.
            Err(status) if status.source().is_none() => Ok(status.code()),
            Err(status) => Err(anyhow::anyhow!("{path} was not answered: {status:?}")),
        }
    };
    match tokio::time::timeout(if waits { PATIENCE } else { ANSWER_MAX }, answered).await {
        Ok(answer) => answer.map(Some),
        Err(_) if waits => Ok(None),
        Err(_) => anyhow::bail!("{path} took longer than {ANSWER_MAX:?}"),
    }
}

/// The server, a connection for nonsense, and the user.
struct Rig {
    server: Server,
    channel: Channel,
    user: User,
    fuzzed: User,
    /// A snapshot of a session of the fuzzed namespace.
    snapshot: String,
    /// Where its archive is.
    _shelf: tempfile::TempDir,
}

impl Rig {
    async fn start() -> Result<Rig> {
        let shelf = tempfile::tempdir()?;
        let place = shelf.path().display();
        let setup = Setup {
            limits: "lease_ms = 500\n".to_owned(),
            sections: format!("[archive]\nplace = \"{place}/archive\"\nexports = \"{place}\"\n"),
            ..Setup::default()
        };
        let server = Server::start(setup)?;
        let user = User::connect(&server.address(), DataPlane::Inline, PAGE).await?;
        let fuzzed = User {
            client: user.client.clone(),
            namespace: user.client.open_namespace(namespace("fuzzed", PAGE)).await?,
        };
        let channel = Endpoint::from_shared(server.address())?.connect().await?;
        let snapshot = keep(&channel, &fuzzed).await?;
        let rig = Rig { server, channel, user, fuzzed, snapshot, _shelf: shelf };
        rig.store().await?;
        Ok(rig)
    }

    /// Stores the user's pages, whatever was done to the server.
    async fn store(&self) -> Result<()> {
        self.user.client.resume().await?;
        let options =
            OffloadOptions { durable: true, wait: Duration::from_secs(20), ..OffloadOptions::default() };
        let report = self.user.offload(&options, &chain(1, PAGES)).await?;
        ensure!(report.stored + report.present == PAGES, "{report:?}");
        Ok(())
    }

    /// The user reads its pages; every byte of what it gets is checked.
    async fn look(&self, evicted: bool) -> Result<()> {
        let report = self.user.reload(&chain(1, PAGES)).await?;
        ensure!(evicted || report.pages == PAGES, "{report:?}");
        if report.pages < PAGES { self.store().await } else { Ok(()) }
    }
}

/// Makes a session, and a snapshot of it.
async fn keep(channel: &Channel, user: &User) -> Result<String> {
    user.namespace.begin_turn("kept").await?;
    let options = OffloadOptions { session: Some("kept".to_owned()), ..OffloadOptions::default() };
    user.offload(&options, &chain(9, 3)).await?;
    let what = Some(wire::create_snapshot_request::What::Session("kept".to_owned()));
    let namespace = user.namespace.id().0.to_vec().into();
    let request = wire::CreateSnapshotRequest { namespace, what, tokens: Vec::new() };
    let mut client = wire::snapshots_client::SnapshotsClient::new(channel.clone());
    let mut answers = client.create(request).await?.into_inner();
    let mut made = None;
    while let Some(answer) = answers.message().await? {
        made = answer.snapshot;
    }
    Ok(made.context("a snapshot")?.snapshot)
}

#[test]
fn every_call_is_answered_whatever_it_says() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let rig = runtime.block_on(Rig::start())?;
    let namespace = bytes::Bytes::copy_from_slice(&rig.fuzzed.namespace.id().0);
    let known: BTreeSet<&str> =
        wire::Method::ALL.iter().map(|method| method.path()).chain(STANDARD).collect();
    let fuzzed: BTreeSet<&str> =
        calls(&namespace, 1, &rig.snapshot).into_iter().map(|(path, _)| path).collect();
    ensure!(known == fuzzed, "calls without a request here: {:?}", known.symmetric_difference(&fuzzed));

    let (mut made, mut waited, mut evicted) = (0usize, 0usize, false);
    let mut codes = BTreeSet::new();
    each_seed(600, |random| {
        let calls = calls(&namespace, random.number(), &rig.snapshot);
        let Some((path, messages)) = random.pick(&calls) else { return };
        // One in so many as it is: changed ones then meet pages, sessions and pins.
        let messages = if random.one_in(4) { messages.clone() } else { change(random, messages) };
        match runtime.block_on(make(&rig.channel, path, messages)) {
            Ok(Some(code)) => drop(codes.insert(format!("{code:?}"))),
            Ok(None) => waited += 1,
            Err(error) => panic!("{error:#}\n{}", rig.server.log()),
        }
        evicted |= path.ends_with("/Evict");
        made += 1;
        if made.is_multiple_of(LOOK_EVERY) {
            runtime
                .block_on(rig.look(evicted))
                .unwrap_or_else(|error| panic!("{error:#}\n{}", rig.server.log()));
            evicted = false;
        }
    });
    println!("{made} calls, {waited} of them waited, answered with {codes:?}");
    runtime.block_on(rig.look(evicted))?;
    ensure!(made == 1 || waited * 3 < made, "{waited} of {made} were not answered in time");
    ensure!(made == 1 || codes.len() >= 4, "answered only with {codes:?}");
    ensure!(!rig.server.log().contains("panicked"), "{}", rig.server.log());
    Ok(())
}
