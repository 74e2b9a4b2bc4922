//! The whole life of the server on one screen: build, listen, wait for the end, drain, leave. Owns: the listeners and
//! their order. Must not know: the verbs.

use super::{admin::AdminService, inline, pool::PoolService, sessions::SessionsService};
use crate::config::Settings;
use crate::engine::Engine;
use crate::limits::{GRPC_MESSAGE_BYTES_MAX, GRPC_STREAM_WINDOW_BYTES, GRPC_STREAMS_PER_CONNECTION_MAX};
use crate::local::LocalDoor;
use crate::{http, telemetry};
use anyhow::Context;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::{Router, TcpIncoming};
use turnkv_proto::wire::{
    admin_server::AdminServer, sessions_server::SessionsServer, unary::pool_server::PoolServer,
};
use turnkv_transfer::{bind_unix, keep_heap};

/// How `turnkv serve` was started.
pub(crate) struct Start {
    /// What was configured.
    pub(crate) settings: Settings,
    /// Leave once nobody has been connected for so long (a private pool of one user's clients).
    pub(crate) idle: Option<Duration>,
}

/// Serves until SIGTERM, SIGINT or, for a private pool, until nobody is left; then writes what is dirty and leaves.
pub(crate) async fn run(start: Start) -> anyhow::Result<()> {
    let metrics = telemetry::start_metrics()?;
    keep_heap();
    let settings = start.settings.clone();
    let engine = tokio::task::spawn_blocking(move || Engine::start(settings)).await??;
    Engine::run_threads(&engine)?;

    let (stop, stopped) = watch::channel(false);
    let settings = &engine.settings;
    let local = local_path(&settings.socket);
    if let Some(directory) = settings.socket.parent() {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let handle = tokio::runtime::Handle::current();
    let door = LocalDoor::open(Arc::clone(&engine), &local, settings.socket_mode, handle)
        .with_context(|| format!("cannot listen at {}", local.display()))?;
    let mut servers = tokio::task::JoinSet::new();
    servers.spawn(serve_unix(&engine, stopped.clone())?);
    if let Some(address) = settings.tcp {
        servers.spawn(serve_tcp(&engine, address, stopped.clone()).await?);
    }
    if let Some(address) = settings.metrics {
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address}"))?;
        let routes = http::routes(Arc::clone(&engine), metrics);
        let mut stopped = stopped.clone();
        let until = async move { drop(stopped.wait_for(|stop| *stop).await) };
        servers.spawn(async move { Ok(axum::serve(listener, routes).with_graceful_shutdown(until).await?) });
    }
    tracing::info!(socket = %settings.socket.display(), "ready");

    let reason = end(&engine, start.idle).await?;
    tracing::info!(reason, "leaving: finishing writes");
    let leaving = Arc::clone(&engine);
    tokio::task::spawn_blocking(move || leaving.leave()).await?;
    door.close();
    stop.send_replace(true);
    let all = async { while servers.join_next().await.is_some() {} };
    if tokio::time::timeout(Duration::from_secs(2), all).await.is_err() {
        tracing::info!("open connections were cut");
    }
    remove_socket(&settings.socket);
    tracing::info!("left");
    Ok(())
}

/// Where the local socket is, given gRPC's.
fn local_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".local");
    PathBuf::from(path)
}

type Served = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

fn serve_unix(engine: &Arc<Engine>, mut stopped: watch::Receiver<bool>) -> anyhow::Result<Served> {
    let socket = &engine.settings.socket;
    let bound = bind_unix(socket, engine.settings.socket_mode)
        .with_context(|| format!("cannot listen at {}", socket.display()))?;
    bound.set_nonblocking(true)?;
    let incoming = UnixListenerStream::new(UnixListener::from_std(bound)?);
    let services = services(engine)?;
    let until = async move { drop(stopped.wait_for(|stop| *stop).await) };
    Ok(Box::pin(async move { Ok(services.serve_with_incoming_shutdown(incoming, until).await?) }))
}

async fn serve_tcp(
    engine: &Arc<Engine>,
    address: std::net::SocketAddr,
    mut stopped: watch::Receiver<bool>,
) -> anyhow::Result<Served> {
    let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address}"))?;
    // serve_with_incoming ignores Server::tcp_nodelay: it is the incoming's to set.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let services = services(engine)?;
    let until = async move { drop(stopped.wait_for(|stop| *stop).await) };
    Ok(Box::pin(async move { Ok(services.serve_with_incoming_shutdown(incoming, until).await?) }))
}

/// Every gRPC service, tuned for megabyte messages.
fn services(engine: &Arc<Engine>) -> anyhow::Result<Router> {
    let pool = PoolServer::new(PoolService { engine: Arc::clone(engine) })
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let sessions = SessionsServer::new(SessionsService { engine: Arc::clone(engine) })
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX);
    let (reporter, health) = tonic_health::server::health_reporter();
    tokio::spawn(async move { reporter.set_serving::<PoolServer<PoolService>>().await });
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(turnkv_proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let routes = Routes::new(pool)
        .add_service(sessions)
        .add_service(AdminServer::new(AdminService { engine: Arc::clone(engine) }))
        .add_service(health)
        .add_service(reflection)
        .into_axum_router()
        .merge(inline::routes(engine))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(engine), timed));
    Ok(Server::builder()
        .initial_stream_window_size(GRPC_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(64 << 20)
        .max_frame_size(4 << 20)
        .max_concurrent_streams(GRPC_STREAMS_PER_CONNECTION_MAX)
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .add_routes(Routes::from(routes)))
}

/// Times every verb to its first answer. An inline Offload answers before it has done anything: it times itself.
async fn timed(State(engine): State<Arc<Engine>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let seconds = engine.metrics.calls.grpc(path).filter(|_| path != inline::OFFLOAD);
    let began = Instant::now();
    let response = next.run(request).await;
    if let Some(seconds) = seconds {
        seconds.record(began.elapsed());
    }
    response
}

/// Waits for a reason to leave.
async fn end(engine: &Arc<Engine>, idle: Option<Duration>) -> anyhow::Result<&'static str> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let nobody = async {
        let Some(idle) = idle else { return std::future::pending().await };
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            if engine.clients.idle_since().is_some_and(|since| since.elapsed() >= idle) {
                return;
            }
        }
    };
    Ok(tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        () = nobody => "the last client is gone",
    })
}

fn remove_socket(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "the socket file stays behind");
    }
}
