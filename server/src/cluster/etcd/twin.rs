//! Another living server with this member's name. Owns: whether the key of that name is such a one's. Must not know: what follows.

use crate::cluster::card::MemberCard;

/// A card as a key says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeenCard {
    pub(super) card: MemberCard,
    /// By which it stands; 0: until somebody removes it.
    pub(super) lease: i64,
}

/// What a server knows of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OwnPlace<'a> {
    pub(super) endpoint: &'a str,
    /// By which its key stands; 0: it has none.
    pub(super) lease: i64,
}

impl SeenCard {
    /// Whether the key of a member's name is another server's, which lives: its lease is, and its place. A server goes on at once from what a
    /// process before it left at its own place; and a key without a lease says nothing of anybody's life.
    pub(super) fn is_twin_of(&self, own: OwnPlace<'_>) -> bool {
        self.lease != 0 && self.lease != own.lease && self.card.endpoint != own.endpoint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnkv_cluster::{Incarnation, Member, MemberId, MemberState};

    #[test]
    fn a_key_is_another_servers_by_its_lease_and_its_place() {
        let (id, state) = (MemberId::of("a"), MemberState::Serving);
        let member = Member { id, incarnation: Incarnation(3), weight: 1, state };
        let (name, endpoint, zone) = ("a".to_owned(), "tcp://one:1".to_owned(), String::new());
        let card = MemberCard { name, endpoint, zone, member };
        let seen = |lease| SeenCard { card: card.clone(), lease };
        let (elsewhere, here) = ("tcp://two:1", "tcp://one:1");
        assert!(seen(7).is_twin_of(OwnPlace { endpoint: elsewhere, lease: 0 }));
        assert!(seen(7).is_twin_of(OwnPlace { endpoint: elsewhere, lease: 8 }));
        for (seen, endpoint, lease) in [(seen(7), elsewhere, 7), (seen(0), elsewhere, 8), (seen(7), here, 8)]
        {
            assert!(!seen.is_twin_of(OwnPlace { endpoint, lease }), "{seen:?}");
        }
    }
}
