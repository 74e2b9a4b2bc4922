//! How large a pool should be. Owns: what is counted for it. Must not know: any one page's place.
//!
//! - `curve`: the live miss-ratio curve of a namespace; `curves`: those of all
//! - `prefill`: how fast engines recompute

pub(crate) mod curve;
pub(crate) mod curves;
pub(crate) mod prefill;
