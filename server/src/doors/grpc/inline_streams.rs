//! How many inline streams are open. Owns: their bound over all connections, and one peer's share of it. Must not know: what
//! a stream carries.

use crate::connections::asking::Asking;
use crate::connections::peers;
use crate::connections::watch::Watch;
use crate::limits::INLINE_STREAMS_MAX;
use metrics::{Counter, Gauge, counter, describe_gauge, gauge};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use turnkv_proto::stream::{OFFLOAD_PATH, RELOAD_PATH};
use turnkv_proto::{Error, ErrorKind};

/// Paths of inline streams.
const INLINE: [&str; 2] = [OFFLOAD_PATH, RELOAD_PATH];

/// All that are open.
#[derive(Clone)]
pub(super) struct InlineStreams {
    room: Arc<Semaphore>,
    refused: Counter,
    open: Gauge,
}

/// One inline stream that is open, until it is dropped.
pub(super) struct InlineStream {
    _permit: OwnedSemaphorePermit,
    watch: Arc<Watch>,
    open: Gauge,
}

impl InlineStreams {
    /// None is open.
    pub(super) fn new() -> InlineStreams {
        describe_gauge!("turnkv_requests_inline_operations", "Inline streams that are open");
        InlineStreams {
            room: Arc::new(Semaphore::new(INLINE_STREAMS_MAX)),
            refused: counter!("turnkv_requests_refused_total", "cause" => "streams"),
            open: gauge!("turnkv_requests_inline_operations"),
        }
    }

    /// A request begins: one more is open, if `path` is that of an inline stream.
    pub(super) fn open(&self, path: &str, asking: &Asking) -> Result<Option<InlineStream>, Error> {
        if !INLINE.contains(&path) {
            return Ok(None);
        }
        let refuse = |text: String| {
            self.refused.increment(1);
            Error::new(ErrorKind::Limit, text)
        };
        let (watch, most) = (asking.watch(), INLINE_STREAMS_MAX as u64);
        if !peers::take(&watch.of_peer.inline_streams, 1, most) {
            let share = peers::share_of(most);
            return Err(refuse(format!("one peer has {share} inline streams open: open fewer at a time")));
        }
        let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else {
            watch.of_peer.inline_streams.fetch_sub(1, Ordering::Relaxed);
            return Err(refuse(format!("{most} inline streams are open: open fewer at a time")));
        };
        self.open.increment(1.0);
        Ok(Some(InlineStream { _permit: permit, watch: Arc::clone(watch), open: self.open.clone() }))
    }
}

impl Drop for InlineStream {
    fn drop(&mut self) {
        self.watch.of_peer.inline_streams.fetch_sub(1, Ordering::Relaxed);
        self.open.decrement(1.0);
    }
}

#[cfg(test)]
mod tests;
