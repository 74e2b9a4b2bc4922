//! Nobody reads what is not theirs: every verb of the protocol, as the .proto files have it, is asked by an engine of one tenant
//! about what is another's, by gRPC and by frames. A verb that is new is asked the day it appears.

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use turnkv_client::{BlockHash, DataPlane, EndTurn, NamespaceSpec, OffloadOptions};
use turnkv_proto::{ErrorKind, pack_hashes, wire};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::raw::Raw;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_transfer::fabric::framed::FramedStream;
use turnkv_transfer::{FLAG_FAILURE, LocalSocket};
use wire::{Method, Verb};

const PAGE: u64 = 64 << 10;
const PAGES: usize = 4;

/// What members of a cluster ask one another.
const OF_MEMBERS: [Method; 7] = [
    Method::ClusterTell,
    Method::ClusterCountPages,
    Method::ClusterNameSession,
    Method::ClusterNamePrefix,
    Method::ClusterLookAtEngines,
    Method::ClusterTakeSession,
    Method::ClusterHoldPrefix,
];

/// A server that grants whoever comes by its Unix sockets these words; over the plain loopback everybody is an operator.
fn server_that_grants(words: &str) -> Result<(Server, String, std::net::SocketAddr)> {
    let (server, tcp, metrics) = server_with(words, "\"operator\"")?;
    Ok((server, format!("http://{tcp}"), metrics))
}

/// A server that grants these words to whoever comes by its Unix sockets, and those to whoever comes over the plain loopback.
fn server_with(unix: &str, plain: &str) -> Result<(Server, SocketAddr, SocketAddr)> {
    let (tcp, metrics) = (free_address()?, free_address()?);
    let user = rustix::process::getuid().as_raw();
    let setup = Setup {
        tcp: Some(tcp.to_string()),
        metrics: Some(metrics.to_string()),
        sections: format!("[access]\nplain = {plain}\n[access.users]\n{user} = {unix}\n"),
        nvme_mib: 0,
        ..Setup::default()
    };
    Ok((Server::start(setup)?, tcp, metrics))
}

fn spec_of(tenant: &str) -> NamespaceSpec {
    NamespaceSpec { tenant: tenant.to_owned(), ..namespace("shared-model", PAGE) }
}

/// A tenant's pages and its session, put there by an operator.
struct Tenant {
    spec: NamespaceSpec,
    id: Bytes,
    user: User,
    hashes: Vec<BlockHash>,
}

impl Tenant {
    async fn settle(address: &str, tenant: &str) -> Result<Tenant> {
        let mut user = User::connect(address, DataPlane::Inline, PAGE).await?;
        let spec = spec_of(tenant);
        user.namespace = user.client.open_namespace(spec.clone()).await?;
        let hashes = chain(7, PAGES);
        user.namespace.begin_turn("s").await?;
        let options = OffloadOptions { session: Some("s".to_owned()), ..OffloadOptions::default() };
        user.offload(&options, &hashes).await?;
        user.namespace.end_turn("s", &EndTurn { hashes: hashes.clone(), ..EndTurn::default() }).await?;
        let id = Bytes::copy_from_slice(&spec.clone().check()?.id().0);
        Ok(Tenant { spec, id, user, hashes })
    }

    /// What must be as it was, whatever others asked.
    async fn is_whole(&self) -> Result<()> {
        let report = self.user.reload(&self.hashes).await?;
        ensure!(report.pages == PAGES, "{} pages are left", report.pages);
        let detail = self.user.namespace.describe_session("s").await?;
        ensure!(detail.info.turn == 1 && !detail.info.in_turn, "{:?}", detail.info);
        ensure!(detail.protected_pages == 0, "{} pages are pinned", detail.protected_pages);
        Ok(())
    }
}

/// The protocol's own description.
struct Protocol {
    messages: BTreeMap<String, DescriptorProto>,
    /// The request's type of each method, by its path.
    requests: BTreeMap<String, String>,
}

/// What fills a request.
struct Filling<'a> {
    namespace: &'a [u8],
    spec: &'a NamespaceSpec,
    hash: &'a BlockHash,
    client: u64,
}

