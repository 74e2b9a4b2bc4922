//! A namespace that retires. Owns: how far that is. Must not know: what is dropped of it, and how.

use crate::ids::{NamespaceIndex, PageKey};

/// A namespace that retires, and how far that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retiring {
    pub(crate) ns: NamespaceIndex,
    /// Sessions, then pins, then pages up to here are gone.
    pub(crate) sessions: u32,
    pub(crate) protections: u32,
    pub(crate) pages: u32,
    /// The page that is next, on the way down to a leaf or up from one.
    pub(crate) page: Option<PageKey>,
}

impl Retiring {
    /// Nothing of it is gone yet.
    pub(crate) fn new(ns: NamespaceIndex) -> Retiring {
        Retiring { ns, sessions: 0, protections: 0, pages: 0, page: None }
    }
}
