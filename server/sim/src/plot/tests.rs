//! The drawing is well-formed and names what it shows.

use super::*;

#[test]
fn every_policy_and_bound_has_a_line_and_names_are_escaped() {
    let mut rows = crate::render::tests::sample();
    for row in &mut rows {
        row.trace = "a<b&c".to_owned();
    }
    let text = svg(&rows);
    assert_eq!(text.matches("<polyline").count(), 3, "lru, Belady, infinite");
    assert!(text.contains("a&lt;b&amp;c") && text.trim_end().ends_with("</svg>"));
    assert!(!text.contains("NaN") && !text.contains("inf,"), "{text}");
    let one = svg(&rows[..1]);
    assert!(!one.contains("NaN"), "one size has a plot too");
}
