//! The second tier of the plain world. Owns: writes, reclaim, prefetch and the device's end. Must not know: the pool's insides.

use super::*;

impl World {
    pub fn start_writes(&mut self, bytes: u64) {
        for write in self.pool.next_writes(bytes, self.now) {
            let node = (0..NODES).find(|node| hash(*node) == write.hash).unwrap();
            assert_eq!(write.parent, parent(node).map(hash));
            assert_eq!(self.memory.get(&self.address(write.slot)), Some(&(write.ns.0, node, write.shard)));
            let twice =
                |(other, _): &(WriteBehind, usize)| (other.page, other.shard) == (write.page, write.shard);
            assert!(!self.writes.iter().any(twice), "one write at a time");
            self.note(write);
            self.writes.push((write, node));
        }
    }

    pub fn finish_write(&mut self, at: usize, fail: bool) {
        if self.writes.is_empty() {
            return;
        }
        let (write, node) = self.writes.swap_remove(at % self.writes.len());
        let content = (write.ns.0, node, write.shard);
        assert_eq!(
            self.memory.get(&self.address(write.slot)),
            Some(&content),
            "bytes stay while they are written"
        );
        if fail {
            self.pool.write_failed(write.page, write.shard, self.now);
            return;
        }
        self.places += 1;
        let place = NvmePlace { segment: (self.places / 8) as u16, generation: 0, block: self.places };
        if self.pool.written(write.page, write.shard, place, self.now) {
            self.disk.insert(place, content);
        }
    }

    pub fn forget_below(&mut self, ns: u16, node: usize) {
        self.promised.retain(|(other, below)| *other != ns || !path(*below).contains(&node));
        self.pinned.retain(|(_, other, below)| *other != ns || !path(*below).contains(&node));
    }

    /// NVMe gave up a page and what hangs on it: what is left of these is in DRAM, and promised no more.
    fn forget_cold(&mut self, ns: u16, node: usize) {
        for below in (0..NODES).filter(|below| path(*below).contains(&node)) {
            let here = self.present(NamespaceIndex(ns, 0), below);
            assert!(
                !here || !self.is_kept(NamespaceIndex(ns, 0), below),
                "node {below} hangs on what left NVMe"
            );
            self.promised.remove(&(ns, below));
            self.off.insert((ns, below));
            self.pinned.retain(|(_, other, pinned)| here || (*other, *pinned) != (ns, below));
        }
    }

    pub fn reclaim(&mut self, at: usize) {
        let Some((place, content)) = self.disk.iter().nth(at % self.disk.len().max(1)).map(|(a, b)| (*a, *b))
        else {
            return;
        };
        let (ns, node, shard) = content;
        let id = self.pool.namespace_desc(NamespaceIndex(ns, 0)).unwrap().id;
        let verdict = self.pool.reclaim_verdict(&id, &hash(node), shard, place);
        self.note(verdict);
        match verdict {
            Reclaim::Dead => {}
            Reclaim::Cold(page) => {
                self.pool.drop_page(page);
                self.forget_cold(ns, node);
            }
            Reclaim::Hot(page) => {
                let rewrite = self.pool.rewrite(page, shard);
                self.note(rewrite);
                self.take_actions();
                if let Rewrite::Promotion(read) = rewrite {
                    self.start_read(read, content);
                }
            }
        }
    }

    pub fn prefetch(&mut self, space: usize, node: usize, shard: u16) {
        let (ns, shards) = self.spaces[space];
        let (nodes, shard) = (path(node), shard % shards);
        let hashes: Vec<BlockHash> = nodes.iter().map(|node| hash(*node)).collect();
        self.pool.touch_pages(ns, &hashes, self.now);
        let reads = self.pool.begin_promote(ns, &hashes, shard, &mut 0, self.now).unwrap();
        self.note(&reads);
        self.take_actions();
        for read in reads {
            let content = *self.disk.get(&read.place).expect("a place that was written");
            self.start_read(read, content);
        }
    }

    pub fn prefetch_due(&mut self, bytes: u64) {
        let reads = self.pool.next_prefetches(bytes, self.now);
        self.note(&reads);
        self.take_actions();
        for read in reads {
            let content = *self.disk.get(&read.place).expect("a place that was written");
            self.start_read(read, content);
        }
    }

    pub fn lose_nvme(&mut self) {
        let mut sweep = self.pool.nvme_lost();
        while !self.pool.lose_some(&mut sweep) {}
        self.nvme = false;
        self.disk.clear();
        self.notes.clear();
        self.promised.clear();
        self.pinned.clear();
    }
}
