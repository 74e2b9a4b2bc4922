//! Reclaim under way. Owns: the one pass that there is, and the bell of the thread that goes on with it. Must not know: what a
//! step does.

use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::mpsc::SyncSender;
use turnkv_pool::Pass;

/// Who reclaims: the pass under way, and the bell of the thread that goes on with it. Without a thread, whoever owns the
/// engine calls `Engine::step_reclaim`.
#[derive(Default)]
pub(super) struct Reclaimer {
    pub(super) emptying: Mutex<Option<Emptying>>,
    pub(super) bell: OnceLock<SyncSender<()>>,
}

/// The segment that is being emptied.
pub(super) struct Emptying {
    pub(super) segment: u16,
    pub(super) pass: Pass,
}
