//! gRPC requests that never end: their memory has a bound, others are served meanwhile, and after the deadline it is given
//! back to the system.

use anyhow::{Result, ensure};
use bytes::{BufMut, Bytes, BytesMut};
use http_body::Frame;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tonic::client::GrpcService;
use tonic::transport::{Channel, Endpoint};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_proto::wire;
use turnkv_tests::flood::Target;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::local::Local;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 64 << 10;
const MIB: u64 = 1 << 20;
/// What unfinished requests of one connection may take: their budget of 32 MiB, a window of 8 MiB, what was refused and is
/// not freed yet, and the allocator's share.
const ONE_CONNECTION_BYTES_MAX: u64 = 192 * MIB;
/// The same of fifty.
const ALL_BYTES_MAX: u64 = 512 * MIB;
/// What unfinished frames of all local connections may take.
const LOCAL_BYTES_MAX: u64 = 320 * MIB;
/// Requests at a time: one peer may have no more inline streams than 192, and the user beside is the same peer.
const REQUESTS: usize = 150;
/// What may stay of it in the end.
const KEPT_BYTES_MAX: u64 = 40 * MIB;
/// What the server says it does within 10 s; busy machines get more.
const DEADLINES: Duration = Duration::from_secs(30);

/// A body that announces a message, sends all of it but its last byte, and waits.
struct Unfinished {
    piece: Bytes,
    left: usize,
}

impl Unfinished {
    fn new(message_bytes: usize) -> Unfinished {
        let mut prefix = BytesMut::from(&[0u8][..]);
        prefix.put_u32(message_bytes as u32);
        Unfinished { piece: prefix.freeze(), left: message_bytes - 1 }
    }
}

impl http_body::Body for Unfinished {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        static PIECE: [u8; 64 << 10] = [7; 64 << 10];
        if self.piece.is_empty() && self.left > 0 {
            let bytes = self.left.min(PIECE.len());
            self.left -= bytes;
            self.piece = Bytes::from_static(&PIECE[..bytes]);
        }
        match std::mem::take(&mut self.piece) {
            piece if piece.is_empty() => Poll::Pending, // for ever
            piece => Poll::Ready(Some(Ok(Frame::data(piece)))),
        }
    }
}

/// How a request ended: the status' code, from headers or trailers.
async fn send(mut channel: Channel, path: &'static str, message_bytes: usize) -> String {
    let body = tonic::body::Body::new(Unfinished::new(message_bytes));
    let mut request = http::Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = http::Uri::from_static(path);
    let grpc = http::HeaderValue::from_static("application/grpc");
    request.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
    if let Err(error) = std::future::poll_fn(|context| channel.poll_ready(context)).await {
        return format!("transport: {error}");
    }
    match channel.call(request).await {
        Ok(response) => {
            let (head, mut body) = response.into_parts();
            let mut headers = head.headers;
            while let Some(Ok(frame)) =
                std::future::poll_fn(|context| http_body::Body::poll_frame(Pin::new(&mut body), context))
                    .await
            {
                if let Ok(trailers) = frame.into_trailers() {
                    headers = trailers;
                }
            }
            let text =
                |name: &str| headers.get(name).map_or("", |text| text.to_str().unwrap_or("")).to_owned();
            format!("{} {}", text("grpc-status"), text("grpc-message"))
        }
        Err(error) => format!("transport: {error}"),
    }
}

struct Rig {
    server: Server,
    http: std::net::SocketAddr,
    user: User,
    start_bytes: u64,
}

impl Rig {
    async fn start() -> Result<Rig> {
        let http = free_address()?;
        let server = Server::start(Setup { metrics: Some(http.to_string()), ..Setup::default() })?;
        let user = User::connect(&server.address(), DataPlane::Inline, PAGE).await?;
        user.offload(&OffloadOptions::default(), &chain(1, 16)).await?;
        user.settle().await?;
        let start_bytes = server.rss_anon_bytes()?;
        Ok(Rig { server, http, user, start_bytes })
    }

    async fn connection(&self) -> Result<Channel> {
        Ok(Endpoint::from_shared(self.server.address())?.connect().await?)
    }

