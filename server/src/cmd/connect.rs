//! How the operator's commands reach a running server. Owns: addresses, deadlines, and what is said when nobody answers. Must not
//! know: what they ask.

use crate::config::default_socket;
use crate::limits::{COMMAND_ANSWER_MAX, COMMAND_CONNECT_MAX};
use crate::report::{Advise, misused};
use hyper_util::rt::TokioIo;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::service_fn;
use turnkv_transfer::tls::{Dial, TlsConfig};

const RIGHT_ADDRESS: &str = "name the address of a server that runs (--address unix:/path/turnkv.sock, tls://host:port, or without encryption tcp://host:port or http://host:port)";
const RIGHT_FILES: &str = "name the right files: TURNKV_TLS_CA, TURNKV_TLS_CERT, TURNKV_TLS_KEY, and TURNKV_TLS_SERVER_NAME where the address is not the certificate's name";

/// The address of a server, where none was named that of one that was told none.
pub(super) fn address_or_default(address: Option<&str>) -> String {
    address.map_or_else(|| format!("unix:{}", default_socket().display()), str::to_owned)
}

/// A channel to a running server, which answers soon.
pub(super) async fn connect(address: &str) -> anyhow::Result<Channel> {
    connect_within(address, Some(COMMAND_ANSWER_MAX)).await
}

/// A channel to a running server, for calls that take as long as it takes.
pub(super) async fn connect_patiently(address: &str) -> anyhow::Result<Channel> {
    connect_within(address, None).await
}

pub(super) async fn connect_within(address: &str, answer_max: Option<Duration>) -> anyhow::Result<Channel> {
    if let Some(place) = address.strip_prefix("tls://") {
        return under_tls(address, place, answer_max).await;
    }
    endpoint(address, uri_of(address)?, answer_max)?
        .connect()
        .await
        .advise(|| format!("no server answers at {address}"), RIGHT_ADDRESS)
}

/// Whether a server takes a client's certificate shows with the first answer only: one is asked for at once.
async fn under_tls(address: &str, place: &str, answer_max: Option<Duration>) -> anyhow::Result<Channel> {
    let (host, port) = Dial::place(place).ok_or_else(|| no_address(address))?;
    let dial = Dial::new(&host, port, TlsConfig::default().or_environment());
    let dialing = dial.clone();
    let connector = service_fn(move |_| {
        let dial = dialing.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(dial.connect(&[b"h2"]).await?)) }
    });
    let endpoint = endpoint(address, format!("https://{place}"), answer_max)?;
    let channel = endpoint.connect_with_connector_lazy(connector);
    match HealthClient::new(channel.clone()).check(HealthCheckRequest::default()).await {
        Ok(_) => Ok(channel),
        Err(status) => Err(match dial.take_refusal() {
            Some(why) => misused(format!("no connection to {address}: {why}"), RIGHT_FILES),
            None => misused(format!("no server answers at {address}: {}", status.message()), RIGHT_ADDRESS),
        }),
    }
}

/// Where gRPC is spoken in the clear: at the port of `tcp://` too, where clients speak frames.
fn uri_of(address: &str) -> anyhow::Result<String> {
    if let Some(place) = address.strip_prefix("tcp://") {
        Dial::place(place).ok_or_else(|| no_address(address))?;
        return Ok(format!("http://{place}"));
    }
    if address.starts_with("http://") || address.starts_with("unix:") {
        return Ok(address.to_owned());
    }
    if let Some((scheme, _)) = address.split_once("://") {
        return Err(misused(
            format!("`{address}` is no address: nothing here speaks {scheme}://"),
            RIGHT_ADDRESS,
        ));
    }
    Ok(format!("http://{address}"))
}

fn no_address(address: &str) -> anyhow::Error {
    misused(format!("`{address}` is no address"), RIGHT_ADDRESS)
}

fn endpoint(address: &str, uri: String, answer_max: Option<Duration>) -> anyhow::Result<Endpoint> {
    let endpoint =
        Endpoint::from_shared(uri).advise(|| format!("`{address}` is no address"), RIGHT_ADDRESS)?;
    let endpoint = endpoint.connect_timeout(COMMAND_CONNECT_MAX);
    Ok(match answer_max {
        Some(most) => endpoint.timeout(most),
        None => endpoint,
    })
}

#[cfg(test)]
mod tests {
    use super::uri_of;

    #[test]
    fn an_address_of_plain_tcp_is_that_of_grpc_at_its_port() {
        for (address, uri) in [
            ("tcp://pool.example:7411", "http://pool.example:7411"),
            ("tcp://[::1]:7411", "http://[::1]:7411"),
            ("http://pool.example:7411", "http://pool.example:7411"),
            ("127.0.0.1:7411", "http://127.0.0.1:7411"),
            ("unix:/run/turnkv.sock", "unix:/run/turnkv.sock"),
        ] {
            assert_eq!(uri_of(address).unwrap(), uri);
        }
        for address in [
            "tcp://",
            "tcp://pool.example",
            "tcp://pool.example:0",
            "tcp://a b:1",
            "tcp://::1:2",
            "bla://",
            "https://a:1",
        ] {
            assert!(uri_of(address).unwrap_err().to_string().contains("is no address"), "{address}");
        }
    }
}
