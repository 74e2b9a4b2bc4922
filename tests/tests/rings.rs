//! Rings of local connections in the hands of a peer that writes anything into them, or takes none: it ends alone, others are
//! served, and what it can keep of the server is what any connection may.

use anyhow::{Context, Result, ensure};
use prost::Message;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use turnkv_proto::{pack_hashes, wire};
use turnkv_tests::beside::Beside;
use turnkv_tests::pages::chain;
use turnkv_tests::server::Server;
use turnkv_transfer::frame::FLAG_BELL;
use turnkv_transfer::{FLAG_FAILURE, LocalSocket, Region};
use wire::Verb;

/// The rings' memory: two directions, each of some words that say how far each side is, and 16 KiB of frames.
const RINGS_BYTES: usize = 2 * ((32 * 8) + (16 << 10));
/// Where the direction that the client writes begins, in words.
const OURS: usize = RINGS_BYTES / 2 / 8;
const PAGE: u64 = 64 << 10;
const SOON: Duration = Duration::from_secs(10);

fn by() -> Instant {
    Instant::now() + SOON
}

/// A connection that took its rings, and their memory as its own mapping.
fn connect(server: &Server) -> Result<(LocalSocket, std::sync::Arc<Region>, u64)> {
    let socket = LocalSocket::connect(&server.local_socket(), by())?;
    let hello = wire::HelloRequest { protocol: 1, rings: true, ..Default::default() };
    socket.send_by(Verb::Hello as u8, 0, &hello.encode_to_vec(), &[], by())?;
    let frame = socket.recv(Some(by()))?;
    let reply = wire::HelloReply::decode(frame.body.as_slice())?;
    let fd = frame.fd.context("no rings came")?;
    socket.take_rings(&fd)?;
    Ok((socket, Region::from_fd(fd, RINGS_BYTES)?, reply.client))
}

fn lookup(beside: &Beside, seed: u64) -> Vec<u8> {
    let namespace = bytes::Bytes::copy_from_slice(&beside.user.namespace.id().0);
    let hashes = pack_hashes(&chain(seed, 3)).into();
    wire::LookupRequest { namespace, hashes, ..Default::default() }.encode_to_vec()
}

fn random(state: &AtomicU64) -> u64 {
    let mut word = state.load(Ordering::Relaxed);
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    state.store(word, Ordering::Relaxed);
    word
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_scribbles_ends_alone() -> Result<()> {
    let beside = Beside::start(PAGE).await?;
    let hashes = chain(1, 3); // of the pages that are there
    let state = AtomicU64::new(0x9E37_79B9_7F4A_7C15);
    let (mut answered, mut ended) = (0, 0);
    let malformed = "turnkv_door_ended_total{door=\"local\",cause=\"malformed\"}";
    let until = Instant::now() + 6 * SOON;
    // On a busy machine the server mostly looks too late to see what is wrong: then it goes on until it saw.
    for round in 0.. {
        if round >= 300 && beside.series(malformed)? > 0.0 {
            break;
        }
        ensure!(round < 300 || Instant::now() < until, "none of {round} was found out");
        let (socket, memory, _) = connect(&beside.server)?;
        let ask = lookup(&beside, 1);
        // Half of them begin well.
        if round % 2 == 0 {
            socket.send_by(Verb::Lookup as u8, 0, &ask, &[], by())?;
            ensure!(socket.recv(Some(by()))?.flags & FLAG_FAILURE == 0, "a lookup in a ring was refused");
            answered += 1;
        }
        for _ in 0..1 + random(&state) % 6 {
            let word = random(&state);
            let at = match word % 4 {
                0 => 0,
                1 => (word >> 8) as usize % 40,
                2 => OURS + (word >> 8) as usize % 64,
                _ => (word >> 8) as usize % (RINGS_BYTES / 8),
            };
            let value = if word.is_multiple_of(3) { word % 3_000 } else { random(&state) };
            memory.slot(at * 8, 8).context("a word inside")?.claim()?.fill(&value.to_le_bytes());
        }
        // The server looks before anything that is right is written over it: at once, or on a busy machine somewhat later.
        let mut bell = UnixStream::from(socket.as_fd().try_clone_to_owned()?);
        bell.write_all(&[0, 0, 0, 0, 0, FLAG_BELL, 0, 0])?;
        std::thread::sleep(Duration::from_micros(200 << (round % 7)));
        // Whatever comes of it: an answer, a refusal, an end; never a wait without one.
        let sent =
            socket.send_by(Verb::Lookup as u8, 0, &ask, &[], Instant::now() + Duration::from_millis(20));
        match sent.and_then(|()| socket.recv(Some(Instant::now() + Duration::from_millis(50)))) {
            Ok(_) => answered += 1,
            Err(_) => ended += 1,
        }
        if round % 30 == 0 {
            let report = beside.user.reload(&hashes).await?;
            ensure!(report.pages == hashes.len(), "another client got {report:?}");
        }
    }
    ensure!(answered > 100 && ended > 50, "both happen: {answered} answered, {ended} ended");
    Ok(())
}

/// Answers that nobody takes fill a ring, and then the connection ends as one does whose socket is full.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_takes_end_the_connection() -> Result<()> {
    let beside = Beside::start(PAGE).await?;
    let (socket, _memory, _) = connect(&beside.server)?;
    let ask = lookup(&beside, 1);
    let full = AtomicBool::new(false);
    let began = Instant::now();
    while !full.load(Ordering::Relaxed) {
        ensure!(began.elapsed() < 6 * SOON, "it is still served");
        if socket
            .send_by(Verb::Lookup as u8, 0, &ask, &[], Instant::now() + Duration::from_millis(50))
            .is_err()
        {
            full.store(socket.peer_is_gone()?, Ordering::Relaxed);
        }
    }
    let unread = "turnkv_door_ended_total{door=\"local\",cause=\"unread\"}";
    let counted = beside.series(unread)?;
    ensure!(counted >= 1.0, "ended for another reason");
    Ok(())
}

/// One process that takes none of the rings it asked for: it goes without, and nobody else is refused.
#[tokio::test(flavor = "multi_thread")]
async fn rings_that_nobody_takes_keep_to_a_share() -> Result<()> {
    let beside = Beside::start(PAGE).await?;
    let hello = wire::HelloRequest { protocol: 1, rings: true, ..Default::default() }.encode_to_vec();
    let mut idle = Vec::new();
    for _ in 0..40 {
        let socket = LocalSocket::connect(&beside.server.local_socket(), by())?;
        socket.send_by(Verb::Hello as u8, 0, &hello, &[], by())?;
        idle.push(socket);
    }
    std::thread::sleep(Duration::from_millis(200));
    let replies = idle.iter().map(|socket| socket.recv(Some(by())));
    let with = replies.map(|reply| Ok(reply?.fd.is_some())).collect::<Result<Vec<_>>>()?;
    let with = with.into_iter().filter(|with| *with).count();
    ensure!((1..=8).contains(&with), "{with} of 40 rings were sent before one was taken");
    Ok(())
}
