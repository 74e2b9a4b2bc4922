//! How the operator's commands reach a running server. Owns: addresses, deadlines, and what is said when nobody answers. Must not
//! know: what they ask.

use crate::config::default_socket;
use crate::limits::{COMMAND_ANSWER_MAX, COMMAND_CONNECT_MAX};
use crate::report::{Advise, misused};
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::service_fn;
use turnkv_transfer::tls::{Dial, TlsConfig};

const RIGHT_ADDRESS: &str = "name the address of a server that runs (--address unix:/path/turnkv.sock, tls://host:port or http://host:port)";
const RIGHT_FILES: &str = "name the right files: TURNKV_TLS_CA, TURNKV_TLS_CERT, TURNKV_TLS_KEY, and TURNKV_TLS_SERVER_NAME where the address is not the certificate's name";

/// The address of a server, where none was named that of one that was told none.
pub(super) fn address_or_default(address: Option<&str>) -> String {
    address.map_or_else(|| format!("unix:{}", default_socket().display()), str::to_owned)
}

/// A channel to a running server.
pub(super) async fn connect(address: &str) -> anyhow::Result<Channel> {
    if let Some(place) = address.strip_prefix("tls://") {
        return under_tls(address, place).await;
    }
    let uri = if address.starts_with("http://") || address.starts_with("unix:") {
        address.to_owned()
    } else {
        format!("http://{address}")
    };
    endpoint(address, uri)?
        .connect()
        .await
        .advise(|| format!("no server answers at {address}"), RIGHT_ADDRESS)
}

/// Whether a server takes a client's certificate shows with the first answer only: one is asked for at once.
async fn under_tls(address: &str, place: &str) -> anyhow::Result<Channel> {
    let (host, port) =
        Dial::place(place).ok_or_else(|| misused(format!("`{address}` is no address"), RIGHT_ADDRESS))?;
    let dial = Dial::new(&host, port, TlsConfig::default().or_environment());
    let dialing = dial.clone();
    let connector = service_fn(move |_| {
        let dial = dialing.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(dial.connect(&[b"h2"]).await?)) }
    });
    let channel = endpoint(address, format!("https://{place}"))?.connect_with_connector_lazy(connector);
    match HealthClient::new(channel.clone()).check(HealthCheckRequest::default()).await {
        Ok(_) => Ok(channel),
        Err(status) => Err(match dial.take_refusal() {
            Some(why) => misused(format!("no connection to {address}: {why}"), RIGHT_FILES),
            None => misused(format!("no server answers at {address}: {}", status.message()), RIGHT_ADDRESS),
        }),
    }
}

fn endpoint(address: &str, uri: String) -> anyhow::Result<Endpoint> {
    let endpoint =
        Endpoint::from_shared(uri).advise(|| format!("`{address}` is no address"), RIGHT_ADDRESS)?;
    Ok(endpoint.connect_timeout(COMMAND_CONNECT_MAX).timeout(COMMAND_ANSWER_MAX))
}
