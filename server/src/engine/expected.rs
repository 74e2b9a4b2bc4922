//! Sessions of other members that are waited with until their turn here is near. Owns: how many there may be. Must not know: whose they
//! are.

use crate::limits::PREFETCH_AFAR_WAITING_MAX;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for them.
pub(super) struct Expected(Arc<Semaphore>);

impl Default for Expected {
    fn default() -> Expected {
        Expected(Arc::new(Semaphore::new(PREFETCH_AFAR_WAITING_MAX)))
    }
}

impl Expected {
    /// A place for one more, as long as it is kept; none: there are too many.
    pub(super) fn place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).try_acquire_owned().ok()
    }
}
