//! The bytes of a data connection. Owns: their layout and their checks. Must not know: sockets, memory.
//!
//! A data connection begins with one [`Join`] from the client, answered by one [`JoinAnswer`]; then the
//! server sends READ and WRITE headers, each WRITE followed by its payload, and the client answers each with
//! one DATA (followed by the payload), ACK or NACK, in order. All are 32 bytes, all numbers little endian.
//!
//! A header:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | check, little endian: the low half of the CRC-64/NVME of the other 28 bytes |
//! | 4 | 1 | kind: 1 READ, 2 WRITE, 3 DATA, 4 ACK, 5 NACK |
//! | 5 | 1 | cause of a NACK: 1 refused; else 0 |
//! | 6 | 2 | zero |
//! | 8 | 4 | bytes to be read (READ), or of the payload that follows (WRITE, DATA), 1 to `OPERATION_BYTES_MAX`; else 0 |
//! | 12 | 4 | op: counts the operations of a connection from 0 on, and wraps; an answer has its question's |
//! | 16 | 8 | key of the memory (READ, WRITE); else 0 |
//! | 24 | 8 | offset in the memory (READ, WRITE); else 0 |
//!
//! A join, and its answer:
//!
//! | offset | bytes | join | its answer |
//! |---|---|---|---|
//! | 0 | 4 | `TKVR` | `TKVA` |
//! | 4 | 2 | version that the client speaks, now 1 | version that the server speaks |
//! | 6 | 2 | zero | 0 joined, 1 unknown secret, 2 version not spoken, 3 no room |
//! | 8 | 16 | the secret that the control connection was told | zero |
//! | 24 | 4 | zero | zero |
//! | 28 | 4 | check, as in a header | check |
//!
//! `TKVR` as the length of a local door's frame would be over FRAME_BYTES_MAX, so whoever reads the first four
//! bytes of a connection knows what it is. The check is against accidents between here and there, the secret
//! against strangers; against who can change bytes on the way there is TLS.

use std::fmt;

use crate::checksum::checksum;
use crate::fabric::operation::Cause;
use crate::limits::{FRAME_BYTES_MAX, OPERATION_BYTES_MAX};

/// Bytes of a header, a join and its answer.
pub const HEADER_BYTES: usize = 32;
/// The version of the data connection that this crate speaks.
pub const VERSION: u16 = 1;
/// What a join begins with.
pub const JOIN_MAGIC: [u8; 4] = *b"TKVR";
/// What its answer begins with.
pub const ANSWER_MAGIC: [u8; 4] = *b"TKVA";

const CHECK_AT: usize = 0;
const KIND_AT: usize = 4;
const CAUSE_AT: usize = 5;
const ZERO_AT: usize = 6;
const BYTES_AT: usize = 8;
const OP_AT: usize = 12;
const KEY_AT: usize = 16;
const OFFSET_AT: usize = 24;

const VERSION_AT: usize = 4;
const VERDICT_AT: usize = 6;
const SECRET_AT: usize = 8;
const SECRET_BYTES: usize = 16;
const JOIN_CHECK_AT: usize = 28;

const _: () = assert!(
    u32::from_le_bytes(JOIN_MAGIC) as usize > FRAME_BYTES_MAX,
    "a join is no header of a local door's frame"
);

/// A part of a target's memory, as a header names it; nothing about it is checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) key: u64,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

/// What the server asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Read,
    Write,
}

/// A header of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) asked: Asked,
    pub(super) op: u32,
    pub(super) range: Range,
}

/// What the client answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// The payload of a READ follows.
    Data { bytes: u32 },
    /// A WRITE's bytes are in memory.
    Ack,
    /// No such memory, not so much of it, or not lent for this.
    Refused,
}

/// A header of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) answered: Answered,
    pub(super) op: u32,
}

const READ: u8 = 1;
const WRITE: u8 = 2;
const DATA: u8 = 3;
const ACK: u8 = 4;
const NACK: u8 = 5;
const CAUSE_REFUSED: u8 = 1;

