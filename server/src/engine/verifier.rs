//! Pages in DRAM that are to be checked before a reload is told where they are. Owns: the way to whoever checks them. Must not
//! know: how they are checked.

use std::sync::OnceLock;
use std::sync::mpsc::SyncSender;
use tokio::sync::mpsc;
use turnkv_pool::{MissCause, PageKey, SlotKey, SlotPlace};

/// A leased page in DRAM that a reload waits for.
pub(super) struct Check {
    pub(super) index: u32,
    pub(super) page: PageKey,
    pub(super) shard: u16,
    pub(super) slot: SlotKey,
    pub(super) place: SlotPlace,
    pub(super) checksum: u64,
    pub(super) tell: mpsc::Sender<(u32, Result<(), MissCause>)>,
}

/// Where checks go; no one listens unless the threads were started.
#[derive(Default)]
pub(super) struct Verifier(pub(super) OnceLock<SyncSender<Vec<Check>>>);
