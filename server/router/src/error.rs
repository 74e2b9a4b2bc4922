//! Why the router refuses. Owns: the kinds of refusal. Must not know: the wire.

/// A refused call: nothing was changed by it, and the same call would be refused again. Fix the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// An engine's name is empty or too long.
    #[error("an engine's name has 1 to 128 bytes")]
    EngineName,
    /// No candidates, or too many of them.
    #[error("a route is among 1 to 256 candidates")]
    Candidates,
}
