//! What is done about a pack, at the shares where that changes.

use super::*;

#[test]
fn a_pack_is_moved_when_less_than_half_of_it_is_needed_or_it_is_less_than_a_quarter_of_a_full_one() {
    for (needed, stored, full, wanted) in [
        (0, 0, 100, "useless"),
        (0, 100, 100, "useless"),
        (1, 100, 100, "sparse"),
        (49, 100, 100, "sparse"),
        (50, 100, 100, "stays"),
        (100, 100, 100, "stays"),
        (24, 24, 100, "small"),
        (25, 25, 100, "stays"),
        // Of a small one that is needed little, little is moved now: that does not wait for others.
        (4, 10, 100, "sparse"),
        // One that is larger than packs are now is no small one.
        (60, 100, 10, "stays"),
    ] {
        let fate = match fate(needed, stored, full) {
            Fate::Stays => "stays",
            Fate::Useless => "useless",
            Fate::Sparse => "sparse",
            Fate::Small => "small",
        };
        assert_eq!(fate, wanted, "{needed} of {stored} bytes needed, {full} in a full one");
    }
}
