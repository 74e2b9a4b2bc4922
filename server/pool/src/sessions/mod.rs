//! Sessions: conversations and branches, and their lists of pages. Owns: which sessions there are, where
//! their lists end. Must not know: slots, NVMe.
//!
//! - `table`, `tenants`: sessions by name, by tenant, by deadline
//! - `branches`: how a session's list grows, is cut, is replaced; `walk`: over its
//!   pages
//! - `resume`: sessions that go on under another name
//! - `info`: what a list of sessions says

pub(crate) mod branches;
pub(crate) mod info;
pub(crate) mod resume;
pub(crate) mod table;
mod tenants;
pub(crate) mod walk;
pub(crate) mod walk_back;
