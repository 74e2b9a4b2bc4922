//! A bit that turned on the way in what clients and servers say to one another, where nothing but TCP guards it: the bytes of another
//! shard or of another page check as well as any.

use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use turnkv_client::{
    BlockHash, Client, ClientConfig, Namespace, OffloadOptions, PageSource, PageTarget, ReloadOptions,
};
use turnkv_tests::http::free_address;
use turnkv_tests::pages::{bytes, chain, namespace};
use turnkv_tests::proxy::{Fault, Proxy};
use turnkv_tests::server::{Server, Setup};

const SHARD: usize = 16 << 10;
const SHARDS: u16 = 8;
const PAGES: usize = 2;
/// A client's first calls say no more bits than these, either way.
const SAID_BITS: u64 = 2_400;
/// Of which connection, said to the server or by it, and every how many bits one turns: no divisor of eight, so that each bit of a
/// byte has its turn. The first connection speaks gRPC, the second frames. Few bits of all say which shard is meant.
const TURNS: [(u64, bool, u64); 4] = [(1, true, 3), (1, false, 9), (0, true, 21), (0, false, 21)];
/// Runs at a time: after a turned bit most of them wait.
const AT_ONCE: usize = 8;
const DEADLINE: Duration = Duration::from_millis(300);

/// The true bytes of a shard.
fn truth(hash: &BlockHash, shard: u16) -> Vec<u8> {
    bytes(&BlockHash::chain(Some(hash), &[shard.into()]), SHARD)
}

async fn open(address: String) -> Result<Namespace> {
    let client = Client::new(ClientConfig { call_ms: 1_000, ..ClientConfig::at(address) })?;
    let spec = namespace("sharded", SHARD as u64).with_tp_size(SHARDS.into());
    Ok(client.open_namespace(spec).await?)
}

async fn offload(of: &Namespace, hashes: &[BlockHash], shards: std::ops::Range<u16>) -> Result<()> {
    let truths: Vec<Vec<u8>> =
        hashes.iter().flat_map(|hash| shards.clone().map(|shard| truth(hash, shard))).collect();
    let sources: Vec<PageSource<'_>> = truths.iter().map(|shard| PageSource::Bytes(shard)).collect();
    let count = shards.len() as u16;
    let options = OffloadOptions {
        shard: shards.start,
        shards: count,
        deadline: Some(DEADLINE),
        ..OffloadOptions::default()
    };
    of.offload(&options, hashes, &sources).await?;
    Ok(())
}

/// Reloads one shard of each, and checks what the pool calls good. How many pages came.
async fn reload(of: &Namespace, hashes: &[BlockHash], shard: u16) -> Result<Result<usize>> {
    let mut pages = vec![vec![0; SHARD]; hashes.len()];
    let mut targets: Vec<PageTarget<'_>> = pages.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
    let options = ReloadOptions { shard, shards: 1, deadline: Some(DEADLINE), ..ReloadOptions::default() };
    let report = match of.reload(&options, hashes, &mut targets).await {
        Ok(report) => report,
        Err(error) => return Ok(Err(error.into())),
    };
    for (hash, page) in hashes.iter().zip(&pages).take(report.pages) {
        ensure!(*page == truth(hash, shard), "WRONG BYTES for shard {shard} of page {hash:?}");
    }
    Ok(Ok(report.pages))
}

/// Which bit turns.
#[derive(Clone, Copy, Debug)]
struct Turned {
    connection: u64,
    to_server: bool,
    bit: u64,
}

/// Calls through a network that turns a bit, and what the pool has of them then.
async fn run(tcp: SocketAddr, turned: Turned, there: &[BlockHash], tally: &[AtomicU64; 2]) -> Result<()> {
    let fault = Fault::Flip(turned.bit);
    let faults = if turned.to_server { (fault, Fault::None) } else { (Fault::None, fault) };
    let proxy =
        Proxy::to(
            tcp,
            move |number| {
                if number == turned.connection { faults } else { (Fault::None, Fault::None) }
            },
        )?;
    let own = chain((turned.bit << 8) + (turned.connection << 1) + u64::from(turned.to_server) + 2, PAGES);
    if let Ok(through) = open(format!("tcp://{}", proxy.address())).await {
        let came = reload(&through, there, 2).await?;
        tally[usize::from(!matches!(came, Ok(PAGES)))].fetch_add(1, Ordering::Relaxed);
        // Only the bytes that come back say whether this was taken for what it is.
        drop(offload(&through, &own, 0..1).await);
    } else {
        tally[1].fetch_add(1, Ordering::Relaxed);
    }
    drop(proxy);
    let plain = open(format!("tcp://{tcp}")).await?;
    offload(&plain, &own, 1..SHARDS).await?;
    for shard in 0..2 {
        drop(reload(&plain, &own, shard).await?);
        drop(reload(&plain, there, shard).await?);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bit_that_turned_gives_nobody_other_bytes() -> Result<()> {
    let tcp = free_address()?;
    let server = Server::start(Setup { nvme_mib: 0, tcp: Some(tcp.to_string()), ..Setup::default() })?;
    let there = Arc::new(chain(1, PAGES));
    let plain = open(format!("tcp://{tcp}")).await?;
    offload(&plain, &there, 0..SHARDS).await?;
    let tally = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let turns: Vec<Turned> = TURNS
        .iter()
        .flat_map(|&(connection, to_server, step)| {
            let bits = (0..SAID_BITS).step_by(step as usize);
            bits.map(move |bit| Turned { connection, to_server, bit })
        })
        .collect();
    let turns = Arc::new(turns);
    let workers: Vec<_> = (0..AT_ONCE)
        .map(|worker| {
            let (there, tally, turns) = (Arc::clone(&there), Arc::clone(&tally), Arc::clone(&turns));
            tokio::spawn(async move {
                for turned in turns.iter().skip(worker).step_by(AT_ONCE) {
                    run(tcp, *turned, &there, &tally).await.with_context(|| format!("{turned:?}"))?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for worker in workers {
        worker.await??;
    }
    let [came, failed] = [0, 1].map(|at| tally[at].load(Ordering::Relaxed));
    println!("{came} reloads whole, {failed} not");
    ensure!(came > 0 && failed > 0, "bits that turned in no call prove nothing: {came} whole, {failed} not");
    drop(server);
    Ok(())
}
