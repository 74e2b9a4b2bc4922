//! Where a member, or etcd, is. Owns: channels there, plain and under TLS, made when they are needed. Must not know: what is asked.

use crate::limits::{PEER_CONNECT_MAX, PEER_KEEP_ALIVE, PEER_KEEP_ALIVE_WAIT};
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;
use turnkv_transfer::tls::{Dial, TlsConfig};

/// A channel to a `host:port`: plain after `tcp://` and `http://`, under TLS after `tls://` and `https://`. Nothing is connected
/// before it is used.
pub(super) fn channel(endpoint: &str, tls: &TlsConfig) -> Result<Channel, String> {
    let no_endpoint = || format!("`{endpoint}` is no place of a server");
    let (scheme, place) = endpoint.split_once("://").ok_or_else(no_endpoint)?;
    let (host, port) = Dial::place(place).ok_or_else(no_endpoint)?;
    let is_secured = match scheme {
        "tcp" | "http" => false,
        "tls" | "https" => true,
        _ => return Err(no_endpoint()),
    };
    let uri = if is_secured { format!("https://{place}") } else { format!("http://{place}") };
    let endpoint = Endpoint::from_shared(uri).map_err(|error| error.to_string())?;
    let endpoint = endpoint
        .connect_timeout(PEER_CONNECT_MAX)
        .http2_keep_alive_interval(PEER_KEEP_ALIVE)
        .keep_alive_timeout(PEER_KEEP_ALIVE_WAIT)
        .keep_alive_while_idle(true);
    if !is_secured {
        return Ok(endpoint.connect_lazy());
    }
    // The files are read anew for every connection.
    let dial = Dial::new(&host, port, tls.clone());
    let connector = service_fn(move |_| {
        let dial = dial.clone();
        async move {
            let dialed = dial.connect(&[b"h2"]).await;
            // What TLS says of its end is worth more than that there was one.
            let dialed = dialed.map_err(|error| dial.take_refusal().map_or(error, std::io::Error::other))?;
            Ok::<_, std::io::Error>(TokioIo::new(dialed))
        }
    });
    Ok(endpoint.connect_with_connector_lazy(connector))
}
