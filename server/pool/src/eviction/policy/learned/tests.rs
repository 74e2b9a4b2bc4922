//! Sessions that go from pool to pool: learned from like those that stay. Owns: that. Must not know: who tells of it.

use super::Learned;
use crate::eviction::policy::eviction_policy::{EvictionPolicy, TurnFacts};
use crate::eviction::policy::run::Phase;
use crate::ids::NONE;
use crate::limits::IN_TURN_MS_MAX;

const SESSION: u32 = 3;

fn end(policy: &mut Learned, turn: u32, pages: u32) {
    let facts = TurnFacts { session: SESSION, turn, expected_return_ms: 0, ns: 0, pages };
    policy.turn_ended(&facts);
    policy.turn_settled(SESSION);
}

#[test]
fn one_that_comes_waits_like_one_that_stayed() {
    let mut stayed = Learned::new(true);
    end(&mut stayed, 1, 10);
    stayed.tick(4_000);
    stayed.turn_began(SESSION);
    end(&mut stayed, 2, 25);
    let mut came = Learned::new(true);
    came.tick(4_000);
    let facts = TurnFacts { session: SESSION, turn: 1, expected_return_ms: 0, ns: 0, pages: 10 };
    came.moved_here(&facts, 4_000, true);
    came.turn_began(SESSION);
    end(&mut came, 2, 25);
    let class = |policy: &Learned| policy.runs[policy.waiters[SESSION as usize].run as usize].class;
    assert_eq!(class(&came), class(&stayed));
    let mut unknown = Learned::new(true);
    end(&mut unknown, 2, 25);
    assert_ne!(class(&unknown), class(&stayed), "what it did before makes a difference");
}

#[test]
fn one_that_goes_is_waited_for_no_more_and_came_back_only_if_a_turn_of_it_began() {
    let mut policy = Learned::new(true);
    end(&mut policy, 1, 10);
    policy.tick(4_000);
    policy.turn_began_elsewhere(SESSION);
    assert!(policy.runs[policy.waiters[SESSION as usize].run as usize].phase == Phase::Elsewhere);
    policy.moved_away(SESSION);
    assert_eq!((policy.returns, policy.waiters[SESSION as usize].run), (1, NONE));
    // As when its host is emptied.
    end(&mut policy, 3, 10);
    policy.tick(9_000);
    policy.moved_away(SESSION);
    assert_eq!((policy.returns, policy.waiters[SESSION as usize].run), (1, NONE));
}

#[test]
fn a_turn_that_does_not_end_keeps_its_pages_for_as_long_as_is_said_and_no_longer() {
    let mut policy = Learned::new(true);
    end(&mut policy, 1, 10);
    policy.tick(4_000);
    policy.turn_began(SESSION);
    let phase = |policy: &Learned| policy.runs[policy.waiters[SESSION as usize].run as usize].phase;
    (5_000..4_000 + IN_TURN_MS_MAX).step_by(977).for_each(|now| policy.tick(now));
    assert_eq!(phase(&policy), Phase::InTurn);
    policy.tick(4_000 + IN_TURN_MS_MAX);
    assert_eq!((phase(&policy), policy.returns), (Phase::Waiting, 1));
}
