//! Results for people and machines. Owns: the table, CSV and JSON of outcomes. Must not know: how they came about.

use crate::account::percent;
use crate::grid::{Outcome, Workload};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt::Write;

#[cfg(test)]
pub(crate) mod tests;

/// One outcome with everything that is said about it. Percentages are of the blocks sent unless their name says more.
#[derive(Clone, Debug, Serialize, PartialEq)]
pub struct Row {
    /// Which trace.
    pub trace: String,
    /// Which policy.
    pub policy: &'static str,
    /// Whether the engine gave hints.
    pub hints: bool,
    /// Pools that share the memory; 1: all traffic goes to one.
    pub pools: usize,
    /// DRAM as it was asked for.
    pub dram: String,
    /// NVMe as it was asked for.
    pub nvme: String,
    /// DRAM in pages, all pools.
    pub dram_pages: u64,
    /// NVMe in pages, all pools.
    pub nvme_pages: u64,
    /// Blocks found.
    pub hit_percent: f64,
    /// Blocks found in DRAM.
    pub dram_hit_percent: f64,
    /// Blocks found on NVMe.
    pub nvme_hit_percent: f64,
    /// Tokens found, of the tokens sent (partial blocks are never found).
    pub hit_tokens_percent: f64,
    /// Tokens that need not be computed again.
    pub tokens_saved: u64,
    /// Of these, from DRAM.
    pub tokens_saved_dram: u64,
    /// Of these, from NVMe.
    pub tokens_saved_nvme: u64,
    /// Lost against an infinite pool: blocks that the same session had sent.
    pub lost_multi_turn_percent: f64,
    /// Lost against an infinite pool: blocks that only others had sent.
    pub lost_cross_session_percent: f64,
    /// What infinite pools find.
    pub infinite_percent: f64,
    /// What Belady's rule finds with as many pages in all.
    pub belady_percent: f64,
    /// How much of the way from `lru` to Belady at the same sizes this is; none: `lru` was not run, or there is no way.
    pub gap_closed_percent: Option<f64>,
    /// Requests played.
    pub requests: u64,
    /// Blocks they sent.
    pub blocks: u64,
    /// Blocks stored.
    pub stored: u64,
    /// Blocks that the pool declined.
    pub declined: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// Blocks written to NVMe, rewrites included.
    pub nvme_written: u64,
    /// Blocks read from NVMe.
    pub nvme_read: u64,
    /// Blocks brought into DRAM before their turn.
    pub prefetched: u64,
    /// Turns that found all they found in DRAM, of those that found something.
    pub turns_from_dram_percent: f64,
    /// Milliseconds that a turn waited for NVMe, mean.
    pub wait_ms_mean: f64,
    /// The longest wait.
    pub wait_ms_max: u64,
}

/// The way from LRU to Belady is too short to speak of a share of it, in points.
const GAP_LEAST: f64 = 0.05;

/// Says everything about every outcome.
pub fn rows(workloads: &[Workload], outcomes: &[Outcome]) -> Vec<Row> {
    type Sizes = (usize, u64, u64);
    let sizes = |outcome: &Outcome| -> Sizes { (outcome.workload, outcome.dram_pages, outcome.nvme_pages) };
    let plain = outcomes.iter().filter(|outcome| outcome.cell.policy.name == "lru");
    let plain: HashMap<Sizes, f64> =
        plain.map(|outcome| (sizes(outcome), outcome.counts.hit_percent())).collect();
    let row =
        |outcome: &Outcome| row(&workloads[outcome.workload], outcome, plain.get(&sizes(outcome)).copied());
    outcomes.iter().map(row).collect()
}

