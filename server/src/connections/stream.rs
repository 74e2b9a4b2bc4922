//! The bytes of one admitted connection of the async runtime. Owns: its end when the table says so. Must not know: HTTP's
//! meaning; what it must know of HTTP/2's frames is in [`super::authority`].

use super::asking::Asking;
use super::authority::Frames;
use super::door::{Door, Peer};
use super::frames::FrameRoom;
use super::outgoing::Outgoing;
use super::peers::PeerUse;
use super::table::ConnectionPlace;
use crate::access::Caller;
use futures_util::task::AtomicWaker;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// A connection that holds a place.
pub(crate) struct DoorStream<Io> {
    // The descriptor is closed before the place is given back.
    io: Io,
    /// Where HTTP/2 is spoken.
    http2: Option<Http2>,
    seat: Seat,
}

/// What a connection has beside its bytes.
pub(crate) struct Seat {
    ended: Arc<Ended>,
    place: ConnectionPlace,
    /// At the other end, where the kernel says; else 0.
    process: i32,
    /// Whoever is there.
    caller: Arc<Caller>,
}

/// What must be known of HTTP/2: where its frames end, and that large ones have room.
struct Http2 {
    frames: Frames,
    room: FrameRoom,
    outgoing: Outgoing,
}

/// Tells a connection's task that it must end.
#[derive(Default)]
pub(super) struct Ended {
    ended: AtomicBool,
    waker: AtomicWaker,
}

impl Ended {
    /// It must, from now on.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Whether it must; else `context` is woken once it must.
    fn poll(&self, context: &mut Context<'_>) -> bool {
        self.waker.register(context.waker());
        self.ended.load(Ordering::Acquire)
    }
}

impl Seat {
    pub(super) fn new(process: i32, place: ConnectionPlace, ended: Arc<Ended>, caller: Arc<Caller>) -> Seat {
        Seat { ended, place, process, caller }
    }

    /// The same, of somebody who has proven who that is.
    pub(super) fn of(self, caller: Arc<Caller>) -> Seat {
        Seat { caller, ..self }
    }

    /// Returns once the connection must end.
    pub(super) async fn told_to_end(&self) {
        poll_fn(|context| if self.ended.poll(context) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// For whoever tells of requests on this connection.
    pub(super) fn asking(&self) -> Asking {
        self.place.asking(&self.caller).of_process(self.process)
    }

    /// Who asks.
    pub(super) fn caller(&self) -> Arc<Caller> {
        Arc::clone(&self.caller)
    }

    /// Whose connection it is, as far as a share is concerned.
    pub(super) fn peer(&self) -> Peer {
        self.place.watch().peer
    }

    /// What its peer has of what all share.
    pub(super) fn of_peer(&self) -> &Arc<PeerUse> {
        &self.place.watch().of_peer
    }
}

impl<Io> DoorStream<Io> {
    pub(super) fn new(io: Io, seat: Seat) -> DoorStream<Io> {
        let watch = seat.place.watch();
        let http2 = matches!(watch.door, Door::Unix | Door::Tcp).then(|| Http2 {
            frames: Frames::default(),
            room: FrameRoom::new(seat.place.frames(), &watch.of_peer),
            outgoing: Outgoing::default(),
        });
        DoorStream { io, http2, seat }
    }

    /// Its bytes, of which none was taken yet, and the rest.
    pub(super) fn part(self) -> (Io, Seat) {
        (self.io, self.seat)
    }

    /// Bytes left for the peer.
    fn sent(&mut self, bytes: &[u8]) {
        if let Some(cause) = self.http2.as_mut().and_then(|http2| http2.outgoing.pass(bytes)) {
            self.seat.place.ended(cause);
        }
    }

    /// For whoever tells of requests on this connection.
    pub(crate) fn asking(&self) -> Asking {
        self.seat.asking()
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
        if stream.seat.ended.poll(context) {
            return Poll::Ready(Ok(())); // as if the peer had left
        }
        let Some(Http2 { frames, room, .. }) = &mut stream.http2 else {
            return Pin::new(&mut stream.io).poll_read(context, buffer);
        };
        let most = ready!(room.poll(frames.payload_bytes(), context));
        let before = buffer.filled().len();
        ready!(poll_read_some(Pin::new(&mut stream.io), context, buffer, most))?;
        let ended = frames.pass(&mut buffer.filled_mut()[before..]);
        if ended {
            room.ended();
        }
        stream.seat.place.watch().received(frames.is_within_frame(), ended, || stream.seat.place.now());
        Poll::Ready(Ok(()))
    }
}

/// Reads no more than `most`, where that is bounded.
fn poll_read_some(
    io: Pin<&mut impl AsyncRead>,
    context: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
    most: Option<usize>,
) -> Poll<io::Result<()>> {
    let Some(most) = most.filter(|most| *most < buffer.remaining()) else {
        return io.poll_read(context, buffer);
    };
    let mut part = ReadBuf::new(buffer.initialize_unfilled_to(most));
    ready!(io.poll_read(context, &mut part))?;
    let read = part.filled().len();
    buffer.advance(read);
    Poll::Ready(Ok(()))
}

impl<Io: AsyncWrite + Unpin> AsyncWrite for DoorStream<Io> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        if stream.seat.ended.poll(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let sent = ready!(Pin::new(&mut stream.io).poll_write(context, bytes))?;
        stream.sent(&bytes[..sent]);
        Poll::Ready(Ok(sent))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        if stream.seat.ended.poll(context) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let sent = ready!(Pin::new(&mut stream.io).poll_write_vectored(context, pieces))?;
        let mut left = sent;
        for piece in pieces {
            let part = left.min(piece.len());
            stream.sent(&piece[..part]);
            left -= part;
        }
        Poll::Ready(Ok(sent))
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

#[cfg(test)]
mod tests;
