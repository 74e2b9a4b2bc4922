//! gRPC answers that nobody takes, and frames that stop half way: their memory has a bound, others are served meanwhile, and after
//! the deadline it is given back to the system. The caller here speaks HTTP/2 by hand: libraries open their windows.

use anyhow::{Result, ensure};
use prost::Message;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use turnkv_client::OffloadOptions;
use turnkv_proto::{pack_hashes, wire};
use turnkv_tests::beside::Beside;
use turnkv_tests::flood::Target;
use turnkv_tests::http2::{DATA, Http2, frame_header};
use turnkv_tests::pages::chain;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 64 << 10;
/// Calls on a connection that is alone.
const STREAMS: usize = 200;
/// What unread answers of one connection may take: their budget of 32 MiB, requests and what is made of them, and the allocator's
/// share.
const ONE_CONNECTION_BYTES_MAX: u64 = 128 * MIB;
/// The same of all: their budget is 256 MiB.
const ALL_BYTES_MAX: u64 = 448 * MIB;
/// What half-sent frames may take: their budget of 64 MiB, and the allocator's share.
const FRAMES_BYTES_MAX: u64 = 128 * MIB;
/// What may stay of it in the end.
const KEPT_BYTES_MAX: u64 = 40 * MIB;
/// What another client's call may take, but for one in a hundred. Busy machines get much of it.
const P99_MAX: Duration = Duration::from_secs(10);
/// What the server says it does within 20 s; busy machines get more.
const DEADLINES: Duration = Duration::from_secs(60);
/// Sessions with long names: to list them takes more than a MiB.
const SESSIONS: usize = 8_000;

const LIST: &str = "/turnkv.v1.Sessions/List";
const RELOAD: &str = "/turnkv.v1.Pool/Reload";

