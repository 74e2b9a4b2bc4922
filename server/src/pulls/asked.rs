//! Bytes of pages that all pulls have asked for and that have not come. Owns: their bound. Must not know: who asks, pages.

use crate::limits::PULL_BYTES_MAX;
use tokio::sync::{Semaphore, SemaphorePermit};

/// What may be asked for at a time is counted by so many bytes.
const UNIT_BYTES: u64 = 1 << 10;

/// Room for what is asked for.
pub(super) struct AskedBytes(Semaphore);

impl AskedBytes {
    /// Nothing is asked for yet.
    pub(super) fn new() -> AskedBytes {
        AskedBytes(Semaphore::new((PULL_BYTES_MAX / UNIT_BYTES) as usize))
    }

    /// Waits, in order, until so many bytes more may be asked for; they may until what is returned is dropped. A page that is larger
    /// than all that may be asked for goes alone.
    pub(super) async fn ask(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let units = bytes.min(PULL_BYTES_MAX).div_ceil(UNIT_BYTES) as u32;
        // It fails once the semaphore is closed, which it never is.
        self.0.acquire_many(units).await.ok()
    }

    /// Bytes that are asked for.
    pub(super) fn bytes(&self) -> u64 {
        PULL_BYTES_MAX - self.0.available_permits() as u64 * UNIT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn no_more_is_asked_for_than_may_be() {
        let asked = AskedBytes::new();
        let half = PULL_BYTES_MAX / 2;
        let (one, two) = (asked.ask(half).await, asked.ask(half).await);
        assert!(one.is_some() && two.is_some() && asked.bytes() == PULL_BYTES_MAX);
        assert!(asked.ask(1).now_or_never().is_none(), "it waits");
        drop(one);
        assert_eq!(asked.bytes(), half);
        assert!(asked.ask(1).now_or_never().flatten().is_some());
        assert_eq!(asked.bytes(), half, "what came is asked for no more");
        assert!(
            asked.ask(4 * PULL_BYTES_MAX).now_or_never().is_none(),
            "a page that needs all waits for all"
        );
        drop(two);
        let all = asked.ask(4 * PULL_BYTES_MAX).now_or_never().flatten();
        assert!(all.is_some() && asked.bytes() == PULL_BYTES_MAX);
        assert!(asked.ask(1).now_or_never().is_none());
    }
}
