//! From a socket to a stream whose peer is known. Owns: the handshake and its deadline, and who the certificate says its owner is.
//! Must not know: connections, what is spoken afterwards.

use super::counters::TlsRefusal;
use super::credentials::Credentials;
use super::first::part;
use super::secured::TcpWire;
use crate::access::{Caller, Grants};
use crate::limits::HANDSHAKE_MS_MAX;
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use turnkv_transfer::tls::{
    ALPN_FRAMES, ALPN_HTTP2, Fault, ServerTls, certificate_facts, fault_of, server_words, tls_cause,
};

/// What is spoken on a connection, as ALPN agreed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/2: gRPC.
    Http2,
    /// Frames.
    Frames,
}

impl Protocol {
    /// What is offered, as ALPN names it.
    pub(crate) const OFFERED: &'static [&'static [u8]] = &[ALPN_HTTP2, ALPN_FRAMES];

    /// What was agreed. A client that asks for nothing speaks what has always been spoken here.
    fn agreed(name: Option<&[u8]>) -> Protocol {
        if name == Some(ALPN_FRAMES) { Protocol::Frames } else { Protocol::Http2 }
    }
}

/// A connection that is through its handshake.
pub(crate) struct Shaken {
    /// Its bytes.
    pub(crate) io: TcpWire,
    /// Whose it is.
    pub(crate) caller: Arc<Caller>,
    /// What is spoken on it.
    pub(crate) protocol: Protocol,
}

/// Makes a handshake; a refusal comes with what more is known of it. `end` must end the connection soon, from any thread.
pub(crate) async fn handshake(
    credentials: &Credentials,
    io: TcpStream,
    end: impl Fn() + Send + Sync + 'static,
) -> Result<Shaken, (TlsRefusal, String)> {
    let (set, began) = (credentials.set(), Instant::now());
    let shaken = timeout(Duration::from_millis(HANDSHAKE_MS_MAX), shake(&set, io)).await;
    let stream = shaken.map_err(|_| (TlsRefusal::Late, String::new()))??;
    credentials.counters.seconds.record(began.elapsed());
    let refuse = |error: rustls::Error| (TlsRefusal::Fault(fault_of(&error)), server_words(&error));
    let (_, session) = stream.get_ref();
    let chain = session.peer_certificates().map(<[CertificateDer<'_>]>::to_vec).unwrap_or_default();
    let own = chain.first().ok_or_else(|| refuse(rustls::Error::NoCertificatesPresented))?;
    let facts =
        certificate_facts(own).map_err(|fault| (TlsRefusal::Fault(Fault::Certificate), fault.to_string()))?;
    let name = format!("certificate {}", facts.name);
    let grants = Grants::of_uris(facts.uris.iter().map(String::as_str)).unwrap_or_else(|error| {
        if let Some(unsaid) = credentials.counters.grants_nothing.may_say() {
            tracing::warn!(name, %error, unsaid, "a certificate grants nothing: its names are wrong");
        }
        Grants::default()
    });
    let protocol = Protocol::agreed(session.alpn_protocol());
    let caller = Arc::new(Caller::new(&name, grants));
    let certified = credentials.look_after(&set, chain, facts.not_after_s, Box::new(end)).map_err(refuse)?;
    Ok(Shaken { io: TcpWire::Tls { io: Box::new(stream), certified }, caller, protocol })
}

async fn shake(set: &ServerTls, io: TcpStream) -> Result<TlsStream<TcpStream>, (TlsRefusal, String)> {
    match TlsAcceptor::from(Arc::clone(&set.config)).accept(io).into_fallible().await {
        Ok(stream) => Ok(stream),
        Err((error, io)) => {
            part(io, &[]).await; // the alert is on its way already
            let of_tls = |tls| (fault_of(tls), server_words(tls));
            let (fault, why) =
                tls_cause(&error).map_or_else(|| (Fault::Malformed, error.to_string()), of_tls);
            Err((TlsRefusal::Fault(fault), why))
        }
    }
}
