//! What broke others, each as a case: views that shrink, empty or old ones, lives that are over, links that flap, keys that
//! move. Must not know: how a member decides.
#![allow(clippy::expect_used, reason = "a test says what it expected by failing")]
#![forbid(unsafe_code)]

use turnkv_cluster::limits::{
    AWAY_AFTER_ROUNDS, BACK_AFTER_ROUNDS, GENERATION_ROUNDS, HOMES_MAX, HURRY_ROUNDS, PUBLISH_MAX,
    SHRUNK_ROUNDS, SWEEP_ROUNDS,
};
use turnkv_cluster::{
    ClusterConfig, ClusterMember, Directory, Envelope, Hysteresis, Incarnation, Kept, Life, Member, MemberId,
    MemberState, Message, Notice, Observation, PrefixKey, SessionKey, Tip, View, ViewGuard, Viewed, Whose,
    authorities,
};

fn member(id: u64) -> Member {
    Member { id: MemberId(id), incarnation: Incarnation(1), weight: 1, state: MemberState::Serving }
}

fn seen(ids: impl IntoIterator<Item = u64>) -> Observation {
    Observation::Members(ids.into_iter().map(member).collect())
}

fn life(id: u64, incarnation: u64) -> Life {
    Life { member: MemberId(id), incarnation: Incarnation(incarnation) }
}

fn key(at: u64) -> SessionKey {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&at.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    key[8..].copy_from_slice(&at.to_le_bytes());
    SessionKey(key)
}

#[test]
fn an_empty_or_halved_view_is_believed_in_the_third_round() {
    for shrunk in [vec![], vec![0, 1, 2]] {
        let mut guard = ViewGuard::default();
        assert_eq!(guard.observe(seen(0..8)), Viewed::Changed);
        for round in 1..SHRUNK_ROUNDS {
            assert_eq!(guard.observe(seen(shrunk.clone())), Viewed::Held(round));
            assert_eq!(guard.view().members().len(), 8);
        }
        // A round in which it cannot be read says nothing, either way.
        assert_eq!(guard.observe(Observation::Unreachable), Viewed::Same);
        assert_eq!(guard.observe(seen(shrunk.clone())), Viewed::Changed);
        assert_eq!(guard.view().members().len(), shrunk.len());
    }
}

/// Members that all are silent are heard last in different rounds.
#[test]
fn who_loses_the_others_one_by_one_believes_it_as_late() {
    let mut guard = ViewGuard::default();
    for between in 0..SHRUNK_ROUNDS {
        assert_eq!(guard.observe(seen(0..3)), Viewed::Changed);
        assert_eq!(guard.observe(seen(0..2)), Viewed::Changed, "two of three");
        (0..between).for_each(|_| assert_eq!(guard.observe(seen(0..2)), Viewed::Same));
        for round in 1..SHRUNK_ROUNDS {
            assert_eq!(guard.observe(seen(0..1)), Viewed::Held(round), "one of three");
        }
        assert_eq!(guard.observe(seen(0..1)), Viewed::Changed);
        assert_eq!(guard.observe(seen(0..1)), Viewed::Same, "that is known now");
    }
    assert_eq!(guard.observe(seen(0..3)), Viewed::Changed);
    assert_eq!(guard.observe(seen(0..2)), Viewed::Changed);
    (0..SHRUNK_ROUNDS).for_each(|_| assert_eq!(guard.observe(seen(0..2)), Viewed::Same));
    assert_eq!(guard.observe(seen(0..1)), Viewed::Changed, "half of what was there for so long");
}

#[test]
fn one_good_round_forgets_the_bad_ones() {
    let mut guard = ViewGuard::default();
    for _ in 0..5 {
        assert!(!matches!(guard.observe(seen(0..8)), Viewed::Held(_)));
        assert_eq!(guard.observe(seen([])), Viewed::Held(1));
        assert_eq!(guard.observe(seen([])), Viewed::Held(2));
    }
    assert_eq!(guard.observe(seen(0..5)), Viewed::Changed, "more than half is believed at once");
}

#[test]
fn the_epoch_is_that_of_the_set() {
    let (one, two) = (View::of((0..5).map(member).collect()), View::of((0..5).rev().map(member).collect()));
    assert_eq!(one.epoch(), two.epoch());
    let restarted = Member { incarnation: Incarnation(2), ..member(3) };
    let again = View::of((0..5).map(|id| if id == 3 { restarted } else { member(id) }).collect());
    assert_ne!(one.epoch(), again.epoch(), "what it knew is gone");
    assert_ne!(one.epoch(), View::of((0..4).map(member).collect()).epoch());
}

