//! Messages as frames. Owns: encoding, decoding, the hybrid wait for an answer. Must not know: which operation asks.

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::limits::SPIN;
use prost::Message;
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;
use tokio::net::{TcpStream, UnixStream};
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::{FLAG_FAILURE, Frame, LocalSocket};

/// Decodes a reply, or the failure that came instead.
pub(crate) fn decode<M: Message + Default>(verb: Verb, frame: &Frame) -> Result<M> {
    check_verb(verb, frame)?;
    if frame.flags & FLAG_FAILURE != 0 {
        return Err(failure(frame));
    }
    M::decode(&frame.body[..]).map_err(Error::protocol)
}

/// Checks that a frame answers a verb. A failure that names no verb says why the server ends the connection.
pub(super) fn check_verb(verb: Verb, frame: &Frame) -> Result<()> {
    if frame.verb == verb as u8 {
        return Ok(());
    }
    if frame.verb == Verb::Unspecified as u8 && frame.flags & FLAG_FAILURE != 0 {
        return Err(failure(frame));
    }
    Err(Error::protocol(format!("verb {} answered verb {}", frame.verb, verb as u8)))
}

fn failure(frame: &Frame) -> Error {
    match wire::Failure::decode(&frame.body[..]) {
        Ok(failure) => turnkv_proto::Error::from_failure(&failure).into(),
        Err(error) => Error::protocol(error),
    }
}

pub(crate) fn send(
    socket: &LocalSocket,
    verb: Verb,
    message: &impl Message,
    deadline: Deadline,
) -> Result<()> {
    let body = message.encode_to_vec();
    let sent = socket.send_by(verb as u8, 0, &body, &[], deadline.at());
    sent.map_err(|error| Error::from_io("sending to the server", &error))
}

/// Sends a message that has no reply, without waiting. False: the connection is of no use any more.
pub(super) fn send_now(socket: &LocalSocket, verb: Verb, message: &impl Message) -> bool {
    socket.send_by(verb as u8, 0, &message.encode_to_vec(), &[], Instant::now()).is_ok()
}

/// The next frame: a moment on the calling thread, because an answer is usually microseconds away, then in the reactor.
pub(crate) async fn receive(socket: &LocalSocket, deadline: Deadline) -> Result<Frame> {
    let mut frame = socket.try_recv_spin(SPIN.min(deadline.left()));
    while matches!(&frame, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
        let ready = deadline.bound(readable(socket)).await?;
        ready.map_err(|error| Error::from_io("waiting for the server", &error))?;
        frame = socket.try_recv();
    }
    frame.map_err(|error| Error::from_io("the connection to the server", &error))
}

/// Makes a socket fit for [`readable`]: a reactor takes none that could block.
pub(super) fn prepare(socket: &LocalSocket) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(socket, true)?)
}

/// Waits in the reactor of whatever runtime runs this: connections outlive runtimes, so they are registered for one wait
/// only, through a duplicate of their descriptor that the reactor owns.
pub(super) async fn readable(socket: &LocalSocket) -> io::Result<()> {
    let duplicate = socket.as_fd().try_clone_to_owned()?;
    if socket.is_network() {
        TcpStream::from_std(duplicate.into())?.readable().await
    } else {
        UnixStream::from_std(duplicate.into())?.readable().await
    }
}
