//! Describe: what a snapshot has. Owns: how much of a sequence one answer tells. Must not know: pages' bytes.

use super::Snapshots;
use super::counts::SnapshotVerb;
use super::summary::{SnapshotSummary, summary_of};
use crate::limits::{SNAPSHOT_PAGES_TOLD_MAX, SNAPSHOT_TOKENS_MAX};
use std::collections::HashSet;
use turnkv_archive::{Manifest, ObjectId, Sequence, Split};
use turnkv_proto::{BlockHash, Error};

/// What does a snapshot have?
pub(crate) struct DescribeSnapshot {
    /// Whose it is.
    pub(crate) tenant: String,
    /// Which one.
    pub(crate) snapshot: ObjectId,
    /// Also the pages of this sequence,
    pub(crate) sequence: Option<String>,
    /// behind so many.
    pub(crate) from_page: usize,
}

/// A sequence in few words.
pub(crate) struct SequenceSummary {
    /// Its name.
    pub(crate) name: String,
    /// Its pages.
    pub(crate) pages: u32,
    /// Tokens in the last one.
    pub(crate) last_page_tokens: u32,
    /// Tokens in all.
    pub(crate) tokens: u64,
    /// Their ids were given.
    pub(crate) has_tokens: bool,
}

/// What a snapshot has.
pub(crate) struct DescribedSnapshot {
    /// In few words.
    pub(crate) summary: SnapshotSummary,
    /// All its sequences.
    pub(crate) sequences: Vec<SequenceSummary>,
    /// Order of a page's bytes.
    pub(crate) layout: String,
    /// Element type.
    pub(crate) dtype: String,
    /// Bytes of its parts, each once.
    pub(crate) unique_bytes: u64,
    /// Of the sequence that was named: these pages,
    pub(crate) hashes: Vec<BlockHash>,
    /// the ids of their tokens,
    pub(crate) tokens: Vec<u32>,
    /// and from where to ask on.
    pub(crate) next_page: Option<u32>,
}

impl Snapshots {
    /// What a snapshot has.
    pub(crate) async fn describe(&self, ask: &DescribeSnapshot) -> Result<DescribedSnapshot, Error> {
        let look = self.begin(SnapshotVerb::Describe)?;
        let archive = look.archive(&ask.tenant).await?;
        let manifest = archive.describe(ask.snapshot).await.map_err(|fault| look.refuse(fault))?;
        let (mut hashes, mut tokens, mut next_page) = (Vec::new(), Vec::new(), None);
        if let Some(name) = &ask.sequence {
            let found = manifest.sequences.iter().find(|sequence| sequence.id == *name);
            let sequence = found
                .ok_or_else(|| Error::invalid(format!("sequence: the snapshot has none called {name:?}")))?;
            let some = told(&manifest, sequence, ask.from_page);
            let pages = sequence.pages.get(some.clone()).unwrap_or_default();
            hashes
                .extend(pages.iter().filter_map(|ix| manifest.pages.get(*ix as usize)).map(|page| page.hash));
            if let Some(ids) = &sequence.tokens {
                let page_tokens = manifest.header.page_tokens as usize;
                let end = ids.len().min(some.end * page_tokens);
                tokens.extend_from_slice(ids.get(some.start * page_tokens..end).unwrap_or_default());
            }
            next_page = (some.end < sequence.pages.len()).then_some(some.end as u32);
        }
        look.done();
        let page_tokens = u64::from(manifest.header.page_tokens);
        let sequences = manifest.sequences.iter().map(|sequence| SequenceSummary {
            name: sequence.id.clone(),
            pages: sequence.pages.len() as u32,
            last_page_tokens: sequence.last_page_tokens,
            tokens: (sequence.pages.len() as u64).saturating_sub(1) * page_tokens
                + u64::from(sequence.last_page_tokens),
            has_tokens: sequence.tokens.is_some(),
        });
        Ok(DescribedSnapshot {
            summary: summary_of(&manifest),
            sequences: sequences.collect(),
            layout: manifest.header.page_layout.clone(),
            dtype: manifest.header.dtype.clone(),
            unique_bytes: unique_bytes(&manifest),
            hashes,
            tokens,
            next_page,
        })
    }
}

/// Which pages of a sequence one answer tells, from one on: as many as it may, with their tokens.
fn told(manifest: &Manifest, sequence: &Sequence, from: usize) -> std::ops::Range<usize> {
    let page_tokens = manifest.header.page_tokens.max(1) as usize;
    let most = match sequence.tokens {
        Some(_) => SNAPSHOT_PAGES_TOLD_MAX.min(SNAPSHOT_TOKENS_MAX / page_tokens),
        None => SNAPSHOT_PAGES_TOLD_MAX,
    };
    let from = from.min(sequence.pages.len());
    from..sequence.pages.len().min(from + most)
}

fn unique_bytes(manifest: &Manifest) -> u64 {
    let mut seen = HashSet::new();
    let sum = |ranges: &[(u32, u32)]| ranges.iter().map(|(_, bytes)| u64::from(*bytes)).sum::<u64>();
    let (whole, k, v) = match &manifest.header.split {
        Split::Whole => (manifest.header.shard_bytes, 0, 0),
        Split::KeyValue { k, v } => (0, sum(k), sum(v)),
    };
    let parts = manifest.pages.iter().flat_map(|page| &page.shards).flat_map(|shard| shard.each());
    let new = parts.filter(|(_, digest)| seen.insert(*digest)).map(|(part, _)| match part {
        turnkv_archive::Part::Whole => whole,
        turnkv_archive::Part::K => k,
        turnkv_archive::Part::V => v,
    });
    new.sum()
}
