//! What a round sees of the members, and which life begins. Must not know: who says so, what is believed of it.

use super::card::MemberCard;
use turnkv_cluster::{Incarnation, Observation};

/// What a round sees.
pub(super) struct SeenMembers {
    /// For the decision what to believe.
    pub(super) observation: Observation,
    /// Who they are and how they are reached; of a list, those too that are not there.
    pub(super) cards: Vec<MemberCard>,
}

/// A life that begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NewLife {
    /// Its number, above those of all before.
    pub(super) incarnation: Incarnation,
    /// By which sessions have their authorities: the same for all members.
    pub(super) seed: u64,
}
