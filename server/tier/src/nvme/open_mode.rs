//! How a file of the tier is opened. Must not know: whose files they are.

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// To read it.
    Read,
    /// To read and write it; made, empty, if it is missing.
    Keep,
    /// To read and write it, made or emptied first.
    Create,
}
