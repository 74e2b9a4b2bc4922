//! Pages of a snapshot into the pool, parents first, some at a time. Owns: which pages go together. Must not know: which pages, and
//! what they are for.

use super::read::all_shards;
use super::write::{PageChain, PageWriter, WholePage, WrittenPages};
use crate::engine::Engine;
use crate::limits::SNAPSHOT_PAGES_IN_FLIGHT_MAX;
use std::collections::HashMap;
use std::sync::Arc;
use turnkv_archive::{Archive, Error as Fault, Manifest, RestoredPage};
use turnkv_proto::limits::LEASE_PAGES_MAX;
use turnkv_proto::{BlockHash, CheckedSpec, Error};

/// Stores pages of one namespace.
pub(super) struct Storing<'a> {
    writer: PageWriter<'a>,
    at_once: usize,
    page_bytes: u64,
}

impl<'a> Storing<'a> {
    /// With so many bytes in flight.
    pub(super) fn new(
        engine: &'a Arc<Engine>,
        spec: &CheckedSpec,
        inflight_bytes: u64,
    ) -> Result<Storing<'a>, Error> {
        let shards = all_shards(spec)?;
        let page_bytes = spec.shard_bytes() * u64::from(spec.shards());
        let most = SNAPSHOT_PAGES_IN_FLIGHT_MAX.min(LEASE_PAGES_MAX / shards.count());
        let at_once = (inflight_bytes / page_bytes).clamp(1, most as u64) as usize;
        Ok(Storing { writer: PageWriter { engine, namespace: spec.id(), shards }, at_once, page_bytes })
    }

    /// Bytes of a page.
    pub(super) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    /// Reads these pages of a snapshot and stores them; tells of each part how many pages it had and what became of them.
    pub(super) async fn store(
        &self,
        archive: &Archive,
        manifest: &Arc<Manifest>,
        pages: Vec<usize>,
        refuse: &(impl Fn(Fault) -> Error + Sync),
        tell: &mut (dyn FnMut(u64, WrittenPages) + Send),
    ) -> Result<WrittenPages, Error> {
        let tails = tails_of(manifest);
        let mut reading = archive.restore_pages(Arc::clone(manifest), pages).await.map_err(refuse)?;
        let (mut batch, mut written) = (Batch::default(), WrittenPages::default());
        loop {
            let page = reading.next().await.transpose().map_err(refuse)?;
            let full = batch.pages.len() >= self.at_once || batch.tail_tokens > 0;
            if page.as_ref().is_none_or(|page| full || !batch.is_followed_by(page)) && !batch.pages.is_empty()
            {
                let chain =
                    PageChain { parent: batch.parent, pages: &batch.pages, tail_tokens: batch.tail_tokens };
                let some = self.writer.write(&chain).await?;
                (written.stored, written.present) =
                    (written.stored + some.stored, written.present + some.present);
                tell(batch.pages.len() as u64, some);
                batch = Batch::default();
            }
            let Some(page) = page else { return Ok(written) };
            batch.push(page, manifest, &tails);
        }
    }
}

/// Pages that follow one another, to be stored at once.
#[derive(Default)]
struct Batch {
    parent: Option<BlockHash>,
    pages: Vec<WholePage>,
    last: u32,
    tail_tokens: u32,
}

impl Batch {
    fn is_followed_by(&self, page: &RestoredPage) -> bool {
        page.parent == Some(self.last)
    }

    fn push(&mut self, page: RestoredPage, manifest: &Manifest, tails: &HashMap<u32, u32>) {
        if self.pages.is_empty() {
            let before = page.parent.and_then(|parent| manifest.pages.get(parent as usize));
            self.parent = before.map(|before| before.hash);
        }
        self.last = page.ix;
        self.tail_tokens = tails.get(&page.ix).copied().unwrap_or(0);
        self.pages.push(WholePage { hash: page.hash, shards: page.shards });
    }
}

/// Pages that are not full, with their tokens: only the end of a sequence is.
fn tails_of(manifest: &Manifest) -> HashMap<u32, u32> {
    let partial = manifest.sequences.iter().filter(|one| one.last_page_tokens < manifest.header.page_tokens);
    partial.filter_map(|one| one.pages.last().map(|last| (*last, one.last_page_tokens))).collect()
}