#[test]
fn an_old_view_begins_no_life_again() {
    let mut guard = ViewGuard::default();
    let later = Member { incarnation: Incarnation(5), ..member(2) };
    assert_eq!(guard.observe(Observation::Members(vec![member(1), later])), Viewed::Changed);
    assert_eq!(guard.observe(seen([1, 2])), Viewed::Same, "the earlier life is not believed");
    assert_eq!(guard.over(), [life(2, 5)]);
    assert_eq!(guard.fence(life(2, 4)), Some(Incarnation(5)));
    assert_eq!(guard.fence(life(2, 5)), None);
}

#[test]
fn a_link_that_flaps_takes_nobody_out() {
    let mut health = Hysteresis::default();
    for round in 0..100 {
        assert!(!health.note(round % 3 != 0), "one bad round of three");
    }
    let gone = (0..AWAY_AFTER_ROUNDS).map(|_| health.note(false)).last();
    assert_eq!(gone, Some(true));
    for _ in 0..10 {
        let back: Vec<bool> = (1..BACK_AFTER_ROUNDS).map(|_| health.note(true)).collect();
        assert!(back.iter().all(|away| *away) && health.note(false), "it is back only when it stays");
    }
    let back = (0..BACK_AFTER_ROUNDS).map(|_| health.note(true)).last();
    assert_eq!(back, Some(false));
}

#[test]
fn whoever_leaves_takes_only_its_own_keys_along() {
    let weighted = |id| Member { weight: 1 + id as u32 % 3, ..member(id) };
    let all = View::of((0..9).map(weighted).collect());
    let fewer = View::of((0..9).filter(|id| *id != 4).map(weighted).collect());
    let mut counts = [0u32; 9];
    for at in 0..18_000 {
        let (before, after) = (authorities(&all, 7, &key(at).0), authorities(&fewer, 7, &key(at).0));
        let first = before[0].expect("somebody serves");
        counts[first.0 as usize] += 1;
        assert_ne!(before[0], before[1]);
        // The second in rank is the next authority: it has been told already.
        assert_eq!(after[0], if first == MemberId(4) { before[1] } else { before[0] });
    }
    for (id, count) in counts.iter().enumerate() {
        let wanted = 1000 * (1 + id as u32 % 3);
        assert!(count.abs_diff(wanted) < wanted / 5, "{counts:?}");
    }
    assert_eq!(authorities(&View::default(), 7, &key(1).0), [None, None]);
}

#[test]
fn a_session_costs_an_authority_about_a_hundred_bytes() {
    let mut directory = Directory::default();
    let view = View::of((0..8).map(member).collect());
    let sessions = 200_000;
    for at in 0..sessions {
        let tip = Tip { home: life(at % 8, 1), turn: 1, moves: 0, pages: 100 };
        assert_eq!(directory.publish(key(at), tip, &view), None);
    }
    let bytes = directory.bytes() as u64 / sessions;
    assert!((40..=110).contains(&bytes), "{bytes} bytes a session");
    assert_eq!(directory.tips() as u64, sessions);
}

#[test]
fn the_later_turn_is_believed_in_any_order() {
    let view = View::of((0..3).map(member).collect());
    let (early, late) = (
        Tip { home: life(1, 1), turn: 4, moves: 0, pages: 9 },
        Tip { home: life(2, 1), turn: 5, moves: 0, pages: 9 },
    );
    let (mut one, mut two) = (Directory::default(), Directory::default());
    assert_eq!((one.publish(key(1), early, &view), one.publish(key(1), late, &view)), (None, None));
    assert_eq!((two.publish(key(1), late, &view), two.publish(key(1), early, &view)), (None, Some(late)));
    assert_eq!((one.tip(&key(1), &view), two.tip(&key(1), &view)), (Some(late), Some(late)));
    // The home of the later one began a new life: what it said does not count, and the earlier one may be said again.
    let restarted = Member { incarnation: Incarnation(2), ..member(2) };
    let view = View::of(vec![member(0), member(1), restarted]);
    assert_eq!(two.tip(&key(1), &view), None);
    assert_eq!(two.publish(key(1), early, &view), None);
    assert_eq!(two.tip(&key(1), &view), Some(early));
}

