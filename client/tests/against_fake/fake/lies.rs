//! Answers of the fake as a test would have them instead. Owns: where these are kept. Must not know: what is wrong with them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32};
use turnkv_proto::wire;

/// Makes another answer of one.
pub type Lie<T> = Mutex<Option<fn(&mut T)>>;

/// What is done to answers before they are sent.
#[derive(Default)]
pub struct Lies {
    pub begin_offload: Lie<wire::BeginOffloadReply>,
    pub commit: Lie<wire::CommitOffloadReply>,
    pub begin_reload: Lie<wire::BeginReloadReply>,
    /// All pieces of an inline reload.
    pub pieces: Lie<Vec<wire::ReloadReply>>,
    pub lookup: Lie<wire::LookupReply>,
    pub namespace: Lie<wire::OpenNamespaceReply>,
    pub begin_turn: Lie<wire::BeginTurnReply>,
}

/// What the fake does as a member, changed while it runs.
#[derive(Default)]
pub struct MemberScript {
    /// Tells of these members, as long as somebody listens, by what they are and where; empty: it is in no cluster.
    pub told: Mutex<Vec<(wire::MemberState, String)>>,
    /// Says that a session is at home there, to whoever looks for one.
    pub found: Mutex<Option<String>>,
    /// Knows no session whose turn ends.
    pub knows_none: AtomicBool,
    /// Turns whose end it was told.
    pub ends: AtomicU32,
    /// Lookups of signposts alone.
    pub posts: AtomicU32,
}

/// Does to an answer what the test wants.
pub fn tell<T>(lie: &Lie<T>, answer: &mut T) {
    let lie = *lie.lock().unwrap();
    if let Some(lie) = lie {
        lie(answer);
    }
}
