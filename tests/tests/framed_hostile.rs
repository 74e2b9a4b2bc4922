//! What no client says, on the port where frames are spoken: random bytes, requests with a bit changed, rails that answer what was
//! not asked. The server refuses it, serves others meanwhile, and keeps no memory of it.

use anyhow::{Context, Result, ensure};
use prost::Message;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use turnkv_client::{BlockHash, DataPlane, OffloadOptions, TlsConfig};
use turnkv_mutate::{Random, mutate_bytes};
use turnkv_proto::pack_hashes;
use turnkv_proto::wire::{self, Fabric, Verb};
use turnkv_tests::http::free_address;
use turnkv_tests::pages::{chain, namespace};
use turnkv_tests::secured::Place;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_transfer::fabric::framed::{FramedStream, Join, JoinAnswer, RailSecret};
use turnkv_transfer::tls::{ALPN_FRAMES, Dial};
use turnkv_transfer::{FRAME_CHECK_BYTES, Frame, FrameHeader, LocalSocket, frame_check};

const PAGE: u64 = 64 << 10;
/// The number of a client's framed domain.
const FRAMED: u32 = 0;
const FRAMES: usize = 10_000;
/// Frames of one connection, if the server takes so many.
const FRAMES_A_CONNECTION: usize = 50;
const SOON: Duration = Duration::from_secs(10);
/// Heaps, threads' stacks and queues grow to what a flood needs, and no further.
const GROWTH_MAX: u64 = 48 << 20;

fn frame(verb: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let header = FrameHeader { body_bytes: (body.len() + FRAME_CHECK_BYTES) as u32, verb, flags };
    [&header.encode()[..], body, &frame_check(header, body)].concat()
}

/// A request of each verb that is fine, or nearly.
fn requests(random: &mut Random, client: u64, id: &bytes::Bytes) -> Vec<(Verb, Vec<u8>)> {
    let hashes: bytes::Bytes = pack_hashes(&chain(random.number(), 2)).into();
    let begin = wire::BeginOffloadRequest {
        namespace: id.clone(),
        hashes: hashes.clone(),
        client,
        ..Default::default()
    };
    let reload = wire::BeginReloadRequest { namespace: id.clone(), hashes, client, ..Default::default() };
    let mut key = || wire::RemoteKey { domain: FRAMED, key: random.extreme(), base: random.extreme() };
    let keys = vec![key(), key()];
    let region = wire::RemoteRegion { keys, bytes: random.extreme() };
    let carried = vec![7; random.below(3) * (PAGE as usize / 2)];
    let mut page = |position: u32| wire::RemotePage {
        position,
        checksum: 0,
        spans: vec![wire::RemoteSpan { region: 0, offset: random.extreme() % (1 << 40), bytes: PAGE as u32 }],
        carried: carried.clone().into(),
    };
    let pages = vec![page(0), page(1)];
    let regions = vec![region];
    let offload =
        wire::RemoteOffloadRequest { begin: Some(begin), regions: regions.clone(), pages: pages.clone() };
    let reload = wire::RemoteReloadRequest {
        begin: Some(reload),
        regions,
        pages,
        verify: true,
        carry_bytes_max: u32::MAX,
    };
    let mut offer = || wire::RailOffer {
        fabric: random.below(6) as i32,
        domain: FRAMED,
        address: random.extreme().to_le_bytes().to_vec().into(),
    };
    let offers = vec![offer(), offer()];
    let rail = wire::OpenRailRequest { client, offers, held: vec![random.extreme()], names_framed: true };
    let lookup = wire::LookupRequest { namespace: id.clone(), ..Default::default() };
    vec![
        (Verb::RemoteOffload, offload.encode_to_vec()),
        (Verb::RemoteReload, reload.encode_to_vec()),
        (Verb::OpenRail, rail.encode_to_vec()),
        (Verb::Lookup, lookup.encode_to_vec()),
        (Verb::BeginOffload, Vec::new()),
        (Verb::Renew, Vec::new()),
    ]
}

