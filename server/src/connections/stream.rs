//! The bytes of one admitted connection of the async runtime. Owns: its end when the table says so. Must not know: HTTP's
//! meaning; what it must know of HTTP/2's frames is in [`super::authority`].

use super::accept::Ended;
use super::authority::Frames;
use super::watch::Asking;
use super::{Door, Place};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// A connection that holds a place.
pub(crate) struct DoorStream<Io> {
    // The descriptor is closed before the place is given back.
    io: Io,
    /// Where HTTP/2 is spoken.
    frames: Option<Frames>,
    ended: Arc<Ended>,
    place: Place,
    /// At the other end, where the kernel says; else 0.
    process: i32,
}

impl<Io> DoorStream<Io> {
    pub(super) fn new(io: Io, process: i32, place: Place, ended: Arc<Ended>, door: Door) -> DoorStream<Io> {
        let frames = matches!(door, Door::Unix | Door::Tcp).then(Frames::default);
        DoorStream { io, frames, ended, place, process }
    }

    /// For whoever tells of requests on this connection.
    pub(crate) fn asking(&self) -> Asking {
        self.place.asking().of_process(self.process)
    }
}

impl<Io> Connected for DoorStream<Io> {
    type ConnectInfo = Asking;

    fn connect_info(&self) -> Asking {
        self.asking()
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for DoorStream<Io> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if stream.ended.poll(context) {
            return Poll::Ready(Ok(())); // as if the peer had left
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut stream.io).poll_read(context, buffer))?;
        if let Some(frames) = &mut stream.frames {
            let ended = frames.pass(&mut buffer.filled_mut()[before..]);
            stream.place.watch().received(frames.is_within_frame(), ended, || stream.place.now());
        }
        Poll::Ready(Ok(()))
    }
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for DoorStream<Io> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        if stream.ended.poll(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut stream.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        if stream.ended.poll(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut stream.io).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }
}
