//! One client of the pool, with calls that block: the only file here that knows the client's interface.
//! Must not know: what is measured.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio::runtime::{Builder, Runtime};
use turnkv_client::{
    BlockHash, Client, ClientConfig, DataPlane, Device, DeviceOrder, DevicePlan, DeviceReload, Dtype,
    EndTurn, Layout, Namespace, NamespaceSpec, OffloadOptions, PageMemory, PageSource, PageTarget, ReadLease,
    ReloadOptions, StatsReply, TierKind, TurnBegun,
};
use turnkv_transfer::device::Stream;

use crate::network::Network;

/// Long enough for a busy disk; a bench that waits longer has found a defect.
const CALL_MS: u64 = 60_000;

/// A client and its namespace.
#[derive(Debug)]
pub struct Connection {
    runtime: Runtime,
    client: Client,
    namespace: Namespace,
}

impl Connection {
    /// Connects a client of its own and opens a namespace whose pages have `page_bytes`.
    pub fn open(address: &str, data_plane: DataPlane, page_bytes: usize) -> Result<Connection> {
        Connection::with(ClientConfig { data_plane, ..ClientConfig::at(address) }, page_bytes)
    }

    /// The same to a server on a network.
    pub fn open_on(network: &Network, data_plane: DataPlane, page_bytes: usize) -> Result<Connection> {
        let config =
            ClientConfig { data_plane, tls: network.client(), ..ClientConfig::at(network.address()) };
        Connection::with(config, page_bytes)
    }

    fn with(config: ClientConfig, page_bytes: usize) -> Result<Connection> {
        Connection::with_spec(config, Connection::opaque(page_bytes))
    }

    /// Connects a client of its own and opens this namespace.
    pub fn open_spec(address: &str, spec: NamespaceSpec) -> Result<Connection> {
        Connection::with_spec(ClientConfig::at(address), spec)
    }

    fn with_spec(config: ClientConfig, spec: NamespaceSpec) -> Result<Connection> {
        // One thread, as an engine that calls from its own has: what blocks or polls does so here.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let config = ClientConfig { call_ms: CALL_MS, connect_ms: 5_000, ..config };
        let client = Client::new(config)?;
        let namespace = runtime.block_on(client.open_namespace(spec))?;
        Ok(Connection { runtime, client, namespace })
    }

    fn opaque(page_bytes: usize) -> NamespaceSpec {
        NamespaceSpec {
            model: "bench".to_owned(),
            dtype: Dtype::U8,
            page_tokens: 16,
            tp_size: 1,
            layout: Layout::Opaque,
            groups: Vec::new(),
            opaque_shard_bytes: page_bytes as u64,
            tenant: String::new(),
            salt: Vec::new(),
        }
    }

    /// A new session that shares all pages of another.
    pub fn fork(&self, session: &str, fork: &str) -> Result<()> {
        self.runtime.block_on(self.namespace.fork(session, fork, None))?;
        Ok(())
    }

    /// Offloads a chain of pages whose first has the parent `parent`. Waits for slots rather than being refused, and
    /// fails unless every page was stored by this call.
    pub fn offload_all(
        &self,
        parent: Option<BlockHash>,
        hashes: &[BlockHash],
        pages: &[&[u8]],
    ) -> Result<()> {
        let sources: Vec<PageSource<'_>> = pages.iter().map(|page| PageSource::Bytes(page)).collect();
        self.offload_from(parent, hashes, &sources)
    }

    /// The same of pages that may be lent where they are.
    pub fn offload_own(&self, hashes: &[BlockHash], pages: &[PageMemory]) -> Result<()> {
        let sources: Vec<PageSource<'_>> = pages.iter().map(PageSource::Memory).collect();
        self.offload_from(None, hashes, &sources)
    }

