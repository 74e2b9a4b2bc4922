//! What an engine fulfils. Owns: the traits of the two ends of a rail. Must not know: any one engine.
//!
//! The server starts every transfer, one-sided, against memory that the client registered; it registers
//! nothing that others may touch. Nothing here needs immediates or an order between operations. What an
//! engine promises, and the conformance suite checks of each:
//!
//! 1. Every posted operation completes exactly once, also when the rail is closed or the peer dies.
//! 2. After a completion nothing touches the slot; after a deregistration nothing touches the memory. Memory
//!    is let go by a completion or the end of a queue pair or connection, never by time.
//! 3. Bounds are checked at both ends, and a key of one domain opens nothing in another.
//! 4. A transfer without progress ends; one that makes progress is not ended by time.
//! 5. A rail has room for [`crate::limits::RAIL_OPERATIONS_MIN`] operations at least, and for a bounded number.
//!
//! How a rail comes to be: the two ends speak over a control connection that is there already. Engines with
//! addresses ([`RailOffers`] at the client, [`RailAnswers`] at the server):
//!
//! ```text
//! client: domain.offer() -> RailOffer --address--> server: answers.answer(address) -> Initiator
//! client: offer.connect(address) -> Target <--address--/
//! ```
//!
//! The framed engine has no addresses: the client opens another connection to the server's port and joins it
//! to its control connection by a secret.

use std::fmt;
use std::sync::Arc;

use crate::fabric::completion::CompletionQueue;
use crate::fabric::memory::{Access, TargetMemory};
use crate::fabric::operation::{Cause, Operation, RegionKey, Unposted};
use crate::limits::RAIL_ADDRESS_BYTES_MAX;
use crate::region::Region;

/// Which engine moves the bytes of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// Frames over a byte stream: TCP, with or without TLS.
    Framed,
    /// libfabric: EFA, Slingshot.
    Libfabric,
    /// RDMA verbs.
    Verbs,
}

impl Engine {
    /// All of them, the fastest first.
    pub const ALL: [Self; 3] = [Self::Verbs, Self::Libfabric, Self::Framed];

    /// Its name in settings, metrics and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Framed => "framed",
            Self::Libfabric => "libfabric",
            Self::Verbs => "verbs",
        }
    }

    /// The engine of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|engine| engine.name() == name)
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The server's end of one rail. All calls return at once.
pub trait Initiator: Send + Sync + fmt::Debug {
    /// Begins a transfer, or puts it behind those that have begun. Its completion comes out of the queue that
    /// the rail was opened with, exactly once.
    ///
    /// # Errors
    /// Not posted: no completion follows. See [`crate::fabric::WhyUnposted`] for what to do.
    fn post(&self, operation: Operation) -> Result<(), Unposted>;

    /// Bytes of the operations under way: for the less queued of two rails.
    fn queued_bytes(&self) -> u64;

    /// Takes no more operations and ends those under way: they complete, Done or Failed, as soon as nothing
    /// touches their slots. Dropping the last share of a rail does the same.
    fn close(&self);

    /// Why the rail takes no more operations, from then on when it does not. Completions may still come.
    fn death(&self) -> Option<Cause>;
}

/// The client's memory towards one server: what is registered here can be reached over the rails of this
/// domain, and over no other. For a fabric: a protection domain on one NIC. Framed: one for all connections
/// to the server.
pub trait Domain: Send + Sync + fmt::Debug {
    /// Lends memory. Its owner is shared with the engine until nothing can touch it.
    ///
    /// # Errors
    /// See [`RegisterError`]; the memory is not lent then.
    fn register(&self, memory: TargetMemory, access: Access) -> Result<RegionKey, RegisterError>;

    /// Takes memory back. After `Ok` nothing touches it and the engine's share of it is gone; what was under
    /// way fails at the server. Waits at most for one copy of what had arrived. An unknown key is `Ok`.
    ///
    /// # Errors
    /// The engine cannot be sure: it keeps its share until the rails of the domain are dead. The memory must
    /// not be used again before its owner, which the engine shares, goes.
    fn deregister(&self, key: RegionKey) -> Result<(), Quarantined>;

    /// Registrations in force.
    fn registrations(&self) -> usize;
}

