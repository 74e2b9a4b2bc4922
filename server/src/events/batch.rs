//! What one message says: changes that belong together are one event. Owns: vLLM's words for it. Must not know: who listens.
//!
//! A batch is the array [time, events, rank], an event a map whose `type` names it, as vLLM's `KVEventBatch` is. What vLLM has no
//! word for, whose pages these are and in which life of the server, is in `ownership`.

use super::pack::Pack;
use crate::config::PageNames;
use bytes::Bytes;
use turnkv_pool::{PageChange, PageTier};
use turnkv_proto::BlockHash;

/// Who tells, and how it names pages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Teller {
    /// This life of the server.
    pub(super) incarnation: u64,
    /// How pages are named.
    pub(super) names: PageNames,
}

/// The bytes of a message. `cleared`: what was known before is nothing any more.
pub(super) fn batch(time: f64, teller: Teller, cleared: bool, changes: &[PageChange]) -> Bytes {
    let groups: Vec<&[PageChange]> = changes.chunk_by(goes_on).collect();
    let mut pack = Pack::default();
    pack.array(3).fraction(time).array(groups.len() + usize::from(cleared));
    if cleared {
        pack.map(1).text("type").text("AllBlocksCleared");
    }
    for group in groups {
        teller.event(&mut pack, group);
    }
    pack.nothing();
    Bytes::from(pack.done())
}

/// Whether a change belongs to the same event as the one before it.
fn goes_on(before: &PageChange, change: &PageChange) -> bool {
    let same =
        before.namespace == change.namespace && before.tier == change.tier && before.here == change.here;
    same && (!change.here || change.parent == Some(before.hash))
}

impl Teller {
    fn event(self, pack: &mut Pack, group: &[PageChange]) {
        let Some(first) = group.first() else { return };
        let medium = match first.tier {
            PageTier::Dram => "CPU",
            PageTier::Nvme => "STORAGE",
        };
        pack.map(if first.here { 9 } else { 4 });
        pack.text("type").text(if first.here { "BlockStored" } else { "BlockRemoved" });
        pack.text("block_hashes").array(group.len());
        group.iter().for_each(|change| self.name(pack, &change.hash));
        if first.here {
            pack.text("parent_block_hash");
            match &first.parent {
                Some(parent) => self.name(pack, parent),
                None => drop(pack.nothing()),
            }
            // Pages are known by their names alone.
            pack.text("token_ids").array(0).text("block_size").number(first.page_tokens);
            pack.text("lora_id").nothing().text("lora_name").nothing();
        }
        let owner = format!("turnkv@{}@{}", self.incarnation, first.namespace);
        pack.text("medium").text(medium).text("ownership").text(&owner);
    }

    fn name(self, pack: &mut Pack, hash: &BlockHash) {
        let [.., a, b, c, d, e, f, g, h] = hash.0;
        match self.names {
            PageNames::Int => pack.wide(u64::from_be_bytes([a, b, c, d, e, f, g, h])),
            PageNames::Bytes => pack.bytes(&hash.0),
        };
    }
}

#[cfg(test)]
mod tests;
