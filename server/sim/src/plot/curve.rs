//! One miss-ratio curve, as SVG: hit ratio against bytes. Owns: the drawing. Must not know: how the curve was measured.

use super::{BOTTOM, COLOURS, LEFT, PANEL, RIGHT, TOP, WIDTH, escape, stacked};

/// A curve to draw.
pub struct Drawing<'a> {
    /// What it is of.
    pub title: &'a str,
    /// Bytes, and the percentage of pages found with them; ascending.
    pub points: Vec<(u64, f64)>,
    /// The percentage that any size would find.
    pub most_percent: f64,
    /// Sizes to mark: name, bytes.
    pub marks: Vec<(&'a str, u64)>,
}

/// Draws one panel a curve; bytes on a logarithmic axis.
pub fn curves_svg(drawings: &[Drawing<'_>]) -> String {
    stacked(drawings, |drawing, put| draw(drawing, put))
}

fn draw(drawing: &Drawing<'_>, put: &mut dyn FnMut(String)) {
    let sizes =
        || drawing.points.iter().map(|(bytes, _)| *bytes).chain(drawing.marks.iter().map(|mark| mark.1));
    let least = sizes().filter(|bytes| *bytes > 0).min().unwrap_or(1) as f64;
    let most = sizes().max().unwrap_or(1).max(1) as f64 * 1.01;
    let top = (drawing.most_percent.max(1.0) / 10.0).ceil() * 10.0;
    let (right, bottom) = (WIDTH - RIGHT, PANEL - BOTTOM);
    let x = |bytes: u64| LEFT + (right - LEFT) * (bytes as f64 / least).max(1.0).ln() / (most / least).ln();
    let y = |percent: f64| bottom - (bottom - TOP) * percent / top;
    put(format!("<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}</text>", escape(drawing.title)));
    for step in 0..=5 {
        let percent = top * f64::from(step) / 5.0;
        let line = y(percent);
        put(format!("<path d=\"M{LEFT} {line:.1}H{right}\" stroke=\"#dddddd\"/>"));
        let at = LEFT - 6.0;
        put(format!("<text x=\"{at}\" y=\"{:.1}\" text-anchor=\"end\">{percent:.0} %</text>", line + 4.0));
    }
    let mut free_from = f64::NEG_INFINITY;
    for (bytes, _) in &drawing.points {
        let at = x(*bytes);
        if at >= free_from {
            let (line, name) = (bottom + 18.0, short(*bytes));
            put(format!("<text x=\"{at:.1}\" y=\"{line}\" text-anchor=\"middle\">{name}</text>"));
            free_from = at + 60.0;
        }
    }
    put(format!("<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>"));
    let (line, all) = (y(drawing.most_percent), drawing.most_percent);
    put(format!(
        "<path d=\"M{LEFT} {line:.1}H{right}\" stroke=\"{}\" stroke-dasharray=\"5 4\"/>",
        COLOURS[6]
    ));
    put(format!("<text x=\"{}\" y=\"{:.1}\">any size: {all:.1} %</text>", right + 8.0, line + 4.0));
    let points: Vec<String> = drawing
        .points
        .iter()
        .map(|(bytes, percent)| format!("{:.1},{:.1}", x(*bytes), y(*percent)))
        .collect();
    put(format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
        points.join(" "),
        COLOURS[0]
    ));
    for (at, (name, bytes)) in drawing.marks.iter().enumerate() {
        let (place, colour) = (x(*bytes), COLOURS[1 + at % (COLOURS.len() - 1)]);
        put(format!("<path d=\"M{place:.1} {TOP}V{bottom}\" stroke=\"{colour}\" stroke-dasharray=\"2 3\"/>"));
        let line = TOP + 60.0 + 18.0 * at as f64;
        let text = format!("{} {}", escape(name), short(*bytes));
        put(format!("<text x=\"{}\" y=\"{line}\" fill=\"{colour}\">{text}</text>", right + 8.0));
    }
}

/// Bytes in three digits and a unit.
fn short(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes >= 1 << shift) {
        Some((unit, shift)) => {
            let count = bytes as f64 / (1u64 << shift) as f64;
            if count >= 100.0 {
                format!("{count:.0} {unit}")
            } else {
                format!("{count:.3}").trim_end_matches('0').trim_end_matches('.').to_owned() + " " + unit
            }
        }
        None => format!("{bytes} B"),
    }
}