/// A connection that said Hello, and the number that it was given.
fn hello(tcp: SocketAddr) -> Result<(TcpStream, u64)> {
    let mut stream = TcpStream::connect(tcp)?;
    stream.set_read_timeout(Some(SOON))?;
    stream.set_write_timeout(Some(SOON))?;
    let ask = wire::HelloRequest { protocol: 1, ..Default::default() };
    stream.write_all(&frame(Verb::Hello as u8, 0, &ask.encode_to_vec()))?;
    let mut header = [0; 8];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; FrameHeader::decode(header)?.body_bytes as usize];
    stream.read_exact(&mut body)?;
    body.truncate(body.len().saturating_sub(FRAME_CHECK_BYTES));
    Ok((stream, wire::HelloReply::decode(&body[..])?.client))
}

/// A server with a user, whose pages are served on whatever others say.
struct Served {
    server: Server,
    tcp: SocketAddr,
    user: User,
    hashes: Vec<BlockHash>,
    /// The user's namespace.
    id: bytes::Bytes,
}

impl Served {
    async fn start() -> Result<Served> {
        let tcp = free_address()?;
        let server = Server::start(Setup { nvme_mib: 0, tcp: Some(tcp.to_string()), ..Setup::default() })?;
        let user = User::connect(&format!("tcp://{tcp}"), DataPlane::Framed, PAGE).await?;
        let hashes = chain(1, 8);
        ensure!(user.offload(&OffloadOptions::default(), &hashes).await?.stored == 8);
        let id = bytes::Bytes::copy_from_slice(&namespace("test-model", PAGE).check()?.id().0);
        Ok(Served { server, tcp, user, hashes, id })
    }
}

/// Reads what has come, without waiting long.
fn drain(stream: &mut TcpStream) -> Result<()> {
    stream.set_nonblocking(true)?;
    let mut some = [0; 16 << 10];
    while matches!(stream.read(&mut some), Ok(1..)) {}
    stream.set_nonblocking(false)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_frames_that_no_client_sends() -> Result<()> {
    let Served { server, tcp, user, hashes, id } = Served::start().await?;
    flood(tcp, &id, 0..FRAMES / 10)?;
    let before = server.rss_anon_bytes()?;
    flood(tcp, &id, FRAMES / 10..FRAMES)?;
    let grown = server.rss_anon_bytes()?.saturating_sub(before);
    ensure!(grown < GROWTH_MAX, "{} MiB more after the flood", grown >> 20);
    ensure!(user.reload(&hashes).await?.pages == 8, "others are served");
    Ok(())
}

fn flood(tcp: SocketAddr, id: &bytes::Bytes, frames: std::ops::Range<usize>) -> Result<()> {
    let mut random = Random::new(frames.start as u64);
    let mut sent = frames.start;
    while sent < frames.end {
        let said_hello = !random.one_in(4);
        let (mut stream, client) =
            if said_hello { hello(tcp)? } else { (TcpStream::connect(tcp)?, random.number()) };
        stream.set_write_timeout(Some(SOON))?;
        for _ in 0..FRAMES_A_CONNECTION {
            sent += 1;
            let requests = requests(&mut random, client, id);
            let (verb, body) = random.pick(&requests).context("a request")?.clone();
            let bytes = match random.below(8) {
                0 => (0..1 + random.below(64)).map(|_| random.number() as u8).collect(),
                1 => mutate_bytes(&mut random, &frame(verb as u8, 0, &body)),
                2..=4 => frame(verb as u8, 0, &mutate_bytes(&mut random, &body)),
                5 => frame(random.number() as u8, random.number() as u8, &body),
                6 => frame(verb as u8, 0, &body[..random.below(body.len())]),
                _ => frame(verb as u8, 0, &body),
            };
            // One that the server has ended is followed by another.
            if stream.write_all(&bytes).is_err() || drain(&mut stream).is_err() {
                break;
            }
        }
    }
    Ok(())
}

/// A rail joined as it should be, whose client then says what was not asked, or answers wrongly.
#[tokio::test(flavor = "multi_thread")]
async fn rails_that_say_what_was_not_asked() -> Result<()> {
    let Served { server, tcp, user, hashes, id } = Served::start().await?;
    let unknown = Join { version: 1, secret: RailSecret::new([7; 16]) }.encode();
    let mut stranger = TcpStream::connect(tcp)?;
    stranger.write_all(&unknown)?;
    let mut answer = [0; 32];
    stranger.set_read_timeout(Some(SOON))?;
    stranger.read_exact(&mut answer)?;
    ensure!(JoinAnswer::decode(&answer)? == JoinAnswer::Unknown, "a secret that nobody was told");
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (stream, client) = hello(tcp)?;
        let control = LocalSocket::over_network(FramedStream::plain(stream)?)?;
        let offer = wire::RailOffer { fabric: Fabric::Framed.into(), domain: FRAMED, ..Default::default() };
        let ask = wire::OpenRailRequest { client, offers: vec![offer], ..Default::default() };
        control.send(Verb::OpenRail as u8, 0, &ask.encode_to_vec(), &[])?;
        let offered = control.recv(Some(Instant::now() + SOON))?;
        let secret = wire::OpenRailReply::decode(&offered.body[..])?.secret[..].try_into()?;
        let mut rail = TcpStream::connect(tcp)?;
        rail.set_read_timeout(Some(SOON))?;
        rail.write_all(&Join { version: 1, secret: RailSecret::new(secret) }.encode())?;
        rail.read_exact(&mut answer)?;
        ensure!(JoinAnswer::decode(&answer)? == JoinAnswer::Joined);
        let (verb, body) = requests(&mut random, client, &id).swap_remove(0);
        control.send(verb as u8, 0, &body, &[])?;
        let nonsense: Vec<u8> = (0..random.below(4096)).map(|_| random.number() as u8).collect();
        // It may have been ended already.
        drop(rail.write_all(&nonsense));
        if random.one_in(2) {
            drop(rail.shutdown(std::net::Shutdown::Both));
        }
        drop(rail);
        // Refused, dropped or declined: the call ends, and the connection goes on.
        control.recv(Some(Instant::now() + 2 * SOON))?;
    }
    ensure!(user.reload(&hashes).await?.pages == 8, "others are served");
    let stats = user.client.stats().await?;
    ensure!(stats.leases == 0, "{stats:?}\n{}", server.log());
    Ok(())
}

