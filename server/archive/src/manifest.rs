//! Manifests: what a snapshot has, by digests. Must not know: packs' bytes, stores.
//!
//! - `model`: a manifest that holds together
//! - `raw`: its form in JSON
//! - `weight`: how much of it may be in words nobody knows
//! - `parse`: from JSON, everything checked
//! - `write`: to JSON

mod model;
mod parse;
mod raw;
mod weight;
mod write;

pub(crate) use model::BOOKMARKED;
pub use model::{Header, Manifest, ManifestPage, Sequence, ShardDigests};
