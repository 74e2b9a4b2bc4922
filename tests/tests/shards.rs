//! Pages of several shards through a real server: what clients of one width wrote, clients of any other width read, by every
//! way that bytes travel, from DRAM, from NVMe and after a restart.

use anyhow::{Result, ensure};
use std::net::SocketAddr;
use std::time::Duration;
use turnkv_client::{
    BlockHash, Client, ClientConfig, DataPlane, DeviceOrder, HostOptions, MissCause, Namespace,
    OffloadOptions, OffloadReport, PageSource, PageTarget, ReloadOptions, ReloadReport, TierKind,
};
use turnkv_proto::ErrorKind;
use turnkv_proto::wire::{self, Verb};
use turnkv_tests::gpu::Gpu;
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::local::Local;
use turnkv_tests::pages::{bytes, chain, namespace};
use turnkv_tests::server::{Server, Setup};

/// Shards of a page.
const WHOLE: u16 = 8;
/// Bytes of each.
const SHARD: usize = 16 << 10;
const PIECE: usize = 4 << 10;

struct Rank {
    client: Client,
    namespace: Namespace,
    shard: u16,
    shards: u16,
}

/// The true bytes of a shard.
fn truth(hash: &BlockHash, shard: u16) -> Vec<u8> {
    bytes(&BlockHash::chain(Some(hash), &[shard.into()]), SHARD)
}

impl Rank {
    async fn connect(server: &Server, plane: DataPlane, shard: u16, shards: u16) -> Result<Rank> {
        let config =
            ClientConfig { data_plane: plane, call_ms: 20_000, ..ClientConfig::at(server.address()) };
        let client = Client::new(config)?;
        let spec = namespace("sharded", SHARD as u64).with_tp_size(WHOLE.into());
        let namespace = client.open_namespace(spec).await?;
        Ok(Rank { client, namespace, shard, shards })
    }

    fn truth(&self, hashes: &[BlockHash]) -> Vec<Vec<u8>> {
        let of_page = |hash| (self.shard..self.shard + self.shards).map(move |shard| truth(hash, shard));
        hashes.iter().flat_map(of_page).collect()
    }

    fn reading(&self) -> ReloadOptions {
        ReloadOptions { shard: self.shard, shards: self.shards, ..ReloadOptions::default() }
    }

    fn writing(&self) -> OffloadOptions {
        let wait = Duration::from_secs(10);
        OffloadOptions { shard: self.shard, shards: self.shards, wait, ..OffloadOptions::default() }
    }

    async fn offload(&self, options: &OffloadOptions, hashes: &[BlockHash]) -> Result<OffloadReport> {
        let truth = self.truth(hashes);
        let sources: Vec<PageSource<'_>> = truth.iter().map(|shard| PageSource::Bytes(shard)).collect();
        Ok(self.namespace.offload(options, hashes, &sources).await?)
    }

