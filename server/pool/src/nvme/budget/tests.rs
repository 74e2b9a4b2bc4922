//! The write budget against a bucket that is counted in whole thousandths.

use super::*;
use proptest::prelude::*;

const BIG: u64 = DAY_MS * 1000;

proptest! {
    #[test]
    fn what_is_written_is_never_more_than_a_burst_and_what_time_brought(
        bytes_per_day in prop_oneof![1u64..100, 1u64..BIG, Just(u64::MAX)],
        asks in prop::collection::vec((0u64..200_000, 1u64..200, any::<bool>()), 1..100),
    ) {
        let mut budget = WriteBudget::new(bytes_per_day);
        let (mut now, mut spent) = (0u64, 0i128);
        for (after, part, insists) in asks {
            now += after;
            let bytes = (bytes_per_day / 100).max(1).saturating_mul(part) / 16 + 1;
            // Exactly what the whole time has brought, rounded down.
            let earned = i128::from(now) * i128::from(bytes_per_day) / i128::from(DAY_MS);
            let allowed = budget.allows(bytes, 0, bytes_per_day, now);
            prop_assert!(!allowed || spent + i128::from(bytes) <= burst(bytes_per_day) + earned);
            if allowed || insists {
                budget.spend(bytes);
                spent += i128::from(bytes);
            }
        }
    }

    #[test]
    fn time_brings_as_much_in_many_small_parts_as_in_one(
        bytes_per_day in 1u64..BIG,
        parts in prop::collection::vec(1u64..5_000, 1..80),
    ) {
        let empty = || {
            let mut budget = WriteBudget::new(bytes_per_day);
            budget.spend(u64::try_from(burst(bytes_per_day)).unwrap());
            budget
        };
        let (mut often, mut once, mut now) = (empty(), empty(), 0);
        for part in parts {
            now += part;
            often.fill(bytes_per_day, now);
        }
        once.fill(bytes_per_day, now);
        prop_assert_eq!((often.bytes, often.rest), (once.bytes, once.rest));
    }
}

#[test]
fn a_budget_of_nothing_bounds_nothing_and_one_that_is_overdrawn_waits() {
    let mut none = WriteBudget::new(0);
    none.spend(u64::MAX);
    assert!(none.allows(u64::MAX, u64::MAX, 0, 0));
    let day = 24_000; // 1000 an hour, which is the burst
    let mut budget = WriteBudget::new(day);
    assert!(budget.allows(1000, 0, day, 0) && !budget.allows(1001, 0, day, 0));
    assert!(budget.allows(400, 600, day, 0) && !budget.allows(401, 600, day, 0), "what waits counts");
    budget.spend(3000); // somebody insisted
    let hour = BUDGET_BURST_MS;
    assert!(!budget.allows(1, 0, day, 2 * hour) && budget.allows(1000, 0, day, 3 * hour));
    // A clock that goes back brings nothing, and nothing twice.
    budget.spend(1000);
    assert!(!budget.allows(1, 0, day, 0) && !budget.allows(1, 0, day, 3 * hour));
    assert!(budget.allows(1000, 0, day, u64::MAX) && !budget.allows(1001, 0, day, u64::MAX));
}
