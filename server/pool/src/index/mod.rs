//! The index: which pages there are, what hangs on what, and where each page's bytes are. Owns: entries and
//! their state. Must not know: who asks, why a page comes or goes.
//!
//! - `entry`, `chunks`, `arena`, `table`: one page, where pages live, how they are found
//! - `flags`: the states of cells and pages, with their diagrams
//! - `lists`, `list_id`: pages linked through their entries
//! - `sibling_order`, `siblings`: pages that hang on one page together, and their links
//! - `sweep`: where walks through all of it are
//! - `tips`: where lists of pages end
//! - `path`, `path_end`, `tree`: ways from the root, and what hangs on what
//! - `transitions`: what the state of cells and pages can become

pub(crate) mod arena;
mod chunks;
pub(crate) mod entry;
pub(crate) mod flags;
pub(crate) mod list_id;
pub(crate) mod lists;
pub(crate) mod path;
pub(crate) mod path_end;
mod sibling_order;
mod siblings;
pub(crate) mod sweep;
pub(crate) mod table;
pub(crate) mod tips;
mod transitions;
pub(crate) mod tree;
