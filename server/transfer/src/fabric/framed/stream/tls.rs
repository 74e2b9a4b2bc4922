//! A stream under TLS. Owns: ciphertext that has arrived or waits to leave. Must not know: certificates, handshakes,
//! what the bytes say.
//!
//! rustls takes 4 KiB of ciphertext at a time and gives out what was decrypted before it takes more. So that this does
//! not cost a system call each, ciphertext is read from the socket in large pieces and handed on from memory.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use rustls::Connection;

use super::socket::Socket;
use crate::limits::{TLS_MOVED_BYTES, TLS_READ_BYTES, TLS_UNSENT_BYTES};

/// A TLS connection over a socket that does not block.
#[derive(Debug)]
pub(super) struct TlsBytes {
    socket: Socket,
    connection: Connection,
    /// Ciphertext as the socket gave it; `[taken, arrived)` is not with rustls yet.
    buffer: Vec<u8>,
    taken: usize,
    arrived: usize,
}

impl TlsBytes {
    pub(super) fn new(socket: Socket, mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(TLS_UNSENT_BYTES));
        Self { socket, connection, buffer: vec![0; TLS_READ_BYTES], taken: 0, arrived: 0 }
    }

    pub(super) fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Reads what there is, up to a bound: into the first piece if it has room, else into the second. 0: the peer
    /// closed its end, or there is no room.
    pub(super) fn read(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        let into = if first.is_empty() { second } else { first };
        let room = into.len().min(TLS_MOVED_BYTES);
        let mut read = 0;
        while read < room {
            let more = match self.connection.reader().read(&mut into[read..room]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.decrypt() {
                    Ok(()) => continue,
                    Err(error) => Err(error),
                },
                more => more,
            };
            match more {
                Ok(0) => break,
                Ok(count) => read += count,
                // Whatever it is, it comes again when there is nothing else to say.
                Err(_) if read > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    /// Gives rustls more ciphertext.
    fn decrypt(&mut self) -> io::Result<()> {
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
        self.connection.process_new_packets().map_err(|error| {
            // The peer is told why, if there is room for it.
            self.flush().unwrap_or_default();
            io::Error::new(io::ErrorKind::InvalidData, error)
        })?;
        Ok(())
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
