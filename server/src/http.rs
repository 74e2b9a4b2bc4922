//! HTTP for operators: /metrics (Prometheus) and /healthz. Owns: the two pages. Must not know: gRPC.

use crate::engine::Engine;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use std::sync::Arc;

/// The routes.
pub(crate) fn routes(engine: Arc<Engine>, metrics: PrometheusHandle) -> Router {
    let healthy = Arc::clone(&engine);
    let render = move || {
        engine.refresh_gauges();
        engine.refresh_curves();
        metrics.run_upkeep();
        std::future::ready(metrics.render())
    };
    let health = move || std::future::ready(health(&healthy));
    Router::new().route("/metrics", get(render)).route("/healthz", get(health))
}

/// 200 while pages are taken and served; 503 while draining. A lost NVMe tier is said, but the pool lives on in DRAM.
fn health(engine: &Engine) -> (StatusCode, String) {
    if engine.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned());
    }
    let notes = engine.stats().tiers.into_iter().filter(|tier| tier.poisoned).map(|tier| tier.note);
    let lost: Vec<String> = notes.collect();
    (
        StatusCode::OK,
        if lost.is_empty() { "ok\n".to_owned() } else { format!("ok, without NVMe: {}\n", lost.join("; ")) },
    )
}
