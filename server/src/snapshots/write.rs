//! Pages into the pool, by inline offloads as anybody's. Owns: offering again what found no slot, and giving up when none does. Must
//! not know: where the pages come from.

use crate::engine::Engine;
use crate::engine::clients::InlineCaller;
use crate::engine::inline::InlineOffload;
use crate::engine::offload::{BeginOffload, Outcomes};
use crate::limits::{SNAPSHOT_PAUSE, SNAPSHOT_STALL_MS_MAX, SNAPSHOT_WAIT_MS};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use turnkv_pool::Outcome;
use turnkv_proto::{BlockHash, Error, ErrorKind, NamespaceId, Shards};
use turnkv_transfer::checksum;

/// Writes pages of one namespace.
pub(super) struct PageWriter<'a> {
    pub(super) engine: &'a Arc<Engine>,
    pub(super) namespace: NamespaceId,
    /// All that a page has.
    pub(super) shards: Shards,
}

/// A page to be stored.
pub(super) struct WholePage {
    pub(super) hash: BlockHash,
    pub(super) shards: Vec<Bytes>,
}

/// Pages, each the child of the one before.
pub(super) struct PageChain<'a> {
    /// The page before the first one.
    pub(super) parent: Option<BlockHash>,
    pub(super) pages: &'a [WholePage],
    /// Above 0: the last page is a partial tail of so many tokens.
    pub(super) tail_tokens: u32,
}

/// Pages that are in the pool now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WrittenPages {
    /// New.
    pub(super) stored: u64,
    /// That were there.
    pub(super) present: u64,
}

/// What one offer came to.
struct Offered {
    accepted: usize,
    written: WrittenPages,
    /// Why the rest was declined.
    declined: Option<Outcome>,
}

impl PageWriter<'_> {
    /// Stores these pages, all of them.
    pub(super) async fn write(&self, chain: &PageChain<'_>) -> Result<WrittenPages, Error> {
        let (mut at, mut moved, mut written) = (0, Instant::now(), WrittenPages::default());
        while at < chain.pages.len() {
            let parent = at.checked_sub(1).map_or(chain.parent, |before| Some(chain.pages[before].hash));
            let rest = PageChain { parent, pages: &chain.pages[at..], tail_tokens: chain.tail_tokens };
            let offered = self.offer(&rest).await?;
            at += offered.accepted;
            written.stored += offered.written.stored;
            written.present += offered.written.present;
            if offered.accepted > 0 {
                moved = Instant::now();
            } else if offered.declined == Some(Outcome::NoParent) {
                return Err(no_room("a page that others follow left again"));
            } else if moved.elapsed() > Duration::from_millis(SNAPSHOT_STALL_MS_MAX) {
                return Err(no_room("no slot became free for another page"));
            } else {
                sleep(SNAPSHOT_PAUSE).await;
            }
        }
        Ok(written)
    }

    async fn offer(&self, chain: &PageChain<'_>) -> Result<Offered, Error> {
        let ask = BeginOffload {
            namespace: self.namespace,
            session: None,
            parent: chain.parent,
            hashes: chain.pages.iter().map(|page| page.hash).collect(),
            shards: self.shards,
            tail_tokens: chain.tail_tokens,
            wait_ms: SNAPSHOT_WAIT_MS,
            durable: false,
        };
        let begun = InlineOffload::begin(self.engine, InlineCaller::Snapshots, &ask).await;
        let (mut offload, begun) = match begun {
            Err(Error { kind: ErrorKind::Busy { .. }, .. }) => {
                return Ok(Offered { accepted: 0, written: WrittenPages::default(), declined: None });
            }
            begun => begun?,
        };
        let outcomes = match &begun.outcomes {
            Outcomes::Each(outcomes) => outcomes.as_slice(),
            Outcomes::AllPresent(_) => &[],
            Outcomes::AllDraining(_) => {
                let text = "the server takes no pages any more: it was told to drain";
                return Err(Error::new(ErrorKind::Draining, text));
            }
        };
        let is_taken = |outcome: &Outcome| matches!(outcome, Outcome::Present | Outcome::Granted(_));
        let taken = outcomes.iter().take_while(|outcome| is_taken(outcome)).count();
        let accepted = self.shards.whole_pages(taken);
        let mut checksums = Vec::new();
        for position in begun.outcomes.granted() {
            let (page, shard) = (self.shards.page(position as usize), self.shards.shard(position as usize));
            let bytes = &chain.pages[page].shards[usize::from(shard)];
            offload.fill(position, 0, bytes)?;
            checksums.push(checksum(bytes));
            tokio::task::yield_now().await;
        }
        let stored = self.shards.whole_pages(checksums.len()) as u64;
        let written = WrittenPages { stored, present: accepted as u64 - stored };
        let committed = match offload.commit(&checksums, false).await {
            // A short lease on a busy host: the pages are offered again.
            Err(Error { kind: ErrorKind::LeaseUnknown, .. }) => {
                return Ok(Offered { accepted: 0, written: WrittenPages::default(), declined: None });
            }
            committed => committed?,
        };
        if !committed.dropped.is_empty() {
            return Err(no_room("pages left before they were stored"));
        }
        Ok(Offered { accepted, written, declined: outcomes.get(taken).copied() })
    }
}

/// The pool cannot hold the snapshot.
fn no_room(what: &str) -> Error {
    let text = format!(
        "the pool has no room for the snapshot's pages: {what}; restore it where more DRAM or NVMe is free, or less of it"
    );
    Error::new(ErrorKind::Limit, text)
}
