//! Calls that wait for slots: they are counted, and one whose caller has hung up is over soon, not when its time is. One that only
//! sends no more gets its answer.

use anyhow::{Context, Result, ensure};
use prost::Message;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_proto::{pack_hashes, wire};
use turnkv_tests::flood::Target;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::http2::{DATA, Http2, frame};
use turnkv_tests::local::Local;
use turnkv_tests::pages::{bytes, chain, namespace};
use turnkv_tests::server::{Server, Setup};
use wire::Verb;

const PAGE: u64 = 64 << 10;
const SLOTS: &str = "turnkv_queue_waiting_operations{queue=\"slots\"}";
const OPEN: &str = "turnkv_door_open_connections{door=\"local\"}";
const WAITERS: usize = 6;
/// How long they would wait.
const WAIT_MS: u32 = 60_000;
/// A part of that, and busy machines get much of it.
const SOON: Duration = Duration::from_secs(20);

/// A server, and a local client of it.
async fn rig() -> Result<(Server, SocketAddr, Local)> {
    let http = free_address()?;
    let limits =
        "client_slots_percent = 100\nuser_slots_percent = 100\nall_slots_percent = 100\nlease_ms = 60000\n";
    let (limits, metrics) = (limits.to_owned(), Some(http.to_string()));
    let server = Server::start(Setup { dram_mib: 16, nvme_mib: 0, limits, metrics, ..Setup::default() })?;
    let local = Local::connect(&server, PAGE).await?;
    Ok((server, http, local))
}

/// An offer that takes all slots.
fn all(local: &Local) -> wire::BeginOffloadRequest {
    wire::BeginOffloadRequest { wait_ms: 0, ..offer(local, 100, 300) }
}

/// All slots are held.
async fn full(http: SocketAddr) -> Result<()> {
    until(http, "turnkv_tier_leased_bytes{tier=\"dram\"}", (16 << 20) as f64).await
}

fn offer(local: &Local, seed: u64, pages: usize) -> wire::BeginOffloadRequest {
    let (namespace, hashes) = (local.ns.clone(), pack_hashes(&chain(seed, pages)).into());
    wire::BeginOffloadRequest {
        namespace,
        hashes,
        client: local.client,
        wait_ms: WAIT_MS,
        ..Default::default()
    }
}

async fn until(http: SocketAddr, series: &str, wanted: f64) -> Result<()> {
    let began = Instant::now();
    loop {
        let found = value(&get(http, "/metrics")?.1, series)?;
        if found == wanted {
            return Ok(());
        }
        ensure!(began.elapsed() < SOON, "{series} is {found}, not {wanted}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_with_its_connection() -> Result<()> {
    let (server, http, local) = rig().await?;
    // Another client's: one that has used up its own share is not made to wait.
    let begin = Some(wire::BeginOffloadRequest { client: 0, ..all(&local) });
    let message = wire::OffloadRequest { begin, ..Default::default() }.encode_to_vec();
    let mut holder = Http2::connect(&Target::Unix(server.socket()), 1 << 20)?;
    let stream = holder.begin("/turnkv.v1.Pool/Offload")?;
    let prefix = [&[0][..], &(message.len() as u32).to_be_bytes()].concat();
    holder.say(&frame(DATA, 0, stream, &[prefix, message].concat()))?;
    full(http).await?;
    let mut waiters = Vec::new();
    for seed in 0..WAITERS {
        let waiter = Local::hello(&server.local_socket(), local.ns.clone())?;
        waiter.tell(Verb::BeginOffload, &offer(&local, seed as u64, 1))?;
        waiters.push(waiter);
    }
    until(http, SLOTS, WAITERS as f64).await?;
    let patient = waiters.pop().context("no waiter")?;
    patient.end_requests()?;
    drop(waiters);
    until(http, SLOTS, 1.0).await?;
    until(http, OPEN, 2.0).await?;
    drop(holder);
    let answer = patient.next(SOON)?;
    ensure!(answer.flags == 0, "one that sends no more is answered");
    until(http, SLOTS, 0.0).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inline_wait_ends_with_its_caller() -> Result<()> {
    let (server, http, local) = rig().await?;
    let _: wire::BeginOffloadReply = local.ask(Verb::BeginOffload, &all(&local))?;
    full(http).await?;
    let config = turnkv_client::ClientConfig {
        data_plane: DataPlane::Inline,
        call_ms: WAIT_MS.into(),
        ..turnkv_client::ClientConfig::at(server.address())
    };
    let client = turnkv_client::Client::new(config)?;
    let pages = client.open_namespace(namespace("held", PAGE)).await?;
    let hashes = chain(9, 1);
    let page = bytes(&hashes[0], PAGE as usize);
    let options = OffloadOptions { wait: Duration::from_millis(WAIT_MS.into()), ..OffloadOptions::default() };
    let call = tokio::spawn(async move {
        pages.offload(&options, &hashes, &[turnkv_client::PageSource::Bytes(&page)]).await
    });
    until(http, SLOTS, 1.0).await?;
    call.abort();
    until(http, SLOTS, 0.0).await
}
