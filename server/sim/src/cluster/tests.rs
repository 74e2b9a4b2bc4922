//! A cluster on traffic whose answer is known.

use super::{ClusterOutcome, compare};
use crate::generate::{AGENTIC_SEED, Shape, generate};
use crate::policy::find;
use crate::routing::Routing;

fn played(hosts: u32, policy: &str) -> Vec<ClusterOutcome> {
    let trace = generate("agentic", &Shape { requests: 600, ..Shape::AGENTIC }, AGENTIC_SEED);
    let policy = find(policy).unwrap_or_else(|| unreachable!("there is one"));
    compare(trace, hosts, 4400 / u64::from(hosts), policy).unwrap_or_else(|error| unreachable!("{error}"))
}

#[test]
fn a_cluster_finds_what_private_pools_do_not() {
    for outcome in played(8, "session") {
        if outcome.routing == Routing::RoundRobin {
            assert!(outcome.cluster_percent > outcome.private_percent + 10.0, "{outcome:?}");
            assert!(outcome.pulled > 0.0, "{outcome:?}");
        }
        assert!(outcome.cluster_percent > outcome.private_percent - 1.0, "{outcome:?}");
    }
}

/// What a turn on another host teaches is not lost: a policy that learns of sessions finds as much where they hop every time.
#[test]
fn sessions_that_hop_every_turn_teach_as_much_as_those_that_stay() {
    let outcomes = played(8, "session");
    let found = |routing| outcomes.iter().find(|one| one.routing == routing).map(|one| one.cluster_percent);
    let (Some(hop), Some(stay)) = (found(Routing::RoundRobin), found(Routing::Sticky)) else {
        unreachable!("{outcomes:?}");
    };
    assert!(hop > stay - 0.3, "of those that hop {hop} % is found, of those that stay {stay} %");
}

#[test]
fn many_hosts_find_pages_by_signposts() {
    let outcomes = played(20, "session");
    let robin = outcomes.iter().find(|one| one.routing == Routing::RoundRobin);
    assert!(robin.is_some_and(|one| one.cluster_percent > one.private_percent), "{outcomes:?}");
}

#[test]
fn one_host_is_one_pool() {
    for outcome in played(1, "lru") {
        assert!((outcome.cluster_percent - outcome.one_pool_percent).abs() < 1e-9, "{outcome:?}");
        assert!(outcome.pulled == 0.0 && outcome.busiest_link == 0, "{outcome:?}");
    }
}
