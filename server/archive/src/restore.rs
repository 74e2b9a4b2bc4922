//! Restore: a snapshot's pages in order, verified, read ahead. Owns: how far ahead. Must not know: where they go.

use crate::archive::Archive;
use crate::error::Error;
use crate::id::ObjectId;
use crate::limits::{READ_AHEAD_BYTES_MAX, READ_AHEAD_PAGES_MAX};
use crate::manifest::{Header, Manifest};
use crate::read::Places;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt};
use std::sync::Arc;
use turnkv_proto::BlockHash;

/// A page as it was captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredPage {
    /// Which page of the snapshot.
    pub ix: u32,
    /// Its block hash.
    pub hash: BlockHash,
    /// Which page is before it.
    pub parent: Option<u32>,
    /// Its shards.
    pub shards: Vec<Bytes>,
}

/// A snapshot being read.
pub struct Restore {
    manifest: Arc<Manifest>,
    pages: BoxStream<'static, Result<RestoredPage, Error>>,
}

impl Archive {
    /// Begins to read a snapshot: all pages, in order.
    pub async fn restore(&self, id: ObjectId) -> Result<Restore, Error> {
        let manifest = Arc::new(self.manifest(id).await?);
        let pages = (0..manifest.pages.len()).collect();
        self.restore_pages(manifest, pages).await
    }

    /// Begins to read some pages of a snapshot that was described, in this order. Numbers that are no page's are left out.
    pub async fn restore_pages(
        &self,
        manifest: Arc<Manifest>,
        mut pages: Vec<usize>,
    ) -> Result<Restore, Error> {
        let places = Places::of(self, &manifest).await?;
        pages.retain(|ix| *ix < manifest.pages.len());
        let pages = read_pages(places, Arc::clone(&manifest), pages).boxed();
        Ok(Restore { manifest, pages })
    }
}

impl Restore {
    /// What the snapshot has.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The next page; none after the last. After an error the pages behind it can still be read.
    pub async fn next(&mut self) -> Option<Result<RestoredPage, Error>> {
        self.pages.next().await
    }
}

/// Some pages of a manifest, in the order of their numbers, read ahead.
pub(crate) fn read_pages(
    places: Places,
    manifest: Arc<Manifest>,
    pages: Vec<usize>,
) -> impl Stream<Item = Result<RestoredPage, Error>> {
    let ahead = pages_ahead(&manifest.header);
    let reads =
        futures_util::stream::iter(pages).map(move |ix| {
            let (places, manifest) = (places.clone(), Arc::clone(&manifest));
            // A task of its own, so that it goes on while its reader is busy with an earlier page.
            let read = tokio::spawn(async move {
                let page = &manifest.pages[ix];
                let shards = places.page(&manifest.header, ix, page).await?;
                Ok(RestoredPage { ix: ix as u32, hash: page.hash, parent: page.parent, shards })
            });
            async move {
                read.await.map_err(|fault| Error::Short(format!("a page's reader ended early: {fault}")))?
            }
        });
    reads.buffered(ahead)
}

/// How many pages may be read at once.
pub(crate) fn pages_ahead(header: &Header) -> usize {
    let page_bytes = u64::from(header.shards) * header.shard_bytes;
    (READ_AHEAD_BYTES_MAX / page_bytes.max(1)).clamp(1, READ_AHEAD_PAGES_MAX as u64) as usize
}
