//! What all connections share, and one peer that takes all it can get of it: another peer is served.

use anyhow::{Result, ensure};
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_tests::flood::Target;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::http2::{DATA, Http2, frame};
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;

const PAGE: u64 = 64 << 10;
/// Streams at a time on all connections, and what one peer may have.
const STREAMS: usize = 256;
const OWN: f64 = 192.0;
/// Connections, and requests on each, that together leave more unfinished than all may: 60 KiB of each request, which is what every
/// window lets through.
const GREEDY: (usize, usize) = (34, 130);
/// What they announce.
const MESSAGE_BYTES: u32 = 2 << 20;
const MIB: f64 = (1 << 20) as f64;
/// Busy machines get much of it.
const SOON: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread")]
async fn inline_streams() -> Result<()> {
    let (http, tcp) = (free_address()?, free_address()?);
    let (metrics, tcp_door) = (Some(http.to_string()), Some(tcp.to_string()));
    let server = Server::start(Setup { nvme_mib: 0, metrics, tcp: tcp_door, ..Setup::default() })?;
    let other = User::connect(&format!("http://{tcp}"), DataPlane::Inline, PAGE).await?;
    let mut greedy = Http2::connect(&Target::Unix(server.socket()), 1 << 16)?;
    for _ in 0..STREAMS {
        greedy.begin("/turnkv.v1.Pool/Offload")?;
    }
    let open = || value(&get(http, "/metrics")?.1, "turnkv_requests_inline_operations");
    let began = Instant::now();
    while open()? < OWN {
        ensure!(began.elapsed() < SOON, "{} streams are open", open()?);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let report = other.offload(&OffloadOptions::default(), &chain(1, 4)).await?;
    ensure!(report.stored == 4, "another peer is not served: {report:?}");
    ensure!(open()? <= OWN, "one peer has {} streams", open()?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_for_requests() -> Result<()> {
    let (http, tcp) = (free_address()?, free_address()?);
    let (metrics, tcp_door) = (Some(http.to_string()), Some(tcp.to_string()));
    let server = Server::start(Setup { nvme_mib: 0, metrics, tcp: tcp_door, ..Setup::default() })?;
    let other = User::connect(&server.address(), DataPlane::Inline, 4 << 20).await?;
    let (connections, requests) = GREEDY;
    let prefix = [&[0][..], &MESSAGE_BYTES.to_be_bytes()].concat();
    let mut callers = Vec::new();
    for _ in 0..connections {
        let mut caller = Http2::connect(&Target::Tcp(tcp), 1 << 16)?;
        for _ in 0..requests {
            let stream = caller.begin("/turnkv.v1.Pool/Lookup")?;
            let message = [&prefix[..], &[7; 60 << 10]].concat();
            for piece in message.chunks(16 << 10) {
                caller.say(&frame(DATA, 0, stream, piece))?;
            }
        }
        callers.push(caller);
    }
    let unfinished = || value(&get(http, "/metrics")?.1, "turnkv_requests_unfinished_bytes");
    let began = Instant::now();
    while unfinished()? < 185.0 * MIB {
        ensure!(began.elapsed() < SOON, "{} MiB unfinished", unfinished()? / MIB);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let report = other.offload(&OffloadOptions::default(), &chain(1, 4)).await?;
    ensure!(report.stored == 4, "another peer is not served: {report:?}");
    drop(callers);
    Ok(())
}
