//! A manifest that holds together. Owns: what it has, and the check that it does. Must not know: JSON.

use crate::error::Error;
use crate::id::{Digest, ObjectId};
use crate::limits::{
    BLOB_BYTES_MAX, GROUPS_MAX, MANIFEST_PAGES_MAX, MANIFEST_POSITIONS_MAX, PACKS_NAMED_MAX,
    SEQUENCE_ID_BYTES_MAX, SEQUENCES_MAX, TOKENS_MAX,
};
use crate::split::{Part, Split};
use serde_json::{Map, Value};
use std::collections::HashSet;
use turnkv_proto::limits::{HEAD_DIM_MAX, KV_HEADS_MAX, LAYERS_MAX, PAGE_TOKENS_MAX, SHARDS_MAX};
use turnkv_proto::{BlockHash, NamespaceId};

/// What all pages of a snapshot have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// The namespace; pages can be restored into an equal one only.
    pub namespace: NamespaceId,
    /// The namespace's spec, in its owner's words.
    pub spec: Value,
    /// Order of a page's bytes, in its owner's words.
    pub page_layout: String,
    /// Tokens of a page; 1 to 4096.
    pub page_tokens: u32,
    /// Layers; 0 where the layout does not tell.
    pub layers: u32,
    /// KV heads over all shards; 0 where the layout does not tell.
    pub heads: u32,
    /// Elements of one head's vector; 0 where the layout does not tell.
    pub head_dim: u32,
    /// Element type: `bf16`, `f16`, `f32`, `f8_e4m3`, `f8_e5m2`, `u8`.
    pub dtype: String,
    /// Groups of layers that attend alike, in their owner's words; up to 64.
    pub groups: Vec<Value>,
    /// Shards of a page; 1 to 64.
    pub shards: u32,
    /// Bytes of one shard of a page; 1 to 64 MiB.
    pub shard_bytes: u64,
    /// Which of them are K and which V.
    pub split: Split,
}

/// The digests of one shard of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardDigests {
    /// Of all its bytes.
    Whole(Digest),
    /// Of its K and of its V.
    KeyValue {
        /// Of K.
        k: Digest,
        /// Of V.
        v: Digest,
    },
}

/// A page of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestPage {
    /// Its block hash.
    pub hash: BlockHash,
    /// Which of the snapshot's pages is before it, an earlier one; none for the first page of a prompt.
    pub parent: Option<u32>,
    /// The digests of its shards.
    pub shards: Vec<ShardDigests>,
}

/// A sequence of tokens whose pages a snapshot has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Its name; 1 to 128 bytes, once in a manifest.
    pub id: String,
    /// Which of the snapshot's pages, each the parent of the next; at least one.
    pub pages: Vec<u32>,
    /// Tokens in the last of them; 1 to a page's.
    pub last_page_tokens: u32,
    /// The ids of all its tokens, if they were given.
    pub tokens: Option<Vec<u32>>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    /// Its name.
    pub id: ObjectId,
    /// What all pages have in common.
    pub header: Header,
    /// Its pages, parents before children.
    pub pages: Vec<ManifestPage>,
    /// Its sequences.
    pub sequences: Vec<Sequence>,
    /// When it was captured, in seconds since 1970.
    pub created_unix_s: u64,
    /// Packs that had its blobs when it was written. A collection may have moved them since: blobs are found by their digests.
    pub packs: Vec<ObjectId>,
    /// What else stood beside the published fields; kept as it is.
    pub other: Map<String, Value>,
}

impl ShardDigests {
    /// Each with the part of the shard it is of.
    pub fn each(&self) -> impl Iterator<Item = (Part, Digest)> + use<> {
        let (first, second) = match *self {
            ShardDigests::Whole(digest) => ((Part::Whole, digest), None),
            ShardDigests::KeyValue { k, v } => ((Part::K, k), Some((Part::V, v))),
        };
        std::iter::once(first).chain(second)
    }
}

/// The field of a manifest that archiving wrote: its own id. A fork or an import keeps the field, and has another id.
pub(crate) const BOOKMARKED: &str = "turnkv_bookmark";

impl Manifest {
    /// Whether a bookmark was written for it.
    pub(crate) fn is_bookmarked(&self) -> bool {
        let of = self.other.get(BOOKMARKED).and_then(Value::as_str);
        of.is_some_and(|id| ObjectId::parse(id) == Some(self.id))
    }

