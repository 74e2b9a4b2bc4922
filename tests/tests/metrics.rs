//! The metrics page of a running server, and what deploy/ makes of it: every series that the dashboards and the alert rules
//! name exists, every metric is described and named by the rule, every verb is timed.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::process::Command;
use turnkv_client::{DataPlane, NamespaceSpec};
use turnkv_tests::http::{free_address, get, value};
use turnkv_tests::server::{Server, Setup};
use turnkv_tests::traffic::{PAGE, page_after_traffic};
use turnkv_tests::user::User;
use turnkv_tests::workspace::root;

/// Each with how many expressions it has at least.
const DASHBOARDS: [(&str, usize); 2] =
    [("deploy/grafana/turnkv.json", 40), ("deploy/grafana/turnkv-cluster.json", 25)];
const ALERTS: &str = "deploy/prometheus/turnkv-alerts.yml";
/// How a metric's name may end: its unit, or what is counted.
const UNITS: [&str; 25] = [
    "id",
    "branches",
    "steps",
    "bytes",
    "pages",
    "seconds",
    "ratio",
    "total",
    "sessions",
    "namespaces",
    "leases",
    "connections",
    "slots",
    "slabs",
    "segments",
    "descriptors",
    "devices",
    "operations",
    "holders",
    "engines",
    "servers",
    "writes",
    "tokens",
    "percent",
    "rate",
];

/// Series that an expression names: the name, and the labels it is asked for by value.
fn named_series(expression: &str) -> Vec<(String, Vec<String>)> {
    let word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut series = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("turnkv_") {
        let name: String = rest[at..].chars().take_while(|letter| word(*letter)).collect();
        rest = &rest[at + name.len()..];
        let selector =
            rest.strip_prefix('{').and_then(|inside| inside.split_once('}')).map_or("", |(inside, _)| inside);
        let exact = |matcher: &&str| matcher.contains("=\"");
        series.push((
            name,
            selector.split(',').filter(exact).map(|matcher| matcher.trim().to_owned()).collect(),
        ));
    }
    series
}

fn expressions() -> Result<Vec<String>> {
    let mut all: Vec<String> = Vec::new();
    for (path, least) in DASHBOARDS {
        let dashboard: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(root().join(path))?)?;
        let panels = dashboard["panels"].as_array().context("the dashboard has panels")?;
        let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
        let found: Vec<String> =
            targets.filter_map(|target| target["expr"].as_str()).map(str::to_owned).collect();
        ensure!(found.len() > least, "{} expressions on {path}", found.len());
        all.extend(found);
    }
    let rules = std::fs::read_to_string(root().join(ALERTS))?;
    let from_rules = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    all.extend(from_rules.map(str::to_owned));
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_series_that_deploy_names_exists() -> Result<()> {
    let (_server, page) = page_after_traffic().await?;
    let mut missing = BTreeSet::new();
    for expression in expressions()? {
        for (name, labels) in named_series(&expression) {
            let found = page.lines().any(|line| {
                let rest = line.strip_prefix(&name).filter(|rest| rest.starts_with([' ', '{']));
                rest.is_some_and(|rest| labels.iter().all(|label| rest.contains(label.as_str())))
            });
            if !found {
                missing.insert(format!("{name}{{{}}}", labels.join(",")));
            }
        }
    }
    ensure!(missing.is_empty(), "named in deploy/ and not on the server: {missing:#?}");
    Ok(())
}

