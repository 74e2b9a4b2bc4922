//! Who knows of an id: weighted rendezvous. Owns: the rank of members for a key. Must not know: what is known there.
//!
//! Every member draws a number for the key, the better the more weight it has. Whoever leaves takes only its own keys along.

use crate::ids::MemberId;
use crate::limits::AUTHORITIES;
use crate::mix::mix;
use crate::view::{Member, MemberState, View};

/// The members that know of a key, the first in rank first. None: no member serves.
pub fn authorities(view: &View, seed: u64, key: &[u8; 16]) -> [Option<MemberId>; AUTHORITIES] {
    let mut best: [Option<(f64, MemberId)>; AUTHORITIES] = [None; AUTHORITIES];
    let serves = |member: &&Member| member.weight > 0 && member.state == MemberState::Serving;
    for member in view.members().iter().filter(serves) {
        let mut drawn = Some((draw(member, seed, key), member.id));
        for place in &mut best {
            // Equal numbers go by id, which is the order of the view.
            let wins = |(mine, _): (f64, MemberId)| place.is_none_or(|(theirs, _)| mine > theirs);
            if drawn.is_some_and(wins) {
                std::mem::swap(place, &mut drawn);
            }
        }
    }
    best.map(|place| place.map(|(_, id)| id))
}

/// The members that something may be placed at by a key, the first in rank first; those that are to know nothing last.
pub(crate) fn ranked(view: &View, seed: u64, key: &[u8; 16]) -> Vec<MemberId> {
    let serving = view.members().iter().filter(|member| member.state == MemberState::Serving);
    let mut drawn: Vec<(f64, MemberId)> =
        serving.map(|member| (draw(member, seed, key), member.id)).collect();
    drawn.sort_by(|one, two| two.0.total_cmp(&one.0));
    drawn.into_iter().map(|(_, id)| id).collect()
}

/// -weight / ln(u) with u in (0, 1): the largest is a member's with the chance of its weight.
fn draw(member: &Member, seed: u64, key: &[u8; 16]) -> f64 {
    let (words, _) = key.as_chunks::<8>();
    let words = [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])];
    let mixed = [member.id.0, words[0], words[1]].into_iter().fold(seed, |mixed, word| mix(mixed ^ word));
    let unit = ((mixed >> 12) as f64 + 0.5) / (1u64 << 52) as f64;
    -f64::from(member.weight) / unit.ln()
}
