//! Recording: starting one, and telling it of calls. Owns: which namespace is recorded, and when a recording is over. Must not
//! know: what is told of a call, how it is queued.

use super::recorder::{Recorded, Recording, Tap, Told};
use super::{Engine, refuse};
use crate::limits::RECORD_QUEUE_CALLS_MAX;
use std::hash::RandomState;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use turnkv_pool::{NamespaceIndex, PoolError};
use turnkv_proto::{BlockHash, Error, ErrorKind, NamespaceId, SessionId};

impl Engine {
    /// Starts telling of the calls of one namespace: the one named, or the only one there is.
    pub(crate) fn record(&self, namespace: Option<&NamespaceId>) -> Result<Recording, Error> {
        let ns = match namespace {
            Some(id) => self.find_namespace(id)?,
            None => self.only_namespace()?,
        };
        let desc = self.decide().pool.namespace_desc(ns).cloned();
        let desc = desc.ok_or_else(|| refuse(PoolError::NamespaceUnknown))?;
        let mut tap = self.recorder.tap.lock();
        if tap.as_ref().is_some_and(|tap| !tap.calls.is_closed()) {
            let text = "somebody is recording already: one recording at a time".to_owned();
            return Err(Error::new(ErrorKind::Limit, text));
        }
        let (sender, calls) = mpsc::channel(RECORD_QUEUE_CALLS_MAX);
        let first = Recorded { page_tokens: desc.page_tokens, ..Default::default() };
        if sender.try_send(first).is_err() {
            return Err(Error::new(ErrorKind::Internal, "a new queue is full".to_owned()));
        }
        let queued_blocks = Arc::new(AtomicU64::new(0));
        *tap = Some(Tap {
            ns,
            salt: RandomState::new(),
            began_ms: self.now(),
            calls: sender,
            queued_blocks: Arc::clone(&queued_blocks),
            dropped: 0,
        });
        self.recorder.on.store(true, Ordering::Release);
        Ok(Recording { calls, queued_blocks })
    }

    /// Whether somebody records: what is told of a call need not be put together otherwise.
    pub(super) fn is_recording(&self) -> bool {
        self.recorder.on.load(Ordering::Acquire)
    }

    /// Tells of one call, if somebody records its namespace.
    pub(super) fn tell(&self, told: &Told<'_>) {
        if !self.is_recording() {
            return;
        }
        let now = self.now();
        let mut tap = self.recorder.tap.lock();
        let Some(recording) = tap.as_mut().filter(|tap| tap.ns == told.ns) else { return };
        if !recording.tell(told, now) {
            *tap = None;
            self.recorder.on.store(false, Ordering::Release);
        }
    }

    /// The pages of a session after a turn that keeps so many of those it had: what a list begins with that the caller does not send.
    pub(super) fn kept_pages(&self, ns: NamespaceIndex, session: &SessionId, keep: u32) -> Vec<BlockHash> {
        if keep == 0 || !self.is_recording() {
            return Vec::new();
        }
        let mut hashes = self.session_hashes(ns, session).unwrap_or_default();
        hashes.truncate(keep as usize);
        hashes
    }

    fn only_namespace(&self) -> Result<NamespaceIndex, Error> {
        let core = self.decide();
        match core.pool.stats().namespaces {
            1 => core
                .pool
                .open_namespaces(1)
                .first()
                .copied()
                .ok_or_else(|| refuse(PoolError::NamespaceUnknown)),
            0 => Err(Error::new(
                ErrorKind::NamespaceUnknown,
                "no namespace is open: start an engine first".to_owned(),
            )),
            many => {
                let id = |ns: NamespaceIndex| core.pool.namespace_desc(ns).map(|desc| desc.id.to_string());
                let some: Vec<String> = core.pool.open_namespaces(8).into_iter().filter_map(id).collect();
                Err(Error::invalid(format!("{many} namespaces are open: name one of {} ..", some.join(", "))))
            }
        }
    }
}

#[cfg(test)]
mod tests;
