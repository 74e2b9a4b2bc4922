//! A snapshot in few words. Owns: what these are. Must not know: the wire.

use turnkv_archive::Manifest;
use turnkv_proto::NamespaceId;

/// A snapshot in few words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotSummary {
    /// Its name.
    pub(crate) snapshot: String,
    /// Its namespace.
    pub(crate) namespace: NamespaceId,
    /// The model, as its spec says.
    pub(crate) model: String,
    /// When it was captured.
    pub(crate) created_unix_s: u64,
    /// Pages.
    pub(crate) pages: u64,
    /// Bytes of these, as engines have them.
    pub(crate) bytes: u64,
    /// Sequences.
    pub(crate) sequences: u32,
    /// The name of the first one.
    pub(crate) first_sequence: String,
    /// Tokens of a page.
    pub(crate) page_tokens: u32,
    /// Shards of a page.
    pub(crate) shards: u32,
    /// Bytes of one.
    pub(crate) shard_bytes: u64,
}

/// What a manifest says, in few words.
pub(super) fn summary_of(manifest: &Manifest) -> SnapshotSummary {
    let model = manifest.header.spec.get("model").and_then(|model| model.as_str());
    SnapshotSummary {
        snapshot: manifest.id.to_string(),
        namespace: manifest.header.namespace,
        model: model.unwrap_or_default().chars().take(turnkv_proto::limits::MODEL_BYTES_MAX).collect(),
        created_unix_s: manifest.created_unix_s,
        pages: manifest.pages.len() as u64,
        bytes: manifest.page_bytes(),
        sequences: manifest.sequences.len() as u32,
        first_sequence: manifest.sequences.first().map_or_else(String::new, |sequence| sequence.id.clone()),
        page_tokens: manifest.header.page_tokens,
        shards: manifest.header.shards,
        shard_bytes: manifest.header.shard_bytes,
    }
}
