//! What came of a session that was offered to a member. Owns: the words for it. Must not know: how it travels, who is asked.

use turnkv_cluster::Tip;

/// What a member says to a session that it was to take over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Takeover {
    /// It has all of its pages, and is its home.
    Done(Tip),
    /// The session is not at home where it was said to be.
    Gone,
    /// It has no room for it.
    NoRoom,
    /// It could not, and why.
    Failed(String),
}
