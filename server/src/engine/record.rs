//! The recorder: what turns asked of the pool, as a stream for whoever makes a trace of it. Owns: salting, the bounded queue, what
//! is told of a call. Must not know: traces' form (the subcommand has it), what the pool decided but for what an offload found.
//!
//! Nothing waits for the recorder: with nobody listening a call costs one atomic load, and a full queue drops the call and
//! counts it. Hashes and names leave under a key that is drawn for each recording and told to nobody.

use super::{Engine, refuse};
use crate::limits::{RECORD_QUEUE_BLOCKS_MAX, RECORD_QUEUE_CALLS_MAX};
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::mpsc;
use turnkv_pool::{ClientId, NamespaceIndex, PoolError};
use turnkv_proto::{BlockHash, Error, ErrorKind, NamespaceId, SessionId};

/// The recorder of a pool: one recording at a time.
#[derive(Default)]
pub(crate) struct Recorder {
    on: AtomicBool,
    tap: Mutex<Option<Tap>>,
}

/// A recording under way.
struct Tap {
    ns: NamespaceIndex,
    salt: RandomState,
    began_ms: u64,
    calls: mpsc::Sender<Recorded>,
    queued_blocks: Arc<AtomicU64>,
    dropped: u64,
}

/// The calls of a recording, as they come.
pub(crate) struct Recording {
    /// The calls; the first says what a page is.
    pub(crate) calls: mpsc::Receiver<Recorded>,
    /// Blocks of calls in the queue; whoever takes a call subtracts its.
    pub(crate) queued_blocks: Arc<AtomicU64>,
}

/// What a recording says.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// Which verb was called; none: the first message, which says what a page is.
    pub(crate) kind: Option<RecordedKind>,
    /// Since the recording began.
    pub(crate) at_ms: u64,
    /// Whose turn it is, salted; 0: nobody's.
    pub(crate) session: u64,
    /// Who called, salted.
    pub(crate) client: u64,
    /// The page before the first block, salted; 0: the first block is a root.
    pub(crate) parent: u64,
    /// The pages, salted.
    pub(crate) blocks: Vec<u64>,
    /// Calls left out so far because the queue was full.
    pub(crate) dropped: u64,
    /// Tokens of a page; first message only.
    pub(crate) page_tokens: u32,
}

/// The calls that are told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordedKind {
    /// A turn begins.
    BeginTurn,
    /// Pages are asked for.
    Reload,
    /// Pages are offered.
    Offload,
    /// A turn ends; the blocks are the session's whole list.
    EndTurn,
}

/// One call to tell of.
pub(super) struct Told<'a> {
    pub(super) ns: NamespaceIndex,
    pub(super) kind: RecordedKind,
    pub(super) session: Option<&'a SessionId>,
    pub(super) client: ClientId,
    pub(super) parent: Option<BlockHash>,
    pub(super) blocks: &'a [BlockHash],
}

impl Tap {
    fn tell(&mut self, told: &Told<'_>, now: u64) -> bool {
        let block = |hash: &BlockHash| self.salt.hash_one(hash.0) | 1; // 0 is none
        let call = Recorded {
            kind: Some(told.kind),
            at_ms: now.saturating_sub(self.began_ms),
            session: told.session.map_or(0, |session| self.salt.hash_one(session.as_str()) | 1),
            client: self.salt.hash_one(told.client.0),
            parent: told.parent.as_ref().map_or(0, block),
            blocks: told.blocks.iter().map(block).collect(),
            dropped: self.dropped,
            page_tokens: 0,
        };
        let blocks = call.blocks.len() as u64;
        if self.queued_blocks.load(Ordering::Relaxed) + blocks > RECORD_QUEUE_BLOCKS_MAX {
            self.dropped += 1;
            return true;
        }
        self.queued_blocks.fetch_add(blocks, Ordering::Relaxed);
        match self.calls.try_send(call) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.queued_blocks.fetch_sub(blocks, Ordering::Relaxed);
                self.dropped += 1;
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }
}

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
