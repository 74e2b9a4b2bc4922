//! DRAM that grows and shrinks. Owns: slabs that come and go in the plain world. Must not know: the pool's insides.

use super::*;

impl World {
    /// So many slabs there are to be from now on.
    pub fn resize(&mut self, slabs: u32) {
        self.pool.resize_dram(slabs, self.now);
    }

    /// Slabs come and go, as far as they can at once.
    pub fn follow_size(&mut self) {
        while let Some((slab, generation)) = self.pool.slab_to_make() {
            let before = self.generations.insert(slab, generation).unwrap_or(0);
            assert!(generation > before, "a slab that comes back has a new generation");
            self.memory.retain(|(other, _, _), _| *other != slab);
            self.pool.slab_made(slab);
        }
        for _ in 0..1000 {
            let shrunk = self.pool.shrink_some(self.now);
            self.note(shrunk);
            self.take_actions();
            self.pool.check().unwrap_or_else(|broken| panic!("{broken}"));
            for (slab, generation) in self.pool.take_left_slabs(2) {
                let before = self.generations.insert(slab, generation).unwrap_or(0);
                assert!(generation > before, "a slab that is gone has another generation");
                self.memory.retain(|(other, _, _), _| *other != slab);
            }
            match shrunk {
                Shrink::Now => {}
                Shrink::Soon => return,
                Shrink::Done => {
                    let stats = self.pool.stats();
                    assert_eq!(stats.dram_present_bytes, stats.dram_wanted_bytes);
                    return;
                }
            }
        }
        panic!("shrinking has no end");
    }
}
