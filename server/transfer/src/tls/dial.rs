//! A client's connections under TLS, in an async runtime. Owns: connecting, and remembering why a server refused: with TLS 1.3 it
//! says so only when a client takes the handshake to be over, and what lies above does not pass such words on. Must not know: what
//! is spoken.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::client::{TlsConfig, client_config};
use super::words::{client_words, tls_cause};
use crate::limits::TLS_REFUSAL_BYTES_MAX;

/// A server's place, and what is shown to it. Clones share what is remembered.
#[derive(Debug, Clone)]
pub struct Dial {
    host: String,
    port: u16,
    config: TlsConfig,
    /// Why the server refused last.
    refusal: Arc<Mutex<Option<String>>>,
}

/// A connection; what TLS says of its end is remembered.
#[derive(Debug)]
pub struct Dialed {
    stream: TlsStream<TcpStream>,
    refusal: Arc<Mutex<Option<String>>>,
}

impl Dial {
    /// A server at a host's name or address.
    #[must_use]
    pub fn new(host: &str, port: u16, config: TlsConfig) -> Dial {
        Dial { host: host.to_owned(), port, config, refusal: Arc::default() }
    }

    /// The host and the port in `host:port`, an IPv6 address within brackets.
    #[must_use]
    pub fn place(text: &str) -> Option<(String, u16)> {
        let (host, port) = text.rsplit_once(':')?;
        let bare = host.strip_prefix('[').map_or(Some(host), |inner| inner.strip_suffix(']'))?;
        let fits = !bare.is_empty()
            && bare.contains(':') == host.starts_with('[')
            && !bare.contains(['/', '@', ' ']);
        let port = port.parse().ok().filter(|port| *port > 0)?;
        fits.then(|| (bare.to_owned(), port))
    }

    /// Connects, with the files as they are now, to speak one of these protocols.
    ///
    /// # Errors
    /// The files are of no use, nobody answers, or the two do not agree: [`Dial::take_refusal`] says why in a sentence.
    pub async fn connect(&self, protocols: &'static [&'static [u8]]) -> io::Result<Dialed> {
        self.refusal.lock().take();
        let files = self.config.clone();
        let config = tokio::task::spawn_blocking(move || client_config(&files, protocols)).await;
        let config = config.map_err(io::Error::other)?.map_err(|error| self.refused(&error.to_string()))?;
        let named = self.config.server_name.clone().unwrap_or_else(|| self.host.clone());
        let name = ServerName::try_from(named.clone());
        let name =
            name.map_err(|_| self.refused(&format!("`{named}` is no name that a certificate can have")))?;
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let stream = TlsConnector::from(config).connect(name, stream).await;
        let stream = stream.inspect_err(|error| remember(&self.refusal, error))?;
        Ok(Dialed { stream, refusal: Arc::clone(&self.refusal) })
    }

    /// Why TLS did not let a connection be made or go on, if it was that, in words for people; said once.
    #[must_use]
    pub fn take_refusal(&self) -> Option<String> {
        self.refusal.lock().take()
    }

    fn refused(&self, why: &str) -> io::Error {
        *self.refusal.lock() = Some(why.to_owned());
        io::Error::other(why.to_owned())
    }
}

impl Dialed {
    /// The socket, and TLS over it.
    #[must_use]
    pub fn into_parts(self) -> (TcpStream, ClientConnection) {
        self.stream.into_inner()
    }
}

fn remember(refusal: &Mutex<Option<String>>, error: &io::Error) {
    if let Some(tls) = tls_cause(error) {
        let words = client_words(tls);
        let words = words[..words.floor_char_boundary(TLS_REFUSAL_BYTES_MAX)].to_owned();
        *refusal.lock() = Some(words);
    }
}

impl AsyncRead for Dialed {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let dialed = self.get_mut();
        let read = ready!(Pin::new(&mut dialed.stream).poll_read(context, buffer));
        Poll::Ready(read.inspect_err(|error| remember(&dialed.refusal, error)))
    }
}

impl AsyncWrite for Dialed {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::Dial;

    #[test]
    fn a_place_is_a_host_and_a_port() {
        let place = |text: &str| Dial::place(text).map(|(host, port)| format!("{host} {port}"));
        for (text, wanted) in
            [("pool.example:7411", "pool.example 7411"), ("10.0.0.5:1", "10.0.0.5 1"), ("[::1]:2", "::1 2")]
        {
            assert_eq!(place(text).as_deref(), Some(wanted));
        }
        for text in
            ["", ":1", "pool", "pool:", "pool:0", "pool:65536", "::1:2", "[::1]", "[]:1", "a/b:1", "[pool]:1"]
        {
            assert_eq!(place(text), None, "{text}");
        }
    }
}
