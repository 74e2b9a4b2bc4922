//! Manifests: what a snapshot has, by digests. Must not know: packs' bytes, stores.
//!
//! - `model`: a manifest that holds together
//! - `raw`: its form in JSON
//! - `parse`: from JSON, everything checked
//! - `write`: to JSON

mod model;
mod parse;
mod raw;
mod write;

pub use model::{Header, Manifest, ManifestPage, Sequence, ShardDigests};
