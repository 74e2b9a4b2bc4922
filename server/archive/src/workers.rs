//! Threads for hashing, encoding and decoding. Owns: how many there are, and their coders. Must not know: what they work on.

use crate::blob::Coder;
use crate::error::Error;
use crate::limits::WORKERS_MAX;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// A bounded number of blocking threads.
#[derive(Clone)]
pub(crate) struct Workers {
    count: usize,
    permits: Arc<Semaphore>,
    /// Coders that nobody uses: never more than there are workers.
    coders: Arc<Mutex<Vec<Coder>>>,
}

impl Workers {
    /// So many; 0 means one a core, up to the limit.
    pub(crate) fn new(count: usize) -> Workers {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let count = if count == 0 { cores() } else { count }.min(WORKERS_MAX);
        Workers { count, permits: Arc::new(Semaphore::new(count)), coders: Arc::default() }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Runs a job when a worker is free. A job that has begun goes on when its caller no longer waits, and keeps its worker.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Coder) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let permit = permit.map_err(|_| Error::Short("its workers have ended".to_owned()))?;
        let coders = Arc::clone(&self.coders);
        let work = tokio::task::spawn_blocking(move || {
            let idle = coders.lock().pop();
            let mut coder = match idle {
                Some(coder) => coder,
                None => {
                    Coder::new().map_err(|fault| Error::Short(format!("no memory for a coder: {fault}")))?
                }
            };
            let done = job(&mut coder);
            coders.lock().push(coder);
            drop(permit);
            Ok(done)
        });
        work.await.map_err(|fault| Error::Short(format!("a worker ended early: {fault}")))?
    }
}
