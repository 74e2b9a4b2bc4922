//! A namespace's class of slots, from its first to its last. Owns: how it is made, closed and asked about. Must
//! not know: which slot is whose.

use super::Slots;
use super::class::SlotClass;
use super::returns::Returns;
use crate::ids::NONE;
use crate::limits::SLOT_ALIGN_BYTES;

impl Slots {
    /// How the next namespace's slots are cut. `shard_bytes` fits a slab.
    pub(crate) fn add_class(&mut self, shard_bytes: u64, tenant: u32) {
        let class = self.class(shard_bytes, tenant);
        self.classes.push(class);
    }

    /// The same for a namespace that has the place of one that retired.
    pub(crate) fn renew_class(&mut self, ns: u16, shard_bytes: u64, tenant: u32) {
        self.classes[usize::from(ns)] = self.class(shard_bytes, tenant);
    }

    /// A namespace retired: the slabs that were cut for it last are cut anew whoever has them next.
    pub(crate) fn close_class(&mut self, ns: u16) {
        debug_assert_eq!(self.classes[usize::from(ns)].used, 0, "nothing is left of it");
        for slab in self.slabs.iter_mut().filter(|slab| slab.class == u32::from(ns)) {
            slab.class = NONE;
            slab.metas = Vec::new();
            slab.returns = Returns::default();
            slab.free_head = NONE;
        }
    }

    /// Of so many tenants, those who have a namespace, or memory that was theirs last.
    pub(crate) fn tenants_in_use(&self, tenants: usize) -> Vec<bool> {
        let mut used = vec![false; tenants];
        let slabs = self.slabs.iter().map(|slab| slab.tenant);
        for tenant in self.classes.iter().map(|class| class.tenant).chain(slabs) {
            if let Some(used) = used.get_mut(tenant as usize) {
                *used = true;
            }
        }
        used
    }

    fn class(&self, shard_bytes: u64, tenant: u32) -> SlotClass {
        let slot_bytes = shard_bytes.next_multiple_of(SLOT_ALIGN_BYTES);
        let per_slab = (self.slab_bytes / slot_bytes) as u32;
        assert!(per_slab > 0, "a slot fits a slab");
        let (partial, slabs, used, idle, leased, evictions) = (NONE, 0, 0, 0, 0, 0);
        SlotClass { shard_bytes, slot_bytes, per_slab, tenant, partial, slabs, used, idle, leased, evictions }
    }

    /// Bytes of one shard of a namespace's pages.
    pub(crate) fn shard_bytes_of(&self, ns: u16) -> u64 {
        self.classes[usize::from(ns)].shard_bytes
    }

    /// Whose pages a namespace's are, as a number.
    pub(crate) fn tenant_of(&self, ns: u16) -> u32 {
        self.classes[usize::from(ns)].tenant
    }

    /// How slabs are cut for a namespace, and what it has of them.
    pub(crate) fn class_at(&self, ns: u16) -> &SlotClass {
        &self.classes[usize::from(ns)]
    }

    /// A page of a namespace is evicted, or stays instead of a newcomer.
    pub(crate) fn count_eviction(&mut self, ns: u16) {
        self.classes[usize::from(ns)].evictions += 1;
    }

    /// Whether a namespace has evicted so many pages since this was true last.
    pub(crate) fn comparison_is_due(&mut self, ns: u16, every: u32) -> bool {
        let class = &mut self.classes[usize::from(ns)];
        let due = class.evictions >= every;
        if due {
            class.evictions = 0;
        }
        due
    }

    /// Whether a namespace can have a slot without taking one from a page.
    pub(crate) fn has_free_slot(&self, ns: u16) -> bool {
        self.may_cut(u32::from(ns)) || self.free_of(self.class_at(ns)) > 0
    }

    /// Whether fewer slots than so many percent of a namespace's are free.
    pub(crate) fn is_below_watermark(&self, ns: u16, free_slots_percent: u8) -> bool {
        let class = self.class_at(ns);
        let per_slab = u64::from(class.per_slab);
        let free = self.free_of(class) + u64::from(self.spare()) * per_slab;
        class.slabs > 0 && free * 100 < u64::from(class.slabs) * per_slab * u64::from(free_slots_percent)
    }

    /// Free slots in slabs that are cut, of one namespace.
    fn free_of(&self, class: &SlotClass) -> u64 {
        u64::from(class.slabs) * u64::from(class.per_slab) - class.used - class.idle
    }
}