/// The client's end of one rail. It serves what its server asks for until it is closed or dropped.
pub trait Target: Send + Sync + fmt::Debug {
    /// Ends the rail: what is under way fails at the server.
    fn close(&self);

    /// Why the rail serves no more, from then on when it does not.
    fn death(&self) -> Option<Cause>;
}

/// A client's domain whose rails are opened by an exchange of addresses.
pub trait RailOffers: Domain {
    /// Begins to open a rail: its address goes to the server.
    ///
    /// # Errors
    /// See [`OpenError`].
    fn offer(&self) -> Result<Box<dyn RailOffer>, OpenError>;

    /// The NIC, as people call it.
    fn name(&self) -> &str;
}

/// A rail that is being opened; dropped, it is given up.
pub trait RailOffer: Send {
    /// What the server has to know.
    fn address(&self) -> &RailAddress;

    /// Finishes with what the server answered.
    ///
    /// # Errors
    /// See [`OpenError`].
    fn connect(self: Box<Self>, server: &RailAddress) -> Result<Arc<dyn Target>, OpenError>;
}

/// A server's side of an engine whose rails are opened by an exchange of addresses: one NIC.
pub trait RailAnswers: Send + Sync + fmt::Debug {
    /// Opens a rail to who sent this address; its completions go to `completions`.
    ///
    /// # Errors
    /// See [`OpenError`].
    fn answer(&self, client: &RailAddress, completions: &Arc<CompletionQueue>) -> Result<Answer, OpenError>;

    /// Makes a slab known, in the background if that takes long: operations on others are slower, or wait for
    /// this. Nothing of it can be reached by peers. Twice is once.
    ///
    /// # Errors
    /// See [`RegisterError`].
    fn attach(&self, region: &Arc<Region>) -> Result<(), RegisterError>;

    /// The slab is about to go: the engine lets go of its share when the last operation on it has ended.
    fn detach(&self, region: &Arc<Region>);

    /// The NIC, as people call it.
    fn name(&self) -> &str;

    /// What it has under way.
    fn report(&self) -> NicReport;
}

/// What a NIC has under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicReport {
    /// Rails whose pairs are there, those that are ending included.
    pub rails: usize,
    /// Of these, rails whose pair could not be destroyed yet: what they had under way stays out of use.
    pub rails_stuck: usize,
    /// Slabs that are registered.
    pub regions: usize,
    /// Slabs that wait to be.
    pub regions_pending: usize,
    /// Registrations that failed since the start.
    pub regions_failed: u64,
}

/// A rail that a server opened.
#[derive(Debug)]
pub struct Answer {
    /// Its end here.
    pub rail: Arc<dyn Initiator>,
    /// What the client has to know.
    pub address: RailAddress,
}

/// An end of a rail, in the engine's own bytes: at most [`RAIL_ADDRESS_BYTES_MAX`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailAddress(Vec<u8>);

impl RailAddress {
    /// An address, or none if it is too long.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        (bytes.len() <= RAIL_ADDRESS_BYTES_MAX).then_some(Self(bytes))
    }

    /// The engine's bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Why a rail was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// This machine lacks what the engine needs (library, NIC, rights): use another engine.
    #[error("the engine cannot be used here: {0}")]
    Unavailable(String),
    /// The peer's address makes no sense to the engine: report it, use another engine.
    #[error("the peer's address is not one of this engine: {0}")]
    BadAddress(String),
    /// The peer does not answer, or a NIC or library failed: try again later, on another rail meanwhile.
    #[error("the rail could not be opened: {0}")]
    Failed(String),
}

/// Why memory was not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The engine cannot reach this kind of memory: register a staging buffer of the host instead.
    #[error("the engine cannot reach memory of this kind")]
    Unsupported,
    /// As many registrations as there may be are in force: take one back, or register larger memory once.
    #[error("{0} registrations are in force, and no more may be")]
    Full(usize),
    /// A NIC, library or the system's limits say no (locked memory, most often), in their own words: use
    /// another engine, and tell the operator.
    #[error("the memory could not be registered: {0}")]
    Failed(String),
}

/// Memory that something may still touch: the engine keeps its share of the owner until it is sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fabric may still touch the memory: it stays with the engine until its rails are dead")]
pub struct Quarantined;
