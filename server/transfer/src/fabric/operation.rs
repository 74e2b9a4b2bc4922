//! One transfer, as data. Owns: what is moved from where to where, what it came to, and the bounds that both
//! ends check. Must not know: rails, queues.

use crate::limits::OPERATION_BYTES_MAX;
use crate::slot::Slot;

/// What names registered memory of a target to an initiator. Travels in control messages. It is good in the
/// domain that made it and on the rails of that domain alone; `key` and `base` mean what the engine says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionKey {
    /// The engine's name for the memory: an rkey, or a number drawn at random.
    pub key: u64,
    /// What the engine calls the memory's first byte: its address, or 0.
    pub base: u64,
    /// Size of the memory in bytes.
    pub bytes: u64,
}

/// A part of registered memory: not empty, inside the memory, and at most [`OPERATION_BYTES_MAX`] long. That
/// the target holds it for true is checked again there: this end has only what the peer told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteSpan {
    region: RegionKey,
    offset: u64,
    bytes: u32,
}

impl RemoteSpan {
    /// The part at `[offset, offset + bytes)`, or none if that is empty, too long for one operation, or not
    /// inside the memory as its key describes it.
    #[must_use]
    pub fn new(region: RegionKey, offset: u64, bytes: u32) -> Option<Self> {
        let end = offset.checked_add(u64::from(bytes))?;
        // An engine adds offsets to the base: a peer's base may not make that wrap.
        region.base.checked_add(region.bytes)?;
        let fits = bytes > 0 && bytes as usize <= OPERATION_BYTES_MAX && end <= region.bytes;
        fits.then_some(Self { region, offset, bytes })
    }

    /// The memory that this is a part of.
    #[must_use]
    pub fn region(&self) -> RegionKey {
        self.region
    }

    /// Bytes from the memory's first one.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Size in bytes, 1 to [`OPERATION_BYTES_MAX`].
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}

/// The caller's name for an operation: comes back with its completion. Engines never look into it, and two
/// operations under way may have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Op(pub u64);

/// Which way the bytes of an operation go, as the initiator sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the target's memory into the slot.
    Read,
    /// From the slot into the target's memory.
    Write,
}

/// One transfer between a slot's bytes here and a part of registered memory there. Owns its share of the
/// slot's region, so that the memory stays mapped for as long as an engine may touch it; that nobody else
/// uses the slot meanwhile is its lease's business.
#[derive(Debug)]
pub struct Operation {
    direction: Direction,
    local: Slot,
    remote: RemoteSpan,
    op: Op,
}

impl Operation {
    /// From the target's memory into the slot, or none if the two are not equally long.
    #[must_use]
    pub fn read(from: RemoteSpan, into: Slot, op: Op) -> Option<Self> {
        Self::new(Direction::Read, into, from, op)
    }

    /// From the slot into the target's memory, or none if the two are not equally long.
    #[must_use]
    pub fn write(from: Slot, to: RemoteSpan, op: Op) -> Option<Self> {
        Self::new(Direction::Write, from, to, op)
    }

    fn new(direction: Direction, local: Slot, remote: RemoteSpan, op: Op) -> Option<Self> {
        (local.len() == remote.bytes() as usize).then_some(Self { direction, local, remote, op })
    }

    /// Which way the bytes go.
    #[must_use]
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The bytes here; as long as the remote ones.
    #[must_use]
    pub fn local(&self) -> &Slot {
        &self.local
    }

    /// The bytes there.
    #[must_use]
    pub fn remote(&self) -> RemoteSpan {
        self.remote
    }

    /// The caller's name for it.
    #[must_use]
    pub fn op(&self) -> Op {
        self.op
    }

    /// Size in bytes, 1 to [`OPERATION_BYTES_MAX`].
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.remote.bytes()
    }
}

/// An operation that was not posted, handed back.
#[derive(Debug)]
pub struct Unposted {
    /// What was to be posted. Nothing touches its memory.
    pub operation: Operation,
    /// What to do with it.
    pub why: WhyUnposted,
}

/// Why an operation was not posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyUnposted {
    /// The rail, or its completion queue, has as many under way as it may: post again after a completion.
    Full,
    /// The rail ended or was closed: use another one.
    Dead,
}

/// What an operation came to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// All bytes are where they belong: in the slot, or visible in the target's memory to whoever is told of
    /// it from now on. Whether they are the right ones, a checksum says.
    Done,
    /// Any of the bytes, or none, may have been written. Nothing touches the memory of this side any more.
    Failed(Cause),
}

/// Why an operation failed, and with it what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The peer or the way to it is gone: repeat it on another rail if the peer's control connection lives.
    #[error("the peer hung up")]
    PeerGone,
    /// The target knows no such memory, or not so much of it, or did not lend it for this: an error of the
    /// client, never repeated. With engines whose NICs check this, the rail is dead as well.
    #[error("the target refused: no such memory, not so much of it, or not lent for this")]
    Refused,
    /// No byte came or went for too long: as [`Cause::PeerGone`].
    #[error("the transfer made no progress")]
    Stalled,
    /// The peer does not keep to the engine's protocol: the rail is dead; do not open one to it again before
    /// its control connection is made anew.
    #[error("the peer broke the protocol: {0}")]
    Protocol(&'static str),
    /// A NIC or its library failed, in its own words: repeat it on another rail.
    #[error("the fabric failed: {0}")]
    Device(String),
    /// The rail was closed on this side, or ended before the operation began.
    #[error("the rail was closed")]
    Cancelled,
}

/// The end of a posted operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Which one.
    pub op: Op,
    /// What it came to.
    pub outcome: Outcome,
}
