//! The books of NVMe: what is written, what stays, what was found there. Owns: decisions about extents.
//! Must not know: segments' files, who reads and writes them.
//!
//! - `admission`: which pages are written; `writeback`: in which order; `durable`: those that somebody waits for
//! - `space`: which pages leave when there is no room for all; `reclaim`: which extents of a segment are worth their
//!   place; `pass`: how it is emptied of them
//! - `promote`: pages that are read back into DRAM
//! - `strangers`: extents of namespaces that are not open; `thin`: when that is too much; `adopt`: they become pages

pub(crate) mod admission;
pub(crate) mod adopt;
pub(crate) mod durable;
pub(crate) mod pass;
pub(crate) mod promote;
pub(crate) mod reclaim;
pub(crate) mod space;
pub(crate) mod strangers;
pub(crate) mod thin;
pub(crate) mod writeback;
