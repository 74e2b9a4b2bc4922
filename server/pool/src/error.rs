//! Why the pool refuses. Owns: the few kinds of refusal. Must not know: the wire.

/// A refused call. Nothing was changed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The input contradicts itself or its namespace: fix the caller.
    #[error("{0}")]
    Invalid(&'static str),
    /// No namespace of that id or index: open it (again).
    #[error("the namespace is not open here")]
    NamespaceUnknown,
    /// The lease ended, was never given, or belongs to another client: begin again.
    #[error("the lease ended, was never given, or belongs to another client")]
    LeaseUnknown,
    /// No session of that name: begin a turn.
    #[error("no such session")]
    SessionUnknown,
    /// This share of the leases is all held: try again when some of them have ended.
    #[error("the limit leases_max is reached: {0} its share of it: end some, or try again when they end")]
    LeaseShare(LeaseShare),
    /// A named limit is reached.
    #[error("the limit {0} is reached")]
    Limit(&'static str),
}

/// Who holds as many leases as its share of `leases_max` allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseShare {
    /// The client that asks.
    #[error("this one client (a process, or a host) holds")]
    Client,
    /// All clients of its user.
    #[error("the clients of this user together hold")]
    User,
    /// All clients there are.
    #[error("all clients together hold")]
    All,
}