impl Request {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let kind = match self.asked {
            Asked::Read => READ,
            Asked::Write => WRITE,
        };
        let Range { key, offset, bytes } = self.range;
        Fields { kind, cause: 0, bytes, op: self.op, key, offset }.encode()
    }

    /// # Errors
    /// [`Cause::Protocol`] for bytes that no server of this version sends.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Cause> {
        let Fields { kind, cause, bytes, op, key, offset } = Fields::decode(bytes)?;
        let asked = match kind {
            READ => Asked::Read,
            WRITE => Asked::Write,
            _ => return Err(Cause::Protocol("a header asks for what there is not")),
        };
        if cause != 0 || bytes == 0 || bytes as usize > OPERATION_BYTES_MAX {
            return Err(Cause::Protocol("a request has bounds that no request has"));
        }
        Ok(Self { asked, op, range: Range { key, offset, bytes } })
    }
}

impl Reply {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let (kind, cause, bytes) = match self.answered {
            Answered::Data { bytes } => (DATA, 0, bytes),
            Answered::Ack => (ACK, 0, 0),
            Answered::Refused => (NACK, CAUSE_REFUSED, 0),
        };
        Fields { kind, cause, bytes, op: self.op, key: 0, offset: 0 }.encode()
    }

    /// # Errors
    /// [`Cause::Protocol`] for bytes that no client of this version sends.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Cause> {
        let Fields { kind, cause, bytes, op, key, offset } = Fields::decode(bytes)?;
        let answered = match (kind, cause, bytes) {
            (DATA, 0, 1..) => Answered::Data { bytes },
            (ACK, 0, 0) => Answered::Ack,
            (NACK, CAUSE_REFUSED, 0) => Answered::Refused,
            _ => return Err(Cause::Protocol("a header answers what there is not")),
        };
        if key != 0 || offset != 0 {
            return Err(Cause::Protocol("an answer names memory"));
        }
        Ok(Self { answered, op })
    }
}

/// A header's fields, whatever they mean.
#[derive(Clone, Copy)]
struct Fields {
    kind: u8,
    cause: u8,
    bytes: u32,
    op: u32,
    key: u64,
    offset: u64,
}

impl Fields {
    fn encode(self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[KIND_AT] = self.kind;
        header[CAUSE_AT] = self.cause;
        header[BYTES_AT..BYTES_AT + 4].copy_from_slice(&self.bytes.to_le_bytes());
        header[OP_AT..OP_AT + 4].copy_from_slice(&self.op.to_le_bytes());
        header[KEY_AT..KEY_AT + 8].copy_from_slice(&self.key.to_le_bytes());
        header[OFFSET_AT..OFFSET_AT + 8].copy_from_slice(&self.offset.to_le_bytes());
        let check = check_of(&header[KIND_AT..]);
        header[CHECK_AT..CHECK_AT + 4].copy_from_slice(&check);
        header
    }

    fn decode(header: &[u8; HEADER_BYTES]) -> Result<Self, Cause> {
        if header[CHECK_AT..CHECK_AT + 4] != check_of(&header[KIND_AT..]) {
            return Err(Cause::Protocol("a header's check is wrong"));
        }
        if header[ZERO_AT..BYTES_AT] != [0; 2] {
            return Err(Cause::Protocol("a header's zeros are not zero"));
        }
        Ok(Self {
            kind: header[KIND_AT],
            cause: header[CAUSE_AT],
            bytes: u32::from_le_bytes(part(header, BYTES_AT)),
            op: u32::from_le_bytes(part(header, OP_AT)),
            key: u64::from_le_bytes(part(header, KEY_AT)),
            offset: u64::from_le_bytes(part(header, OFFSET_AT)),
        })
    }
}

/// What joins a data connection to its control connection: drawn at random for one rail, told over the
/// control connection, good once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RailSecret([u8; SECRET_BYTES]);

impl RailSecret {
    /// These bytes, as the control connection told them.
    #[must_use]
    pub fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// A new one.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn draw() -> std::io::Result<Self> {
        let mut bytes = [0; SECRET_BYTES];
        random(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// For the control connection.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

/// A secret is not printed.
impl fmt::Debug for RailSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RailSecret(..)")
    }
}

