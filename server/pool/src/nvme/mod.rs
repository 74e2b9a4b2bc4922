//! The books of NVMe: what is written, what stays, what was found there. Owns: what is known of extents.
//! Must not know: segments' files, who reads and writes them, slots.
//!
//! - `books`: all of it together; `waiting`: pages that are to be written; `kept`: what is to stay
//! - `write_queue`, `budget`, `left_behind`, `space`: the parts that keep count
//! - `strangers`: extents of namespaces that are not open; `thin`: when that is too much; `adoption`: in
//!   which order they become pages; `found`: what a start found in DRAM, which becomes pages with these

pub(crate) mod adoption;
pub(crate) mod books;
mod budget;
pub(crate) mod found;
mod kept;
mod left_behind;
pub(crate) mod space;
pub(crate) mod strangers;
mod thin;
mod waiting;
mod write_queue;
