//! Who the members are, as whoever knows them says. Owns: the choice between a list and etcd. Must not know: what to believe of it.

use super::card::MemberCard;
use super::listed::ListedMembers;
use super::seen::Seen;
use turnkv_cluster::Incarnation;
use turnkv_proto::Error;

/// Whoever knows the members.
pub(super) enum Membership {
    /// A list of the configuration, and who of it was heard.
    Listed(ListedMembers),
}

impl Membership {
    /// In one word.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Membership::Listed(_) => "static",
        }
    }

    /// The incarnation of a life that begins now. `after`: the latest one that was heard of. None: it cannot be said yet.
    pub(super) fn next_life(&self, after: Incarnation, unix_ms: u64) -> Option<Incarnation> {
        match self {
            Membership::Listed(_) => Some(ListedMembers::next_life(after, unix_ms)),
        }
    }

    /// Looks who is there.
    pub(super) fn look(&self, own: &MemberCard) -> Seen {
        match self {
            Membership::Listed(listed) => listed.look(own),
        }
    }

    /// A member said this of itself, to this one.
    pub(super) fn heard(&self, card: MemberCard) -> Result<(), Error> {
        match self {
            Membership::Listed(listed) => listed.heard(card),
        }
    }
}
