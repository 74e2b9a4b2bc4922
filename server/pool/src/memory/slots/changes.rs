//! What became of slots, until somebody asks. Owns: the lists of it. Must not know: what a slot holds.

use crate::ids::ClientId;
use hashbrown::HashMap;

/// What became of slots and slabs, for whoever keeps a table of it.
#[derive(Default)]
pub(crate) struct Changes {
    /// Slots that hold something else than before, or are held by somebody else.
    pub(in crate::memory) slots: Vec<u32>,
    /// Slabs that processes have mapped, or no longer have.
    pub(in crate::memory) slabs: Vec<u32>,
    /// Who may write a slot under a lease.
    pub(in crate::memory) writers: HashMap<u32, ClientId>,
}
