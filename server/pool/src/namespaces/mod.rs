//! Namespaces: what a page is, whose it is. Owns: which namespaces are open, and which make way.
//! Must not know: what their pages are used for.
//!
//! - `table`: namespaces and tenants; `gives_way`: who gives way to a new one; `retiring`: those that go

pub(crate) mod gives_way;
pub(crate) mod retiring;
pub(crate) mod table;
