//! What gRPC's libraries say of a request that they do not read, in this server's words. Owns: these words. Must not know: what is
//! asked, by whom.

use tonic::{Code, Status};
use turnkv_proto::Error;
use turnkv_proto::limits::HASHES_PER_CALL_MAX;

/// What this server refuses says why in details, so an INTERNAL or an OUT_OF_RANGE without any, before an answer has begun, is of whoever
/// reads messages: of one that does not parse, or is longer than its service takes. None: it is another one.
pub(super) fn in_own_words(status: &Status) -> Option<Status> {
    if !status.details().is_empty() {
        return None;
    }
    let text = match status.code() {
        Code::Internal => format!("the request does not parse: {}", status.message()),
        Code::OutOfRange => {
            // Only lists are as long as that.
            let sizes =
                status.message().split_once("too large: ").map_or(status.message(), |(_, sizes)| sizes);
            format!(
                "the request is too long ({sizes}); at most {HASHES_PER_CALL_MAX} hashes of one call are served (HASHES_PER_CALL_MAX): split the call"
            )
        }
        _ => return None,
    };
    Some(Error::invalid(text).into())
}
