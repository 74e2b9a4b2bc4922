//! What became of slots, until somebody asks. Owns: the lists of it. Must not know: what a slot holds.

use crate::ids::ClientId;
use hashbrown::HashMap;

/// What became of slots and slabs, for whoever keeps a table of it.
#[derive(Default)]
pub(crate) struct Changes {
    /// Slots that hold something else than before, or are held by somebody else.
    pub(in crate::memory) slots: Vec<u32>,
    /// Slots whose pages were used, in order, each with how often its page was read.
    pub(in crate::memory) used: Vec<(u32, u8)>,
    /// Slabs that processes have mapped, or no longer have.
    pub(in crate::memory) slabs: Vec<u32>,
    /// Who may write a slot under a lease.
    pub(in crate::memory) writers: HashMap<u32, ClientId>,
    /// Slots that other clients have mapped than before.
    pub(in crate::memory) mapped: Vec<u32>,
    /// Who has a slot mapped, and how often.
    pub(in crate::memory) readers: HashMap<u32, Vec<(ClientId, u32)>>,
}

impl Changes {
    /// A client has a slot mapped once more, or once less.
    pub(in crate::memory) fn map(&mut self, slot: u32, client: ClientId, mapped: bool) {
        let readers = self.readers.entry(slot).or_default();
        let known = readers.iter().position(|(reader, _)| *reader == client);
        let changed = match (known, mapped) {
            (Some(at), true) => {
                readers[at].1 += 1;
                false
            }
            (None, true) => {
                readers.push((client, 1));
                true
            }
            (Some(at), false) => {
                readers[at].1 -= 1;
                readers[at].1 == 0 && readers.swap_remove(at).1 == 0
            }
            (None, false) => false,
        };
        if readers.is_empty() {
            self.readers.remove(&slot);
        }
        if changed {
            self.mapped.push(slot);
        }
    }
}