impl Protocol {
    fn read() -> Result<Protocol> {
        let set = FileDescriptorSet::decode(turnkv_proto::DESCRIPTORS)?;
        let (mut messages, mut requests) = (BTreeMap::new(), BTreeMap::new());
        for file in &set.file {
            for message in &file.message_type {
                messages.insert(format!(".{}.{}", file.package(), message.name()), message.clone());
            }
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    requests.insert(path, method.input_type().to_owned());
                }
            }
        }
        ensure!(requests.len() == Method::ALL.len() && messages.len() > 40, "the protocol was not read");
        Ok(Protocol { messages, requests })
    }

    /// Whether a request says whose namespace it is about.
    fn names_a_tenant(&self, message: &str) -> bool {
        let fields = self.messages.get(message).map(|message| message.field.as_slice()).unwrap_or_default();
        fields.iter().any(|field| {
            matches!(field.name(), "namespace" | "spec" | "tenant")
                || (self.is_nested(field) && self.names_a_tenant(field.type_name()))
        })
    }

    /// Whether a request is about slots that its caller maps: it says which client holds them, by which lease, or where they
    /// are.
    fn is_about_slots(&self, message: &str) -> bool {
        let fields = self.messages.get(message).map(|message| message.field.as_slice()).unwrap_or_default();
        fields.iter().any(|field| matches!(field.name(), "client" | "lease" | "slab"))
    }

    fn is_nested(&self, field: &prost_types::FieldDescriptorProto) -> bool {
        field.r#type() == Type::Message && self.messages.contains_key(field.type_name())
    }

    /// A request in which everything that names something does.
    fn fill(&self, message: &str, with: &Filling<'_>) -> Result<Vec<u8>> {
        let descriptor = self.messages.get(message).with_context(|| format!("no message {message}"))?;
        let mut bytes = Vec::new();
        for field in &descriptor.field {
            let number = u64::try_from(field.number())?;
            let value: Vec<u8> = match (field.r#type(), field.name()) {
                (Type::Uint64, "client") => {
                    prost::encoding::encode_varint(number << 3, &mut bytes);
                    prost::encoding::encode_varint(with.client, &mut bytes);
                    continue;
                }
                (Type::Bytes, "namespace") => with.namespace.to_vec(),
                (Type::Bytes, "payload") => continue,
                (Type::Bytes, _) => pack_hashes(std::slice::from_ref(with.hash)),
                (Type::String, "session") => b"s".to_vec(),
                (Type::String, "tenant") => with.spec.tenant.clone().into_bytes(),
                (Type::String, _) => b"other".to_vec(),
                (Type::Message, "spec") => wire::NamespaceSpec::from(with.spec).encode_to_vec(),
                (Type::Message, _) => self.fill(field.type_name(), with)?,
                _ => continue,
            };
            prost::encoding::encode_varint(number << 3 | 2, &mut bytes);
            prost::encoding::encode_varint(value.len() as u64, &mut bytes);
            bytes.extend(value);
        }
        Ok(bytes)
    }
}

/// Calls a method with these bytes: its first answer, or why there is none.
async fn call(channel: &Channel, path: &str, request: Vec<u8>) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = path.parse().map_err(|_| Status::internal("no path"))?;
    let mut request = Request::new(tokio_stream::iter([request]));
    request.set_timeout(Duration::from_secs(10));
    let mut answers = grpc.streaming(request, path, Raw).await?.into_inner();
    match tokio::time::timeout(Duration::from_secs(10), answers.next()).await {
        Ok(Some(Err(status))) => Err(status),
        Ok(_) => Ok(()),
        Err(_) => Err(Status::deadline_exceeded("no answer")),
    }
}

