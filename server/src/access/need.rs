//! What a verb can need of its caller. Must not know: which verb needs what (the doors have that table), callers.

/// What a verb needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// An engine, of the tenant whose namespace the request names.
    Tenant,
    /// An engine; the request names a lease, which is its own client's and of a namespace that was asked for.
    Lease,
    /// Another member of the cluster.
    Member,
    /// An operator.
    Operator,
}
