//! How far an operation is. Owns: what is told. Must not know: how it travels.

/// Pages and bytes of an operation that goes over pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PagesDone {
    /// Pages that were dealt with.
    pub(crate) pages_done: u64,
    /// Pages in all.
    pub(crate) pages: u64,
    /// Bytes of a page.
    pub(crate) page_bytes: u64,
}

/// Takes note of how far an operation is; it never waits.
pub(crate) type Tell<'a, P> = &'a mut (dyn FnMut(P) + Send);
