//! The catalog: namespaces, sessions and pins across restarts, in an embedded database. Owns: what is in it, and what waits to
//! be. Must not know: pages' bytes or places (the segments tell those).
//!
//! Nothing depends on it but what only it knows: pages whose namespace it has lost wait on NVMe until that is opened again, and
//! the server serves without it.
//!
//! - [`place`]: where its bytes are; [`open`]: opening it, reopening it, setting a damaged one aside; [`owner`]: which tier it is
//!   of; [`guard`]: panics over a damaged file; [`error`]: which failures pass
//! - [`tables`]: which tables there are; [`load`]: what a start reads of them
//! - [`namespaces`], [`sessions`], [`pins`], [`lists`] (those of both, in pieces that they share), [`segments`]: one table each;
//!   [`rows`]: those that have lists; [`learned`]: what policy and curves know; [`waiting`]: what is to be written

mod error;
mod guard;
mod learned;
mod lists;
mod load;
mod namespaces;
mod open;
mod owner;
mod pins;
mod place;
mod rows;
mod segments;
mod sessions;
mod tables;
mod waiting;

pub(crate) use error::CatalogError;
pub(crate) use lists::ListSource;
pub(crate) use load::Loaded;
pub(crate) use open::Catalog;
pub(crate) use owner::Owner;
pub(crate) use pins::SavedPin;
pub(crate) use place::{CatalogMemory, CatalogPlace};
pub(crate) use rows::Written;
pub(crate) use sessions::{SavedRows, SavedSession};

#[cfg(test)]
pub(crate) mod tests;
