//! What only the sender in turn may touch. Must not know: how frames are sent.

/// A sender's place in the stream of frames.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    /// Its position in the ring, where there is one.
    pub(super) written: u64,
    /// The ring says that the next frame is on the socket, and it is not there yet.
    pub(super) owed: bool,
}
