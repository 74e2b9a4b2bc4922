//! The recorder: what turns asked of the pool, as a stream for whoever makes a trace of it. Owns: salting, the bounded queue, what
//! is told of a call. Must not know: traces' form (the subcommand has it), what the pool decided but for what an offload found.
//!
//! Nothing waits for the recorder: with nobody listening a call costs one atomic load, and a full queue drops the call and
//! counts it. Hashes and names leave under a key that is drawn for each recording and told to nobody.

use crate::limits::RECORD_QUEUE_BLOCKS_MAX;
use parking_lot::Mutex;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::mpsc;
use turnkv_pool::{ClientId, NamespaceIndex};
use turnkv_proto::{BlockHash, SessionId};

/// The recorder of a pool: one recording at a time.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(super) on: AtomicBool,
    pub(super) tap: Mutex<Option<Tap>>,
}

/// A recording under way.
pub(super) struct Tap {
    pub(super) ns: NamespaceIndex,
    pub(super) salt: RandomState,
    pub(super) began_ms: u64,
    pub(super) calls: mpsc::Sender<Recorded>,
    pub(super) queued_blocks: Arc<AtomicU64>,
    pub(super) dropped: u64,
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
    /// Tells of one call, or counts it as left out; false: nobody takes calls any more.
    pub(super) fn tell(&mut self, told: &Told<'_>, now: u64) -> bool {
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
