//! The gRPC door, on its Unix socket and on TCP. Owns: the services put together, and HTTP/2's settings. Must not know: the
//! verbs.
//!
//! - [`pool`], [`sessions`], [`admin`], [`snapshots`], [`cluster`]: the services' verbs; [`reply`]: what each of them answers with
//! - [`requests`], [`budget`], [`inline_streams`]: what every request passes, and what it may take
//! - [`answers`]: the same of answers

pub(crate) mod admin;
pub(crate) mod answers;
pub(crate) mod budget;
mod cluster;
mod inline_streams;
pub(crate) mod pool;
mod reply;
mod requests;
pub(crate) mod sessions;
pub(crate) mod snapshots;

use crate::access::Callers;
use crate::connections::accept::Admitting;
use crate::connections::opening::TcpDoorStream;
use crate::connections::stream::DoorStream;
use crate::connections::{Connections, Door};
use crate::doors::calls::CallSeconds;
use crate::doors::inline;
use crate::engine::Engine;
use crate::limits::{
    CLUSTER_REQUEST_BYTES_MAX, GRPC_CONNECTION_WINDOW_BYTES, GRPC_FRAME_BYTES_MAX, GRPC_KEEP_ALIVE,
    GRPC_KEEP_ALIVE_WAIT_MAX, GRPC_STREAM_WINDOW_BYTES, GRPC_STREAMS_PER_CONNECTION_MAX,
    POOL_REQUEST_BYTES_MAX, SESSIONS_REQUEST_BYTES_MAX, SMALL_REQUEST_BYTES_MAX, SNAPSHOTS_REQUEST_BYTES_MAX,
};
use crate::snapshots::Snapshots;
use crate::upgrade::asked::Upgrades;
use admin::AdminService;
use answers::Answers;
use budget::Budget;
use cluster::ClusterService;
use futures_util::Stream;
use pool::PoolService;
use requests::Requests;
use sessions::SessionsService;
use snapshots::SnapshotsService;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic_health::server::HealthReporter;
use turnkv_proto::limits::GRPC_ANSWER_BYTES_MAX;
use turnkv_proto::wire::{
    admin_server::AdminServer, cluster_server::ClusterServer, sessions_server::SessionsServer,
    snapshots_server::SnapshotsServer, unary::pool_server::PoolServer,
};

/// Every service.
pub(crate) struct Grpc {
    router: Router,
    reporter: HealthReporter,
}

/// What the standard health service says of this server.
pub(crate) struct Standing(HealthReporter);

impl Standing {
    /// Says whether it serves.
    pub(crate) async fn report(&self, serving: bool) {
        if serving {
            self.0.set_serving::<PoolServer<PoolService>>().await;
        } else {
            self.0.set_not_serving::<PoolServer<PoolService>>().await;
        }
    }
}

impl Grpc {
    /// Puts the services together.
    pub(crate) fn new(
        engine: &Arc<Engine>,
        calls: &Arc<CallSeconds>,
        budget: &Arc<Budget>,
        answers: &Arc<Answers>,
        snapshots: Arc<Snapshots>,
        upgrades: &Arc<Upgrades>,
    ) -> anyhow::Result<Grpc> {
        let pool = PoolServer::new(PoolService { engine: Arc::clone(engine) })
            .max_decoding_message_size(POOL_REQUEST_BYTES_MAX)
            .max_encoding_message_size(GRPC_ANSWER_BYTES_MAX);
        let sessions = SessionsServer::new(SessionsService::new(engine))
            .max_decoding_message_size(SESSIONS_REQUEST_BYTES_MAX)
            .max_encoding_message_size(GRPC_ANSWER_BYTES_MAX);
        let admin = AdminService { engine: Arc::clone(engine), upgrades: Arc::clone(upgrades) };
        let admin = AdminServer::new(admin)
            .max_decoding_message_size(SMALL_REQUEST_BYTES_MAX)
            .max_encoding_message_size(GRPC_ANSWER_BYTES_MAX);
        let snapshots = SnapshotsServer::new(SnapshotsService { snapshots })
            .max_decoding_message_size(SNAPSHOTS_REQUEST_BYTES_MAX)
            .max_encoding_message_size(GRPC_ANSWER_BYTES_MAX);
        let cluster = ClusterServer::new(ClusterService::new(engine))
            .max_decoding_message_size(CLUSTER_REQUEST_BYTES_MAX)
            .max_encoding_message_size(GRPC_ANSWER_BYTES_MAX);
        let (reporter, health) = tonic_health::server::health_reporter();
        let health = health.max_decoding_message_size(SMALL_REQUEST_BYTES_MAX);
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(turnkv_proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()?
            .max_decoding_message_size(SMALL_REQUEST_BYTES_MAX);
        let requests = Requests::new(engine, calls, budget, answers);
        let routes = Routes::new(pool)
            .add_service(sessions)
            .add_service(admin)
            .add_service(snapshots)
            .add_service(cluster)
            .add_service(health)
            .add_service(reflection)
            .into_axum_router()
            .merge(inline::routes(engine, calls))
            .layer(axum::middleware::from_fn_with_state(requests, requests::pass));
        let router = Server::builder()
            .initial_stream_window_size(GRPC_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(GRPC_CONNECTION_WINDOW_BYTES)
            .max_frame_size(GRPC_FRAME_BYTES_MAX)
            .max_concurrent_streams(GRPC_STREAMS_PER_CONNECTION_MAX)
            .http2_keepalive_interval(Some(GRPC_KEEP_ALIVE))
            .http2_keepalive_timeout(Some(GRPC_KEEP_ALIVE_WAIT_MAX))
            .add_routes(Routes::from(routes));
        Ok(Grpc { router, reporter })
    }

    /// What tells the standard health service whether this server serves.
    pub(crate) fn standing(&self) -> Standing {
        Standing(self.reporter.clone())
    }

    /// Serves on the Unix socket until told to stop.
    pub(crate) fn serve_unix(
        &self,
        listener: UnixListener,
        connections: &Arc<Connections>,
        callers: &Arc<Callers>,
        stopped: watch::Receiver<bool>,
    ) -> impl Future<Output = Result<(), tonic::transport::Error>> + Send + use<> {
        let admitting = Admitting::new(listener, Door::Unix, connections, callers);
        serve(self.router.clone(), admitting.into_stream(), stopped)
    }

    /// Serves connections on TCP until told to stop.
    pub(crate) fn serve_tcp<S>(
        &self,
        incoming: S,
        stopped: watch::Receiver<bool>,
    ) -> impl Future<Output = Result<(), tonic::transport::Error>> + Send + use<S>
    where
        S: Stream<Item = io::Result<TcpDoorStream>> + Send + 'static,
    {
        serve(self.router.clone(), incoming, stopped)
    }
}

/// A listening socket that tokio waits at.
pub(crate) fn of_reactor(listener: std::os::unix::net::UnixListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

async fn serve<Io>(
    router: Router,
    incoming: impl Stream<Item = io::Result<DoorStream<Io>>> + Send + 'static,
    mut stopped: watch::Receiver<bool>,
) -> Result<(), tonic::transport::Error>
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let until = async move { drop(stopped.wait_for(|stop| *stop).await) };
    router.serve_with_incoming_shutdown(incoming, until).await
}
