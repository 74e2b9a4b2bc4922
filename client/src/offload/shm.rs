//! One window of an offload through shared memory: begin, copy into the granted slots, commit.
//! Owns: the order of these and the lease's time. Must not know: what comes before and after the window.

use crate::error::{Error, ErrorKind, Result};
use crate::limits::YIELD_BYTES;
use crate::local::Lent;
use crate::namespace::Namespace;
use crate::offload::{Decline, Done, Granted, Window};
use crate::slabs::Place;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_proto::wire::{self, Verb};

impl Namespace {
    /// Dropping this future at any moment aborts the lease: `Lent` sees to it.
    pub(crate) async fn offload_shm(&self, mut lent: Lent, window: &Window<'_>) -> Result<Done> {
        let client = lent.client();
        let begin = wire::BeginOffloadRequest { client, ..window.begin.clone() };
        // The lease runs from the server's receipt: counted from before the request was sent, it ends no later here.
        let begun = Instant::now();
        let reply: wire::BeginOffloadReply = lent.call(Verb::BeginOffload, &begin, window.deadline).await?;
        let granted = Granted::read(&reply, window.pages.len())?;
        if granted.fill.is_empty() {
            let Granted { present, decline, .. } = granted;
            let (durable, retry_after_ms) = (reply.durable, reply.retry_after_ms);
            return Ok(Done { present, durable, decline, retry_after_ms, ..Done::default() });
        }
        let checksums = self.fill(&lent, &reply, &granted, window).await?;
        if begun.elapsed() >= Duration::from_millis(reply.lease_ms.into()) {
            return Ok(Done { decline: Some(Decline::LeaseExpired), ..Done::default() });
        }
        let commit = wire::CommitOffloadRequest {
            lease: reply.lease,
            client,
            pages: granted.fill.clone(),
            checksums,
            durable: window.durable,
        };
        match lent.call::<wire::CommitOffloadReply>(Verb::CommitOffload, &commit, window.deadline).await {
            Ok(done) => granted.committed(&done.dropped, done.durable, reply.retry_after_ms),
            Err(error) if error.kind == ErrorKind::LeaseExpired => {
                Ok(Done { decline: Some(Decline::LeaseExpired), ..Done::default() })
            }
            Err(error) => Err(error),
        }
    }

    /// Copies every granted page into its slot; the pages' checksums.
    async fn fill(
        &self,
        lent: &Lent,
        reply: &wire::BeginOffloadReply,
        granted: &Granted,
        window: &Window<'_>,
    ) -> Result<Vec<u64>> {
        if reply.slots.len() < granted.fill.len() || reply.lease == 0 {
            return Err(Error::protocol("pages granted without slots or lease"));
        }
        let (server, id, pool) = (lent.server(), self.id(), Arc::clone(lent.pool()));
        let place = Place { server: &server, namespace: &id.0, page_bytes: self.page_bytes() };
        let mut checksums = Vec::with_capacity(granted.fill.len());
        let mut copied = 0;
        for (position, slot) in granted.fill.iter().zip(&reply.slots) {
            let slot = pool.slot(place, Some(slot), window.deadline).await?;
            checksums.push(window.pages[*position as usize].fill(&slot));
            copied += slot.len();
            if copied >= YIELD_BYTES {
                copied = 0;
                tokio::task::yield_now().await;
                window.deadline.check()?;
            }
        }
        Ok(checksums)
    }
}
