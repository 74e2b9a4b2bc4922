//! Reading again what came damaged. Owns: how often. Must not know: what is read.

use crate::error::Error;
use crate::limits::READS_MAX;

/// Reads what can be verified, again if it is damaged: an answer may be, and the object not.
pub(crate) async fn read_again<T, F: Future<Output = Result<T, Error>>>(
    read: impl Fn() -> F,
) -> Result<T, Error> {
    for _ in 1..READS_MAX {
        match read().await {
            Err(fault @ Error::Damaged { .. }) => {
                tracing::warn!(%fault, "came from the store; it is read again");
            }
            other => return other,
        }
    }
    read().await
}
