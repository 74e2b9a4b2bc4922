//! A stream under TLS. Owns: ciphertext that has arrived or waits to leave. Must not know: certificates, handshakes,
//! what the bytes say.
//!
//! rustls takes a record of ciphertext at a time and gives out what was decrypted before it takes more. So that this does
//! not cost a system call each, ciphertext is read from the socket in large pieces and handed on from memory; plaintext
//! lands where the reader wants it.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use rustls::Connection;

use super::socket::Socket;
use crate::limits::{TLS_MOVED_BYTES, TLS_READ_BYTES, TLS_UNSENT_BYTES};
use crate::tls::land;

/// A TLS connection over a socket that does not block.
#[derive(Debug)]
pub(super) struct TlsBytes {
    socket: Socket,
    connection: Connection,
    /// Ciphertext as the socket gave it; `[taken, arrived)` is not with rustls yet.
    buffer: Vec<u8>,
    taken: usize,
    arrived: usize,
    /// Why nothing more can be decrypted.
    failure: Option<rustls::Error>,
}

impl TlsBytes {
    pub(super) fn new(socket: Socket, mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(TLS_UNSENT_BYTES));
        Self { socket, connection, buffer: vec![0; TLS_READ_BYTES], taken: 0, arrived: 0, failure: None }
    }

    pub(super) fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Reads what there is, up to a bound: into the first piece if it has room, else into the second. 0: the peer
    /// closed its end, or there is no room.
    pub(super) fn read(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let into = if first.is_empty() { second } else { first };
        let mut read = 0;
        while read < into.len().min(TLS_MOVED_BYTES) {
            let more = match self.connection.reader().read(&mut into[read..]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.decrypt(&mut into[read..]),
                Ok(0) => break,
                more => more,
            };
            match more {
                Ok(count) => read += count,
                // Whatever it is, it comes again when there is nothing else to say.
                Err(_) if read > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Gives rustls, which holds no plaintext, more ciphertext. What of the plaintext fits `into` is there; the rest waits
    /// in rustls, and none may be there yet.
    fn decrypt(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        if self.taken == self.arrived {
            self.arrived = self.socket.receive(&mut [IoSliceMut::new(&mut self.buffer)])?;
            self.taken = 0;
            if self.arrived == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let mut rest = &self.buffer[self.taken..self.arrived];
        let count = self.connection.read_tls(&mut rest)?;
        self.taken += count;
        let (landed, decrypted) = land(into, || self.connection.process_new_packets());
        if let Err(error) = decrypted {
            // The peer is told why, if there is room for it.
            self.flush().unwrap_or_default();
            self.failure = Some(error);
            if landed == 0 {
                return self.check();
            }
        }
        Ok(landed)
    }

    /// What is no TLS ends the stream, once all before it was read.
    fn check(&self) -> io::Result<usize> {
        match &self.failure {
            Some(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error.clone())),
            None => Ok(0),
        }
    }

    /// Encrypts as much of the two pieces as may wait to leave, and writes what there is room for.
    pub(super) fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        let taken = self.connection.writer().write_vectored(pieces)?;
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Whether ciphertext waits to leave.
    pub(super) fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// Writes the ciphertext that waits.
    ///
    /// # Errors
    /// `WouldBlock` if not all of it could leave.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.socket)?;
        }
        Ok(())
    }

    /// Tells the peer that no more comes, if there is room for that.
    pub(super) fn say_goodbye(&mut self) {
        self.connection.send_close_notify();
        self.flush().unwrap_or_default();
    }
}
