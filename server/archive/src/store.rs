//! The objects of one tenant in a store. Must not know: what objects mean.
//!
//! - `key`: what objects are called
//! - `folder`: a directory, of which nothing is left out
//! - `place`: a directory or S3, opened
//! - `request`: one request: bounded in number and time, made again after faults that may pass
//! - `tried`: what a request came to: a store's errors told apart
//! - `litter`: what killed processes left of files that were being written

mod folder;
mod key;
mod litter;
mod place;
mod request;
#[cfg(test)]
mod tests;
mod tried;

pub(crate) use folder::make_private;
pub(crate) use key::{Key, Kind};
pub use place::{Place, StoreSettings};
pub(crate) use request::{Listed, Store};
