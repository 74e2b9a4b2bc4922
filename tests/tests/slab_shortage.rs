//! A process without a single free descriptor while slabs change their tenant: they wait for one, and serve again once there is.
//! Its own file, so its own process: the limit is the process's.
#![allow(clippy::expect_used, reason = "a test says what it expected by failing")]

use anyhow::{Result, ensure};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use turnkv::simulation::{Server, Shape, Time};
use turnkv_proto::{BlockHash, NamespaceId, Spec, pack_hashes, wire};
use turnkv_transfer::Region;

const PAGE: u64 = 16 << 10;
const SLAB: u64 = 64 << 10;
const SLABS: u64 = 3;
const CLIENT: u64 = 1;

/// Takes every descriptor that the process may still have, and is the way to give them back.
fn take_all_descriptors() -> Result<Vec<File>> {
    let limit = rustix::process::Rlimit { current: Some(256), maximum: Some(256) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
    Ok(std::iter::from_fn(|| File::open("/dev/null").ok()).collect())
}

fn shape() -> Shape {
    Shape {
        dram_bytes: SLABS * SLAB,
        slab_bytes: SLAB,
        nvme_bytes: 0,
        segment_bytes: SLAB,
        inflight_bytes: 1 << 20,
        codec: 0,
        queue_ops: 16_384,
        admit_reused: false,
        write_bytes_per_day: 0,
        lease_ms: 1_000,
        lease_grace_ms: 100,
        client_slots_percent: 100,
        pages_max: 1 << 12,
        sessions_max: 100,
        namespaces_max: 8,
        leases_max: 64,
        session_ttl_ms: 86_400_000,
        policy: 0,
    }
}

fn hashes(count: u8) -> Vec<BlockHash> {
    (0..count).map(|at| BlockHash([at + 1; 32])).collect()
}

fn open(server: &Server, tenant: &str) -> Result<NamespaceId> {
    let spec = Spec::opaque("m", 16, PAGE).with_tenant(tenant).check()?;
    server.open_namespace(&wire::NamespaceSpec::from(&spec))?;
    Ok(spec.id())
}

/// Offloads pages of a namespace into the slots that have memory; how many were kept. Their slabs stay mapped, as by a client.
async fn offload(
    server: &Server,
    ns: &NamespaceId,
    pages: u8,
    mapped: &mut Vec<Arc<Region>>,
) -> Result<usize> {
    let mut kept = 0;
    for (at, hash) in hashes(pages).iter().enumerate() {
        let ask = wire::BeginOffloadRequest {
            namespace: ns.0.to_vec().into(),
            hashes: pack_hashes(&[*hash]).into(),
            parent: at.checked_sub(1).map_or(Vec::new(), |before| hashes(pages)[before].0.to_vec()).into(),
            client: CLIENT,
            ..Default::default()
        };
        let reply = server.begin_offload(&ask).await?;
        let Some(slot) = reply.slots.first() else { break };
        let Ok(region) = server.attach_slab(&ns.0, slot.slab, slot.generation) else {
            server.abort_offload(&wire::AbortOffloadRequest { lease: reply.lease, client: CLIENT })?;
            break;
        };
        mapped.push(Arc::clone(&region));
        let slot = region.slot(slot.offset as usize, PAGE as usize).expect("a slot of the slab");
        let (_, checksum) = slot.claim()?.fill(&[at as u8; PAGE as usize]);
        let (pages, checksums) = (vec![0], vec![checksum]);
        let ask = wire::CommitOffloadRequest {
            lease: reply.lease,
            client: CLIENT,
            pages,
            checksums,
            durable: false,
        };
        kept += usize::from(server.commit_offload(&ask).await?.dropped.is_empty());
    }
    Ok(kept)
}

#[tokio::test]
async fn slabs_that_change_tenant_without_a_descriptor_serve_once_there_is_one() -> Result<()> {
    let time = Time::new();
    let server = Server::start(&shape(), &time, None, 1)?;
    server.join(CLIENT, Arc::new(AtomicBool::new(true)));
    let mut mapped = Vec::new();
    let all = (SLABS * SLAB / PAGE) as u8;
    let (one, other) = (open(&server, "one")?, open(&server, "other")?);
    ensure!(
        offload(&server, &one, all, &mut mapped).await? == usize::from(all),
        "DRAM is full of one tenant's pages"
    );

    let taken = take_all_descriptors()?;
    for _ in 0..SLABS {
        ensure!(
            offload(&server, &other, all, &mut mapped).await? == 0,
            "no slab has memory for another tenant"
        );
    }
    server.check().map_err(anyhow::Error::msg)?;
    let short = server.stats();
    ensure!(short.tiers[0].capacity_bytes == 0, "slabs without memory are no capacity: {short:?}");
    ensure!(short.tiers[0].note.contains("file descriptors"), "an operator is told: {short:?}");
    for _ in 0..5 {
        time.advance(Duration::from_secs(1));
        server.tick();
    }
    ensure!(server.stats().tiers[0].capacity_bytes == 0, "there is still none");

    drop(taken);
    for _ in 0..2 * SLABS {
        time.advance(Duration::from_secs(1));
        server.tick();
    }
    let well = server.stats();
    ensure!(well.tiers[0].capacity_bytes == SLABS * SLAB, "all slabs serve again: {well:?}");
    ensure!(offload(&server, &other, all, &mut mapped).await? == usize::from(all), "for the other tenant");
    server.check().map_err(anyhow::Error::msg)
}