/// A connection under TLS on which frames are spoken.
async fn secured(place: &Place, tls: TlsConfig) -> Result<FramedStream> {
    let dial = Dial::new("127.0.0.1", place.tcp.port(), tls);
    let (stream, tls) = dial.connect(&[ALPN_FRAMES]).await?.into_parts();
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(FramedStream::tls(stream, tls)?)
}

fn asked(control: &LocalSocket, verb: Verb, ask: &impl Message) -> Result<Frame> {
    control.send(verb as u8, 0, &ask.encode_to_vec(), &[])?;
    Ok(control.recv(Some(Instant::now() + SOON))?)
}

/// Who knows a secret of another's has not proven to be that other: pages would travel to both.
#[tokio::test(flavor = "multi_thread")]
async fn a_rail_is_joined_by_its_clients_own_caller_only() -> Result<()> {
    let place = Place::start()?;
    let (acme, beta) =
        (place.certs.client(&["turnkv://engine/acme"])?, place.certs.client(&["turnkv://engine/beta"])?);
    let control = LocalSocket::over_network(secured(&place, acme.clone()).await?)?;
    let hello = asked(&control, Verb::Hello, &wire::HelloRequest { protocol: 1, ..Default::default() })?;
    let client = wire::HelloReply::decode(&hello.body[..])?.client;
    let refused = || place.series("turnkv_access_refused_total{door=\"framed\",reason=\"client\"}");
    for (tls, wanted) in [(beta, JoinAnswer::Unknown), (acme, JoinAnswer::Joined)] {
        let offer = wire::RailOffer { fabric: Fabric::Framed.into(), domain: FRAMED, ..Default::default() };
        let ask = wire::OpenRailRequest { client, offers: vec![offer], ..Default::default() };
        let offered = asked(&control, Verb::OpenRail, &ask)?;
        let secret = wire::OpenRailReply::decode(&offered.body[..])?.secret[..].try_into()?;
        let mut rail = secured(&place, tls).await?;
        rail.write_all_by(
            &Join { version: 1, secret: RailSecret::new(secret) }.encode(),
            Instant::now() + SOON,
        )?;
        let mut answer = [0; 32];
        rail.read_exact_by(&mut answer, Instant::now() + SOON)?;
        ensure!(JoinAnswer::decode(&answer)? == wanted, "not {wanted:?}");
        ensure!(refused()? == 1.0, "a stranger is counted, and its own caller not");
    }
    Ok(())
}
