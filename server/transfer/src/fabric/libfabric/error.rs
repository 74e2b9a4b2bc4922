//! What libfabric's error numbers mean for an operation. Owns: the cause for each. Must not know: which call
//! failed.

use std::ffi::c_int;

use super::api::FabricApi;
use crate::fabric::operation::Cause;

/// libfabric's own number: no such key.
const FI_ENOKEY: c_int = 266;

/// Numbers by which a target, or its provider, says that it knows no such memory.
const REFUSED: [c_int; 4] = [libc::EACCES, libc::EPERM, libc::EKEYREJECTED, FI_ENOKEY];

/// Numbers that mean that the peer, or the way to it, is gone. We cancel nothing: a provider that says so
/// lost its connection.
const GONE: [c_int; 16] = [
    libc::ECANCELED,
    libc::ECONNABORTED,
    libc::ECONNREFUSED,
    libc::ECONNRESET,
    libc::EHOSTDOWN,
    libc::EHOSTUNREACH,
    libc::EIO,
    libc::ENETDOWN,
    libc::ENETUNREACH,
    libc::ENOTCONN,
    libc::EPIPE,
    libc::ESHUTDOWN,
    libc::ETIMEDOUT,
    libc::ENETRESET,
    libc::ECOMM,
    libc::EREMOTEIO,
];

/// What an error number, positive or negative, means for an operation.
pub(super) fn cause(api: &FabricApi, code: i64) -> Cause {
    judge(code).unwrap_or_else(|| Cause::Device(api.words(code)))
}

fn judge(code: i64) -> Option<Cause> {
    let code = c_int::try_from(code.unsigned_abs()).unwrap_or(c_int::MAX);
    if REFUSED.contains(&code) {
        Some(Cause::Refused)
    } else if GONE.contains(&code) {
        Some(Cause::PeerGone)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::{GONE, REFUSED, judge};
    use crate::fabric::operation::Cause;

    #[test]
    fn every_number_is_judged_once_with_either_sign() {
        assert!(!REFUSED.iter().any(|code| GONE.contains(code)));
        for code in GONE {
            assert_eq!(judge(i64::from(-code)), Some(Cause::PeerGone));
        }
        for code in REFUSED {
            assert_eq!(judge(i64::from(code)), Some(Cause::Refused));
        }
        assert_eq!(judge(-i64::from(libc::EINVAL)), None);
        assert_eq!(judge(i64::MIN), None);
    }
}
