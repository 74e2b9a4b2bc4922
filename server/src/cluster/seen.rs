//! What a round sees of the members. Must not know: who says so, what is believed of it.

use super::card::MemberCard;
use turnkv_cluster::Observation;

/// What a round sees.
pub(super) struct Seen {
    /// For the decision what to believe.
    pub(super) observation: Observation,
    /// Who they are and how they are reached; of a list, those too that are not there.
    pub(super) cards: Vec<MemberCard>,
}
