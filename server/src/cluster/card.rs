//! What a member says of itself, for all to know: who it is and how it is reached. Owns: the words for it. Must not know: how it
//! travels.

use turnkv_cluster::{Life, Member};

/// What a member says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberCard {
    /// Its name, which stays with its host.
    pub(crate) name: String,
    /// How it is reached: `tcp://host:port` or `tls://host:port`.
    pub(crate) endpoint: String,
    /// Where it stands; empty: nothing is said.
    pub(crate) zone: String,
    /// What the directory's decisions know of it.
    pub(crate) member: Member,
}

impl MemberCard {
    /// Who it is, in this life.
    pub(crate) fn life(&self) -> Life {
        Life { member: self.member.id, incarnation: self.member.incarnation }
    }
}