/// The first bytes of a data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Join {
    /// The version that the client speaks.
    pub version: u16,
    /// Which control connection's rail this is.
    pub secret: RailSecret,
}

/// Bytes that are no join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what came first on a data connection is no join")]
pub struct JoinError;

impl Join {
    /// As bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = checked_by_end(JOIN_MAGIC, self.version, 0);
        bytes[SECRET_AT..SECRET_AT + SECRET_BYTES].copy_from_slice(&self.secret.0);
        seal(&mut bytes);
        bytes
    }

    /// What these bytes say; the version may be one that is not spoken here.
    ///
    /// # Errors
    /// They are no join.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, JoinError> {
        let (version, zero) = opened(bytes, JOIN_MAGIC).ok_or(JoinError)?;
        if zero != 0 || bytes[SECRET_AT + SECRET_BYTES..JOIN_CHECK_AT] != [0; 4] {
            return Err(JoinError);
        }
        Ok(Self { version, secret: RailSecret(part(bytes, SECRET_AT)) })
    }
}

/// What a join is answered with. After anything but `Joined` the server ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinAnswer {
    /// The rail is open.
    #[error("joined")]
    Joined,
    /// No control connection waits for this secret: ask for a new one.
    #[error("the secret is not known (any more)")]
    Unknown,
    /// The versions differ: use inline streams, and bring both to one version.
    #[error("the server does not speak this version of the data connection")]
    Version,
    /// The server has as many data connections as it may: go on with the rails that there are.
    #[error("the server has no room for one more data connection")]
    NoRoom,
}

impl JoinAnswer {
    const ALL: [Self; 4] = [Self::Joined, Self::Unknown, Self::Version, Self::NoRoom];

    /// As bytes.
    #[must_use]
    pub fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = checked_by_end(ANSWER_MAGIC, VERSION, self as u16);
        seal(&mut bytes);
        bytes
    }

    /// What these bytes say.
    ///
    /// # Errors
    /// They are no answer to a join.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, JoinError> {
        let (_, verdict) = opened(bytes, ANSWER_MAGIC).ok_or(JoinError)?;
        if bytes[SECRET_AT..JOIN_CHECK_AT].iter().any(|&byte| byte != 0) {
            return Err(JoinError);
        }
        Self::ALL.into_iter().find(|answer| *answer as u16 == verdict).ok_or(JoinError)
    }
}

fn checked_by_end(magic: [u8; 4], version: u16, verdict: u16) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..VERSION_AT].copy_from_slice(&magic);
    bytes[VERSION_AT..VERDICT_AT].copy_from_slice(&version.to_le_bytes());
    bytes[VERDICT_AT..SECRET_AT].copy_from_slice(&verdict.to_le_bytes());
    bytes
}

fn seal(bytes: &mut [u8; HEADER_BYTES]) {
    let check = check_of(&bytes[..JOIN_CHECK_AT]);
    bytes[JOIN_CHECK_AT..].copy_from_slice(&check);
}

/// Version and verdict of a join or an answer whose check is right.
fn opened(bytes: &[u8; HEADER_BYTES], magic: [u8; 4]) -> Option<(u16, u16)> {
    let sound = bytes[..VERSION_AT] == magic && bytes[JOIN_CHECK_AT..] == check_of(&bytes[..JOIN_CHECK_AT]);
    let (version, verdict) = (part(bytes, VERSION_AT), part(bytes, VERDICT_AT));
    sound.then(|| (u16::from_le_bytes(version), u16::from_le_bytes(verdict)))
}

fn check_of(bytes: &[u8]) -> [u8; 4] {
    (checksum(bytes) as u32).to_le_bytes()
}

fn part<const BYTES: usize>(header: &[u8; HEADER_BYTES], at: usize) -> [u8; BYTES] {
    let mut part = [0; BYTES];
    part.copy_from_slice(&header[at..at + BYTES]);
    part
}

/// Random bytes of the system.
pub(super) fn random(bytes: &mut [u8]) -> std::io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
