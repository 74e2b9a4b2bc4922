//! Frames as bytes. Owns: the layout of a header and of a check, and their bounds. Must not know: sockets, verbs' meanings.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | length of the body, little endian, at most [`FRAME_BYTES_MAX`] |
//! | 4 | 1 | verb |
//! | 5 | 1 | flags: [`FLAG_FAILURE`], [`FLAG_MORE`]; beside a ring also [`FLAG_ON_SOCKET`], [`FLAG_BELL`] |
//! | 6 | 2 | zero |
//!
//! Over a network the last four bytes of a body are its check: the low half of the CRC-64/NVME of the header and of what is before
//! the check, little endian. A bit that turned on the way would name another page, whose bytes are as good as any: what TCP lets
//! through ends the connection.

use std::io;
use std::os::fd::OwnedFd;

use crate::checksum::Checksum;
use crate::large::Held;
use crate::limits::{FRAME_BYTES_MAX, FRAME_CHECK_BYTES, FRAME_HEADER_BYTES};

/// The body is a failure.
pub const FLAG_FAILURE: u8 = 1;
/// More frames of the same reply follow.
pub const FLAG_MORE: u8 = 2;

/// In a ring: the next frame is not here, it comes on the socket.
pub const FLAG_ON_SOCKET: u8 = 4;
/// On a socket beside rings: no frame, it wakes a reader that dozed.
pub const FLAG_BELL: u8 = 8;

const LENGTH_AT: usize = 0;
const VERB_AT: usize = 4;
const FLAGS_AT: usize = 5;
const ZERO_AT: usize = 6;

/// What precedes a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the body.
    pub body_bytes: u32,
    /// What is asked or answered.
    pub verb: u8,
    /// [`FLAG_FAILURE`], [`FLAG_MORE`].
    pub flags: u8,
}

impl FrameHeader {
    /// The header of a body of `body_bytes`.
    ///
    /// # Errors
    /// `InvalidInput` if the body is over [`FRAME_BYTES_MAX`].
    pub fn new(verb: u8, flags: u8, body_bytes: usize) -> io::Result<Self> {
        if body_bytes > FRAME_BYTES_MAX {
            let message =
                format!("a frame of {body_bytes} bytes is over FRAME_BYTES_MAX ({FRAME_BYTES_MAX})");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        Ok(Self { body_bytes: body_bytes as u32, verb, flags })
    }

    /// What rings on a socket.
    pub(crate) const BELL: Self = Self { body_bytes: 0, verb: 0, flags: FLAG_BELL };
    /// What stands in a ring for a frame on the socket.
    pub(crate) const ON_SOCKET: Self = Self { body_bytes: 0, verb: 0, flags: FLAG_ON_SOCKET };

    pub(crate) fn is_bell(self) -> bool {
        self == Self::BELL
    }

    /// The header as it travels.
    #[must_use]
    pub fn encode(self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[LENGTH_AT..VERB_AT].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[VERB_AT] = self.verb;
        bytes[FLAGS_AT] = self.flags;
        bytes
    }

    /// The header that a peer sent.
    ///
    /// # Errors
    /// `InvalidData` if the body is over [`FRAME_BYTES_MAX`] or the reserved bytes are not zero.
    pub fn decode(bytes: [u8; FRAME_HEADER_BYTES]) -> io::Result<Self> {
        let [b0, b1, b2, b3, verb, flags, z0, z1] = bytes;
        let body_bytes = u32::from_le_bytes([b0, b1, b2, b3]);
        if body_bytes as usize > FRAME_BYTES_MAX {
            let message =
                format!("the peer announces {body_bytes} bytes, over FRAME_BYTES_MAX ({FRAME_BYTES_MAX})");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        if [z0, z1] != [0, 0] {
            let message = format!("bytes {ZERO_AT} and {} of a frame's header must be zero", ZERO_AT + 1);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(Self { body_bytes, verb, flags })
    }
}

/// What ends the body of a frame over a network: `body` is all that is before it.
#[must_use]
pub fn frame_check(header: FrameHeader, body: &[u8]) -> [u8; FRAME_CHECK_BYTES] {
    let mut check = Checksum::new();
    check.update(&header.encode());
    check.update(body);
    (check.finish() as u32).to_le_bytes()
}

/// Why a frame is refused whose check is wrong. Its header was one, so its sender speaks frames.
#[derive(Debug, thiserror::Error)]
#[error("a frame came with a wrong check: a bit turned on the way")]
pub struct DamagedFrame;

impl DamagedFrame {
    /// Whether this is why.
    #[must_use]
    pub fn is_why(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<DamagedFrame>())
    }
}

/// Takes the check off a body that came over a network.
///
/// # Errors
/// `InvalidData` with [`DamagedFrame`]: it is not that of this frame.
pub(crate) fn take_check(header: FrameHeader, body: &mut Vec<u8>) -> io::Result<()> {
    let good = body.split_last_chunk().filter(|(before, said)| **said == frame_check(header, before));
    let Some((before, _)) = good else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, DamagedFrame));
    };
    body.truncate(before.len());
    Ok(())
}

/// A frame that was received.
#[derive(Debug)]
pub struct Frame {
    /// What is asked or answered.
    pub verb: u8,
    /// [`FLAG_FAILURE`], [`FLAG_MORE`].
    pub flags: u8,
    /// The message.
    pub body: Vec<u8>,
    /// The first descriptor that came with the frame; closed with the frame unless taken.
    pub fd: Option<OwnedFd>,
    /// Its part of what all large frames may take; given back with the frame.
    pub(crate) _held: Option<Held>,
}
