//! Members of a list that stays as it is: who of them was heard lately is there. Owns: when each was. Must not know: what is
//! believed of it.

use super::card::MemberCard;
use super::seen::{NewLife, SeenMembers};
use crate::config::ListedMember;
use crate::limits::MEMBER_SILENT_MAX;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Instant;
use turnkv_cluster::{Incarnation, Member, MemberId, MemberState, Observation};
use turnkv_proto::Error;

/// The list, and who of it was heard.
pub(super) struct ListedMembers {
    /// As it is configured, by number.
    listed: BTreeMap<MemberId, ListedMember>,
    /// What each said last of itself, and when. No more than are listed.
    heard: Mutex<BTreeMap<MemberId, (MemberCard, Instant)>>,
    seed: u64,
}

impl ListedMembers {
    /// Nobody was heard yet.
    pub(super) fn new(members: &[ListedMember], seed: u64) -> ListedMembers {
        let listed = members.iter().map(|member| (MemberId::of(&member.id), member.clone())).collect();
        ListedMembers { listed, heard: Mutex::default(), seed }
    }

    /// A life that is to begin now: the first one, or one after the latest that was heard of. Nobody writes the last one down, so
    /// its number is the time, or what comes after the latest.
    pub(super) fn next_life(
        &self,
        current: Option<Incarnation>,
        after: Incarnation,
        unix_ms: u64,
    ) -> Option<NewLife> {
        let is_due = current.is_none_or(|current| after > current);
        let incarnation = Incarnation(unix_ms.max(after.0.saturating_add(1)));
        is_due.then_some(NewLife { incarnation, seed: self.seed })
    }

    /// A member said this of itself, to this one. What an earlier life says while a later one is there came late, and is
    /// not heard; one that began too low is, when the one before it is silent.
    ///
    /// # Errors
    /// It is not on the list.
    pub(super) fn heard(&self, card: MemberCard) -> Result<(), Error> {
        let Some(listed) = self.listed.get(&card.member.id) else {
            let text =
                format!("{} is not among this member's cluster.members: the same list is for all", card.name);
            return Err(Error::invalid(text));
        };
        // How it is reached, and its part, are what the list says, the same for all.
        let member = Member { weight: listed.weight, ..card.member };
        let card = MemberCard { endpoint: listed.endpoint.clone(), member, ..card };
        let mut heard = self.heard.lock();
        let is_late = heard
            .get(&card.member.id)
            .is_some_and(|known| is_there(known) && known.0.member.incarnation > card.member.incarnation);
        if !is_late {
            heard.insert(card.member.id, (card, Instant::now()));
        }
        Ok(())
    }

    /// Who was heard lately, and this member.
    pub(super) fn look(&self, own: &MemberCard) -> SeenMembers {
        let heard = self.heard.lock();
        let there = heard.values().filter(|known| is_there(known)).map(|(card, _)| card.member);
        let others = there.filter(|member| member.id != own.member.id);
        let observation = Observation::Members(others.chain([own.member]).collect());
        let cards = self.listed.iter().map(|(id, listed)| match heard.get(id) {
            Some((card, _)) => card.clone(),
            None => silent(*id, listed),
        });
        SeenMembers { observation, cards: cards.collect() }
    }
}

/// Whether it was heard lately.
fn is_there((_, at): &(MemberCard, Instant)) -> bool {
    at.elapsed() <= MEMBER_SILENT_MAX
}

/// A member of which nothing was heard yet.
fn silent(id: MemberId, listed: &ListedMember) -> MemberCard {
    let state = MemberState::Serving;
    MemberCard {
        name: listed.id.clone(),
        endpoint: listed.endpoint.clone(),
        zone: listed.zone.clone(),
        member: Member { id, incarnation: Incarnation(0), weight: listed.weight, state },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(id: &str) -> ListedMember {
        let endpoint = format!("tcp://{id}:1");
        ListedMember { id: id.to_owned(), endpoint, zone: String::new(), weight: 100 }
    }

    fn card(id: &str, incarnation: u64) -> MemberCard {
        let mut card = silent(MemberId::of(id), &listed(id));
        card.member.incarnation = Incarnation(incarnation);
        card
    }

    fn names(seen: &SeenMembers) -> (usize, usize) {
        let Observation::Members(members) = &seen.observation else { panic!("a list is always there") };
        (members.len(), seen.cards.len())
    }

    #[test]
    fn whoever_was_heard_is_there_and_nobody_else() {
        let members = ListedMembers::new(&[listed("a"), listed("b"), listed("c")], 5);
        let own = card("a", 7);
        assert_eq!(names(&members.look(&own)), (1, 3));
        members.heard(MemberCard { endpoint: "tcp://elsewhere:9".to_owned(), ..card("b", 5) }).unwrap();
        members.heard(card("a", 3)).unwrap();
        let seen = members.look(&own);
        assert_eq!(names(&seen), (2, 3));
        let Observation::Members(there) = &seen.observation else { panic!("a list is always there") };
        assert!(
            there.contains(&own.member),
            "what another process of this name says is not what this one is"
        );
        assert!(seen.cards.iter().all(|card| card.endpoint == format!("tcp://{}:1", card.name)));
        assert!(members.heard(card("d", 1)).unwrap_err().message.contains("not among"));
    }

    #[test]
    fn what_an_earlier_life_says_late_changes_nothing_until_the_later_one_is_silent() {
        let members = ListedMembers::new(&[listed("a"), listed("b")], 5);
        let (own, b) = (card("a", 7), MemberId::of("b"));
        let believed = || {
            let seen = members.look(&own);
            let Observation::Members(there) = seen.observation else { panic!("a list is always there") };
            let there = there.into_iter().find(|member| member.id == b);
            let card = seen.cards.into_iter().find(|card| card.member.id == b).unwrap();
            (there.map(|member| (member.incarnation.0, member.state)), card.zone)
        };
        let mut now = MemberCard { zone: "new".to_owned(), ..card("b", 9) };
        now.member.state = MemberState::Draining;
        members.heard(now).unwrap();
        let before = MemberCard { zone: "old".to_owned(), ..card("b", 5) };
        members.heard(before.clone()).unwrap();
        assert_eq!(believed(), (Some((9, MemberState::Draining)), "new".to_owned()));
        let pass = || {
            let mut heard = members.heard.lock();
            let (_, at) = heard.get_mut(&b).unwrap();
            *at = at.checked_sub(2 * MEMBER_SILENT_MAX).unwrap();
        };
        pass();
        assert_eq!(believed().0, None, "a late word is no sign of life");
        // It may have begun too low: then it is heard, and told so.
        members.heard(before).unwrap();
        assert_eq!(believed(), (Some((5, MemberState::Serving)), "old".to_owned()));
    }

    #[test]
    fn a_life_is_later_than_every_one_that_was_heard_of() {
        let members = ListedMembers::new(&[listed("a")], 5);
        let begun = |current, after| {
            members.next_life(current, Incarnation(after), 1_000).map(|life| (life.incarnation.0, life.seed))
        };
        assert_eq!(begun(None, 0), Some((1_000, 5)));
        assert_eq!(begun(None, 5_000), Some((5_001, 5)));
        assert_eq!(begun(Some(Incarnation(900)), 0), None, "it goes on");
        assert_eq!(begun(Some(Incarnation(900)), 950), Some((1_000, 5)));
    }
}
