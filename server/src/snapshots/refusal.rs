//! What the archive refuses, in the words of the protocol. Owns: the translation. Must not know: what was asked of it.

use crate::limits::SNAPSHOT_RETRY_MS;
use turnkv_archive::Error as Fault;
use turnkv_proto::{Error, ErrorKind};

/// An archive's refusal, by what its caller should do.
pub(super) fn refuse(fault: Fault) -> Error {
    let kind = match &fault {
        Fault::Unreachable { .. } | Fault::Short(_) | Fault::TooLate { .. } => {
            ErrorKind::Busy { retry_after_ms: SNAPSHOT_RETRY_MS }
        }
        Fault::Full { .. } | Fault::TooLarge { .. } => ErrorKind::Limit,
        Fault::CredentialsRefused { .. } | Fault::Damaged { .. } => ErrorKind::Internal,
        Fault::NotFound { .. } | Fault::Exists { .. } | Fault::Invalid { .. } => ErrorKind::Invalid,
    };
    let text = match &fault {
        Fault::Damaged { .. } => format!("{fault}; put it back from elsewhere, or delete what needs it"),
        fault => fault.to_string(),
    };
    Error::new(kind, text)
}
