//! A manifest's form in JSON. Owns: the names of its fields. Must not know: which values are allowed.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// What `layout` must be.
pub(super) const LAYOUT: &str = "paged-batchinvariant-v1";
/// The version of what stands under `turnkv`.
pub(super) const VERSION: u64 = 1;

/// The whole: the published fields, ours under one name, and what else there is.
#[derive(Serialize, Deserialize)]
pub(super) struct RawManifest {
    pub(super) layout: String,
    pub(super) page_size_tokens: u32,
    pub(super) n_layers: u32,
    pub(super) n_heads: u32,
    pub(super) head_dim: u32,
    pub(super) dtype: String,
    /// One for each shard of each page: page after page, of each page one shard after another.
    pub(super) pages: Vec<RawPosition>,
    pub(super) logical_seqs: Vec<RawSequence>,
    pub(super) turnkv: RawOwn,
    #[serde(flatten)]
    pub(super) other: Map<String, Value>,
}

/// One shard of a page.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPosition {
    pub(super) ix: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) k: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) v: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) kv: Option<String>,
}

/// A sequence: which positions, in order.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSequence {
    pub(super) id: String,
    pub(super) page_ixs: Vec<u64>,
    pub(super) fill_in_last_page: u32,
}

/// Our own fields.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawOwn {
    pub(super) version: u64,
    pub(super) id: String,
    pub(super) namespace: String,
    pub(super) spec: Value,
    pub(super) page_layout: String,
    pub(super) groups: Vec<Value>,
    pub(super) tp: u32,
    pub(super) shard_bytes: u64,
    pub(super) split: Option<RawSplit>,
    pub(super) pages: Vec<RawPage>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tokens: Option<Vec<Option<Vec<u32>>>>,
    pub(super) created: u64,
    pub(super) packs: Vec<String>,
    /// Over the whole text, with 64 zeros in this place.
    pub(super) sha256: String,
}

/// Which bytes of a shard are K and which V: `[offset, bytes]` each.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSplit {
    pub(super) k: Vec<(u32, u32)>,
    pub(super) v: Vec<(u32, u32)>,
}

/// What belongs to a page rather than to its shards.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPage {
    pub(super) hash: String,
    /// Not there: the page before this one, if there is one. So most pages of a fork, which is nothing but its manifest, are shorter.
    #[serde(default, deserialize_with = "said", skip_serializing_if = "Option::is_none")]
    pub(super) parent: Option<Option<u32>>,
}

/// A value that is there, `null` too.
fn said<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::deserialize(value).map(Some)
}

impl RawPage {
    /// Of the page at this place.
    pub(super) fn new(at: usize, hash: String, parent: Option<u32>) -> RawPage {
        RawPage { hash, parent: (parent != page_before(at)).then_some(parent) }
    }

    /// The page before it in its prompt, if it is at this place.
    pub(super) fn parent_at(&self, at: usize) -> Option<u32> {
        self.parent.unwrap_or_else(|| page_before(at))
    }
}

fn page_before(at: usize) -> Option<u32> {
    at.checked_sub(1).and_then(|before| u32::try_from(before).ok())
}

/// Where the digits of a text's own digest stand: behind the only place where it says them so.
pub(super) fn seal_place(text: &[u8], digits: &str) -> Option<usize> {
    let mark = format!("\"sha256\":\"{digits}\"");
    let mut places = text.windows(mark.len()).enumerate().filter(|(_, window)| *window == mark.as_bytes());
    let (first, _) = places.next()?;
    places.next().is_none().then_some(first + "\"sha256\":\"".len())
}