#[test]
fn what_is_not_published_again_is_gone_after_two_generations() {
    let view = View::of((0..3).map(member).collect());
    let mut directory = Directory::default();
    let (kept, gone) = (PrefixKey([1; 16]), PrefixKey([2; 16]));
    directory.publish_post(gone, life(1, 1), &view);
    for _ in 0..2 {
        directory.publish_post(kept, life(1, 1), &view);
        directory.age();
    }
    directory.publish_post(kept, life(2, 1), &view);
    assert_eq!((directory.holder(&kept, &view), directory.holder(&gone, &view)), (Some(life(2, 1)), None));
    // A hot prefix has a second holder, for when the first is gone.
    let fewer = View::of(vec![member(0), member(1)]);
    assert_eq!((directory.holder(&kept, &fewer), directory.posts()), (Some(life(1, 1)), 1));
}

#[test]
fn whoever_was_missed_for_a_while_is_not_forgotten() {
    let all = View::of((0..3).map(member).collect());
    let without = View::of((0..2).map(member).collect());
    let mut directory = Directory::default();
    let tip = Tip { home: life(2, 1), turn: 7, moves: 0, pages: 70 };
    assert_eq!(directory.publish(key(1), tip, &all), None);
    assert_eq!(directory.tip(&key(1), &without), None, "a member that is not there is not named");
    assert_eq!(directory.tip(&key(1), &all), Some(tip), "its pages were never gone");
}

#[test]
fn everything_is_told_again_in_parts_after_a_view_that_differs() {
    let mut member = own(1);
    drop(member.round(seen(0..4), true, 0));
    let hashes = [turnkv_proto::BlockHash([1; 32])];
    let namespace = turnkv_proto::NamespaceId([1; 32]);
    let sessions = 5000;
    for at in 0..sessions {
        let kept = Kept { session: key(at), turn: 1, namespace, hashes: &hashes };
        drop(member.turn_ended(kept, None, 0));
    }
    let mut told = std::collections::BTreeSet::new();
    for round in 1..=HURRY_ROUNDS {
        // Another view than before, of which one authority in four is new.
        let effects = member.round(seen([0, 1, 2, 5]), true, round * 1000);
        let mut tips = 0;
        for envelope in &effects.send {
            let Message::Publish { tips: some, .. } = &envelope.message else { continue };
            assert!(some.len() <= PUBLISH_MAX);
            tips += some.len() as u64;
            told.extend(some.iter().map(|(session, _)| (*session, envelope.to)));
        }
        assert!(tips <= 2 * sessions.div_ceil(HURRY_ROUNDS), "{tips} in one round");
    }
    let view = member.view();
    for at in 0..sessions {
        for authority in authorities(view, 1, &key(at).0).into_iter().flatten() {
            assert!(authority == MemberId(0) || told.contains(&(key(at), authority)), "session {at}");
        }
    }
    assert!(member.directory().tips() > 0, "what it is authority of itself, it knows at once");
}

#[test]
fn sessions_that_come_and_go_keep_no_other_from_being_told_again() {
    let mut member = own(1);
    let (hashes, namespace) = ([turnkv_proto::BlockHash([1; 32])], turnkv_proto::NamespaceId([1; 32]));
    let keep = |member: &mut ClusterMember, at: u64| {
        let kept = Kept { session: key(at), turn: 1, namespace, hashes: &hashes };
        drop(member.turn_ended(kept, None, 0));
    };
    (0..600).for_each(|at| keep(&mut member, at));
    let mut told = std::collections::BTreeMap::new();
    for round in 0..10 * SWEEP_ROUNDS {
        let effects = member.round(seen(1..4), true, round * 1000);
        for envelope in &effects.send {
            let Message::Publish { tips, .. } = &envelope.message else { continue };
            told.extend(tips.iter().map(|(session, _)| (*session, round)));
        }
        // One of those from the front half leaves, one comes.
        drop(member.session_left(key(300 + round % 600 * 7 % 300), 0));
        keep(&mut member, 1000 + round);
        for at in 0..300 {
            let last = told.get(&key(at)).copied().unwrap_or(0);
            assert!(round - last < GENERATION_ROUNDS, "session {at} was told last in round {last}");
        }
    }
}

fn own(incarnation: u64) -> ClusterMember {
    ClusterMember::new(ClusterConfig { own: life(0, incarnation), weight: 1, seed: 1 })
}

