//! A good request of every call there is, for others to change. Owns: what stands in them. Must not know: what is done with them.

use crate::{PAGE, STANDARD};
use prost::Message;
use turnkv_proto::wire::note::Says;
use turnkv_proto::{pack_hashes, wire};
use turnkv_tests::pages::{bytes, chain, namespace};
use turnkv_transfer::checksum;

/// A call that would be fine: its path, and its messages.
pub(crate) type Call = (&'static str, Vec<Vec<u8>>);

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
                only_posts: true,
                only_here: false,
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
                may_go: true,
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

/// What a request may name: pages, a lease, a snapshot, a member.
pub(crate) struct Known<'a> {
    /// The fuzzed namespace.
    pub(crate) namespace: &'a bytes::Bytes,
    /// May be a lease's number.
    pub(crate) lease: u64,
    /// A snapshot of a session of that namespace.
    pub(crate) snapshot: &'a str,
    /// The number of the server, as a member of its cluster.
    pub(crate) member: u64,
}

/// One of each.
pub(crate) fn calls(known: &Known) -> Vec<Call> {
    let sessions = [session_calls(known.namespace), other_session_calls(known.namespace)].concat();
    let snapshots = snapshot_calls(known.namespace, known.snapshot);
    let cluster = [between_members(known), of_members(known.namespace)].concat();
    [pool_calls(known.namespace, known.lease), sessions, admin_calls(known.namespace), snapshots, cluster]
        .concat()
}

/// What members tell and ask one another.
fn between_members(known: &Known) -> Vec<Call> {
    let (session, hashes) = (bytes::Bytes::from(vec![3; 16]), pack_hashes(&chain(7, 4)));
    let home = Some(wire::Life { member: known.member, incarnation: 1 });
    let tip = Some(wire::Tip { home, turn: 2, pages: 4, moves: 1 });
    let posts = bytes::Bytes::from(vec![5; 32]);
    let held = vec![wire::HeldPost { post: vec![5; 16].into(), holder: home }];
    let tips = vec![wire::HomeTip { session: session.clone(), turn: 2, pages: 4, moves: 1 }];
    let says = [
        Says::Publish(wire::PublishNote { tips, posts: posts.clone() }),
        Says::Withdraw(wire::WithdrawNote { session: session.clone(), home, turn: 2 }),
        Says::Outdone(wire::OutdoneNote { session: session.clone(), tip }),
        Says::Over(wire::OverNote { latest: 1 }),
        Says::AskTip(wire::AskTipNote { call: 1, session }),
        Says::TipIs(wire::TipNote { call: 1, tip }),
        Says::AskPosts(wire::AskPostsNote { call: 1, posts }),
        Says::PostsAre(wire::PostsNote { call: 1, held }),
    ];
    let from = wire::Member {
        name: "pool-1".to_owned(),
        endpoint: "tcp://127.0.0.1:1".to_owned(),
        weight: 100,
        state: wire::MemberState::Serving.into(),
        incarnation: u64::MAX / 2,
        ..Default::default()
    };
    let notes = says.map(|says| wire::Note { says: Some(says) }).to_vec();
    let tell = wire::TellRequest { cluster: "tests".to_owned(), from: Some(from), to: known.member, notes };
    let (namespace, hashes) = (known.namespace.clone(), bytes::Bytes::from(hashes));
    let (session, last) = ("kept".to_owned(), hashes.slice(96..));
    let take = wire::TakeSessionRequest {
        cluster: "tests".to_owned(),
        spec: Some(wire::NamespaceSpec::from(&self::namespace("fuzzed", PAGE))),
        session: session.clone(),
        tip,
    };
    let hold = wire::HoldPrefixRequest {
        cluster: "tests".to_owned(),
        from: known.member,
        spec: take.spec.clone(),
        last: last.clone(),
        ttl_ms: 1_000,
    };
    vec![
        call("/turnkv.v1.Cluster/TakeSession", &take),
        call("/turnkv.v1.Cluster/HoldPrefix", &hold),
        call("/turnkv.v1.Cluster/Tell", &tell),
        call(
            "/turnkv.v1.Cluster/CountPages",
            &wire::CountPagesRequest { namespace: namespace.clone(), hashes },
        ),
        call(
            "/turnkv.v1.Cluster/NameSession",
            &wire::NameSessionRequest { namespace: namespace.clone(), session, turn_begins: true },
        ),
        call(
            "/turnkv.v1.Cluster/LookAtEngines",
            &wire::LookAtEnginesRequest {
                namespace: namespace.clone(),
                session: "kept".to_owned(),
                hashes: last.clone(),
                engines: vec!["one".to_owned(), "two".to_owned()],
            },
        ),
        call("/turnkv.v1.Cluster/NamePrefix", &wire::NamePrefixRequest { namespace, last }),
    ]
}

/// What clients and operators ask a member.
fn of_members(namespace: &bytes::Bytes) -> Vec<Call> {
    let find = wire::FindRequest {
        namespace: namespace.clone(),
        session: "chat".to_owned(),
        turns_known: 1,
        ..Default::default()
    };
    vec![
        call("/turnkv.v1.Cluster/Find", &find),
        call("/turnkv.v1.Cluster/WatchMembers", &wire::WatchMembersRequest {}),
        call("/turnkv.v1.Cluster/Standing", &wire::StandingRequest {}),
        call("/turnkv.v1.Cluster/MoveAway", &wire::MoveAwayRequest { only_look: true, bytes_per_s: 1 << 20 }),
        call("/turnkv.v1.Cluster/Forget", &wire::ForgetRequest { name: "pool-9".to_owned() }),
    ]
}