/// Makes sessions to be listed.
async fn begin_sessions(beside: &Beside) -> Result<()> {
    let mut tasks = JoinSet::new();
    for at in 0..SESSIONS {
        let namespace = beside.user.namespace.clone();
        tasks.spawn(async move { namespace.begin_turn(&format!("{at:0120}")).await.map(drop) });
        if tasks.len() >= 64
            && let Some(done) = tasks.join_next().await
        {
            done??;
        }
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

fn reload_of(beside: &Beside, seed: u64, pages: usize) -> Vec<u8> {
    let namespace = bytes::Bytes::copy_from_slice(&beside.user.namespace.id().0);
    let hashes = pack_hashes(&chain(seed, pages)).into();
    wire::ReloadRequest { namespace, hashes, ..Default::default() }.encode_to_vec()
}

/// Asks the same over and over, on so many connections and streams, and takes nothing of the answers.
fn ask(
    target: &Target,
    (connections, streams): (usize, usize),
    window_bytes: u32,
    path: &str,
    message: &[u8],
) -> Result<Vec<Http2>> {
    let mut callers = Vec::new();
    for _ in 0..connections {
        let mut caller = Http2::connect(target, window_bytes)?;
        for _ in 0..streams {
            caller.call(path, message)?;
        }
        callers.push(caller);
    }
    Ok(callers)
}

/// What the module's text says of answers.
async fn unread(beside: &Beside, name: &str, callers: Vec<Http2>, most_bytes: u64) -> Result<()> {
    let connections = callers.len();
    let (began, mut looked, mut most_unread) = (Instant::now(), Instant::now(), 0.0f64);
    let mut seen = beside
        .watch(DEADLINES, || {
            if looked.elapsed() < Duration::from_millis(300) {
                return Ok(false);
            }
            looked = Instant::now();
            let unread = beside.series("turnkv_answers_unread_bytes")?;
            most_unread = most_unread.max(unread);
            // Nobody hangs up but the server.
            Ok(most_unread > 0.0 && unread == 0.0)
        })
        .await?;
    let (most, p99) = (seen.most_bytes, seen.p99());
    println!(
        "{name}, {connections} connections: {} MiB taken for {:.0} MiB unread, cut off after {:.1?}, another's p99 {p99:.1?}, {} refused",
        most / MIB,
        most_unread / MIB as f64,
        began.elapsed(),
        beside.series("turnkv_answers_refused_total")?
    );
    ensure!(most <= most_bytes, "{} MiB by answers that nobody reads", most / MIB);
    ensure!(p99 <= P99_MAX, "another client's p99 is {p99:?}");
    let kept = beside.given_back(KEPT_BYTES_MAX, DEADLINES).await?;
    println!("{name}: {} MiB kept", kept / MIB);
    drop(callers);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_one_connection() -> Result<()> {
    let beside = Beside::start(PAGE).await?;
    begin_sessions(&beside).await?;
    let lists = wire::ListRequest::default().encode_to_vec();
    // No window; one of a byte, for which the first frame is begun; one for all, and nobody reads the socket.
    for (name, window_bytes) in
        [("lists", 0), ("lists, a byte each", 1), ("lists, an open window", i32::MAX as u32)]
    {
        let callers = ask(&Target::Unix(beside.server.socket()), (1, STREAMS), window_bytes, LIST, &lists)?;
        unread(&beside, name, callers, ONE_CONNECTION_BYTES_MAX).await?;
    }
    ensure!(beside.series("turnkv_answers_refused_total")? >= 100.0);
    ensure!(beside.series("turnkv_door_ended_total{door=\"grpc_unix\",cause=\"unread\"}")? >= 3.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_many_connections() -> Result<()> {
    let beside = Beside::start(PAGE).await?;
    begin_sessions(&beside).await?;
    let lists = wire::ListRequest::default().encode_to_vec();
    let callers = ask(&Target::Unix(beside.server.socket()), (10, 18), 1, LIST, &lists)?;
    unread(&beside, "lists", callers, ALL_BYTES_MAX).await
}

/// They come over TCP: a process of this host would share its slots with the user beside it.
#[tokio::test(flavor = "multi_thread")]
async fn inline_reloads() -> Result<()> {
    let beside = Beside::start(256 << 10).await?;
    beside.user.offload(&OffloadOptions::default(), &chain(2, 1)).await?;
    let pages = reload_of(&beside, 2, 1);
    for (name, window_bytes) in [("reloads", 0), ("reloads, a page each", 1 << 20)] {
        let callers = ask(&Target::Tcp(beside.tcp), (1, STREAMS), window_bytes, RELOAD, &pages)?;
        unread(&beside, name, callers, ONE_CONNECTION_BYTES_MAX).await?;
    }
    Ok(())
}

/// Frames of a MiB, less a byte, on many connections. They need a place in memory before they come, small ones do not.
#[tokio::test(flavor = "multi_thread")]
async fn frames_that_stop_half_way() -> Result<()> {
    const CONNECTIONS: usize = 300;
    let beside = Beside::start(PAGE).await?;
    let target = Target::Unix(beside.server.socket());
    let mut senders = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let target = target.clone();
        senders.spawn_blocking(move || -> Result<bool> {
            let mut caller = Http2::connect(&target, 0)?;
            let stream = caller.begin("/turnkv.v1.Pool/Lookup")?;
            caller.say(&frame_header(DATA, 0, stream, 1 << 20))?;
            // What finds no room waits in the socket until the server hangs up.
            caller.say(&vec![0; (1 << 20) - 1]).unwrap_or_default();
            Ok(caller.listen(DEADLINES)?.0)
        });
    }
    let mut ended = 0;
    let mut seen = beside
        .watch(DEADLINES, || {
            while let Some(done) = senders.try_join_next() {
                ensure!(done??, "the server hangs up");
                ended += 1;
            }
            Ok(ended == CONNECTIONS)
        })
        .await?;
    let (most, p99) = (seen.most_bytes, seen.p99());
    println!("{CONNECTIONS} frames of 1 MiB less a byte: {} MiB taken, another's p99 {p99:.1?}", most / MIB);
    ensure!(most <= FRAMES_BYTES_MAX, "{} MiB by frames that stop half way", most / MIB);
    ensure!(p99 <= P99_MAX, "another client's p99 is {p99:?}");
    let kept = beside.given_back(KEPT_BYTES_MAX, DEADLINES).await?;
    println!("{} MiB kept", kept / MIB);
    Ok(())
}