#[test]
fn every_round_puts_the_own_key_and_an_empty_ring_is_said_loudly() {
    let mut member = own(3);
    let effects = member.round(seen([]), true, 0);
    assert_eq!(effects.put_own.map(|own| (own.id, own.incarnation)), Some((MemberId(0), Incarnation(3))));
    assert!(effects.notices.contains(&Notice::EmptyView));
    member.drain(true);
    let effects = member.round(seen(0..3), true, 1000);
    assert_eq!(effects.put_own.map(|own| own.state), Some(MemberState::Draining));
    assert!(!effects.notices.contains(&Notice::EmptyView));
}

#[test]
fn whoever_speaks_for_a_life_that_is_over_is_told() {
    let mut member = own(1);
    drop(member.round(
        Observation::Members(vec![Member { incarnation: Incarnation(4), ..self::member(1) }]),
        true,
        0,
    ));
    let tip = Tip { home: life(1, 3), turn: 9, moves: 0, pages: 9 };
    let message = Message::Publish { tips: vec![(key(1), tip)], posts: Vec::new() };
    let effects = member.receive(Envelope { from: life(1, 3), to: MemberId(0), message }, 0);
    assert_eq!(effects.notices, [Notice::Fenced(MemberId(1))]);
    assert_eq!(effects.send[0].message, Message::Over { latest: Incarnation(4) });
    assert_eq!(member.directory().tips(), 0);
    // One that only greets is told as well, and the life that is now is not.
    let told: Vec<Message> = member.spoke(life(1, 3), 0).send.into_iter().map(|told| told.message).collect();
    assert_eq!(told, [Message::Over { latest: Incarnation(4) }]);
    assert!(member.spoke(life(1, 4), 0).send.is_empty());
    // And whoever is told so itself says that it has to begin again.
    let over =
        Envelope { from: life(1, 4), to: MemberId(0), message: Message::Over { latest: Incarnation(2) } };
    assert_eq!(member.receive(over.clone(), 0).notices, [Notice::Superseded(Incarnation(2))]);
    // Also by one whose own life is over: two that say so of one another begin again, both.
    let over = Envelope { from: life(1, 3), ..over };
    let effects = member.receive(over, 0);
    assert_eq!(effects.notices, [Notice::Fenced(MemberId(1)), Notice::Superseded(Incarnation(2))]);
    assert!(effects.send.is_empty(), "each would answer the other's answer");
}

#[test]
fn where_no_more_sessions_are_published_the_last_turn_is_and_another_session_makes_way() {
    let mut member = own(1);
    let namespace = turnkv_proto::NamespaceId([1; 32]);
    let kept = |at| Kept { session: key(at), turn: 5, namespace, hashes: &[] };
    for at in 0..HOMES_MAX as u64 {
        drop(member.turn_ended(kept(at), None, 0));
    }
    drop(member.round(seen(0..2), true, 0));
    // It comes from the other member, where its turn before this one ended; this one knows that as an authority.
    let (new, before) = (HOMES_MAX as u64, Tip { home: life(1, 1), turn: 4, moves: 0, pages: 9 });
    let message = Message::Publish { tips: vec![(key(new), before)], posts: Vec::new() };
    drop(member.receive(Envelope { from: life(1, 1), to: MemberId(0), message }, 0));
    assert_eq!(member.whose(&key(new)), Whose::Elsewhere(before));
    let effects = member.turn_ended(kept(new), Some(before), 0);
    assert_eq!(effects.notices, [Notice::HomesFull]);
    assert_eq!((effects.unpublished.as_slice(), member.homes()), (&[key(0)][..], HOMES_MAX));
    let tip = member.home_tip(&key(new)).expect("it is at home here");
    assert_eq!((member.whose(&key(new)), tip.turn), (Whose::Here, 5));
    assert_eq!(member.directory().tip(&key(new), member.view()), Some(tip));
    assert_eq!(member.directory().tip(&key(0), member.view()), None, "it is found on this host only");
    let told: Vec<Message> = effects.send.into_iter().map(|told| told.message).collect();
    assert!(told.contains(&Message::Outdone { session: key(new), tip }), "the home before knows");
    assert!(told.contains(&Message::Withdraw { session: key(0), home: life(0, 1), turn: 5 }));
    // Whichever made way comes back with its next turn, and it is not the last one that goes for that.
    drop(member.turn_ended(kept(0), None, 0));
    assert_eq!((member.whose(&key(0)), member.whose(&key(new))), (Whose::Here, Whose::Here));
    assert_eq!(member.homes(), HOMES_MAX);
}
