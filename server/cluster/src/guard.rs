//! What to believe of the members that were read. Owns: the view that counts, the highest incarnations, and how long a view
//! that shrank was seen. Must not know: where members are read from.
//!
//! ```text
//! read, or watched --as many, or more than half--> believed at once
//!                  --empty, or less than half--> held, held, believed in the third round
//!                  --cannot be read--> the last view stays
//! ```
//! Half of what is believed, and of what was before the losses of the last rounds: who is cut from all others may lose them one by one.

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
    /// Rounds in a row with less than half of the view.
    shrunk_rounds: u32,
    /// The view before losses that were believed at once, until none is seen for [`SHRUNK_ROUNDS`] rounds.
    before: View,
    /// Rounds since the last of them.
    since_loss: u32,
    /// Rounds in a row with less than half of what was before them.
    worn_rounds: u32,
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
        let of_view = count_shrunk(&mut self.shrunk_rounds, &seen, &self.view);
        let of_before = count_shrunk(&mut self.worn_rounds, &seen, &self.before);
        if let Some(rounds) = of_view.or(of_before) {
            return Viewed::Held(rounds);
        }
        self.note_losses(&seen);
        (self.shrunk_rounds, self.worn_rounds) = (0, 0);
        if seen == self.view {
            return Viewed::Same;
        }
        self.view = seen;
        Viewed::Changed
    }

    /// What was seen is about to be believed.
    fn note_losses(&mut self, seen: &View) {
        self.since_loss = self.since_loss.saturating_add(1);
        let was_held = self.shrunk_rounds + self.worn_rounds > 0;
        if was_held || self.since_loss >= SHRUNK_ROUNDS {
            self.before = View::default();
        }
        if !was_held && self.view.members().iter().any(|member| seen.get(member.id).is_none()) {
            self.since_loss = 0;
            if self.before.members().is_empty() {
                self.before = self.view.clone();
            }
        }
    }
}

/// Counts rounds in a row with less than half of these members. Gives them while they are too few for that to be believed.
fn count_shrunk(rounds: &mut u32, seen: &View, of: &View) -> Option<u32> {
    let kept = of.members().iter().filter(|member| seen.get(member.id).is_some()).count();
    *rounds = if 2 * kept < of.members().len() { *rounds + 1 } else { 0 };
    (1..SHRUNK_ROUNDS).contains(rounds).then_some(*rounds)
}
