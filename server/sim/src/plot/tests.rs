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

#[test]
fn a_curve_is_drawn_with_its_marks_and_its_bound() {
    let points = (0..10).map(|step| (1u64 << (30 + step), f64::from(step) * 5.0)).collect();
    let marks = vec![("knee", 64 << 30), ("today <now>", 3 << 30)];
    let svg = super::curves_svg(&[super::Drawing { title: "a & b", points, most_percent: 47.5, marks }]);
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<polyline").count(), 1);
    for text in ["a &amp; b", "any size: 47.5 %", "knee 64 GiB", "today &lt;now&gt; 3 GiB", ">1 GiB<"] {
        assert!(svg.contains(text), "{text}");
    }
    let empty = super::Drawing { title: "", points: vec![], most_percent: 0.0, marks: vec![] };
    assert!(!super::curves_svg(&[empty]).contains("NaN"));
}