    /// Watches until every request has ended; the most memory above the start.
    async fn watch(&self, requests: &mut JoinSet<String>) -> Result<(u64, Vec<String>)> {
        let (began, mut most, mut ended) = (Instant::now(), 0, Vec::new());
        while !requests.is_empty() {
            ensure!(began.elapsed() < DEADLINES, "{} requests are still held", requests.len());
            while let Some(done) = requests.try_join_next() {
                ended.push(done?);
            }
            most = most.max(self.server.rss_anon_bytes()?.saturating_sub(self.start_bytes));
            let asked = Instant::now();
            ensure!(self.user.reload(&chain(1, 16)).await?.pages == 16, "others are served");
            ensure!(asked.elapsed() < Duration::from_secs(5), "a reload took {:?}", asked.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok((most, ended))
    }

    /// Waits until the memory is back.
    async fn given_back(&self, most: u64) -> Result<u64> {
        let began = Instant::now();
        loop {
            let kept = self.server.rss_anon_bytes()?.saturating_sub(self.start_bytes);
            if kept <= most {
                return Ok(kept);
            }
            ensure!(began.elapsed() < DEADLINES, "{} MiB stay", kept / MIB);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn bounded(
        &self,
        connections: usize,
        path: &'static str,
        bytes: usize,
        most: u64,
    ) -> Result<String> {
        let mut requests = JoinSet::new();
        for _ in 0..connections {
            let channel = self.connection().await?;
            for _ in 0..REQUESTS / connections {
                requests.spawn(send(channel.clone(), path, bytes));
            }
        }
        let (taken, ended) = self.watch(&mut requests).await?;
        let refused = ended.iter().filter(|end| end.starts_with("8 ")).count();
        ensure!(ended.iter().all(|end| !end.starts_with("0 ") && !end.starts_with("13 ")), "{ended:?}");
        ensure!(taken <= most, "{} MiB by {REQUESTS} requests of {bytes} bytes to {path}", taken / MIB);
        let kept = self.given_back(KEPT_BYTES_MAX).await?;
        let told = format!(
            "{REQUESTS} x {:.1} MiB to {path} over {connections} connections: {} MiB taken, {refused} refused, {} MiB kept",
            bytes as f64 / MIB as f64,
            taken / MIB,
            kept / MIB
        );
        let began = Instant::now();
        while value(&get(self.http, "/metrics")?.1, "turnkv_requests_unfinished_bytes")? > 0.0 {
            ensure!(began.elapsed() < DEADLINES, "not all is given back");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(told)
    }
}

const LOOKUP: &str = "/turnkv.v1.Pool/Lookup";
const OFFLOAD: &str = "/turnkv.v1.Pool/Offload";

#[tokio::test(flavor = "multi_thread")]
async fn many_on_one_connection() -> Result<()> {
    let rig = Rig::start().await?;
    // The last ones are longer than any legal one of their service.
    for (path, bytes) in [(LOOKUP, 2 << 20), (OFFLOAD, 8 << 20), (LOOKUP, 8 << 20)] {
        println!("{}", rig.bounded(1, path, bytes, ONE_CONNECTION_BYTES_MAX).await?);
    }
    let (_, page) = get(rig.http, "/metrics")?;
    ensure!(value(&page, "turnkv_requests_late_total")? >= 1.0);
    ensure!(value(&page, "turnkv_requests_refused_total{cause=\"bytes\"}")? >= 100.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_over_fifty_connections() -> Result<()> {
    let rig = Rig::start().await?;
    for (path, bytes) in [(LOOKUP, 2 << 20), (OFFLOAD, 8 << 20)] {
        println!("{}", rig.bounded(50, path, bytes, ALL_BYTES_MAX).await?);
    }
    Ok(())
}

/// The longest frames of the local door, less a byte: each one of 120 connections of a process.
#[tokio::test(flavor = "multi_thread")]
async fn frames_on_the_local_door() -> Result<()> {
    let rig = Rig::start().await?;
    let target = Target::Unix(rig.server.local_socket());
    let sending = |target: Target| {
        move || -> Result<(bool, Vec<u8>)> {
            let mut knock = target.knock()?;
            knock.say(&[2, 0, 0, 0, 1, 0, 0, 0, 8, 1])?; // Hello
            let mut frame = vec![0, 0, 0x40, 0, 4, 0, 0, 0]; // BeginOffload of 4 MiB
            frame.resize(frame.len() + (4 << 20) - 1, 7);
            // What finds no room waits in the socket until the server hangs up.
            knock.say(&frame).unwrap_or_default();
            knock.listen(DEADLINES)
        }
    };
    let mut senders = JoinSet::new();
    for _ in 0..120 {
        senders.spawn_blocking(sending(target.clone()));
    }
    let (began, mut most) = (Instant::now(), 0);
    while !senders.is_empty() {
        ensure!(began.elapsed() < 2 * DEADLINES, "{} connections are still held", senders.len());
        while let Some(done) = senders.try_join_next() {
            ensure!(done??.0, "the server hangs up");
        }
        most = most.max(rig.server.rss_anon_bytes()?.saturating_sub(rig.start_bytes));
        ensure!(rig.user.reload(&chain(1, 16)).await?.pages == 16, "others are served");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(most <= LOCAL_BYTES_MAX, "{} MiB by 120 frames of 4 MiB", most / MIB);
    let kept = rig.given_back(KEPT_BYTES_MAX).await?;
    println!("120 x 4 MiB to the local door: {} MiB taken, {} MiB kept", most / MIB, kept / MIB);
    Ok(())
}

/// The longest legal lookups, one on each of 120 connections that stay.
#[tokio::test(flavor = "multi_thread")]
async fn whole_frames_on_the_local_door() -> Result<()> {
    let rig = Rig::start().await?;
    let namespace = bytes::Bytes::copy_from_slice(&rig.user.namespace.id().0);
    let hashes: Bytes = turnkv_proto::pack_hashes(&chain(9, 65_536)).into();
    let mut lookups = JoinSet::new();
    for _ in 0..120 {
        let (socket, namespace, hashes) = (rig.server.local_socket(), namespace.clone(), hashes.clone());
        lookups.spawn_blocking(move || -> Result<Local> {
            let local = Local::hello(&socket, namespace.clone())?;
            let ask = wire::LookupRequest { namespace, hashes, session: String::new(), ..Default::default() };
            let reply: wire::LookupReply = local.ask(wire::Verb::Lookup, &ask)?;
            ensure!(reply.present == 0);
            Ok(local)
        });
    }
    let mut connections = Vec::new();
    while let Some(done) = lookups.join_next().await {
        connections.push(done??);
    }
    let kept = rig.given_back(KEPT_BYTES_MAX).await?;
    println!("120 x 2 MiB of lookups at the local door: {} MiB kept", kept / MIB);
    drop(connections);
    Ok(())
}

/// The longest legal requests go through, many at a time.
#[tokio::test(flavor = "multi_thread")]
async fn whole_requests_of_the_legal_size_are_served() -> Result<()> {
    let rig = Rig::start().await?;
    let longest = chain(3, 65_536);
    for _ in 0..3 {
        let (a, b, c) = tokio::join!(
            rig.user.namespace.lookup(&longest),
            rig.user.namespace.lookup(&longest),
            rig.user.namespace.lookup(&longest)
        );
        ensure!(a? + b? + c? == 0);
    }
    Ok(())
}
