//! Hit ratio against capacity, as SVG. Owns: the drawing. Must not know: how the figures came about.

use crate::render::Row;
use std::collections::BTreeMap;
use std::fmt::Write;

mod curve;
#[cfg(test)]
mod tests;

pub use curve::{Drawing, curves_svg};

const WIDTH: f64 = 760.0;
const PANEL: f64 = 380.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Colours that colour-blind people tell apart.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933"];

/// A line of the plot.
struct Series {
    name: String,
    /// Pages of all tiers, percent.
    points: Vec<(f64, f64)>,
    dashed: bool,
}

/// Draws one panel a trace: all tiers' pages on a logarithmic axis, a line a policy, Belady and infinite dashed.
pub fn svg(rows: &[Row]) -> String {
    let panels: Vec<&[Row]> =
        rows.chunk_by(|one, other| (&one.trace, one.pools) == (&other.trace, other.pools)).collect();
    stacked(&panels, |panel, put| draw_panel(panel, put))
}

/// An image of panels, one under the other.
fn stacked<T>(panels: &[T], mut draw: impl FnMut(&T, &mut dyn FnMut(String))) -> String {
    let height = PANEL * panels.len().max(1) as f64;
    let mut text = String::new();
    let mut put = |line: String| writeln!(text, "{line}").unwrap_or_default();
    put(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">"
    ));
    put("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>".to_owned());
    for (at, panel) in panels.iter().enumerate() {
        put(format!("<g transform=\"translate(0 {})\">", PANEL * at as f64));
        draw(panel, &mut put);
        put("</g>".to_owned());
    }
    put("</svg>".to_owned());
    text
}

fn draw_panel(rows: &[Row], put: &mut dyn FnMut(String)) {
    let series = series_of(rows);
    let all = || series.iter().flat_map(|series| series.points.iter());
    let least = all().map(|(pages, _)| *pages).fold(f64::INFINITY, f64::min);
    let most = all().map(|(pages, _)| *pages).fold(least * 1.01, f64::max);
    let top = (all().map(|(_, percent)| *percent).fold(1.0, f64::max) / 10.0).ceil() * 10.0;
    let (right, bottom) = (WIDTH - RIGHT, PANEL - BOTTOM);
    let x = |pages: f64| LEFT + (right - LEFT) * (pages / least).ln() / (most / least).ln();
    let y = |percent: f64| bottom - (bottom - TOP) * percent / top;
    let pools = if rows[0].pools > 1 { format!(", {} private pools", rows[0].pools) } else { String::new() };
    put(format!("<text x=\"{LEFT}\" y=\"22\" font-size=\"15\">{}{pools}</text>", escape(&rows[0].trace)));
    for step in 0..=5 {
        let percent = top * f64::from(step) / 5.0;
        let line = y(percent);
        put(format!("<path d=\"M{LEFT} {line:.1}H{right}\" stroke=\"#dddddd\"/>"));
        put(format!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{percent:.0} %</text>",
            LEFT - 6.0,
            line + 4.0
        ));
    }
    let mut sizes: Vec<u64> = all().map(|(pages, _)| *pages as u64).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut free_from = f64::NEG_INFINITY;
    for size in sizes {
        let at = x(size as f64);
        put(format!("<path d=\"M{at:.1} {bottom}v5\" stroke=\"black\"/>"));
        if at >= free_from {
            put(format!("<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{size}</text>", bottom + 18.0));
            free_from = at + 50.0;
        }
    }
    put(format!("<path d=\"M{LEFT} {TOP}V{bottom}H{right}\" fill=\"none\" stroke=\"black\"/>"));
    let middle = LEFT.midpoint(right);
    put(format!(
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">pages of all tiers (a page is a block)</text>",
        bottom + 38.0
    ));
    for (at, series) in series.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let dash = if series.dashed { " stroke-dasharray=\"5 4\"" } else { "" };
        let points: Vec<String> = series
            .points
            .iter()
            .map(|(pages, percent)| format!("{:.1},{:.1}", x(*pages), y(*percent)))
            .collect();
        put(format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
            points.join(" ")
        ));
        for (pages, percent) in series.points.iter().filter(|_| !series.dashed) {
            put(format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>",
                x(*pages),
                y(*percent)
            ));
        }
        let line = TOP + 10.0 + 18.0 * at as f64;
        put(format!(
            "<path d=\"M{} {line}h22\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
            right + 14.0
        ));
        put(format!("<text x=\"{}\" y=\"{}\">{}</text>", right + 42.0, line + 4.0, escape(&series.name)));
    }
}

/// A line a policy (and share of NVMe), then the bounds.
fn series_of(rows: &[Row]) -> Vec<Series> {
    let mut lines: Vec<Series> = Vec::new();
    let (mut belady, mut infinite) = (BTreeMap::new(), BTreeMap::new());
    for row in rows {
        let pages = row.dram_pages + row.nvme_pages;
        let hints = if row.hints { " +hints" } else { "" };
        let nvme = if row.nvme_pages > 0 { format!(", NVMe {}", row.nvme) } else { String::new() };
        let name = format!("{}{hints}{nvme}", row.policy);
        let point = (pages as f64, row.hit_percent);
        match lines.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => lines.push(Series { name, points: vec![point], dashed: false }),
        }
        belady.insert(pages, row.belady_percent);
        infinite.insert(pages, row.infinite_percent);
    }
    for series in &mut lines {
        series.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    for (name, bound) in [("Belady", belady), ("infinite", infinite)] {
        let points = bound.into_iter().map(|(pages, percent)| (pages as f64, percent)).collect();
        lines.push(Series { name: name.to_owned(), points, dashed: true });
    }
    lines
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
