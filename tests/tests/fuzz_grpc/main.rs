//! Requests over gRPC that are well formed and mean nonsense: every call of every service, its fields changed. The server answers
//! each with a status, stays up, and a user beside it reads back exactly what it wrote.

mod calls;

use anyhow::{Context, Result, ensure};
use calls::{Known, calls};
use std::collections::BTreeSet;
use std::error::Error as _;
use std::time::Duration;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use turnkv_client::{DataPlane, EndTurn, OffloadOptions};
use turnkv_mutate::{Random, each_seed, mutate_bytes, mutate_message};
use turnkv_proto::wire;
use turnkv_tests::cluster::{Cluster, Known as KnownBy};
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::raw::Raw;
use turnkv_tests::server::Setup;
use turnkv_tests::user::User;

const PAGE: u64 = 4096;
const PAGES: usize = 8;
/// Calls between two looks of the user at its pages.
const LOOK_EVERY: usize = 20;
/// How long a call is waited for that may be asked to wait, or that has no end of its own.
const PATIENCE: Duration = Duration::from_millis(300);
/// How long any other may take. Busy machines get much of it.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// These may wait, as they are asked to, or go on for as long as somebody listens.
const MAY_WAIT: [&str; 11] = [
    "/turnkv.v1.Pool/BeginOffload",
    "/turnkv.v1.Pool/BeginReload",
    "/turnkv.v1.Pool/CommitOffload",
    "/turnkv.v1.Pool/Offload",
    "/turnkv.v1.Pool/Reload",
    "/turnkv.v1.Admin/Record",
    "/turnkv.v1.Cluster/TakeSession",
    "/turnkv.v1.Cluster/HoldPrefix",
    "/turnkv.v1.Cluster/WatchMembers",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];
/// Calls of the services that are not ours.
const STANDARD: [&str; 3] = [
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
];

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

/// The server and another member of its cluster, a connection for nonsense, and the user.
struct Rig {
    cluster: Cluster,
    channel: Channel,
    user: User,
    fuzzed: User,
    /// A snapshot of a session of the fuzzed namespace.
    snapshot: String,
    /// What the server is called among members.
    member: u64,
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
        let cluster = Cluster::start_with(2, &KnownBy::Listed, &setup).await?;
        let address = cluster.servers[0].address();
        let user = User::connect(&address, DataPlane::Inline, PAGE).await?;
        let fuzzed = User {
            client: user.client.clone(),
            namespace: user.client.open_namespace(namespace("fuzzed", PAGE)).await?,
        };
        let channel = Endpoint::from_shared(address)?.connect().await?;
        let snapshot = keep(&channel, &fuzzed).await?;
        let member = cluster.number_of_home(1, &fuzzed.namespace.id(), "kept").await?;
        let rig = Rig { cluster, channel, user, fuzzed, snapshot, member, _shelf: shelf };
        rig.store().await?;
        Ok(rig)
    }

    fn log(&self) -> String {
        self.cluster.servers[0].log()
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
    user.namespace.end_turn("kept", &EndTurn { hashes: chain(9, 3), ..EndTurn::default() }).await?;
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
    let said = |lease| Known { namespace: &namespace, lease, snapshot: &rig.snapshot, member: rig.member };
    let fuzzed: BTreeSet<&str> = calls(&said(1)).into_iter().map(|(path, _)| path).collect();
    ensure!(known == fuzzed, "calls without a request here: {:?}", known.symmetric_difference(&fuzzed));

    let (mut made, mut waited, mut evicted) = (0usize, 0usize, false);
    let mut codes = BTreeSet::new();
    each_seed(600, |random| {
        let calls = calls(&said(random.number()));
        let Some((path, messages)) = random.pick(&calls) else { return };
        // One in so many as it is: changed ones then meet pages, sessions and pins.
        let messages = if random.one_in(4) { messages.clone() } else { change(random, messages) };
        match runtime.block_on(make(&rig.channel, path, messages)) {
            Ok(Some(code)) => drop(codes.insert(format!("{code:?}"))),
            Ok(None) => waited += 1,
            Err(error) => panic!("{error:#}\n{}", rig.log()),
        }
        evicted |= path.ends_with("/Evict");
        made += 1;
        if made.is_multiple_of(LOOK_EVERY) {
            runtime.block_on(rig.look(evicted)).unwrap_or_else(|error| panic!("{error:#}\n{}", rig.log()));
            evicted = false;
        }
    });
    println!("{made} calls, {waited} of them waited, answered with {codes:?}");
    runtime.block_on(rig.look(evicted))?;
    ensure!(made == 1 || waited * 3 < made, "{waited} of {made} were not answered in time");
    ensure!(made == 1 || codes.len() >= 4, "answered only with {codes:?}");
    ensure!(!rig.log().contains("panicked"), "{}", rig.log());
    Ok(())
}
