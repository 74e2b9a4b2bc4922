//! Which parts of a page hold bytes, against a plain row of them.

use super::*;
use proptest::prelude::*;

const BYTES: usize = 32;

fn row(parts: &[Range<usize>]) -> [bool; BYTES] {
    let mut row = [false; BYTES];
    parts.iter().for_each(|part| row[part.clone()].fill(true));
    row
}

fn parts() -> impl Strategy<Value = Vec<Range<usize>>> {
    let part = (0..BYTES, 1..BYTES).prop_map(|(start, bytes)| start..(start + bytes).min(BYTES));
    prop::collection::vec(part, 1..6)
}

proptest! {
    #[test]
    fn parts_that_are_added_in_any_order_are_in_order_and_none_touches_another(
        here in parts(), added in parts()
    ) {
        let filled = Some(merged(here.clone()));
        let all = with(&filled, &added, BYTES);
        let expected = row(&[here, added].concat());
        match all {
            None => prop_assert_eq!(expected, [true; BYTES], "all of it"),
            Some(parts) => {
                prop_assert_eq!(row(&parts), expected);
                prop_assert!(parts.windows(2).all(|two| two[0].end < two[1].start), "{:?}", parts);
                prop_assert!(expected.contains(&false), "a page that is whole has no parts");
            }
        }
        prop_assert!(with(&None, &[0..1, 2..3], BYTES).is_none(), "nothing is added to a whole page");
    }
}