fn kind_of(result: Result<(), Status>) -> Option<ErrorKind> {
    let status = result.err()?;
    let kind = turnkv_proto::Error::from_status(&status).map(|error| error.kind);
    assert_eq!(
        status.code() == Code::PermissionDenied,
        kind == Some(ErrorKind::PermissionDenied),
        "{status:?}"
    );
    kind
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_reaches_nothing_of_another_tenant_by_any_method() -> Result<()> {
    let (server, operator, metrics) = server_that_grants("\"engine/a\"")?;
    let (own, others) = (Tenant::settle(&operator, "a").await?, Tenant::settle(&operator, "b").await?);
    let protocol = Protocol::read()?;
    let channel = Endpoint::from_shared(server.address())?.connect().await?;
    let local = Frames::connect(&server)?;
    let filled = |of: &Tenant| -> Result<BTreeMap<Method, Vec<u8>>> {
        let with = Filling { namespace: &of.id, spec: &of.spec, hash: &of.hashes[0], client: local.client };
        Method::ALL
            .iter()
            .map(|method| Ok((*method, protocol.fill(&protocol.requests[method.path()], &with)?)))
            .collect()
    };
    let (about_others, about_own) = (filled(&others)?, filled(&own)?);
    for method in Method::ALL {
        let path = method.path();
        let (of_others, of_own) = (about_others[method].clone(), about_own[method].clone());
        let refused = kind_of(call(&channel, path, of_others).await);
        let of_engines = match method {
            Method::AdminReportPrefill => true,
            Method::SnapshotsExport | Method::SnapshotsImport => false,
            Method::ClusterFind | Method::ClusterWatchMembers => true,
            _ => !path.starts_with("/turnkv.v1.Admin/") && !path.starts_with("/turnkv.v1.Cluster/"),
        };
        if !of_engines || protocol.names_a_tenant(&protocol.requests[path]) {
            ensure!(refused == Some(ErrorKind::PermissionDenied), "{path} of another tenant: {refused:?}");
        } else {
            // Who the members are is for everybody, and there are none here.
            let is_list = *method == Method::ClusterWatchMembers;
            let wanted = if is_list { ErrorKind::Invalid } else { ErrorKind::LeaseUnknown };
            ensure!(refused == Some(wanted), "{path} names no namespace: {refused:?}");
        }
        let own = kind_of(call(&channel, path, of_own).await);
        ensure!((own == Some(ErrorKind::PermissionDenied)) != of_engines, "{path} of its own: {own:?}");
    }
    others.is_whole().await?;
    let (_, page) = get(metrics, "/metrics")?;
    let refused = value(&page, "turnkv_access_refused_total{door=\"grpc_unix\",reason=\"tenant\"}")?;
    ensure!(refused >= 15.0, "{refused} refusals are counted");
    ensure!(server.log().contains("a call is refused: its caller may not make it"), "{}", server.log());
    Ok(())
}

/// A lease's slots are filled and read by whoever maps them. Off the host nobody does: what was granted there would be committed
/// with bytes that nobody wrote.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_about_slots_does_not_go_over_a_network() -> Result<()> {
    let (server, tcp, _) = server_with("\"operator\"", "\"engine/a\"")?;
    let own = Tenant::settle(&server.address(), "a").await?;
    let (protocol, remote) = (Protocol::read()?, Frames::over_tcp(tcp)?);
    let with = Filling { namespace: &own.id, spec: &own.spec, hash: &chain(8, 1)[0], client: remote.client };
    let network = Endpoint::from_shared(format!("http://{tcp}"))?.connect().await?;
    let mut refused = 0;
    for method in Method::ALL {
        let (path, message) = (method.path(), &protocol.requests[method.path()]);
        let answer = call(&network, path, protocol.fill(message, &with)?).await;
        let is_refused =
            answer.err().is_some_and(|status| status.message().contains("does not go over a network"));
        ensure!(is_refused == protocol.is_about_slots(message), "{path} over a network");
        refused += u32::from(is_refused);
    }
    ensure!(refused >= 5, "{refused} methods are about slots");
    for verb in (1..).map_while(|number| Verb::try_from(number).ok()) {
        let request = request_of(verb);
        // Hello names a client to become one of its connections.
        if verb == Verb::Hello
            || is_for_the_network(verb)
            || is_unanswered(verb)
            || !protocol.is_about_slots(&request)
        {
            continue;
        }
        let answer = remote.ask(verb, &protocol.fill(&request, &with)?)?;
        let error = answer.err().with_context(|| format!("{verb:?} goes over a network"))?;
        ensure!(error.message.contains("does not go over a network"), "{verb:?}: {error}");
    }
    // On its own host a client of another has no slots either, though its number is known.
    let host = Endpoint::from_shared(server.address())?.connect().await?;
    for method in
        Method::ALL.iter().filter(|method| protocol.is_about_slots(&protocol.requests[method.path()]))
    {
        let request = protocol.fill(&protocol.requests[method.path()], &with)?;
        let refused = kind_of(call(&host, method.path(), request).await);
        ensure!(refused == Some(ErrorKind::LeaseUnknown), "{method:?} as another's client: {refused:?}");
    }
    ensure!(own.user.client.stats().await?.leases == 0, "nothing is leased");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_tells_of_the_callers_own_only() -> Result<()> {
    let (server, operator, _) = server_that_grants("[\"engine/a\", \"engine/c\"]")?;
    let (own, _others) = (Tenant::settle(&operator, "a").await?, Tenant::settle(&operator, "b").await?);
    let third = Tenant::settle(&operator, "c").await?;
    let user = User {
        client: turnkv_client::Client::new(turnkv_client::ClientConfig::at(server.address()))?,
        ..own.user
    };
    let listed = user.client.sessions(None, 0).await?;
    let mut namespaces: Vec<[u8; 32]> = listed.sessions.iter().map(|info| info.namespace.0).collect();
    namespaces.sort_unstable();
    let mut wanted: Vec<[u8; 32]> =
        [&own.id, &third.id].map(|id| id.as_ref().try_into().unwrap_or_default()).to_vec();
    wanted.sort_unstable();
    ensure!(namespaces == wanted && listed.total == 2, "{listed:?}");
    ensure!(user.client.sessions(None, 1).await?.sessions.len() == 1);
    let all = third.user.client.sessions(None, 0).await?;
    ensure!(all.total == 3, "an operator sees all: {all:?}");
    Ok(())
}

/// A connection that speaks frames, and says what it likes.
struct Frames {
    socket: LocalSocket,
    client: u64,
}

impl Frames {
    fn connect(server: &Server) -> Result<Frames> {
        let by = Instant::now() + Duration::from_secs(5);
        Frames::on(LocalSocket::connect(&server.local_socket(), by)?)
    }

    fn over_tcp(tcp: SocketAddr) -> Result<Frames> {
        Frames::on(LocalSocket::over_network(FramedStream::plain(TcpStream::connect(tcp)?)?)?)
    }

    fn on(socket: LocalSocket) -> Result<Frames> {
        let mut frames = Frames { socket, client: 0 };
        let hello = wire::HelloRequest { protocol: 1, ..Default::default() }.encode_to_vec();
        let answer = frames.ask(Verb::Hello, &hello)?.map_err(anyhow::Error::from)?;
        frames.client = wire::HelloReply::decode(answer.as_slice())?.client;
        Ok(frames)
    }

    fn ask(&self, verb: Verb, body: &[u8]) -> Result<Result<Vec<u8>, turnkv_proto::Error>> {
        let by = Instant::now() + Duration::from_secs(10);
        self.socket.send_by(verb as u8, 0, body, &[], by)?;
        let frame = self.socket.recv(Some(by))?;
        if frame.flags & FLAG_FAILURE == 0 {
            return Ok(Ok(frame.body.to_vec()));
        }
        Ok(Err(turnkv_proto::Error::from_failure(&wire::Failure::decode(&frame.body[..])?)))
    }
}

/// The request's type of a frame's verb: its name and `Request`, as local.proto and pool.proto have it.
fn request_of(verb: Verb) -> String {
    let words = verb.as_str_name().trim_start_matches("VERB_").split('_');
    let camel = words.map(|word| word[..1].to_owned() + &word[1..].to_ascii_lowercase());
    format!(".turnkv.v1.{}Request", camel.collect::<String>())
}

/// Whether nobody waits for a verb's answer.
fn is_unanswered(verb: Verb) -> bool {
    matches!(verb, Verb::AbortOffload | Verb::EndReload | Verb::Release | Verb::Settled)
}

/// Whether a door of frames is one of a verb: the other one says that it is not spoken there.
fn is_for_the_network(verb: Verb) -> bool {
    matches!(verb, Verb::OpenRail | Verb::RemoteOffload | Verb::RemoteReload)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_reaches_nothing_of_another_tenant_by_any_frame() -> Result<()> {
    let (local, operator, metrics) = server_that_grants("\"engine/a\"")?;
    let by_local = || Frames::connect(&local);
    let asked =
        asks_of_another("local", &operator, metrics, &by_local, &|verb| !is_for_the_network(verb)).await?;
    ensure!(asked >= 6, "{asked} verbs were asked");
    let (remote, tcp, metrics) = server_with("\"operator\"", "\"engine/a\"")?;
    let (operator, by_tcp) = (remote.address(), || Frames::over_tcp(tcp));
    let spoken = |verb| verb == Verb::Lookup || is_for_the_network(verb);
    let asked = asks_of_another("framed", &operator, metrics, &by_tcp, &spoken).await?;
    ensure!(asked >= 3, "{asked} verbs were asked");
    Ok(())
}

/// Asks every verb of a door about another tenant's and about its own; how many there are that name a tenant.
async fn asks_of_another(
    door: &str,
    operator: &str,
    metrics: SocketAddr,
    connect: &dyn Fn() -> Result<Frames>,
    is_of_door: &dyn Fn(Verb) -> bool,
) -> Result<u32> {
    let (own, others) = (Tenant::settle(operator, "a").await?, Tenant::settle(operator, "b").await?);
    let protocol = Protocol::read()?;
    let mut asked = 0;
    for verb in (1..).map_while(|number| Verb::try_from(number).ok()).filter(|verb| is_of_door(*verb)) {
        let request = request_of(verb);
        if !protocol.names_a_tenant(&request) {
            // It is about a lease or the connection; those of others are tried by name in `held`, `bad_input` and `framed_shares`.
            ensure!(protocol.messages.contains_key(&request), "no message {request}");
            continue;
        }
        for (tenant, may) in [(&others, false), (&own, true)] {
            let frames = connect()?;
            let with = Filling {
                namespace: &tenant.id,
                spec: &tenant.spec,
                hash: &tenant.hashes[0],
                client: frames.client,
            };
            let refused = frames.ask(verb, &protocol.fill(&request, &with)?)?.err().map(|error| error.kind);
            ensure!(
                (refused == Some(ErrorKind::PermissionDenied)) != may,
                "{door}: {verb:?}, its own: {may}: {refused:?}"
            );
        }
        asked += 1;
    }
    others.is_whole().await?;
    let (_, page) = get(metrics, "/metrics")?;
    let series = format!("turnkv_access_refused_total{{door=\"{door}\",reason=\"tenant\"}}");
    let refused = value(&page, &series)?;
    ensure!(refused >= f64::from(asked), "{refused} refusals are counted");
    Ok(asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_granted_nothing_of_ours_may_ask_for_health_and_no_more() -> Result<()> {
    for words in ["[]", "\"member\""] {
        let (server, operator, _) = server_that_grants(words)?;
        let own = Tenant::settle(&operator, "a").await?;
        let protocol = Protocol::read()?;
        let channel = Endpoint::from_shared(server.address())?.connect().await?;
        for method in Method::ALL {
            let with = Filling { namespace: &own.id, spec: &own.spec, hash: &own.hashes[0], client: 1 };
            let request = protocol.fill(&protocol.requests[method.path()], &with)?;
            let refused = kind_of(call(&channel, method.path(), request).await);
            let may = OF_MEMBERS.contains(method) && words == "\"member\"";
            ensure!((refused == Some(ErrorKind::PermissionDenied)) != may, "{}: {refused:?}", method.path());
        }
        HealthClient::new(channel.clone()).check(HealthCheckRequest::default()).await?;
        match Frames::connect(&server) {
            Err(error) => {
                let error = error.downcast::<turnkv_proto::Error>()?;
                ensure!(
                    error.kind == ErrorKind::PermissionDenied && error.message.contains("engine/<tenant>"),
                    "{error}"
                );
            }
            Ok(_) => bail!("{words}: Hello was answered"),
        }
        own.is_whole().await?;
    }
    Ok(())
}
