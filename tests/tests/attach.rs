//! Slabs that are asked for and never taken: a descriptor that waits in a socket counts against the server's user until somebody
//! reads it, also after the server hung up. How many wait is bounded, for one connection, one process, and all; what is not
//! sent is refused for now, and others attach meanwhile.

use anyhow::{Context, Result, ensure};
use prost::Message;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use turnkv_client::{DataPlane, OffloadOptions};
use turnkv_proto::{Error, ErrorKind, wire};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::local::Local;
use turnkv_tests::pages::chain;
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::user::User;
use turnkv_transfer::FLAG_FAILURE;
use wire::Verb;

const PAGE: u64 = 64 << 10;
/// What one process may leave unread.
const PROCESS_MAX: usize = 8;
/// Connections that ask for a slab and leave, and requests of one that stays.
const MANY: usize = 60;
/// Busy machines get much of it.
const SOON: Duration = Duration::from_secs(20);

/// A server, a client that speaks by hand, and a slab that it may attach.
async fn rig() -> Result<(Server, SocketAddr, Local, wire::AttachSlabRequest)> {
    let http = free_address()?;
    let server = Server::start(Setup { nvme_mib: 0, metrics: Some(http.to_string()), ..Setup::default() })?;
    let local = Local::connect(&server, PAGE).await?;
    let reserved: wire::ReserveReply = local.ask(Verb::Reserve, &local.reserve(1, 0))?;
    let slot = reserved.slots.first().context("no slot")?;
    let (namespace, slab, generation) = (local.ns.clone(), slot.slab, slot.generation);
    Ok((server, http, local, wire::AttachSlabRequest { namespace, slab, generation }))
}

/// How many of these answers came with a slab; all others must be refusals for now.
fn slabs(local: &Local, answers: usize) -> Result<usize> {
    let mut slabs = 0;
    for at in 0..answers {
        let frame = local.next(SOON).with_context(|| format!("answer {at}"))?;
        if frame.flags & FLAG_FAILURE == 0 {
            ensure!(frame.fd.is_some(), "a slab without its memory");
            slabs += 1;
            continue;
        }
        let error = Error::from_failure(&wire::Failure::decode(&frame.body[..])?);
        ensure!(matches!(error.kind, ErrorKind::Busy { retry_after_ms: 1.. }), "{error:?}");
    }
    Ok(slabs)
}

/// Waits until a series has at least this value.
async fn until(http: SocketAddr, series: &str, least: f64) -> Result<()> {
    let began = Instant::now();
    while value(&get(http, "/metrics")?.1, series)? < least {
        ensure!(began.elapsed() < SOON, "{series} stays below {least}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_connection_has_one_unread_slab() -> Result<()> {
    let (_server, http, local, slab) = rig().await?;
    for _ in 0..MANY {
        local.tell(Verb::AttachSlab, &slab)?;
    }
    let answered = "turnkv_rpc_call_seconds_count{door=\"local\",verb=\"attach_slab\"}";
    until(http, answered, MANY as f64).await?;
    let came = slabs(&local, MANY)?;
    ensure!(came == 1, "{came} slabs waited in one socket");
    let taken: wire::AttachSlabReply = local.ask(Verb::AttachSlab, &slab)?;
    ensure!(taken.slab_bytes > 0, "what was read is of no more account");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn slabs_that_lie_in_ended_connections_are_counted() -> Result<()> {
    let (server, http, local, slab) = rig().await?;
    let mut ended = Vec::new();
    for _ in 0..MANY {
        let other = Local::hello(&server.local_socket(), local.ns.clone())?;
        other.tell(Verb::AttachSlab, &slab)?;
        other.end_requests()?;
        ended.push(other);
    }
    // The server hangs up on all of them, although nobody has read what it said.
    let open = "turnkv_door_open_connections{door=\"local\"}";
    let began = Instant::now();
    while value(&get(http, "/metrics")?.1, open)? > 1.0 {
        ensure!(began.elapsed() < SOON, "connections that ended stay open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    local.refused(
        Verb::AttachSlab,
        &slab,
        ErrorKind::Busy { retry_after_ms: 20 },
        "one more of this process",
    )?;
    let mut came = 0;
    for other in &ended {
        came += slabs(other, 1)?;
        ensure!(other.next(SOON).is_err(), "the server did not hang up");
    }
    ensure!(came <= PROCESS_MAX, "{came} slabs waited in ended connections");
    let _: wire::AttachSlabReply = local.ask(Verb::AttachSlab, &slab)?;
    until(http, "turnkv_attach_refused_total{share=\"process\"}", (MANY - PROCESS_MAX) as f64).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_waits_for_its_turn_to_attach() -> Result<()> {
    let (server, http, local, slab) = rig().await?;
    let mut full = Vec::new();
    for _ in 0..PROCESS_MAX {
        let other = Local::hello(&server.local_socket(), local.ns.clone())?;
        other.tell(Verb::AttachSlab, &slab)?;
        full.push(other);
    }
    until(http, "turnkv_attach_unread_slabs", PROCESS_MAX as f64).await?;
    local.refused(
        Verb::AttachSlab,
        &slab,
        ErrorKind::Busy { retry_after_ms: 20 },
        "one more of this process",
    )?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let reads = tokio::task::spawn_blocking(move || {
        std::thread::sleep(Duration::from_millis(300));
        full.iter().map(|other| slabs(other, 1)).sum::<Result<usize>>()
    });
    let report = user.offload(&OffloadOptions::default(), &chain(1, 4)).await?;
    ensure!(report.stored == 4, "{report:?}");
    ensure!(reads.await?? == PROCESS_MAX);
    Ok(())
}
