//! The members as one of them sees them. Owns: the set, in order, and its epoch. Must not know: where it is from, what to
//! believe of it.

use crate::ids::{Incarnation, Life, MemberId};
use crate::limits::MEMBERS_MAX;
use crate::mix::mix;

/// What a member says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberState {
    /// It serves.
    Serving,
    /// It reached too few of the others: what it has is read, nothing new is placed there until it is back.
    Away,
    /// It is being emptied: what it has is read, nothing new is placed there.
    Draining,
}

/// A member, as its own key says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Who.
    pub id: MemberId,
    /// In which life.
    pub incarnation: Incarnation,
    /// Its part of the directory against that of others; 0: none.
    pub weight: u32,
    /// How it is.
    pub state: MemberState,
}

/// The members, each once, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    members: Vec<Member>,
    epoch: u64,
}

impl View {
    /// The view of some members: of two of the same id, the one of the later life. Beyond the most that a cluster has, those
    /// with the highest ids are left out, by everybody alike.
    pub fn of(mut members: Vec<Member>) -> View {
        members.sort_by_key(|member| (member.id, std::cmp::Reverse(member.incarnation)));
        members.dedup_by_key(|member| member.id);
        members.truncate(MEMBERS_MAX);
        let fold = |epoch, member: &Member| {
            let parts = [member.id.0, member.incarnation.0, u64::from(member.weight), member.state as u64];
            parts.into_iter().fold(epoch, |epoch, part| mix(epoch ^ part))
        };
        let epoch = members.iter().fold(0, fold);
        View { members, epoch }
    }

    /// A hash of the set: equal for all who see the same one, whatever they saw before.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// All of them, by id.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// One of them.
    pub fn get(&self, id: MemberId) -> Option<&Member> {
        self.members.binary_search_by_key(&id, |member| member.id).ok().map(|at| &self.members[at])
    }

    /// Whether what was said in this life still counts: the member is there, and in no later one.
    pub fn admits(&self, life: Life) -> bool {
        self.get(life.member).is_some_and(|member| life.incarnation >= member.incarnation)
    }
}
