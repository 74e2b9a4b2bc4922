//! Sessions: conversations and branches, and their lists of pages. Owns: which sessions there are, where
//! their lists end. Must not know: slots, NVMe.
//!
//! - `table`, `tenants`: sessions by name, by tenant, by deadline
//! - `branches`: how a session's list grows, is cut, is replaced; `walk`: over its
//!   pages
//! - `resume`: sessions that go on under another name
//! - `record`: across restarts; `describe`: for people

pub(crate) mod branches;
pub(crate) mod describe;
pub(crate) mod record;
pub(crate) mod resume;
pub(crate) mod table;
mod tenants;
pub(crate) mod walk;
