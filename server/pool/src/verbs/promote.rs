//! Promotion by name: pages of a prefix that are read into DRAM before anybody asks for them. Owns: the
//! verbs. Must not know: how reads are done, sessions.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now};
use crate::index::flags::{FILLED, PROMOTING};
use crate::limits::PROMOTIONS_PER_CALL_MAX;
use crate::store::promote::Promotion;
use crate::verbs::offload::check_ask;
use turnkv_proto::{BlockHash, Shards};

impl Pool {
    /// Counts pages as used that are here, tails before heads: what is in DRAM already must not make room for
    /// the rest of its prefix.
    pub fn touch_pages(&mut self, ns: NamespaceIndex, hashes: &[BlockHash], now: Now) {
        self.store.tick(now);
        for hash in hashes.iter().rev() {
            self.store.call.step();
            if let Some(index) = self.find_page(ns, hash) {
                self.store.touch(index);
            }
        }
    }

    /// Plans reads of pages of a prefix, from position `from` on, that are on NVMe only, without a lease.
    /// Stops where one is not here, where slots end, or at a bound of its own, and says in `from` where to go
    /// on. Slabs may have changed tenant: renew them (`take_effects`) before starting the reads.
    pub fn begin_promote(
        &mut self,
        ns: NamespaceIndex,
        hashes: &[BlockHash],
        shard: u16,
        from: &mut usize,
        now: Now,
    ) -> Result<Vec<Promotion>, PoolError> {
        check_ask(hashes, Shards::one(shard), self.namespaces.desc(ns)?.shards)?;
        self.store.tick(now);
        let slice = self.store.call.slice();
        let mut promotions = Vec::new();
        while let Some(hash) = hashes.get(*from).filter(|_| promotions.len() < PROMOTIONS_PER_CALL_MAX) {
            if self.store.call.is_over(slice) {
                break;
            }
            self.store.call.step();
            let Some(index) = self.store.pages().find_visible(ns.0, hash) else {
                *from = hashes.len();
                break;
            };
            if !self.store.pages().cell(index, shard).has(FILLED | PROMOTING) {
                let Some(promotion) = self.store.start_promotion(index, shard, None) else {
                    *from = hashes.len();
                    break;
                };
                promotions.push(promotion);
            }
            *from += 1;
        }
        for promotion in promotions.iter().rev() {
            self.store.touch(promotion.page.index);
        }
        Ok(promotions)
    }
}
