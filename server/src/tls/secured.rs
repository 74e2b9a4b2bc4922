//! The bytes of one TCP connection, under TLS or plain. Must not know: what they say.

use super::certified::Certified;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use turnkv_transfer::fabric::framed::FramedStream;

/// A stream of bytes.
pub(crate) enum TcpWire {
    /// As they come.
    Plain(TcpStream),
    /// Under TLS.
    Tls {
        /// The stream.
        io: Box<TlsStream<TcpStream>>,
        /// Its peer's certificate is looked after for as long.
        certified: Certified,
    },
}

impl TcpWire {
    /// The same for a thread of its own; with it, what looks after its peer's certificate, where one was shown.
    pub(crate) fn into_framed(self) -> io::Result<(FramedStream, Option<Certified>)> {
        match self {
            TcpWire::Plain(io) => Ok((FramedStream::plain(io.into_std()?)?, None)),
            TcpWire::Tls { io, certified } => {
                let (io, connection) = io.into_inner();
                Ok((FramedStream::tls(io.into_std()?, connection)?, Some(certified)))
            }
        }
    }
}

impl AsyncRead for TcpWire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            TcpWire::Plain(io) => Pin::new(io).poll_read(context, buffer),
            TcpWire::Tls { io, .. } => Pin::new(io).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for TcpWire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            TcpWire::Plain(io) => Pin::new(io).poll_write(context, bytes),
            TcpWire::Tls { io, .. } => Pin::new(io).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            TcpWire::Plain(io) => Pin::new(io).poll_write_vectored(context, pieces),
            TcpWire::Tls { io, .. } => Pin::new(io).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            TcpWire::Plain(io) => io.is_write_vectored(),
            TcpWire::Tls { io, .. } => io.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            TcpWire::Plain(io) => Pin::new(io).poll_flush(context),
            TcpWire::Tls { io, .. } => Pin::new(io).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            TcpWire::Plain(io) => Pin::new(io).poll_shutdown(context),
            TcpWire::Tls { io, .. } => Pin::new(io).poll_shutdown(context),
        }
    }
}
