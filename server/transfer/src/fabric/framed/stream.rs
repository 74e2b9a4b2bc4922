//! The byte stream of a data connection. Owns: what kinds there are, reading and writing without blocking,
//! waiting. Must not know: headers, memory.
//!
//! - `socket`: the socket under it; `near`: what it holds; `tls`: ciphertext on its way

mod near;
mod socket;
mod tls;

use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use rustls::Connection;

use self::socket::Socket;
use self::tls::TlsBytes;
use super::waker::Waker;
use crate::fabric::operation::Cause;

/// A connected stream that does not block.
#[derive(Debug)]
pub struct FramedStream {
    kind: StreamKind,
    read_bytes: u64,
    /// Bytes taken to be written.
    written_bytes: u64,
}

#[derive(Debug)]
enum StreamKind {
    Plain(Socket),
    Tls(Box<TlsBytes>),
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Awaited {
    /// Bytes to read.
    pub(super) bytes: bool,
    /// Room to write.
    pub(super) room: bool,
}

impl FramedStream {
    /// Speaks over a connected TCP stream, without TLS.
    ///
    /// # Errors
    /// The socket's options cannot be set.
    pub fn plain(stream: TcpStream) -> io::Result<Self> {
        Ok(Self::of(StreamKind::Plain(Socket::new(stream)?)))
    }

    /// Speaks over a TLS connection whose handshake is done, and over its TCP stream. What the connection has
    /// decrypted already is read first.
    ///
    /// # Errors
    /// `InvalidInput` if the handshake is not done; the socket's options cannot be set.
    pub fn tls(stream: TcpStream, connection: impl Into<Connection>) -> io::Result<Self> {
        let connection = connection.into();
        if connection.is_handshaking() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the handshake of TLS is not done"));
        }
        Ok(Self::of(StreamKind::Tls(Box::new(TlsBytes::new(Socket::new(stream)?, connection)))))
    }

    fn of(kind: StreamKind) -> Self {
        Self { kind, read_bytes: 0, written_bytes: 0 }
    }

    /// Bytes that reads have given.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// Bytes that reads have given and writes have taken.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.read_bytes + self.written_bytes
    }

    /// Reads what there is, into the first piece as long as it has room, and the rest into the second. 0 only
    /// when both are empty: the end of the stream is an error.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there, `UnexpectedEof` if the peer closed its end, else what the system
    /// says.
    pub(crate) fn read(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let room = first.len() + second.len();
        let read = match &mut self.kind {
            StreamKind::Plain(socket) => {
                socket.receive(&mut [IoSliceMut::new(first), IoSliceMut::new(second)])
            }
            StreamKind::Tls(tls) => tls.read(first, second),
        };
        match read {
            Ok(0) if room > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => count(&mut self.read_bytes, read),
        }
    }

    /// Writes as much of the pieces as there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room, else what the system says.
    pub(crate) fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = match &mut self.kind {
            StreamKind::Plain(socket) => socket.send(pieces),
            StreamKind::Tls(tls) => tls.write(pieces),
        };
        count(&mut self.written_bytes, written)
    }

    /// Whether bytes that [`FramedStream::write`] took have not left yet. They leave in [`FramedStream::wait`].
    pub(crate) fn has_unsent(&self) -> bool {
        match &self.kind {
            StreamKind::Plain(_) => false,
            StreamKind::Tls(tls) => tls.has_unsent(),
        }
    }

    /// The next read asks the system, though the last one found nothing more.
    pub(super) fn look_again(&mut self) {
        self.socket_mut().look_again();
    }

    /// Fills `bytes`, waiting for the peer: for what comes before a stream is a rail's, or carries verbs.
    ///
    /// # Errors
    /// `TimedOut` if they are not all there by the deadline: some may have been taken. Else as
    /// a read.
    pub fn read_exact_by(&mut self, mut bytes: &mut [u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.read(bytes, &mut []) {
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_until(PollFlags::IN, deadline)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`, waiting for room.
    ///
    /// # Errors
    /// `TimedOut` if not all could leave by the deadline: the stream is of no further use. Else as
    /// a write.
    pub fn write_all_by(&mut self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() || self.has_unsent() {
            match self.write(&[IoSlice::new(bytes)]) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait_until(PollFlags::OUT, deadline)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn wait_until(&mut self, events: PollFlags, deadline: Instant) -> io::Result<()> {
        self.socket_mut().wait_until(events, deadline)
    }

    /// The next calls ask the system, though the last ones found nothing more: somebody else waited.
    pub(crate) fn ask_again(&mut self) {
        self.socket_mut().ask_again();
    }

    /// The stream's descriptor, where nothing lies between; else a second descriptor of its socket, and the stream.
    pub(crate) fn take_apart(self) -> io::Result<(OwnedFd, Option<Self>)> {
        match self.kind {
            StreamKind::Plain(socket) => Ok((socket.into_fd(), None)),
            StreamKind::Tls(mut tls) => {
                let fd = tls.socket().second_fd()?;
                Ok((fd, Some(Self::of(StreamKind::Tls(tls)))))
            }
        }
    }

    fn socket_mut(&mut self) -> &mut Socket {
        match &mut self.kind {
            StreamKind::Plain(socket) => socket,
            StreamKind::Tls(tls) => tls.socket(),
        }
    }

    /// Waits for bytes or room or both, for a hang-up, for somebody to wake the thread, or for so long. It may
    /// end for nothing: look again. What waited to leave leaves meanwhile.
    ///
    /// # Errors
    /// The system has no memory for it, or the connection failed.
    pub(super) fn wait(&mut self, awaited: Awaited, waker: &Waker, wait: Option<Duration>) -> io::Result<()> {
        let room = awaited.room || self.has_unsent();
        let heard = self.socket_mut().wait(awaited.bytes, room, waker.as_fd(), wait)?;
        if heard.waker {
            waker.clear();
        }
        match &mut self.kind {
            StreamKind::Tls(tls) if heard.room && tls.has_unsent() => match tls.flush() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Ends the stream both ways: the peer learns of it now.
    pub(super) fn shutdown(&mut self) {
        match &mut self.kind {
            StreamKind::Plain(socket) => socket.shutdown(),
            StreamKind::Tls(tls) => {
                tls.say_goodbye();
                tls.socket().shutdown();
            }
        }
    }
}

/// What a failed call says about the rail.
pub(super) fn cause_of(error: &io::Error) -> Cause {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::UnexpectedEof
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::BrokenPipe
        | ErrorKind::NotConnected
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::NetworkDown => Cause::PeerGone,
        // The kernel's own patience with what it sent ended, or keep-alive found nobody.
        ErrorKind::TimedOut => Cause::Stalled,
        // Only TLS says this: a record that does not decrypt, or an alert.
        ErrorKind::InvalidData => Cause::Protocol("what came is not TLS as agreed"),
        _ => Cause::Device(error.to_string()),
    }
}

fn count(bytes: &mut u64, moved: io::Result<usize>) -> io::Result<usize> {
    *bytes += *moved.as_ref().unwrap_or(&0) as u64;
    moved
}

/// What a call moved, or none if it would have waited.
pub(super) fn moved<T>(result: io::Result<T>) -> Result<Option<T>, Cause> {
    match result {
        Ok(moved) => Ok(Some(moved)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(cause_of(&error)),
    }
}