    /// The digests of all its blobs, each as often as it is needed.
    pub fn digests(&self) -> impl Iterator<Item = Digest> + '_ {
        let shards = self.pages.iter().flat_map(|page| &page.shards);
        shards.flat_map(|shard| shard.each().map(|(_, digest)| digest))
    }

    /// Bytes of all its pages, as an engine has them.
    #[must_use]
    pub fn page_bytes(&self) -> u64 {
        self.pages.len() as u64 * u64::from(self.header.shards) * self.header.shard_bytes
    }

    /// Fails unless everything holds together, and names what does not.
    pub fn check(&self) -> Result<(), Error> {
        self.header.check()?;
        Error::bound("pages of a manifest", self.pages.len() as u64, MANIFEST_PAGES_MAX as u64)?;
        let positions = self.pages.len() as u64 * u64::from(self.header.shards);
        Error::bound("shards of a manifest's pages", positions, MANIFEST_POSITIONS_MAX as u64)?;
        Error::bound("packs that a manifest names", self.packs.len() as u64, PACKS_NAMED_MAX as u64)?;
        let whole = self.header.split == Split::Whole;
        let mut hashes = HashSet::with_capacity(self.pages.len());
        for (at, page) in self.pages.iter().enumerate() {
            if page.parent.is_some_and(|parent| parent as usize >= at) {
                return Err(Error::invalid(format!("turnkv.pages[{at}].parent"), "is not an earlier page"));
            }
            if !hashes.insert(page.hash) {
                return Err(Error::invalid(
                    format!("turnkv.pages[{at}].hash"),
                    "is the hash of an earlier page",
                ));
            }
            let fits = |shard: &ShardDigests| matches!(shard, ShardDigests::Whole(_)) == whole;
            if page.shards.len() != self.header.shards as usize || !page.shards.iter().all(fits) {
                return Err(Error::invalid(
                    format!("pages[{at}]"),
                    "its digests are not those of its shards' parts",
                ));
            }
        }
        self.check_sequences()
    }

    fn check_sequences(&self) -> Result<(), Error> {
        Error::bound("sequences of a manifest", self.sequences.len() as u64, SEQUENCES_MAX as u64)?;
        let (mut names, mut tokens) = (HashSet::new(), 0);
        for (at, sequence) in self.sequences.iter().enumerate() {
            let wrong =
                |field: &str, fault: &str| Err(Error::invalid(format!("logical_seqs[{at}].{field}"), fault));
            let Sequence { id, pages, last_page_tokens, .. } = sequence;
            if id.is_empty() || id.len() > SEQUENCE_ID_BYTES_MAX || id.chars().any(char::is_control) {
                return wrong("id", "must be 1 to 128 bytes without control characters");
            }
            if !names.insert(id) {
                return wrong("id", "is the id of an earlier sequence");
            }
            let mut before = None;
            for page in pages {
                match self.pages.get(*page as usize) {
                    Some(found) if found.parent == before => before = Some(*page),
                    Some(_) => return wrong("page_ixs", "a page does not follow its parent"),
                    None => return wrong("page_ixs", "names a page that is not there"),
                }
            }
            if pages.is_empty() {
                return wrong("page_ixs", "is empty");
            }
            if *last_page_tokens == 0 || *last_page_tokens > self.header.page_tokens {
                return wrong("fill_in_last_page", "must be 1 to page_size_tokens");
            }
            let count =
                (pages.len() as u64 - 1) * u64::from(self.header.page_tokens) + u64::from(*last_page_tokens);
            if let Some(given) = &sequence.tokens {
                tokens += given.len();
                Error::bound("token ids of a manifest", tokens as u64, TOKENS_MAX as u64)?;
                if given.len() as u64 != count {
                    let fault = format!("has {} ids, the sequence has {count} tokens", given.len());
                    return Err(Error::invalid(format!("turnkv.tokens[{at}]"), fault));
                }
            }
        }
        Ok(())
    }
}

impl Header {
    /// Fails unless every number is within its bounds.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let numbers = [
            ("page_size_tokens", u64::from(self.page_tokens), 1, u64::from(PAGE_TOKENS_MAX)),
            ("n_layers", self.layers.into(), 0, u64::from(LAYERS_MAX) * GROUPS_MAX as u64),
            ("n_heads", self.heads.into(), 0, KV_HEADS_MAX.into()),
            ("head_dim", self.head_dim.into(), 0, HEAD_DIM_MAX.into()),
            ("turnkv.tp", self.shards.into(), 1, SHARDS_MAX.into()),
            ("turnkv.shard_bytes", self.shard_bytes, 1, BLOB_BYTES_MAX),
            ("turnkv.groups", self.groups.len() as u64, 0, GROUPS_MAX as u64),
        ];
        for (field, got, min, max) in numbers {
            if got < min || got > max {
                return Err(Error::invalid(field, format!("must be {min} to {max}, is {got}")));
            }
        }
        for (field, text) in [("dtype", &self.dtype), ("turnkv.page_layout", &self.page_layout)] {
            if text.is_empty() || text.len() > SEQUENCE_ID_BYTES_MAX || text.chars().any(char::is_control) {
                return Err(Error::invalid(field, "must be 1 to 128 bytes without control characters"));
            }
        }
        self.split.check(self.shard_bytes)
    }
}