    /// Waits until DRAM has nothing: a reader's lease ends a little after its answer.
    async fn cool(&self) -> Result<()> {
        for _ in 0..1_000 {
            self.client.evict(None, Some(TierKind::Dram)).await?;
            if self
                .client
                .stats()
                .await?
                .tiers
                .iter()
                .all(|tier| tier.tier() != TierKind::Dram || tier.used_bytes == 0)
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::bail!("pages stay in DRAM")
    }

    /// Reloads, and checks every byte of every page that the report calls good.
    async fn reload(&self, hashes: &[BlockHash]) -> Result<ReloadReport> {
        let truth = self.truth(hashes);
        let mut found = vec![vec![0u8; SHARD]; truth.len()];
        let mut targets: Vec<PageTarget<'_>> = found.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
        let report = self.namespace.reload(&self.reading(), hashes, &mut targets).await?;
        let whole = report.pages * usize::from(self.shards);
        ensure!(found[..whole] == truth[..whole], "WRONG BYTES for shards {}..", self.shard);
        Ok(report)
    }
}

/// Readers of every width, on both data planes, find all pages where they should be.
async fn read_all(server: &Server, hashes: &[BlockHash], from_nvme: bool) -> Result<()> {
    for (shard, shards) in [(0, 8), (4, 4), (2, 2), (7, 1), (1, 5)] {
        for plane in [DataPlane::Shm, DataPlane::Inline] {
            let rank = Rank::connect(server, plane, shard, shards).await?;
            if from_nvme {
                rank.cool().await?;
            }
            let report = rank.reload(hashes).await?;
            let found = if from_nvme { report.from_nvme } else { report.from_dram };
            ensure!((report.pages, found) == (hashes.len(), hashes.len()), "{plane:?} {shards}: {report:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ranks_of_one_width_wrote_those_of_others_read() -> Result<()> {
    for plane in [DataPlane::Shm, DataPlane::Inline] {
        let mut server = Server::start(Setup::default())?;
        let hashes = chain(3, 24);
        let left = Rank::connect(&server, plane, 0, 4).await?;
        let right = Rank::connect(&server, plane, 4, 4).await?;
        ensure!(left.offload(&left.writing(), &hashes).await?.stored == 24);
        ensure!(left.namespace.lookup(&hashes).await? == 0, "half of a page is none");
        ensure!(left.reload(&hashes).await?.miss == Some(MissCause::Incomplete));
        let durable = OffloadOptions { durable: true, ..right.writing() };
        let report = right.offload(&durable, &hashes).await?;
        ensure!((report.stored, report.durable) == (24, true), "{report:?}");
        ensure!(left.namespace.lookup(&hashes).await? == 24);
        let whole = Rank::connect(&server, plane, 0, 8).await?;
        let again = whole.offload(&whole.writing(), &hashes).await?;
        ensure!((again.stored, again.present) == (0, 24), "{again:?}");
        read_all(&server, &hashes, false).await?;
        read_all(&server, &hashes, true).await?;
        server.kill()?;
        server.restart()?;
        read_all(&server, &hashes, true).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_died_is_made_good_by_one_of_another_width() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let hashes = chain(4, 6);
    let half = Rank::connect(&server, DataPlane::Shm, 0, 4).await?;
    ensure!(half.offload(&half.writing(), &hashes).await?.stored == 6);
    drop(half);
    let whole = Rank::connect(&server, DataPlane::Inline, 0, 8).await?;
    let report = whole.offload(&whole.writing(), &hashes).await?;
    ensure!((report.stored, report.present) == (6, 0), "a page that it completed is stored: {report:?}");
    ensure!(whole.reload(&hashes).await?.pages == 6);
    Ok(())
}

/// Calls of a verb that the server answered.
fn calls(address: SocketAddr, verb: &str) -> Result<f64> {
    let (_, page) = get(address, "/metrics")?;
    let series = format!("turnkv_rpc_call_seconds_count{{door=\"local\",verb=\"{verb}\"}}");
    Ok(value(&page, &series).unwrap_or(0.0))
}

#[tokio::test(flavor = "multi_thread")]
async fn all_shards_take_the_calls_that_one_takes() -> Result<()> {
    let address = free_address()?;
    let server = Server::start(Setup { metrics: Some(address.to_string()), ..Setup::default() })?;
    let mut counts = Vec::new();
    for (seed, shards) in [(1, 1), (2, WHOLE)] {
        let rank = Rank::connect(&server, DataPlane::Shm, 0, shards).await?;
        let hashes = chain(seed, 32);
        let verbs = ["begin_offload", "commit_offload", "begin_reload"];
        let counted = || verbs.iter().map(|verb| calls(address, verb)).collect::<Result<Vec<f64>>>();
        let before = counted()?;
        ensure!(rank.offload(&rank.writing(), &hashes).await?.stored == 32);
        let found = rank.reload(&hashes).await?.pages;
        ensure!(found == if shards == WHOLE { 32 } else { 0 });
        counts.push(counted()?.iter().zip(&before).map(|(after, before)| after - before).collect::<Vec<_>>());
    }
    ensure!(counts[0] == [1.0; 3] && counts[1] == counts[0], "{counts:?}");
    let (_, page) = get(address, "/metrics")?;
    ensure!(value(&page, "turnkv_offload_stored_pages_total")? == 32.0, "whole pages are counted");
    ensure!(value(&page, "turnkv_reload_hit_pages_total{tier=\"dram\"}")? == 32.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn device_memory_holds_some_shards_of_pages() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let hashes = chain(5, 12);
    let mut gpus = Vec::new();
    for shard in [0, 4] {
        let rank = Rank::connect(&server, DataPlane::Shm, shard, 4).await?;
        let gpu = Gpu::new(HostOptions { seed: 5, ..HostOptions::default() }, 96, SHARD)?;
        let pages = gpu.pages(0, 48, PIECE)?;
        for (plan, bytes) in pages.iter().zip(rank.truth(&hashes)) {
            gpu.put(plan, &bytes).await?;
        }
        let options = rank.writing();
        let report = rank.namespace.offload_device(&gpu.device, &options, &hashes, &pages, None).await?;
        ensure!((report.stored, report.declined) == (12, 0), "{report:?}");
        gpus.push(gpu);
    }
    for layers in [0, 4] {
        for (shard, shards) in [(0, 8), (2, 2)] {
            let rank = Rank::connect(&server, DataPlane::Shm, shard, shards).await?;
            let gpu = &gpus[0];
            let pages = gpu.pages(0, 12 * usize::from(shards), PIECE)?;
            let order = DeviceOrder { layers, ..DeviceOrder::default() };
            let options = rank.reading();
            let reload = rank.namespace.reload_device(&gpu.device, &options, &hashes, &pages, order).await?;
            ensure!(reload.pages_begun() == 12);
            let report = reload.finished().await?;
            ensure!((report.pages, report.miss) == (12, None), "{layers} layers: {report:?}");
            for (plan, bytes) in pages.iter().zip(rank.truth(&hashes)) {
                ensure!(gpu.get(plan).await? == bytes, "WRONG BYTES on the device, {layers} layers");
            }
        }
    }
    gpus.iter().try_for_each(Gpu::check)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_shows_whole_pages_where_they_lie() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let hashes = chain(6, 10);
    let whole = Rank::connect(&server, DataPlane::Shm, 0, 8).await?;
    ensure!(whole.offload(&whole.writing(), &hashes[..9]).await?.stored == 9);
    let part = Rank::connect(&server, DataPlane::Shm, 3, 3).await?;
    let lease = part.namespace.lease(&part.reading(), &hashes).await?;
    ensure!((lease.len(), lease.miss()) == (27, Some(MissCause::Absent)), "three positions a page");
    for (position, truth) in part.truth(&hashes[..9]).iter().enumerate() {
        ensure!(
            lease.verify(position) && lease.page(position).is_some_and(|page| page.to_vec() == *truth),
            "position {position}"
        );
    }
    lease.finish()?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_larger_than_dram_comes_back_in_whole_pages() -> Result<()> {
    let dram = "slab_bytes = \"1MiB\"\n".to_owned();
    let server = Server::start(Setup { dram_mib: 16, dram, ..Setup::default() })?;
    let hashes = chain(7, 200); // 25 MiB
    let writer = Rank::connect(&server, DataPlane::Shm, 0, 8).await?;
    let report = writer.offload(&writer.writing(), &hashes).await?;
    ensure!(report.stored == 200, "{report:?}");
    for (shard, shards) in [(0, 8), (1, 7), (5, 3)] {
        for plane in [DataPlane::Inline, DataPlane::Shm] {
            let rank = Rank::connect(&server, plane, shard, shards).await?;
            let report = rank.reload(&hashes).await?;
            ensure!((report.pages, report.miss) == (200, None), "{plane:?} {shards}: {report:?}");
            ensure!(report.from_dram + report.from_nvme == 200, "each page once: {report:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_over_shards_that_are_not_are_refused() -> Result<()> {
    let server = Server::start(Setup::default())?;
    let local = Local::connect(&server, SHARD as u64).await?; // pages of one shard
    let rank = Rank::connect(&server, DataPlane::Shm, 0, 1).await?;
    for draining in [false, true] {
        if draining {
            rank.client.drain().await?;
        }
        for (pages, shard, shards) in
            [(1, 1, 0), (1, 0, 2), (65_536, 0, 2), (65_536, 0, u16::MAX.into()), (1, u32::MAX, u32::MAX)]
        {
            let (namespace, client) = (local.ns.clone(), local.client);
            let hashes = bytes::Bytes::from(vec![1; 32 * pages]);
            let what = format!("{pages} pages, {shards} shards from {shard} on");
            let offload = wire::BeginOffloadRequest {
                namespace: namespace.clone(),
                hashes: hashes.clone(),
                shard,
                shards,
                client,
                ..Default::default()
            };
            // A server that leaves looks at nothing but how long its answer would be.
            if !draining || pages > 1 {
                local.refused(Verb::BeginOffload, &offload, ErrorKind::Invalid, &what)?;
            }
            let reload =
                wire::BeginReloadRequest { namespace, hashes, shard, shards, client, ..Default::default() };
            local.refused(Verb::BeginReload, &reload, ErrorKind::Invalid, &what)?;
        }
    }
    ensure!(rank.client.stats().await?.leases == 0);
    Ok(())
}

/// What the series that speak of pages say.
fn counted(address: SocketAddr) -> Result<[f64; 7]> {
    let (_, page) = get(address, "/metrics")?;
    let mut values = [0.0; 7];
    for (value_of, series) in values.iter_mut().zip([
        "turnkv_offload_stored_pages_total",
        "turnkv_offload_present_pages_total",
        "turnkv_offload_declined_pages_total",
        "turnkv_reload_hit_pages_total{tier=\"dram\"}",
        "turnkv_reload_hit_pages_total{tier=\"nvme\"}",
        "turnkv_reload_hit_tokens_total",
        "turnkv_reload_misses_total{cause=\"absent\"}",
    ]) {
        *value_of = value(&page, series)?;
    }
    Ok(values)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_is_counted_once_however_many_calls_move_its_shards() -> Result<()> {
    let address = free_address()?;
    let server = Server::start(Setup { metrics: Some(address.to_string()), ..Setup::default() })?;
    let (hashes, absent, orphans) = (chain(6, 10), chain(7, 3), chain(8, 5));
    let mut ranks = Vec::new();
    for shard in 0..WHOLE {
        ranks.push(Rank::connect(&server, DataPlane::Inline, shard, 1).await?);
    }
    for (shard, rank) in ranks.iter().enumerate() {
        ensure!(rank.offload(&rank.writing(), &hashes).await?.stored == 10);
        let (stored, last) = (counted(address)?[0], shard + 1 == ranks.len());
        ensure!(stored == if last { 10.0 } else { 0.0 }, "{stored} pages stored after shard {shard}");
    }
    for rank in &ranks {
        ensure!(rank.offload(&rank.writing(), &hashes).await?.present == 10);
        let orphaned = OffloadOptions { parent: Some(absent[0]), ..rank.writing() };
        ensure!(rank.offload(&orphaned, &orphans).await?.declined == 5);
        ensure!(rank.reload(&hashes).await?.pages == 10 && rank.reload(&absent).await?.pages == 0);
    }
    ranks[0].client.evict(None, None).await?;
    let whole = Rank::connect(&server, DataPlane::Inline, 0, WHOLE).await?;
    let durable = OffloadOptions { durable: true, ..whole.writing() };
    ensure!(whole.offload(&durable, &hashes).await?.durable);
    ensure!(whole.reload(&hashes).await?.pages == 10);
    whole.cool().await?;
    for rank in &ranks {
        ensure!(rank.reload(&hashes).await?.pages == 10);
    }
    let tokens = 3.0 * 10.0 * f64::from(whole.namespace.page_tokens());
    let [stored, present, declined, dram, nvme, hit, missed] = counted(address)?;
    ensure!([stored, present, declined] == [20.0, 10.0, 5.0], "{stored} {present} {declined}");
    ensure!([dram, nvme, hit, missed] == [20.0, 10.0, tokens, 1.0], "{dram} {nvme} {hit} {missed}");
    let stats = whole.client.stats().await?;
    ensure!((stats.offloaded_pages, stats.present_pages, stats.miss_pages) == (20, 10, 1), "{stats:?}");
    Ok(())
}

/// A rank is gone, and with it its shards of everything that the others stored: those fill DRAM, and nobody can read them.
#[tokio::test(flavor = "multi_thread")]
async fn pages_whose_shards_do_not_come_make_room_for_anybody_else() -> Result<()> {
    let address = free_address()?;
    let server = Server::start(Setup {
        nvme_mib: 0,
        metrics: Some(address.to_string()),
        limits: "lease_ms = 1000\nlease_grace_ms = 100\n".to_owned(),
        ..Setup::default()
    })?;
    let left = Rank::connect(&server, DataPlane::Shm, 0, 1).await?;
    for seed in 0..40 {
        left.offload(&left.writing(), &chain(100 + seed, 60)).await?;
    }
    let unfinished =
        || -> Result<f64> { value(&get(address, "/metrics")?.1, "turnkv_pool_unfinished_pages") };
    let waiting = unfinished()?;
    ensure!(waiting > 1500.0, "only {waiting} pages wait for shards");

    tokio::time::sleep(Duration::from_millis(1100)).await;
    let config = ClientConfig { call_ms: 20_000, ..ClientConfig::at(server.address()) };
    let client = Client::new(config)?;
    let good = client.open_namespace(namespace("whole", SHARD as u64)).await?;
    let hashes = chain(5, 28 << 20 >> 14); // of 32 MiB
    let page = vec![7u8; SHARD];
    for (part, pages) in hashes.chunks(64).enumerate() {
        let parent = (part > 0).then(|| hashes[part * 64 - 1]);
        let sources: Vec<PageSource<'_>> = pages.iter().map(|_| PageSource::Bytes(&page)).collect();
        let options = OffloadOptions { parent, wait: Duration::from_secs(10), ..OffloadOptions::default() };
        let report = good.offload(&options, pages, &sources).await?;
        ensure!(report.stored == pages.len(), "{report:?}");
    }
    let found = good.lookup(&hashes).await?;
    ensure!(found == hashes.len(), "{found} of {} pages are there", hashes.len());
    ensure!(unfinished()? < waiting / 4.0, "{} of {waiting} still wait", unfinished()?);
    Ok(())
}
