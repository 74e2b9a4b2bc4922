//! What stands where in etcd. Owns: names of keys, and what their values say, as JSON that people can read. Must not know: who reads
//! and writes them.

use crate::clock::Clock;
use crate::cluster::card::MemberCard;
use crate::limits::{
    CLUSTER_NAME_BYTES_MAX, CLUSTER_WEIGHT_MAX, ETCD_VALUE_BYTES_MAX, MEMBER_TEXT_BYTES_MAX,
};
use serde::{Deserialize, Serialize};
use turnkv_cluster::{Incarnation, Member, MemberId, MemberState};

/// The version of what members say to one another.
pub(super) const CLUSTER_PROTOCOL: u32 = 1;

/// The keys of a cluster.
pub(super) struct Keys {
    prefix: String,
}

/// What `cluster` says.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Founded {
    /// Which cluster it is: of two of one name, set up one after the other, each has its own.
    pub(super) id: u64,
    /// By which sessions have their authorities.
    pub(super) seed: u64,
    /// The least version of a member.
    pub(super) protocol_floor: u32,
}

/// What `members/NAME` says.
#[derive(Debug, Deserialize, Serialize)]
struct CardText {
    name: String,
    endpoint: String,
    #[serde(default)]
    zone: String,
    weight: u32,
    state: StateText,
    incarnation: u64,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum StateText {
    Serving,
    Away,
    Draining,
}

impl Keys {
    /// Of the cluster of this name.
    pub(super) fn of(cluster: &str) -> Keys {
        Keys { prefix: format!("/turnkv/{cluster}/") }
    }

    /// What all agree on.
    pub(super) fn cluster(&self) -> String {
        format!("{}cluster", self.prefix)
    }

    /// The highest incarnation of a member.
    pub(super) fn mark(&self, member: &str) -> String {
        format!("{}marks/{member}", self.prefix)
    }

    /// Below this every member has its card.
    pub(super) fn members(&self) -> String {
        format!("{}members/", self.prefix)
    }

    /// A member's card.
    pub(super) fn member(&self, member: &str) -> String {
        format!("{}{member}", self.members())
    }
}

/// A card as it is written.
pub(super) fn card_text(card: &MemberCard) -> Vec<u8> {
    let state = match card.member.state {
        MemberState::Serving => StateText::Serving,
        MemberState::Away => StateText::Away,
        MemberState::Draining => StateText::Draining,
    };
    let text = CardText {
        name: card.name.clone(),
        endpoint: card.endpoint.clone(),
        zone: card.zone.clone(),
        weight: card.member.weight,
        state,
        incarnation: card.member.incarnation.0,
    };
    // Text and numbers: there is nothing that JSON has no words for.
    serde_json::to_vec(&text).unwrap_or_default()
}

/// The card that a key says; none: it says nothing that this server understands.
pub(super) fn read_card(name: &str, value: &[u8]) -> Option<MemberCard> {
    if value.len() > ETCD_VALUE_BYTES_MAX {
        return None;
    }
    let text: CardText = serde_json::from_slice(value).ok()?;
    let fits = text.name == name
        && (1..=CLUSTER_NAME_BYTES_MAX).contains(&name.len())
        && text.endpoint.len() <= MEMBER_TEXT_BYTES_MAX
        && text.zone.len() <= MEMBER_TEXT_BYTES_MAX
        && text.weight <= CLUSTER_WEIGHT_MAX;
    let state = match text.state {
        StateText::Serving => MemberState::Serving,
        StateText::Away => MemberState::Away,
        StateText::Draining => MemberState::Draining,
    };
    let (id, incarnation) =
        (MemberId::of(name), Incarnation::said(text.incarnation, Clock::system().unix_ms())?);
    let member = Member { id, incarnation, weight: text.weight, state };
    fits.then_some(MemberCard { name: text.name, endpoint: text.endpoint, zone: text.zone, member })
}

/// What all agree on, as it is written.
pub(super) fn founded_text(founded: &Founded) -> Vec<u8> {
    // Numbers: there is nothing that JSON has no words for.
    serde_json::to_vec(founded).unwrap_or_default()
}

/// What all agree on; none: it does not parse.
pub(super) fn read_founded(value: &[u8]) -> Option<Founded> {
    if value.len() > ETCD_VALUE_BYTES_MAX { None } else { serde_json::from_slice(value).ok() }
}

/// A mark; one that does not parse, or that no life can have come to, is none.
pub(super) fn read_mark(value: &[u8]) -> u64 {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
    number.and_then(|mark| Incarnation::said(mark, Clock::system().unix_ms())).map_or(0, |mark| mark.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> MemberCard {
        let (id, state) = (MemberId::of("a"), MemberState::Away);
        MemberCard {
            name: "a".to_owned(),
            endpoint: "tls://a:7411".to_owned(),
            zone: "z".to_owned(),
            member: Member { id, incarnation: Incarnation(9), weight: 7, state },
        }
    }

    #[test]
    fn what_is_written_is_read_and_what_is_damaged_is_not() {
        let text = card_text(&card());
        assert_eq!(read_card("a", &text), Some(card()));
        assert_eq!(read_card("b", &text), None, "under another member's name");
        let mut read = 0;
        turnkv_mutate::each_seed(3_000, |random| {
            let damaged = turnkv_mutate::mutate_bytes(random, &text);
            read += u32::from(read_card("a", &damaged).is_some());
        });
        assert!(read < 3_000, "damage was understood");
        let founded = Founded { id: 3, seed: u64::MAX, protocol_floor: 1 };
        assert_eq!(read_founded(&founded_text(&founded)), Some(founded));
        assert_eq!((read_mark(b"17\n"), read_mark(b"x"), read_mark(b"")), (17, 0, 0));
        let last = u64::MAX.to_string();
        assert_eq!(read_mark(last.as_bytes()), 0, "no life could follow");
        let card = String::from_utf8(text).unwrap().replace(":9", &format!(":{last}"));
        assert!(card.contains(&last) && read_card("a", card.as_bytes()).is_none());
    }
}
