//! Why pages did not come. Owns: the causes, and which one an error or a miss is. Must not know: what follows.

use turnkv_client::{Error as Told, ErrorKind as ToldKind, MissCause};
use turnkv_pool::Outcome;
use turnkv_proto::{Error, ErrorKind};

/// Why a pull ended before its last page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PullFault {
    /// The member does not have the next page (any more).
    Absent,
    /// Its bytes were not those that were stored, here or there.
    Checksum,
    /// Nobody answered, or not in time, or had not a moment ago.
    Unreachable,
    /// The member had no room to read the page into, or its device failed.
    Member,
    /// There is no room for the page here.
    Room,
    /// What would make way for it here is likelier to be used again.
    Outranked,
    /// Anything else: the log says what.
    Other,
}

impl PullFault {
    /// Every one.
    pub(super) const ALL: [PullFault; 7] = [
        PullFault::Absent,
        PullFault::Checksum,
        PullFault::Unreachable,
        PullFault::Member,
        PullFault::Room,
        PullFault::Outranked,
        PullFault::Other,
    ];

    /// Its name in metrics and logs.
    pub(super) fn name(self) -> &'static str {
        match self {
            PullFault::Absent => "absent",
            PullFault::Checksum => "checksum",
            PullFault::Unreachable => "unreachable",
            PullFault::Member => "member",
            PullFault::Room => "room",
            PullFault::Outranked => "outranked",
            PullFault::Other => "other",
        }
    }

    /// Of a miss at the member.
    pub(super) fn of_miss(miss: MissCause) -> PullFault {
        match miss {
            MissCause::Absent | MissCause::Incomplete => PullFault::Absent,
            MissCause::Checksum => PullFault::Checksum,
            MissCause::Io | MissCause::Busy | MissCause::LeaseExpired => PullFault::Member,
            MissCause::Deadline | MissCause::Unavailable => PullFault::Unreachable,
        }
    }

    /// Of an offer of pages that was declined here.
    pub(super) fn of_outcome(outcome: Option<Outcome>) -> PullFault {
        match outcome {
            Some(Outcome::NoSpace | Outcome::LeaseLimit | Outcome::InFlight) => PullFault::Room,
            Some(Outcome::Outranked) => PullFault::Outranked,
            _ => PullFault::Other,
        }
    }
}

impl From<Told> for PullFault {
    fn from(error: Told) -> PullFault {
        tracing::debug!(%error, "a member did not give pages");
        match error.kind {
            ToldKind::Unavailable | ToldKind::Deadline | ToldKind::BreakerOpen => PullFault::Unreachable,
            ToldKind::Busy { .. } | ToldKind::Limit | ToldKind::LeaseExpired => PullFault::Member,
            ToldKind::NamespaceUnknown | ToldKind::SessionUnknown => PullFault::Absent,
            _ => PullFault::Other,
        }
    }
}

impl From<Error> for PullFault {
    fn from(error: Error) -> PullFault {
        tracing::debug!(%error, "pages of another pool were not taken");
        match error.kind {
            ErrorKind::Busy { .. } | ErrorKind::Limit | ErrorKind::LeaseUnknown | ErrorKind::Draining => {
                PullFault::Room
            }
            _ => PullFault::Other,
        }
    }
}
