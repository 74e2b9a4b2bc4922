//! Namespaces: what a page is, whose it is. Owns: which namespaces are open, and which make way.
//! Must not know: what their pages are used for.
//!
//! - `table`: namespaces and tenants; `retire`: those that nobody uses go

pub(crate) mod retire;
mod retiring;
pub(crate) mod table;
