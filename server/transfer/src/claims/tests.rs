//! Rights to write, against a plain table of bytes.

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_byte_is_one_writers_at_a_time_and_a_right_that_was_refused_takes_nothing(
        steps in proptest::collection::vec((any::<bool>(), 0usize..64, 1usize..20, any::<prop::sample::Index>()), 1..200)
    ) {
        let (claims, mut taken) = (Claims::default(), [false; 84]);
        let mut rights: Vec<Range<usize>> = Vec::new();
        for (take, from, len, pick) in steps {
            if take {
                let bytes = from..from + len;
                let free = taken[bytes.clone()].iter().all(|taken| !taken);
                prop_assert_eq!(claims.take(bytes.clone()), free, "{:?} beside {:?}", bytes, rights);
                if free {
                    taken[bytes.clone()].fill(true);
                    rights.push(bytes);
                }
            } else if !rights.is_empty() {
                let right = rights.swap_remove(pick.index(rights.len()));
                claims.give_back(right.start);
                taken[right].fill(false);
            }
        }
        rights.into_iter().for_each(|right| claims.give_back(right.start));
        prop_assert!(claims.take(0..84), "all of it is free again");
    }
}
