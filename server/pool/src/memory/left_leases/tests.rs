//! Which lease a slot of an earlier server is under, against a list of them all.

use super::*;
use crate::limits::LEASE_PAGES_MAX;

#[test]
fn a_slot_is_under_the_last_lease_of_its_client_that_begins_no_later() {
    let mut left = LeftLeases::default();
    let kept: Vec<(ClientId, u32, LeaseId)> = (0..30)
        .map(|at| (ClientId(u64::from(at % 3)), (at / 3) * LEASE_PAGES_MAX, LeaseId(u64::from(at) + 1)))
        .collect();
    kept.iter().for_each(|(client, first, lease)| left.keep(*client, *first, *lease));
    let wanted = |client: ClientId, slot: u32| {
        let own = kept.iter().filter(|(of, first, _)| *of == client && *first <= slot);
        own.max_by_key(|(_, first, _)| *first).map(|(_, _, lease)| *lease)
    };
    let slots = [0, 1, LEASE_PAGES_MAX - 1, LEASE_PAGES_MAX, 5 * LEASE_PAGES_MAX + 7, u32::MAX];
    for client in (0..4).map(ClientId) {
        for slot in slots {
            assert_eq!(left.find(client, slot), wanted(client, slot), "{client:?} and slot {slot}");
        }
    }
    assert_eq!(left.clients().collect::<Vec<_>>(), [0, 1, 2].map(ClientId), "each once");
    left.forget(ClientId(1));
    left.forget(ClientId(9));
    assert_eq!(left.clients().collect::<Vec<_>>(), [0, 2].map(ClientId));
    for slot in slots {
        // What lies before in the order is another client's, and not found for one that has none.
        assert_eq!(left.find(ClientId(1), slot), None);
        assert_eq!(left.find(ClientId(2), slot), wanted(ClientId(2), slot));
    }
}
