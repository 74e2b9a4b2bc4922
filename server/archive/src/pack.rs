//! Packs: large immutable objects of blobs. Must not know: stores, manifests.
//!
//! - `format`: the bytes of the index and the trailer
//! - `build`: a pack that is being filled

pub(crate) mod build;
pub(crate) mod format;
#[cfg(test)]
mod tests;
