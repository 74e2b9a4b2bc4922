//! What a server is still to be told when its client may not come again: that slots are not mapped, or not written, any more. Owns: trying
//! until it was told, beside whatever becomes of the client. Must not know: what is told.
//!
//! A server that took over the memory of one before keeps these slots for as long as the process lives, unless it hears so.

use super::connection::ConnectError;
use super::pool::LocalPool;
use crate::backoff::Backoff;
use crate::deadline::Deadline;
use crate::limits::{GIVEN_UP_TOLD_WAIT, RENEW_WAIT};
use std::sync::Arc;
use tokio::runtime::Handle;

impl LocalPool {
    /// The server could not be told of what was given up: it is, as soon as a connection can be had.
    pub(super) fn tell_later(self: &Arc<Self>) {
        let mut held = self.held.lock();
        let given_up = &mut held.given_up;
        given_up.more = true;
        let Some(runtime) = Handle::try_current().ok().or_else(|| given_up.runtime.clone()) else {
            tracing::debug!("no runtime to tell a server what was given up: the next operation does");
            return;
        };
        if !std::mem::replace(&mut given_up.is_being_told, true) {
            drop(runtime.spawn(tell_until_told(Telling(Some(Arc::clone(self))))));
        }
    }

    /// Each connection that is made says what is mapped, and each that comes to rest what is not any more.
    async fn tell_given_up(self: &Arc<Self>) -> Result<(), ConnectError> {
        let lent = self.acquire(Deadline::after(RENEW_WAIT)).await?;
        let server = lent.server();
        drop(lent); // at rest, so that the releases can use it
        self.send_unsent(&server);
        Ok(())
    }

    /// Whether there is more to be told; if not, nobody is telling any more.
    fn has_more_given_up(&self) -> bool {
        let mut held = self.held.lock();
        let more = std::mem::take(&mut held.given_up.more);
        held.given_up.is_being_told = more;
        more
    }
}

/// One that tells. A runtime that ends drops it.
struct Telling(Option<Arc<LocalPool>>);

impl Drop for Telling {
    fn drop(&mut self) {
        if let Some(pool) = self.0.take() {
            pool.held.lock().given_up.is_being_told = false;
        }
    }
}

async fn tell_until_told(mut telling: Telling) {
    let mut pauses = Backoff::new(Some(Deadline::after(GIVEN_UP_TOLD_WAIT)));
    while let Some(pool) = telling.0.clone() {
        if !pool.has_more_given_up() {
            telling.0 = None;
        } else if let Err(error) = pool.tell_given_up().await {
            let Some(pause) = pauses.next() else {
                tracing::warn!(
                    ?error,
                    "slots that are not used any more are kept for this process until it ends"
                );
                return;
            };
            pool.held.lock().given_up.more = true;
            tokio::time::sleep(pause).await;
        }
    }
}
