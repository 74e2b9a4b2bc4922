//! Connections that the server ends for what their peers did: each is counted with its cause, and the peer is told why where the
//! protocol has words for it.

use anyhow::{Context, Result, ensure};
use prost::Message;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use turnkv_proto::{pack_hashes, wire};
use turnkv_tests::flood::Target;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::http2::{DATA, Http2, RST_STREAM, frame};
use turnkv_tests::local::Local;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_transfer::{FLAG_FAILURE, FrameHeader};
use wire::Verb;

const PAGE: u64 = 64 << 10;
/// What the server says it does within 10 s; busy machines get more.
const DEADLINES: Duration = Duration::from_secs(40);

fn start() -> Result<(Server, SocketAddr)> {
    let http = free_address()?;
    Ok((Server::start(Setup { nvme_mib: 0, metrics: Some(http.to_string()), ..Setup::default() })?, http))
}

/// Waits until a connection was ended so.
fn counted(http: SocketAddr, door: &str, cause: &str) -> Result<()> {
    let series = format!("turnkv_door_ended_total{{door=\"{door}\",cause=\"{cause}\"}}");
    let began = Instant::now();
    while value(&get(http, "/metrics")?.1, &series)? < 1.0 {
        ensure!(began.elapsed() < DEADLINES, "no {series}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Says these bytes on a local socket; what the server says before it hangs up.
fn told(server: &Server, bytes: &[u8]) -> Result<String> {
    Ok(failure(server, bytes)?.message)
}

/// The same, whole.
fn failure(server: &Server, bytes: &[u8]) -> Result<wire::Failure> {
    let mut socket = UnixStream::connect(server.local_socket())?;
    socket.set_read_timeout(Some(DEADLINES))?;
    socket.write_all(bytes)?;
    let mut said = Vec::new();
    socket.read_to_end(&mut said)?;
    let mut rest = &said[..];
    while let Some((header, body)) = rest.split_first_chunk() {
        let header = FrameHeader::decode(*header)?;
        let (body, after) = body.split_at_checked(header.body_bytes as usize).context("half a frame")?;
        if header.verb == Verb::Unspecified as u8 && header.flags & FLAG_FAILURE != 0 {
            ensure!(after.is_empty(), "more after the last word");
            return Ok(wire::Failure::decode(body)?);
        }
        rest = after;
    }
    anyhow::bail!("it hung up without a word: {said:?}")
}

fn hello() -> Result<Vec<u8>> {
    let body = wire::HelloRequest { protocol: 1, ..Default::default() }.encode_to_vec();
    Ok([&FrameHeader::new(Verb::Hello as u8, 0, body.len())?.encode()[..], &body].concat())
}

#[test]
fn a_local_frame_that_stalls() -> Result<()> {
    let (server, http) = start()?;
    let half = FrameHeader::new(Verb::Lookup as u8, 0, 100)?.encode();
    let said = told(&server, &[&hello()?[..], &half].concat())?;
    ensure!(said.contains("did not arrive whole"), "{said}");
    counted(http, "local", "stalled")
}

#[test]
fn what_is_no_local_frame() -> Result<()> {
    let (server, http) = start()?;
    let said = failure(&server, &[&hello()?[..], &[0xff; 64]].concat())?;
    ensure!(said.message.contains("not the protocol") && said.message.contains("connect again"), "{said:?}");
    ensure!(said.kind() == wire::ErrorKind::Unavailable, "no limit is reached: {said:?}");
    counted(http, "local", "malformed")
}

#[tokio::test(flavor = "multi_thread")]
async fn local_answers_that_nobody_takes() -> Result<()> {
    let (server, http) = start()?;
    let local = Local::connect(&server, PAGE).await?;
    let hashes = pack_hashes(&chain(1, 1_024)).into();
    let namespace = local.ns.clone();
    let ask = wire::BeginOffloadRequest { namespace, hashes, client: local.client, ..Default::default() };
    // Until its answers fill the socket.
    while local.tell(Verb::BeginOffload, &ask).is_ok() {}
    counted(http, "local", "unread")
}

#[test]
fn http2_floods_and_what_is_no_http2() -> Result<()> {
    let (server, http) = start()?;
    let target = Target::Unix(server.socket());
    let mut flood = Http2::connect(&target, 1 << 16)?;
    for _ in 0..4_000 {
        let cancelled = flood.begin("/turnkv.v1.Admin/Stats");
        let Ok(stream) = cancelled else { break }; // the server hung up
        if flood.say(&frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())).is_err() {
            break;
        }
    }
    counted(http, "grpc_unix", "flood")?;
    let mut nonsense = Http2::connect(&target, 1 << 16)?;
    nonsense.say(&frame(DATA, 0, 0, b"data of no stream"))?;
    counted(http, "grpc_unix", "malformed")
}
