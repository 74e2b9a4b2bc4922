//! The gRPC channel, over a Unix socket, TCP or TLS. Owns: its tuning, and one channel per runtime. Must not know:
//! verbs.

use crate::config::{Address, ConfigError};
use crate::error::{Error, ErrorKind};
use crate::limits::{
    GRPC_ANSWER_BYTES_MAX, GRPC_CONNECTION_WINDOW_BYTES, GRPC_FRAME_BYTES_MAX, GRPC_KEEP_ALIVE,
    GRPC_STREAM_WINDOW_BYTES,
};
use http::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::io;
use std::time::Duration;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};
use turnkv_proto::stream::{Incoming, Piece};
use turnkv_proto::wire::admin_client::AdminClient;
use turnkv_proto::wire::cluster_client::ClusterClient;
use turnkv_proto::wire::pool_client::PoolClient;
use turnkv_proto::wire::sessions_client::SessionsClient;
use turnkv_transfer::keep_heap;
use turnkv_transfer::tls::{ALPN_HTTP2, Dial, Dialed, TlsConfig};

#[derive(Debug)]
pub(crate) struct Grpc {
    endpoint: Endpoint,
    /// Under TLS.
    dial: Option<Dial>,
    /// Over TCP, and not under TLS.
    is_plain: bool,
    /// A channel lives on the runtime that made it; a client may be used from one runtime after another.
    channel: Mutex<Option<(tokio::runtime::Id, Channel)>>,
}

impl Grpc {
    pub(crate) fn new(address: &Address, connect: Duration, tls: &TlsConfig) -> Result<Grpc, ConfigError> {
        let text = address.to_string().replacen("tls://", "https://", 1).replacen("tcp://", "http://", 1);
        let dial = match address {
            Address::Tls(host, port) => Some(Dial::new(host, *port, tls.clone().or_environment())),
            Address::Unix(_) | Address::Tcp(..) | Address::Http(_) => None,
        };
        let endpoint = Endpoint::from_shared(text.clone()).map_err(|_| ConfigError::BadAddress(text))?;
        let endpoint = endpoint
            .connect_timeout(connect)
            .tcp_nodelay(true)
            .initial_stream_window_size(GRPC_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(GRPC_CONNECTION_WINDOW_BYTES)
            .max_frame_size(GRPC_FRAME_BYTES_MAX)
            .http2_keep_alive_interval(GRPC_KEEP_ALIVE)
            .keep_alive_timeout(GRPC_KEEP_ALIVE);
        let is_plain = matches!(address, Address::Tcp(..) | Address::Http(_));
        Ok(Grpc { endpoint, dial, is_plain, channel: Mutex::new(None) })
    }

    /// The channel of this runtime; connects when first used.
    pub(crate) fn channel(&self) -> Channel {
        let runtime = tokio::runtime::Handle::current().id();
        let mut kept = self.channel.lock();
        match &*kept {
            Some((owner, channel)) if *owner == runtime => channel.clone(),
            _ => {
                keep_heap();
                let channel = match &self.dial {
                    Some(dial) => self.endpoint.connect_with_connector_lazy(under_tls(dial.clone())),
                    None => self.endpoint.connect_lazy(),
                };
                *kept = Some((runtime, channel.clone()));
                channel
            }
        }
    }

    /// An error in the words of TLS, where that is what was in the way.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let refusal = self.dial.as_ref().and_then(Dial::take_refusal);
        // What a connection that ends tells its calls depends on where they were.
        let ended = matches!(error.kind, ErrorKind::Unavailable | ErrorKind::Deadline);
        match refusal.filter(|_| ended) {
            Some(why) => {
                Error::unavailable(format!("{}: {why}", self.endpoint.uri().host().unwrap_or_default()))
            }
            // A port of TLS says so and hangs up, but what it says comes too late for some calls.
            None if ended && self.is_plain && error.message.ends_with("connection closed") => {
                Error { message: format!("{}; if this port speaks TLS, use tls://", error.message), ..error }
            }
            None => error,
        }
    }

    /// Forgets the channel: the next call connects anew.
    pub(crate) fn reset(&self) {
        *self.channel.lock() = None;
    }
}

/// Connects under TLS, each time with the files as they are then.
fn under_tls(
    dial: Dial,
) -> impl tower::Service<Uri, Response = TokioIo<Dialed>, Error = io::Error, Future: Send> + Send + 'static {
    tower::service_fn(move |_: Uri| {
        let dial = dial.clone();
        async move { Ok(TokioIo::new(dial.connect(&[ALPN_HTTP2]).await?)) }
    })
}

pub(crate) fn pool(channel: Channel) -> PoolClient<Channel> {
    PoolClient::new(channel)
        .max_decoding_message_size(GRPC_ANSWER_BYTES_MAX)
        .max_encoding_message_size(GRPC_ANSWER_BYTES_MAX)
}

/// Opens an inline stream: `body` to the method at `path`, and the answers. Not by the generated client,
/// whose codec copies payload twice.
pub(crate) async fn stream<Answer: Piece>(
    mut channel: Channel,
    path: &'static str,
    body: Body,
) -> Result<Response<Incoming<Answer>>, Status> {
    let mut request = http::Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = http::Uri::from_static(path);
    request.headers_mut().insert(http::header::TE, http::HeaderValue::from_static("trailers"));
    let grpc = http::HeaderValue::from_static("application/grpc");
    request.headers_mut().insert(http::header::CONTENT_TYPE, grpc);
    std::future::poll_fn(|context| channel.poll_ready(context)).await.map_err(transport)?;
    let (head, body) = channel.call(request).await.map_err(transport)?.into_parts();
    let answers = Incoming::response(MetadataMap::from_headers(head.headers), body)?;
    if head.status != http::StatusCode::OK {
        let text = format!("HTTP status {}: no gRPC server answers there", head.status);
        return Err(Status::unavailable(text));
    }
    Ok(Response::new(answers))
}

fn transport(error: tonic::transport::Error) -> Status {
    Status::from_error(error.into())
}

pub(crate) fn sessions(channel: Channel) -> SessionsClient<Channel> {
    SessionsClient::new(channel)
        .max_decoding_message_size(GRPC_ANSWER_BYTES_MAX)
        .max_encoding_message_size(GRPC_ANSWER_BYTES_MAX)
}

pub(crate) fn admin(channel: Channel) -> AdminClient<Channel> {
    AdminClient::new(channel).max_decoding_message_size(GRPC_ANSWER_BYTES_MAX)
}

pub(crate) fn cluster(channel: Channel) -> ClusterClient<Channel> {
    ClusterClient::new(channel).max_decoding_message_size(GRPC_ANSWER_BYTES_MAX)
}
