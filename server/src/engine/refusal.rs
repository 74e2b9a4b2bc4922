//! What the pool refuses, in the words of the protocol. Owns: the translation. Must not know: why it refuses.

use crate::limits::RETRY_AFTER_MS;
use turnkv_pool::PoolError;
use turnkv_proto::{Error, ErrorKind};

/// A pool's refusal, by what its caller should do.
pub(super) fn refuse(error: PoolError) -> Error {
    let kind = match &error {
        PoolError::NamespaceUnknown => ErrorKind::NamespaceUnknown,
        PoolError::LeaseUnknown => ErrorKind::LeaseUnknown,
        PoolError::SessionUnknown => ErrorKind::SessionUnknown,
        PoolError::LeaseShare(_) => ErrorKind::Busy { retry_after_ms: RETRY_AFTER_MS },
        PoolError::Limit(_) => ErrorKind::Limit,
        PoolError::Invalid(_) => ErrorKind::Invalid,
    };
    Error::new(kind, error.to_string())
}
