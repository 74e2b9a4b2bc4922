//! Requests out of the calls that a pool saw. Owns: which calls are one turn, and what a turn's blocks are.
//! Must not know: where calls come from, where requests go.
//!
//! A turn with a session ends when it is told to have ended, with the whole list; a session that never says so ends a turn when it
//! begins to reload again. Without sessions the blocks tell: an offload belongs to the reload whose blocks it goes on from.
//! What nothing came for in a while is over.

use crate::limits::{ASSEMBLE_IDLE_MS, ASSEMBLE_OPEN_MAX, ASSEMBLE_PARENTS_MAX};
use std::collections::{HashMap, HashSet};

#[cfg(test)]
mod tests;

/// What a call was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// A session's turn began.
    BeginTurn,
    /// Pages were asked for.
    Reload,
    /// Pages were offered.
    Offload,
    /// A session's turn ended with this list.
    EndTurn,
}

/// One call, with ids as the recording gives them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What it was.
    pub kind: CallKind,
    /// Milliseconds since the recording began.
    pub at_ms: u64,
    /// Its session, if it has one.
    pub session: Option<u64>,
    /// Whose it is, where there is no session.
    pub client: u64,
    /// The block before the first one; none: a root, or (of a reload) not said.
    pub parent: Option<u64>,
    /// Its blocks.
    pub blocks: Vec<u64>,
}

/// One request of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembled {
    /// When its first call came.
    pub at_ms: u64,
    /// Its session.
    pub session: Option<u64>,
    /// Turn of the session in this recording, from 1; 0 without a session.
    pub turn: u32,
    /// All its blocks, from the root.
    pub blocks: Vec<u64>,
}

/// A request that more calls may belong to.
struct Open {
    began_ms: u64,
    last_ms: u64,
    session: Option<u64>,
    client: u64,
    blocks: Vec<u64>,
    /// Pages were reloaded or offered already: another reload from the root is another turn.
    used: bool,
}

/// Puts calls together.
#[derive(Default)]
pub struct Assembler {
    /// Oldest first.
    open: Vec<Open>,
    turns: HashMap<u64, u32>,
    parents: HashMap<u64, Option<u64>>,
    /// Calls whose blocks hang on one that was never seen: the recording began in the middle of their prefix. Also those that
    /// name a block twice on one path, which no pool takes.
    pub headless: u64,
}

impl Assembler {
    /// Takes a call; `done` gets what is complete now. Calls come by time.
    pub fn take(&mut self, call: Call, mut done: impl FnMut(Assembled)) {
        self.close_where(|open| open.last_ms + ASSEMBLE_IDLE_MS < call.at_ms, &mut done);
        if self.open.len() >= ASSEMBLE_OPEN_MAX {
            let oldest = self.open.remove(0);
            self.close(oldest, &mut done);
        }
        let Some(blocks) = self.whole_path(&call) else {
            self.headless += 1;
            return;
        };
        self.learn(&blocks);
        let found = self.find(&call, &blocks);
        match call.kind {
            CallKind::BeginTurn => {
                if let Some(at) = found {
                    let before = self.open.remove(at);
                    self.close(before, &mut done);
                }
                self.begin(&call, Vec::new(), false);
            }
            CallKind::EndTurn => {
                let (began_ms, longer) = match found.map(|at| self.open.remove(at)) {
                    Some(open) if open.blocks.starts_with(&blocks) => (open.began_ms, open.blocks),
                    Some(open) => (open.began_ms, blocks),
                    None => (call.at_ms, blocks),
                };
                self.begin(&Call { at_ms: began_ms, ..call }, longer, true);
                if let Some(ended) = self.open.pop() {
                    self.close(ended, &mut done);
                }
            }
            CallKind::Reload | CallKind::Offload => match found {
                Some(at) => {
                    let open = &mut self.open[at];
                    if !open.blocks.starts_with(&blocks) {
                        open.blocks = blocks;
                    }
                    (open.last_ms, open.used) = (call.at_ms, true);
                }
                None => {
                    let same = |open: &Open| call.session.is_some() && open.session == call.session;
                    self.close_where(same, &mut done);
                    self.begin(&call, blocks, true);
                }
            },
        }
    }

    /// No call will follow.
    pub fn finish(&mut self, mut done: impl FnMut(Assembled)) {
        self.close_where(|_| true, &mut done);
    }

    /// The call's blocks from the root on. None: that is not known, or one of them would come twice: what is learned of a path
    /// never leads around in a circle.
    fn whole_path(&self, call: &Call) -> Option<Vec<u64>> {
        let mut head = Vec::new();
        let first = call.blocks.first().and_then(|first| self.parents.get(first).copied());
        let mut parent = if call.kind == CallKind::Reload { first.flatten() } else { call.parent };
        while let Some(block) = parent {
            head.push(block);
            parent = *self.parents.get(&block)?;
        }
        head.reverse();
        head.extend(&call.blocks);
        let mut seen = HashSet::with_capacity(head.len());
        head.iter().all(|block| seen.insert(*block)).then_some(head)
    }

    fn learn(&mut self, blocks: &[u64]) {
        if self.parents.len() > ASSEMBLE_PARENTS_MAX {
            self.parents.clear();
        }
        let mut parent = None;
        for block in blocks {
            self.parents.insert(*block, parent);
            parent = Some(*block);
        }
    }

    /// The open request that a call belongs to.
    fn find(&self, call: &Call, blocks: &[u64]) -> Option<usize> {
        let from_root = call.kind == CallKind::Reload && blocks.len() == call.blocks.len();
        let goes_on = |open: &Open| {
            let (shorter, longer) = if open.blocks.len() < blocks.len() {
                (open.blocks.as_slice(), blocks)
            } else {
                (blocks, open.blocks.as_slice())
            };
            longer.starts_with(shorter)
        };
        let fits = |open: &Open| match call.session {
            Some(_) if matches!(call.kind, CallKind::BeginTurn | CallKind::EndTurn) => {
                open.session == call.session
            }
            Some(_) => open.session == call.session && !(open.used && from_root) && goes_on(open),
            None => open.session.is_none() && open.client == call.client && !from_root && goes_on(open),
        };
        self.open.iter().rposition(fits)
    }

    fn begin(&mut self, call: &Call, blocks: Vec<u64>, used: bool) {
        self.open.push(Open {
            began_ms: call.at_ms,
            last_ms: call.at_ms,
            session: call.session,
            client: call.client,
            blocks,
            used,
        });
    }

    fn close_where(&mut self, over: impl Fn(&Open) -> bool, done: &mut impl FnMut(Assembled)) {
        let mut at = 0;
        while at < self.open.len() {
            if over(&self.open[at]) {
                let open = self.open.remove(at);
                self.close(open, done);
            } else {
                at += 1;
            }
        }
    }

    fn close(&mut self, open: Open, done: &mut impl FnMut(Assembled)) {
        if open.blocks.is_empty() {
            return;
        }
        let turn = open.session.map_or(0, |session| {
            if self.turns.len() > ASSEMBLE_PARENTS_MAX {
                self.turns.clear();
            }
            let turn = self.turns.entry(session).or_default();
            *turn += 1;
            *turn
        });
        done(Assembled { at_ms: open.began_ms, session: open.session, turn, blocks: open.blocks });
    }
}
