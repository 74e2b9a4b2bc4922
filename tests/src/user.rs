//! A user of a pool, as a test writes one: a client, one namespace, chains of pages that verify themselves.
//! Must not know: the server's process.

use crate::own::OwnMemory;
use crate::pages;
use anyhow::{Result, ensure};
use std::time::Duration;
use turnkv_client::{
    BlockHash, Client, ClientConfig, DataPlane, MissCause, Namespace, OffloadOptions, OffloadReport,
    PageSource, PageTarget, ReloadOptions, ReloadReport,
};

/// A client with one namespace open.
pub struct User {
    /// The client.
    pub client: Client,
    /// Its namespace.
    pub namespace: Namespace,
}

impl User {
    /// Connects and opens the test namespace with pages of `shard_bytes`.
    ///
    /// # Errors
    /// The pool is not there.
    pub async fn connect(address: &str, plane: DataPlane, shard_bytes: u64) -> Result<User> {
        let config = ClientConfig { data_plane: plane, call_ms: 20_000, ..ClientConfig::at(address) };
        let client = Client::new(config)?;
        let namespace = client.open_namespace(pages::namespace("test-model", shard_bytes)).await?;
        Ok(User { client, namespace })
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.namespace.shard_bytes() as usize
    }

    /// Offloads the true bytes of these hashes.
    ///
    /// # Errors
    /// The call failed.
    pub async fn offload(&self, options: &OffloadOptions, hashes: &[BlockHash]) -> Result<OffloadReport> {
        let bytes: Vec<Vec<u8>> = hashes.iter().map(|hash| pages::bytes(hash, self.page_bytes())).collect();
        let sources: Vec<PageSource<'_>> = bytes.iter().map(|page| PageSource::Bytes(page)).collect();
        Ok(self.namespace.offload(options, hashes, &sources).await?)
    }

    /// Reloads, and checks every byte of every page that the report calls good.
    ///
    /// # Errors
    /// The call failed, or a page was wrong (the one thing that must never happen).
    pub async fn reload(&self, hashes: &[BlockHash]) -> Result<ReloadReport> {
        let options = ReloadOptions { deadline: Some(Duration::from_secs(20)), ..ReloadOptions::default() };
        self.reload_with(&options, hashes).await
    }

    /// [`User::reload`] with options.
    ///
    /// # Errors
    /// As there.
    pub async fn reload_with(&self, options: &ReloadOptions, hashes: &[BlockHash]) -> Result<ReloadReport> {
        let mut bytes = vec![vec![0u8; self.page_bytes()]; hashes.len()];
        let mut targets: Vec<PageTarget<'_>> = bytes.iter_mut().map(|page| PageTarget::Bytes(page)).collect();
        let report = self.namespace.reload(options, hashes, &mut targets).await?;
        for (hash, page) in hashes.iter().zip(&bytes).take(report.pages) {
            ensure!(*page == pages::bytes(hash, self.page_bytes()), "WRONG BYTES for page {hash:?}");
        }
        Ok(report)
    }

    /// [`User::offload`] from memory with an owner, of which nothing is lent when the call has ended.
    ///
    /// # Errors
    /// As there.
    pub async fn offload_own(&self, options: &OffloadOptions, hashes: &[BlockHash]) -> Result<OffloadReport> {
        let bytes: Vec<Vec<u8>> = hashes.iter().map(|hash| pages::bytes(hash, self.page_bytes())).collect();
        let own = OwnMemory::of(&bytes)?;
        let memory = own.pages(0..hashes.len())?;
        let sources: Vec<PageSource<'_>> = memory.iter().map(PageSource::Memory).collect();
        let report = self.namespace.offload(options, hashes, &sources).await;
        drop(memory);
        ensure!(own.is_alone(), "pages stay lent");
        Ok(report?)
    }

    /// [`User::reload_with`] into memory with an owner, of which nothing is lent when the call has ended.
    ///
    /// # Errors
    /// As there.
    pub async fn reload_own(&self, options: &ReloadOptions, hashes: &[BlockHash]) -> Result<ReloadReport> {
        let own = OwnMemory::new(hashes.len(), self.page_bytes())?;
        let memory = own.pages(0..hashes.len())?;
        let mut targets: Vec<PageTarget<'_>> = memory.iter().map(PageTarget::Memory).collect();
        let report = self.namespace.reload(options, hashes, &mut targets).await;
        drop(memory);
        ensure!(own.is_alone(), "pages stay lent");
        let report = report?;
        for (at, hash) in hashes.iter().enumerate().take(report.pages) {
            let right = own.read(at)? == pages::bytes(hash, self.page_bytes());
            ensure!(right, "WRONG BYTES for page {hash:?}");
        }
        Ok(report)
    }

    /// Pages that the pool has not are missed, offloaded, found when they are offloaded again, and reloaded from DRAM.
    ///
    /// # Errors
    /// A call failed, or the pool says otherwise.
    pub async fn go_and_come_back(&self, hashes: &[BlockHash]) -> Result<()> {
        let count = hashes.len();
        ensure!(self.namespace.lookup(hashes).await? == 0);
        let report = self.reload(hashes).await?;
        ensure!(report.miss == Some(MissCause::Absent), "{report:?}");
        let report = self.offload(&OffloadOptions::default(), hashes).await?;
        ensure!((report.stored, report.present, report.declined) == (count, 0, 0), "{report:?}");
        let again = self.offload(&OffloadOptions::default(), hashes).await?;
        ensure!((again.stored, again.present) == (0, count), "{again:?}");
        ensure!(self.namespace.lookup(hashes).await? == count);
        let report = self.reload(hashes).await?;
        ensure!((report.pages, report.from_dram) == (count, count), "{report:?}");
        Ok(())
    }

    /// Waits until everything offloaded is on NVMe.
    ///
    /// # Errors
    /// The pool is gone, or it takes more than 60 s.
    pub async fn settle(&self) -> Result<()> {
        for _ in 0..6_000 {
            if self.client.stats().await?.dirty_bytes == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::bail!("dirty pages were not written within 60 s")
    }
}