#[test]
fn names_are_found_in_expressions() {
    let found =
        named_series("rate(turnkv_a_b_total{instance=~\"$instance\",tier=\"dram\"}[5m]) > turnkv_c_d_bytes");
    let wanted = [("turnkv_a_b_total", vec!["tier=\"dram\"".to_owned()]), ("turnkv_c_d_bytes", vec![])];
    assert_eq!(found, wanted.map(|(name, labels)| (name.to_owned(), labels)));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_described_and_named_by_the_rule() -> Result<()> {
    let (_server, page) = page_after_traffic().await?;
    let mut faults = Vec::new();
    let mut metrics = 0;
    for line in page.lines() {
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        metrics += 1;
        let words: Vec<&str> = name.split('_').collect();
        let unit = words.last().copied().unwrap_or("");
        let shape = words[0] == "turnkv" && words.len() >= 3 && UNITS.contains(&unit);
        let fits = match kind {
            "counter" => unit == "total",
            "histogram" => unit == "seconds",
            _ => unit != "total",
        };
        if !shape || !fits {
            faults.push(format!("{name} ({kind}) is not turnkv_<subsystem>_<what>_<unit>"));
        }
        if !page.lines().any(|line| line.starts_with(&format!("# HELP {name} "))) {
            faults.push(format!("{name} is not described"));
        }
    }
    ensure!(metrics > 50, "{metrics} metrics: the page was not read");
    ensure!(faults.is_empty(), "{faults:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_of_the_protocol_is_timed() -> Result<()> {
    let (_server, page) = page_after_traffic().await?;
    let mut verbs = 0;
    for (file, before) in
        [("pool", ""), ("sessions", ""), ("admin", ""), ("snapshots", "snapshot_"), ("cluster", "")]
    {
        let proto = std::fs::read_to_string(root().join(format!("proto/turnkv/v1/{file}.proto")))?;
        for rpc in proto.lines().filter_map(|line| line.trim().strip_prefix("rpc ")) {
            let name = rpc.split('(').next().context("an rpc has a name")?;
            let mut verb = before.to_owned();
            for letter in name.chars() {
                if letter.is_ascii_uppercase() && verb.len() > before.len() {
                    verb.push('_');
                }
                verb.push(letter.to_ascii_lowercase());
            }
            value(&page, &format!("turnkv_rpc_call_seconds_count{{door=\"grpc\",verb=\"{verb}\"}}"))?;
            verbs += 1;
        }
    }
    ensure!(verbs >= 20, "{verbs} verbs: the proto files were not read");
    let count = |door: &str, verb: &str| {
        value(&page, &format!("turnkv_rpc_call_seconds_count{{door=\"{door}\",verb=\"{verb}\"}}"))
    };
    ensure!(count("local", "hello")? >= 1.0 && count("local", "end_reload")? >= 2.0);
    ensure!(count("grpc", "offload")? == 1.0 && count("grpc", "reload")? == 1.0, "the inline verbs");
    ensure!(count("grpc", "fork")? == 0.0, "nobody forked");
    for operation in ["write", "read", "flush"] {
        let name = format!("turnkv_tier_operation_seconds_count{{tier=\"nvme\",operation=\"{operation}\"}}");
        ensure!(value(&page, &name)? >= 1.0, "{name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn values_say_what_happened() -> Result<()> {
    let (_server, page) = page_after_traffic().await?;
    let exact = [
        ("turnkv_pool_sessions{state=\"in_turn\"}", 1.0),
        ("turnkv_pool_sessions{state=\"expected\"}", 1.0),
        ("turnkv_pool_sessions{state=\"idle\"}", 0.0),
        // 16 pages by the session's priority; the pin's four are among them.
        ("turnkv_protection_protected_pages", 16.0),
        ("turnkv_protection_protected_bytes", 16.0 * PAGE as f64),
        ("turnkv_protection_budget_bytes", 8.0 * 1048576.0),
        ("turnkv_protection_holders", 2.0),
        ("turnkv_reload_hit_pages_total{tier=\"nvme\"}", 16.0),
        // 16 + 16 pages of 16 tokens at 2 ms a token; the inline pages are of the same namespace.
        ("turnkv_reload_saved_seconds", 34.0 * 16.0 * 0.002),
        ("turnkv_route_answers_total", 1.0),
        ("turnkv_route_engines", 1.0),
        ("turnkv_queue_waiting_operations{queue=\"durable\"}", 0.0),
        ("turnkv_lease_expiries_total", 0.0),
        ("turnkv_nvme_checksum_failures_total", 0.0),
        ("turnkv_server_draining_servers", 0.0),
    ];
    for (series, wanted) in exact {
        let found = value(&page, series)?;
        ensure!((found - wanted).abs() < 1e-6, "{series}: {found}, not {wanted}");
    }
    let amplification = value(&page, "turnkv_nvme_write_amplification_ratio")?;
    ensure!((1.0..2.0).contains(&amplification), "{amplification}");
    ensure!(value(&page, "turnkv_pool_demoted_pages_total")? >= 16.0);
    Ok(())
}

/// A namespace that made way leaves no series behind, and comes back with them.
#[tokio::test(flavor = "multi_thread")]
async fn series_of_a_namespace_end_with_it() -> Result<()> {
    let http = free_address()?;
    let limits = "namespaces_max = 1\n".to_owned();
    let server = Server::start(Setup { metrics: Some(http.to_string()), limits, ..Setup::default() })?;
    let user = User::connect(&server.address(), DataPlane::Shm, PAGE).await?;
    let named = || -> Result<BTreeSet<String>> {
        let page = get(http, "/metrics")?.1;
        let series = page.lines().filter(|line| line.starts_with("turnkv_curve_page_bytes{"));
        Ok(series.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect())
    };
    let first = named()?;
    ensure!(first.len() == 1, "{first:?}");
    let mut seen = first.clone();
    for name in ["second", "third"] {
        user.client.open_namespace(NamespaceSpec::opaque(name, 16, PAGE)).await?;
        let now = named()?;
        ensure!(now.len() == 1 && seen.is_disjoint(&now), "{now:?} after {seen:?}");
        seen.extend(now);
    }
    Ok(())
}

/// Where Prometheus' own tool is installed (or named by `PROMTOOL`), it has the last word on the rules and on the page.
#[tokio::test(flavor = "multi_thread")]
async fn promtool_accepts_the_rules_and_the_page() -> Result<()> {
    let tool = std::env::var("PROMTOOL").unwrap_or_else(|_| "promtool".to_owned());
    if let Err(why) = Command::new(&tool).arg("--version").output() {
        eprintln!("SKIPPED: promtool does not run here ({why})");
        return Ok(());
    }
    let rules = Command::new(&tool).args(["check", "rules"]).arg(root().join(ALERTS)).output()?;
    ensure!(rules.status.success(), "{}", String::from_utf8_lossy(&rules.stderr));
    let (_server, page) = page_after_traffic().await?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), page)?;
    let check = Command::new(&tool).args(["check", "metrics"]).stdin(file.reopen()?).output()?;
    ensure!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    Ok(())
}
