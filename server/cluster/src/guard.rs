//! What to believe of the members that were read. Owns: the view that counts, the highest incarnations, and how long a view
//! that shrank was seen. Must not know: where members are read from.
//!
//! ```text
//! read, or watched --as many, or more than half--> believed at once
//!                  --empty, or less than half--> held, held, believed in the third round
//!                  --cannot be read--> the last view stays
//! ```

use crate::ids::{Incarnation, Life, MemberId};
use crate::limits::{MARKS_MAX, SHRUNK_ROUNDS};
use crate::view::{Member, View};
use hashbrown::HashMap;

/// What a round saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// These members.
    Members(Vec<Member>),
    /// Nothing: who knows cannot be asked.
    Unreachable,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a view that changed has to be acted on"]
pub enum Viewed {
    /// The view stays.
    Same,
    /// Members, weights, states or lives differ.
    Changed,
    /// The view stays for now: what was seen is empty or less than half of it, for so many rounds.
    Held(u32),
}

/// The view that counts.
#[derive(Default)]
pub struct ViewGuard {
    view: View,
    marks: HashMap<MemberId, Incarnation>,
    shrunk_rounds: u32,
    over: Vec<Life>,
}

impl ViewGuard {
    /// The members, as far as they are believed.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// A later life of a member is known of: what was said in an earlier one does not count from now on.
    pub fn mark(&mut self, id: MemberId, incarnation: Incarnation) {
        if self.marks.len() >= MARKS_MAX && !self.marks.contains_key(&id) {
            let view = &self.view;
            self.marks.retain(|id, _| view.get(*id).is_some());
        }
        let mark = self.marks.entry(id).or_insert(incarnation);
        *mark = incarnation.max(*mark);
    }

    /// If a life is over: the latest one of its member.
    pub fn fence(&self, life: Life) -> Option<Incarnation> {
        self.marks.get(&life.member).copied().filter(|latest| life.incarnation < *latest)
    }

    /// Members that were read in a life that is over, with their latest one: what was read is old, or they began one too low
    /// because the marks were lost with etcd.
    pub fn over(&self) -> &[Life] {
        &self.over
    }

    /// Judges what a round saw.
    pub fn observe(&mut self, observation: Observation) -> Viewed {
        let Observation::Members(members) = observation else { return Viewed::Same };
        let mut members: Vec<Member> = View::of(members).members().to_vec();
        self.over.clear();
        for member in &mut members {
            self.mark(member.id, member.incarnation);
            // What was read may be old: a life that is over does not begin again.
            if let Some(latest) = self.fence(Life { member: member.id, incarnation: member.incarnation }) {
                member.incarnation = latest;
                self.over.push(Life { member: member.id, incarnation: latest });
            }
        }
        let seen = View::of(members);
        let kept = self.view.members().iter().filter(|member| seen.get(member.id).is_some()).count();
        let before = self.view.members().len();
        if before > 0 && 2 * kept < before {
            self.shrunk_rounds += 1;
            if self.shrunk_rounds < SHRUNK_ROUNDS {
                return Viewed::Held(self.shrunk_rounds);
            }
        }
        self.shrunk_rounds = 0;
        if seen == self.view {
            return Viewed::Same;
        }
        self.view = seen;
        Viewed::Changed
    }
}
