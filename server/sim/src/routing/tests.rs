//! Routes on traffic whose answer is known.

use super::{Routing, compare, imbalance};
use crate::generate::{AGENTIC_SEED, Shape, generate};
use crate::policy::find;

#[test]
fn advice_finds_what_sticky_finds_and_balances() {
    let trace = generate("agentic", &Shape::AGENTIC, AGENTIC_SEED);
    let policy = find("lru").unwrap_or_else(|| unreachable!("there is an lru"));
    let outcomes = compare(trace, 8, 550, policy).unwrap_or_else(|error| unreachable!("{error}"));
    let of = |routing| outcomes.iter().find(|one| one.routing == routing);
    let (Some(robin), Some(sticky), Some(advised)) =
        (of(Routing::RoundRobin), of(Routing::Sticky), of(Routing::Advised))
    else {
        unreachable!("all are compared")
    };
    assert!(advised.hit_percent > robin.hit_percent + 5.0, "{outcomes:?}");
    assert!(advised.hit_percent > sticky.hit_percent - 1.0, "{outcomes:?}");
    assert!(advised.busiest < 1.5, "{outcomes:?}");
}

#[test]
fn imbalance_is_the_largest_against_the_mean() {
    assert_eq!(imbalance(&[3, 1, 0, 0]), Some(3.0));
    assert_eq!(imbalance(&[0, 0]), None);
}
