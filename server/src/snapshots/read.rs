//! Pages out of the pool, whole, by inline reloads as anybody's. Owns: going on after a page that is not there, and giving up when
//! none finds a slot. Must not know: what the pages are for.

use crate::engine::Engine;
use crate::engine::clients::InlineCaller;
use crate::engine::inline::{InlineReload, ReloadPiece};
use crate::engine::reload::BeginReload;
use crate::limits::{SNAPSHOT_PAUSE, SNAPSHOT_RETRY_MS, SNAPSHOT_STALL_MS_MAX, SNAPSHOT_WAIT_MS};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use turnkv_pool::MissCause;
use turnkv_proto::{BlockHash, CheckedSpec, Error, ErrorKind, NamespaceId, Shards};

/// Reads pages of one namespace.
pub(super) struct PageReader<'a> {
    engine: &'a Arc<Engine>,
    namespace: NamespaceId,
    /// All that a page has.
    shards: Shards,
    shard_bytes: usize,
}

/// All shards of a namespace's pages.
pub(super) fn all_shards(spec: &CheckedSpec) -> Result<Shards, Error> {
    let shards = Shards::new(0, spec.shards().into());
    shards.ok_or_else(|| Error::new(ErrorKind::Internal, "a namespace with too many shards"))
}

/// The shards of a page that was read; none: it is not there, or not as it was stored.
pub(super) type ReadPage = Option<Vec<Bytes>>;

impl<'a> PageReader<'a> {
    /// Of a namespace's pages.
    pub(super) fn of(engine: &'a Arc<Engine>, spec: &CheckedSpec) -> Result<PageReader<'a>, Error> {
        Ok(PageReader {
            engine,
            namespace: spec.id(),
            shards: all_shards(spec)?,
            shard_bytes: spec.shard_bytes() as usize,
        })
    }

    /// Bytes of a page.
    pub(super) fn page_bytes(&self) -> u64 {
        (self.shard_bytes * self.shards.count()) as u64
    }

    /// Reads these pages. No lease is left when it returns.
    pub(super) async fn read(&self, hashes: &[BlockHash]) -> Result<Vec<ReadPage>, Error> {
        let mut pages = Vec::with_capacity(hashes.len());
        let mut moved = Instant::now();
        while pages.len() < hashes.len() {
            let before = pages.len();
            match self.read_run(&hashes[before..], &mut pages).await? {
                None | Some(MissCause::Busy) => {}
                Some(_) => pages.push(None),
            }
            if pages.len() > before {
                moved = Instant::now();
            } else if moved.elapsed() > Duration::from_millis(SNAPSHOT_STALL_MS_MAX) {
                let text = "no slot in DRAM became free to read a page into: try again when less is leased";
                return Err(Error::busy(SNAPSHOT_RETRY_MS, text));
            } else {
                sleep(SNAPSHOT_PAUSE).await;
            }
        }
        Ok(pages)
    }

    /// Reads as many leading pages as are leased at once; then why it ended, where that was a miss.
    async fn read_run(
        &self,
        hashes: &[BlockHash],
        pages: &mut Vec<ReadPage>,
    ) -> Result<Option<MissCause>, Error> {
        let ask = BeginReload {
            namespace: self.namespace,
            session: None,
            hashes: hashes.to_vec(),
            shards: self.shards,
            wait_ms: SNAPSHOT_WAIT_MS,
            hold: false,
            may_fetch: false,
        };
        let mut run = match InlineReload::begin(self.engine, InlineCaller::Snapshots, &ask).await {
            Ok(run) => run,
            Err(Error { kind: ErrorKind::Busy { .. }, .. }) => return Ok(Some(MissCause::Busy)),
            Err(error) => return Err(error),
        };
        let (mut page, mut shard) = (Vec::new(), Vec::new());
        while let Some(piece) = run.next().await {
            let payload = match piece {
                ReloadPiece::Miss { cause, .. } => return Ok(Some(cause)),
                ReloadPiece::Bytes { payload, .. } => payload,
            };
            if shard.is_empty() {
                shard.reserve_exact(self.shard_bytes);
            }
            shard.extend_from_slice(&payload);
            if shard.len() == self.shard_bytes {
                page.push(Bytes::from(std::mem::take(&mut shard)));
            }
            if page.len() == self.shards.count() {
                pages.push(Some(std::mem::take(&mut page)));
            }
        }
        Ok(None)
    }
}
