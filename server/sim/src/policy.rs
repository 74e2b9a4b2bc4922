//! The policies a simulation can name. Owns: the list. Must not know: how a policy works (the pool has them).

use turnkv_pool::PolicyKind;

/// A policy as the simulator runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What people call it.
    pub name: &'static str,
    /// What the pool is configured with.
    pub kind: PolicyKind,
    /// Whether the pool is told which requests are one session. A plain block cache is not: every request comes as a
    /// session of its own.
    pub sessions: bool,
    /// One line for people.
    pub about: &'static str,
}

/// Every policy, the plain ones first.
pub const POLICIES: [Policy; 8] = [
    Policy {
        name: "lru",
        kind: PolicyKind::Lru,
        sessions: false,
        about: "least recently used, tails before heads, sessions unknown",
    },
    Policy {
        name: "lru-sessions",
        kind: PolicyKind::Lru,
        sessions: true,
        about: "the same, with branches that their session replaced going first",
    },
    Policy {
        name: "s3fifo",
        kind: PolicyKind::S3Fifo,
        sessions: false,
        about: "a small queue of newcomers, a main one for what is read in it",
    },
    Policy {
        name: "tinylfu",
        kind: PolicyKind::TinyLfu,
        sessions: false,
        about: "newcomers must be read more often than what they replace",
    },
    Policy {
        name: "arc",
        kind: PolicyKind::Arc,
        sessions: false,
        about: "read once and read again share the room as ghosts of both say",
    },
    Policy {
        name: "gittins",
        kind: PolicyKind::Gittins,
        sessions: true,
        about: "by learned chance of return, of pages by their uses and age",
    },
    Policy {
        name: "session",
        kind: PolicyKind::Session,
        sessions: true,
        about: "superseded and closed first, then by learned chance of return of the session",
    },
    Policy {
        name: "session-unnamed",
        kind: PolicyKind::Session,
        sessions: false,
        about: "the same, every request under a name of its own: sessions are found by the pages they go on from",
    },
];

/// Finds a policy by its name.
pub fn find(name: &str) -> Option<Policy> {
    POLICIES.iter().copied().find(|policy| policy.name == name)
}

/// All names, for messages.
pub fn names() -> String {
    POLICIES.map(|policy| policy.name).join(", ")
}
