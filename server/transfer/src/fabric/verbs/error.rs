//! What a work completion's status means for an operation. Owns: the cause for each. Must not know: queue
//! pairs.

use std::ffi::c_int;

use super::sys;
use crate::fabric::operation::Cause;

/// What a status other than success means; `words` are the library's own.
pub(super) fn cause(status: c_int, words: impl FnOnce() -> String) -> Cause {
    match status {
        // The target's NIC knows no such key, or not so much memory, or it was not lent for this.
        sys::IBV_WC_REM_ACCESS_ERR | sys::IBV_WC_REM_INV_REQ_ERR => Cause::Refused,
        // The target's NIC does not answer, or its queue pair is not there any more.
        sys::IBV_WC_RETRY_EXC_ERR
        | sys::IBV_WC_RNR_RETRY_EXC_ERR
        | sys::IBV_WC_REM_ABORT_ERR
        | sys::IBV_WC_RESP_TIMEOUT_ERR => Cause::PeerGone,
        // The queue pair was in error already: the first failure says why.
        sys::IBV_WC_WR_FLUSH_ERR => Cause::Cancelled,
        // The target's NIC could not, and all that is wrong on this side.
        _ => Cause::Device(words()),
    }
}

#[cfg(test)]
mod tests {
    use super::cause;
    use crate::fabric::operation::Cause;

    #[test]
    fn every_status_has_a_cause() {
        let of = |status| cause(status, || "local length error".to_owned());
        assert_eq!([9, 10].map(of), [Cause::Refused, Cause::Refused]);
        assert_eq!([12, 13, 16, 20].map(of), [const { Cause::PeerGone }; 4]);
        assert_eq!(of(5), Cause::Cancelled);
        for status in (1..40).filter(|status| ![5, 9, 10, 12, 13, 16, 20].contains(status)) {
            assert_eq!(of(status), Cause::Device("local length error".to_owned()));
        }
    }
}
