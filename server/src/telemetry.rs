//! Telemetry: where logs and metrics go. Owns: installing both once. Must not know: what is logged or counted.

use anyhow::Context;
use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Seconds: from a lookup in microseconds to a wait for a slow disk.
const CALL_SECONDS: [f64; 12] = [5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 0.5, 2.5];

/// Seconds of what goes over all pages of a snapshot: from a few objects to the archive's grace time.
const OPERATION_SECONDS: [f64; 9] = [0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 2700.0];

/// Logs to standard error: text for people, JSON lines for collectors. `TURNKV_LOG` filters (default `info`).
pub(crate) fn start_logs(json: bool) {
    let filter = EnvFilter::try_from_env("TURNKV_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(wants_colours());
    if json { logs.json().init() } else { logs.init() }
}

/// Colours are for a terminal whose user did not decline them (`NO_COLOR`), not for files and pipes.
fn wants_colours() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|text| text.is_empty())
}

/// Installs the recorder; the handle renders it.
pub(crate) fn start_metrics() -> anyhow::Result<PrometheusHandle> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(
            Matcher::Full("turnkv_archive_operation_seconds".to_owned()),
            &OPERATION_SECONDS,
        )?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &CALL_SECONDS)?
        .install_recorder()
        .context("installing the metrics recorder")
}

/// A counter, with what it counts.
pub(crate) fn counted(name: &'static str, help: &'static str) -> Counter {
    describe_counter!(name, help);
    counter!(name)
}

/// A gauge, with what it shows.
pub(crate) fn shown(name: &'static str, help: &'static str) -> Gauge {
    describe_gauge!(name, help);
    gauge!(name)
}

/// The page of what is told here and now, by a recorder that keeps nothing: for series that come and go with what they are of.
pub(crate) fn render_once(tell: impl FnOnce()) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, tell);
    recorder.handle().render()
}