    fn offload_from(
        &self,
        parent: Option<BlockHash>,
        hashes: &[BlockHash],
        sources: &[PageSource<'_>],
    ) -> Result<()> {
        let wait = Duration::from_millis(CALL_MS / 2);
        let options = OffloadOptions { parent, wait, ..OffloadOptions::default() };
        let report = self.runtime.block_on(self.namespace.offload(&options, hashes, sources))?;
        ensure!(
            report.stored == hashes.len() && report.present == 0,
            "REFUSED PAGES: of {} {report:?}",
            hashes.len()
        );
        Ok(())
    }

    /// Reloads pages into `targets` and fails unless all are there. Returns how many came from NVMe.
    pub fn reload_all(&self, hashes: &[BlockHash], targets: &mut [&mut [u8]]) -> Result<usize> {
        let mut pages: Vec<PageTarget<'_>> =
            targets.iter_mut().map(|target| PageTarget::Bytes(target)).collect();
        self.reload_into(hashes, &mut pages)
    }

    /// The same into pages that may be lent where they are.
    pub fn reload_own(&self, hashes: &[BlockHash], targets: &[PageMemory]) -> Result<usize> {
        let mut pages: Vec<PageTarget<'_>> = targets.iter().map(PageTarget::Memory).collect();
        self.reload_into(hashes, &mut pages)
    }

    fn reload_into(&self, hashes: &[BlockHash], pages: &mut [PageTarget<'_>]) -> Result<usize> {
        let report =
            self.runtime.block_on(self.namespace.reload(&ReloadOptions::default(), hashes, pages))?;
        ensure!(report.pages == hashes.len(), "LOST PAGES: {} of {} came back", report.pages, hashes.len());
        Ok(report.from_nvme)
    }

    /// As [`Connection::offload_all`], from device memory.
    pub fn offload_device(&self, device: &Device, hashes: &[BlockHash], plans: &[DevicePlan]) -> Result<()> {
        let wait = Duration::from_millis(CALL_MS / 2);
        let options = OffloadOptions { wait, ..OffloadOptions::default() };
        let report =
            self.runtime.block_on(self.namespace.offload_device(device, &options, hashes, plans, None))?;
        ensure!(report.stored == hashes.len(), "REFUSED PAGES: of {} {report:?}", hashes.len());
        Ok(())
    }

    /// Reloads pages into device memory, in `layers` parts, waits until all are there and verified, and fails unless they are.
    pub fn reload_device(
        &self,
        device: &Device,
        hashes: &[BlockHash],
        plans: &[DevicePlan],
        layers: usize,
    ) -> Result<()> {
        let (options, order) = (ReloadOptions::default(), DeviceOrder { after: None, layers });
        let report = self.runtime.block_on(async {
            self.namespace.reload_device(device, &options, hashes, plans, order).await?.finished().await
        })?;
        ensure!(report.pages == hashes.len(), "LOST PAGES: of {} {report:?}", hashes.len());
        Ok(())
    }

    /// The same as an engine sees it whose stream waits for each layer: seconds from the call until it may begin, until the first
    /// layer is there, until the last one is, and until all pages are verified.
    pub fn reload_layers(
        &self,
        device: &Device,
        (hashes, plans): (&[BlockHash], &[DevicePlan]),
        layers: usize,
        stream: Stream,
    ) -> Result<[f64; 4]> {
        let started = Instant::now();
        let seen = |layer: usize, reload: &DeviceReload| -> Result<f64> {
            reload.wait_layer(layer, stream)?;
            let there = device.mark(stream)?;
            while !there.passed()? {
                std::hint::spin_loop();
            }
            Ok(started.elapsed().as_secs_f64())
        };
        let (options, order) = (ReloadOptions::default(), DeviceOrder { after: None, layers });
        self.runtime.block_on(async {
            let reload = self.namespace.reload_device(device, &options, hashes, plans, order).await?;
            let begun = started.elapsed().as_secs_f64();
            let (first, last) = (seen(0, &reload)?, seen(layers - 1, &reload)?);
            let report = reload.finished().await?;
            ensure!(report.pages == hashes.len(), "LOST PAGES: of {} {report:?}", hashes.len());
            Ok([begun, first, last, started.elapsed().as_secs_f64()])
        })
    }

    /// Leases pages for reading in place.
    pub fn lease(&self, hashes: &[BlockHash]) -> Result<ReadLease> {
        let lease = self.runtime.block_on(self.namespace.lease(&ReloadOptions::default(), hashes))?;
        ensure!(lease.len() == hashes.len(), "LOST PAGES: {} of {} were leased", lease.len(), hashes.len());
        Ok(lease)
    }

    /// Ends a lease; fails if it ended before, so that what was read may be wrong.
    pub fn finish(&self, lease: ReadLease) -> Result<()> {
        Ok(self.runtime.block_on(async { lease.finish() })?)
    }

    /// How many leading pages of a chain the pool has.
    pub fn lookup(&self, hashes: &[BlockHash]) -> Result<usize> {
        Ok(self.runtime.block_on(self.namespace.lookup(hashes))?)
    }

    /// Begins a turn. Returns how many of the session's pages are in DRAM.
    pub fn begin_turn(&self, session: &str) -> Result<usize> {
        Ok(self.runtime.block_on(self.namespace.begin_turn(session))?.dram)
    }

    /// Begins a turn of a session of which so many turns have ended, on any host.
    pub fn begin_turn_after(&self, session: &str, ended: u32) -> Result<TurnBegun> {
        Ok(self.runtime.block_on(self.namespace.begin_turn_after(session, "", ended))?)
    }

    /// Ends a turn with these pages; `expected_return_ms` 0: unsaid.
    pub fn end_turn(&self, session: &str, hashes: &[BlockHash], expected_return_ms: u64) -> Result<()> {
        let end = EndTurn { hashes: hashes.to_vec(), expected_return_ms, ..EndTurn::default() };
        let kept = self.runtime.block_on(self.namespace.end_turn(session, &end))?;
        ensure!(kept == hashes.len(), "LOST PAGES: {kept} of {} at a turn's end", hashes.len());
        Ok(())
    }

    /// Drops every page.
    pub fn drop_all(&self) -> Result<()> {
        self.runtime.block_on(self.client.evict(None, None))?;
        Ok(())
    }

    /// Drops the DRAM copies of all pages that are on NVMe.
    pub fn demote_all(&self) -> Result<()> {
        self.runtime.block_on(self.client.evict(None, Some(TierKind::Dram)))?;
        Ok(())
    }

    /// Waits until everything is on NVMe.
    pub fn wait_until_clean(&self) -> Result<()> {
        while self.stats()?.dirty_bytes > 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The server's own figures.
    pub fn stats(&self) -> Result<StatsReply> {
        Ok(self.runtime.block_on(self.client.stats())?)
    }
}

/// A hash for page `number` of `round`: what an engine's hash of tokens would be, without hashing.
pub fn page_hash(round: u64, number: usize) -> BlockHash {
    let mut random = crate::sampling::Random::new((round << 40) ^ number as u64);
    let mut bytes = [0u8; 32];
    bytes.chunks_mut(8).for_each(|part| part.copy_from_slice(&random.bits().to_le_bytes()));
    BlockHash(bytes)
}

/// The hashes of the pages `numbers` of `round`.
pub fn page_hashes(round: u64, numbers: std::ops::Range<usize>) -> Vec<BlockHash> {
    numbers.map(|number| page_hash(round, number)).collect()
}

#[cfg(test)]
mod tests {
    use super::{page_hash, page_hashes};

    #[test]
    fn hashes_differ_by_round_and_number_and_repeat() {
        assert_eq!(page_hashes(1, 5..7), [page_hash(1, 5), page_hash(1, 6)]);
        assert_ne!(page_hash(1, 5), page_hash(2, 5));
        assert_ne!(page_hash(1, 5), page_hash(1, 6));
    }
}
