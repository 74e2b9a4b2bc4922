//! Metrics as a running server describes them, and alerts as deploy/ has them. Must not know: what raises them.

use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use turnkv_tests::traffic;
use turnkv_tests::workspace::root;

const ALERTS: &str = "deploy/prometheus/turnkv-alerts.yml";

/// One series of the page.
#[derive(Default)]
struct Series {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

/// A row for each metric: its kind, its labels, its description.
pub(crate) async fn series() -> Result<String> {
    let (_server, page) = traffic::page_after_traffic().await?;
    let mut all: BTreeMap<String, Series> = BTreeMap::new();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            all.entry(name.to_owned()).or_default().help = help.replace('|', "\\|");
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            all.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if let Some((name, labels)) = line.split_once('{') {
            let histogram = |ending: &&str| name.ends_with(*ending);
            let ending = ["_bucket", "_sum", "_count"].into_iter().find(histogram);
            let whole = ending.map_or(name, |ending| name.trim_end_matches(ending));
            let entry = if all.contains_key(name) { name } else { whole };
            let (labels, _) = labels.split_once('}').context("labels end")?;
            let keys = labels.split("\",").filter_map(|label| label.split('=').next());
            let keys = keys.filter(|key| *key != "le").map(str::to_owned);
            all.entry(entry.to_owned()).or_default().labels.extend(keys);
        }
    }
    ensure!(all.len() > 80, "{} metrics: the page was not read", all.len());
    let mut table = "| metric | kind | labels | says |\n|---|---|---|---|\n".to_owned();
    for (name, series) in all {
        let labels: Vec<String> = series.labels.iter().map(|label| format!("`{label}`")).collect();
        table += &format!("| `{name}` | {} | {} | {} |\n", series.kind, labels.join(", "), series.help);
    }
    Ok(table)
}

/// A row for each alert: how bad, what, what to do.
pub(crate) fn alerts() -> Result<String> {
    let text = std::fs::read_to_string(root().join(ALERTS))?;
    let field = |rule: &str, name: &str| -> Option<String> {
        let line = rule.lines().find_map(|line| line.trim().strip_prefix(name))?;
        Some(line.trim().trim_matches('"').to_owned())
    };
    let mut table = "| alert | severity | what | what to do |\n|---|---|---|---|\n".to_owned();
    for rule in text.split("- alert: ").skip(1) {
        let name = rule.lines().next().context("an alert has a name")?;
        let severity =
            field(rule, "labels: {severity:").with_context(|| format!("{name} has no severity"))?;
        let summary = field(rule, "summary:").with_context(|| format!("{name} has no summary"))?;
        let advice = field(rule, "description:").with_context(|| format!("{name} has no description"))?;
        let summary =
            summary.replace("{{ $labels.instance }}", "the server").replace("{{ $labels.door }}", "named");
        table += &format!("| `{name}` | {} | {summary} | {advice} |\n", severity.trim_end_matches('}'));
    }
    Ok(table)
}
