//! HTTP for operators: /metrics (Prometheus) and /healthz. Owns: the two pages, and their door. Must not know: gRPC.

use crate::access::Callers;
use crate::connections::accept::{Accept, Admitting};
use crate::connections::asking::Asking;
use crate::connections::stream::DoorStream;
use crate::connections::{Connections, Door};
use crate::engine::Engine;
use crate::telemetry;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::get;
use axum::serve::{IncomingStream, Listener};
use axum::{Router, middleware};
use metrics_exporter_prometheus::PrometheusHandle;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Serves the pages until told to stop.
pub(crate) async fn serve(
    listener: TcpListener,
    engine: Arc<Engine>,
    connections: Arc<Connections>,
    callers: Arc<Callers>,
    metrics: PrometheusHandle,
    mut stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let routes = routes(engine, Arc::clone(&connections), metrics);
    let until = async move { drop(stopped.wait_for(|stop| *stop).await) };
    let admitting = Pages(Admitting::new(listener, Door::Http, &connections, &callers));
    let service = routes.into_make_service_with_connect_info::<Asking>();
    axum::serve(admitting, service).with_graceful_shutdown(until).await
}

fn routes(engine: Arc<Engine>, connections: Arc<Connections>, metrics: PrometheusHandle) -> Router {
    let (healthy, doors) = (Arc::clone(&engine), Arc::clone(&connections));
    let render = move || {
        engine.refresh_gauges();
        connections.refresh_gauges();
        metrics.run_upkeep();
        std::future::ready(metrics.render() + &telemetry::render_once(|| engine.tell_curves()))
    };
    let health = move || std::future::ready(health(&healthy, &doors));
    Router::new()
        .route("/metrics", get(render))
        .route("/healthz", get(health))
        .layer(middleware::from_fn(counted))
}

/// The connection is not idle while a page is made.
async fn counted(ConnectInfo(asking): ConnectInfo<Asking>, request: Request, next: Next) -> Response {
    let _request = asking.begin();
    next.run(request).await
}

/// 200 while pages are taken and served, 503 else. The first line says which, each other one what is wrong and what to do.
fn health(engine: &Engine, connections: &Connections) -> (StatusCode, String) {
    let health = engine.health();
    let (status, mut text) = match health.not_serving {
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
        None => (StatusCode::OK, "ok".to_owned()),
    };
    for note in health.notes {
        write!(text, "\n{note}").unwrap_or_default();
    }
    for (door, max) in connections.full_doors() {
        let line = format!("the door {} is full with {max} connections", door.name());
        write!(text, "\n{line}: find who holds them, or raise limits.connections_max").unwrap_or_default();
    }
    (status, text + "\n")
}

/// The door as axum wants a listener.
struct Pages(Admitting<TcpListener>);

impl Listener for Pages {
    type Io = DoorStream<<TcpListener as Accept>::Io>;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, ()) {
        (self.0.next().await, ())
    }

    fn local_addr(&self) -> io::Result<()> {
        self.0.listener().local_addr().map(|_: SocketAddr| ())
    }
}

impl Connected<IncomingStream<'_, Pages>> for Asking {
    fn connect_info(stream: IncomingStream<'_, Pages>) -> Asking {
        stream.io().asking()
    }
}
