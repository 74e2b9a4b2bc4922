//! When slots' pages are needed again. Owns: these times, and that they cost nothing until somebody tells one. Must not
//! know: pages, whose word it was.

/// The times of one slab's slots, in `RETURN_UNIT_MS`; of those beyond the end nothing is known. Most slabs have none.
#[derive(Default)]
pub(super) struct Returns(Vec<u32>);

impl Returns {
    pub(super) fn get(&self, slot: u32) -> u32 {
        self.0.get(slot as usize).copied().unwrap_or(0)
    }

    pub(super) fn set(&mut self, slot: u32, returns: u32) {
        match self.0.get_mut(slot as usize) {
            Some(known) => *known = returns,
            None if returns == 0 => {}
            None => {
                let more = slot as usize + 1 - self.0.len();
                if self.0.capacity() - self.0.len() < more {
                    self.0.reserve_exact(more + self.0.len() / 4);
                }
                self.0.resize(slot as usize + 1, 0);
                self.0[slot as usize] = returns;
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<u32>()
    }
}
