//! How large a pool should be. Owns: what is counted for it. Must not know: any one page's place.
//!
//! - `curve`: the live miss-ratio curve of each namespace
//! - `prefill`: how fast engines recompute

pub(crate) mod curve;
pub(crate) mod prefill;
