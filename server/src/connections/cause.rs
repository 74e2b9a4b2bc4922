//! Why a connection ends, or is not served at all. Owns: the causes, their names in metrics and the words for the peer. Must not
//! know: who decides so.

/// Why a connection was ended by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It asked nothing in time.
    Silent,
    /// It asked nothing for long.
    Idle,
    /// What it began to send did not end in time.
    Stalled,
    /// It did not take an answer in time.
    Unread,
    /// Another one needed its place.
    Room,
    /// What came is not what is spoken here.
    Malformed,
    /// It sent too much of what costs it nothing.
    Flood,
    /// It did not answer when it was asked whether it is there.
    Gone,
    /// A large frame of it found no memory in time.
    Memory,
    /// The certificate that its peer showed is not accepted any more.
    Certificate,
}

/// Why a connection was not served at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There was no place for it.
    Room,
    /// The system had no thread for it.
    Threads,
    /// Too many processes are clients already.
    Clients,
    /// The system did not say whose it is.
    Nobody,
}

/// No room: what to tell the peer.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(pub(crate) String);

impl Cause {
    /// Every cause.
    pub(super) const ALL: [Cause; 10] = [
        Cause::Silent,
        Cause::Idle,
        Cause::Stalled,
        Cause::Unread,
        Cause::Room,
        Cause::Malformed,
        Cause::Flood,
        Cause::Gone,
        Cause::Memory,
        Cause::Certificate,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Cause::Silent => "silent",
            Cause::Idle => "idle",
            Cause::Stalled => "stalled",
            Cause::Unread => "unread",
            Cause::Room => "room",
            Cause::Malformed => "malformed",
            Cause::Flood => "flood",
            Cause::Gone => "gone",
            Cause::Memory => "memory",
            Cause::Certificate => "certificate",
        }
    }

    /// What its peer is told, where the protocol has words for it.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Cause::Silent => "this connection asked nothing in time: it is ended",
            Cause::Idle => "this connection asked nothing for long: it is ended",
            Cause::Stalled => "a request did not arrive whole in time: its connection is ended",
            Cause::Unread => "an answer was not taken in time: its connection is ended",
            Cause::Room => "another connection needs the place of this one: connect again",
            Cause::Malformed => {
                "what came is damaged, or not the protocol that is spoken here: the connection is ended, connect again"
            }
            Cause::Flood => "too much came that asks nothing: the connection is ended",
            Cause::Gone => "nobody answered on this connection: it is ended",
            Cause::Memory => {
                "there was no memory for a large request in time: send smaller ones, or try later"
            }
            Cause::Certificate => "the certificate of this connection is not accepted any more: it is ended",
        }
    }
}

impl Refusal {
    /// Every one.
    pub(super) const ALL: [Refusal; 4] = [Refusal::Room, Refusal::Threads, Refusal::Clients, Refusal::Nobody];

    pub(super) fn name(self) -> &'static str {
        match self {
            Refusal::Room => "room",
            Refusal::Threads => "threads",
            Refusal::Clients => "clients",
            Refusal::Nobody => "nobody",
        }
    }
}