fn row(workload: &Workload, outcome: &Outcome, lru_percent: Option<f64>) -> Row {
    let (cell, counts) = (&outcome.cell, &outcome.counts);
    let tokens = u64::from(workload.trace.block_tokens);
    let belady_percent = counts.percent(outcome.belady_hits);
    let gap = lru_percent.map(|lru| (counts.hit_percent() - lru, belady_percent - lru));
    Row {
        trace: workload.trace.name.clone(),
        policy: cell.policy.name,
        hints: cell.hints.is_some(),
        pools: workload.pools.len(),
        dram: cell.dram.to_string(),
        nvme: cell.nvme.to_string(),
        dram_pages: outcome.dram_pages,
        nvme_pages: outcome.nvme_pages,
        hit_percent: counts.hit_percent(),
        dram_hit_percent: counts.percent(counts.dram_hits),
        nvme_hit_percent: counts.percent(counts.nvme_hits),
        hit_tokens_percent: percent(counts.hits() * tokens, counts.input_tokens),
        tokens_saved: counts.hits() * tokens,
        tokens_saved_dram: counts.dram_hits * tokens,
        tokens_saved_nvme: counts.nvme_hits * tokens,
        lost_multi_turn_percent: counts.percent(counts.lost_multi_turn),
        lost_cross_session_percent: counts.percent(counts.lost_cross_session),
        infinite_percent: counts.percent(counts.infinite_hits),
        belady_percent,
        gap_closed_percent: gap.filter(|(_, all)| *all > GAP_LEAST).map(|(won, all)| 100.0 * won / all),
        requests: counts.requests,
        blocks: counts.blocks,
        stored: counts.stored,
        declined: counts.declined,
        evicted: counts.evicted,
        nvme_written: counts.nvme_written,
        nvme_read: counts.nvme_read,
        prefetched: counts.prefetched,
        turns_from_dram_percent: percent(counts.turns_from_dram, counts.turns_hit),
        wait_ms_mean: counts.wait_ms as f64 / counts.requests.max(1) as f64,
        wait_ms_max: counts.wait_ms_max,
    }
}

/// A table for a terminal, one block a trace.
pub fn table(rows: &[Row]) -> String {
    let head = [
        "policy",
        "DRAM",
        "NVMe",
        "hit %",
        "DRAM %",
        "NVMe %",
        "tokens saved",
        "lost: own %",
        "others %",
        "Belady %",
        "infinite %",
        "gap closed %",
    ];
    let mut text = String::new();
    for part in rows.chunk_by(|one, other| (&one.trace, one.pools) == (&other.trace, other.pools)) {
        let pools =
            if part[0].pools > 1 { format!(", {} private pools", part[0].pools) } else { String::new() };
        let title =
            format!("{}: {} requests, {} blocks{pools}", part[0].trace, part[0].requests, part[0].blocks);
        let mut cells: Vec<Vec<String>> = vec![head.map(str::to_owned).to_vec()];
        cells.extend(part.iter().map(table_cells));
        let widths: Vec<usize> = (0..head.len())
            .map(|column| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let line = |row: &Vec<String>| {
            let mut line = format!("  {:<width$}", row[0], width = widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line += &format!("  {cell:>width$}");
            }
            line
        };
        let lines: Vec<String> = cells.iter().map(line).collect();
        writeln!(text, "{title}\n{}\n", lines.join("\n")).unwrap_or_default();
    }
    text
}

fn table_cells(row: &Row) -> Vec<String> {
    let point = |value: f64| format!("{value:.1}");
    let size =
        |asked: &str, pages: u64| if pages == 0 { "-".to_owned() } else { format!("{asked} ({pages})") };
    vec![
        format!("{}{}", row.policy, if row.hints { " +hints" } else { "" }),
        size(&row.dram, row.dram_pages),
        size(&row.nvme, row.nvme_pages),
        point(row.hit_percent),
        point(row.dram_hit_percent),
        point(row.nvme_hit_percent),
        thousands(row.tokens_saved),
        point(row.lost_multi_turn_percent),
        point(row.lost_cross_session_percent),
        point(row.belady_percent),
        point(row.infinite_percent),
        row.gap_closed_percent.map_or("-".to_owned(), |gap| format!("{gap:.0}")),
    ]
}

/// One JSON array.
pub fn json(rows: &[Row]) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(rows)? + "\n")
}

/// One line a row, a header first. Fields with commas or quotes are quoted.
pub fn csv(rows: &[Row]) -> serde_json::Result<String> {
    let mut text = String::new();
    for (at, row) in rows.iter().enumerate() {
        let serde_json::Value::Object(fields) = serde_json::to_value(row)? else { continue };
        let line = |cells: Vec<String>| cells.join(",") + "\n";
        if at == 0 {
            text += &line(fields.keys().map(|key| csv_cell(key)).collect());
        }
        let value = |value: &serde_json::Value| match value {
            serde_json::Value::String(text) => csv_cell(text),
            serde_json::Value::Null => String::new(),
            other => other.to_string(),
        };
        text += &line(fields.values().map(value).collect());
    }
    Ok(text)
}

fn csv_cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(" ")
}
