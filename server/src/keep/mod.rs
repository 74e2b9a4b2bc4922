//! Memory that outlives the server's process: who keeps its descriptors meanwhile. Owns: what the server and the keeper say to
//! one another. Must not know: what is in the memory.
//!
//! - [`frames`]: their words
//! - [`keeper`]: the process that keeps: `turnkv keep`
//! - [`link`]: the server's end

mod frames;
pub(crate) mod keeper;
pub(crate) mod link;
