//! One window of an offload through shared memory: begin, copy into the granted slots, commit.
//! Owns: the order of these and the lease's time. Must not know: what comes before and after the window.

use crate::error::{Error, ErrorKind, Result};
use crate::limits::YIELD_BYTES;
use crate::local::{Lent, SlotOf};
use crate::namespace::Namespace;
use crate::offload::{Decline, Done, Granted, NotDurable, OffloadWindow};
use crate::pages::PageSource;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::Slot;

/// Slots to fill, each with its position in the window.
pub(crate) struct Grants<'a> {
    namespace: &'a Namespace,
    window: &'a OffloadWindow,
    reply: &'a wire::BeginOffloadReply,
    granted: &'a Granted,
}

/// Fills granted slots.
pub(crate) trait Fill: Send {
    /// Fills every slot, in order; gives the connection back with the pages' checksums. Until then, and if it
    /// fails or is dropped, the lease ends only when nobody writes to its slots any more.
    fn fill(self, lent: Lent, grants: Grants<'_>) -> impl Future<Output = Result<(Lent, Vec<u64>)>> + Send;
}

impl Grants<'_> {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.granted.fill.len()
    }

    /// By when they must be filled.
    pub(crate) fn deadline(&self) -> crate::deadline::Deadline {
        self.window.deadline
    }

    /// One of them: its position in the window, and the slot.
    pub(crate) async fn slot(&self, number: usize, lent: &Lent) -> Result<(usize, Slot)> {
        let (server, id, pool) = (lent.server(), self.namespace.id(), Arc::clone(lent.pool()));
        let page_bytes = self.namespace.page_bytes();
        let place = SlotOf { server: &server, namespace: &id.0, page_bytes };
        let slot = pool.slot(place, self.reply.slots.get(number), self.window.deadline).await?;
        Ok((self.granted.fill[number] as usize, slot))
    }
}

impl Fill for &[PageSource<'_>] {
    async fn fill(self, lent: Lent, grants: Grants<'_>) -> Result<(Lent, Vec<u64>)> {
        let mut checksums = Vec::with_capacity(grants.len());
        let mut copied = 0;
        for number in 0..grants.len() {
            let (position, slot) = grants.slot(number, &lent).await?;
            checksums.push(self[position].fill(&slot)?);
            copied += slot.len();
            if copied >= YIELD_BYTES {
                copied = 0;
                tokio::task::yield_now().await;
                grants.deadline().check()?;
            }
        }
        Ok((lent, checksums))
    }
}

impl Namespace {
    /// Dropping this future at any moment aborts the lease: `Lent` sees to it.
    pub(crate) async fn offload_shm(
        &self,
        mut lent: Lent,
        window: &OffloadWindow,
        fill: impl Fill,
    ) -> Result<Done> {
        let client = lent.client();
        let begin = wire::BeginOffloadRequest { client, ..window.begin.clone() };
        // The lease runs from the server's receipt: counted from before the request was sent, it ends no
        // later here.
        let begun = Instant::now();
        let reply: wire::BeginOffloadReply = lent.call(Verb::BeginOffload, &begin, window.deadline).await?;
        let granted = Granted::read(&reply, window.pages, window.moved)?;
        if granted.fill.is_empty() {
            let Granted { present, decline, .. } = granted;
            let (durable, retry_after_ms) = (reply.durable, reply.retry_after_ms);
            let not_durable = NotDurable::read(reply.not_durable());
            return Ok(Done { present, durable, not_durable, decline, retry_after_ms, ..Done::default() });
        }
        if reply.slots.len() < granted.fill.len() || reply.lease == 0 {
            return Err(Error::protocol("pages granted without slots or lease"));
        }
        let grants = Grants { namespace: self, window, reply: &reply, granted: &granted };
        let (mut lent, checksums) = fill.fill(lent, grants).await?;
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
            Ok(done) => granted.committed(&done, reply.retry_after_ms),
            Err(error) if error.kind == ErrorKind::LeaseExpired => {
                Ok(Done { decline: Some(Decline::LeaseExpired), ..Done::default() })
            }
            Err(error) => Err(error),
        }
    }
}
