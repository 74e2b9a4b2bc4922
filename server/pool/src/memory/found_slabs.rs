//! Slabs whose memory another process left, and what their slots hold until a page has them. Owns: their way from set
//! aside to a namespace's, or to whoever has no other slab left; which slots changed what they hold, where somebody
//! keeps a table of that. Must not know: pages, whose they were.
//!
//! ```text
//!                take_in: its namespace is open
//!   set aside --------------------------------> a slab like any other; its slots are FOUND, held, or free
//!        \-- no other slab is empty: it gets fresh memory, and what was found in it is gone
//! ```

use crate::ids::{ClientId, NONE};
use crate::memory::slots::{Changes, SlotMeta, SlotState, Slots};

/// What a slab that is taken in has.
pub(crate) struct TakenIn<'a> {
    /// Slots with a page's bytes.
    pub(crate) found: &'a [u32],
    /// Slots that somebody may still be writing.
    pub(crate) held: &'a [u32],
}

impl Slots {
    /// From now on it is told which slots change what they hold.
    pub(crate) fn tell_changes(&mut self) {
        self.changes = Some(Changes::default());
    }

    /// Slots that hold something else, slots that others have mapped, and slabs that changed since the last call.
    pub(crate) fn take_changes(&mut self) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let Some(changes) = &mut self.changes else { return Default::default() };
        let Changes { slots, mapped, slabs, .. } = changes;
        (std::mem::take(slots), std::mem::take(mapped), std::mem::take(slabs))
    }

    /// Slots whose pages were used since the last call, in order, each with how often its page was read.
    pub(crate) fn take_uses(&mut self) -> Vec<(u32, u8)> {
        self.changes.as_mut().map(|changes| std::mem::take(&mut changes.used)).unwrap_or_default()
    }

    /// The page in a slot was used, and has been read so often.
    pub(crate) fn note_use(&mut self, slot: u32, reads: u8) {
        if let Some(changes) = &mut self.changes {
            changes.used.push((slot, reads));
        }
    }

    /// Who has a slot mapped.
    pub(crate) fn readers(&self, slot: u32) -> Vec<ClientId> {
        let readers = self.changes.as_ref().and_then(|changes| changes.readers.get(&slot));
        readers.map(|readers| readers.iter().map(|(client, _)| *client).collect()).unwrap_or_default()
    }

    /// Slots that somebody has mapped.
    pub(crate) fn mapped_slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.changes.iter().flat_map(|changes| changes.readers.keys().copied())
    }

    /// A slot holds something else from now on.
    pub(crate) fn note_change(&mut self, slot: u32) {
        if let Some(changes) = &mut self.changes {
            changes.slots.push(slot);
        }
    }

    /// A client may write a slot from now on, as long as its lease lasts.
    pub(crate) fn note_writer(&mut self, slot: u32, client: ClientId) {
        if let Some(changes) = &mut self.changes {
            changes.writers.insert(slot, client);
            changes.slots.push(slot);
        }
    }

    /// No lease is on a slot any more.
    pub(crate) fn note_unleased(&mut self, slot: u32) {
        if let Some(changes) = &mut self.changes
            && changes.writers.remove(&slot).is_some()
        {
            changes.slots.push(slot);
        }
    }

    /// Who may write a slot under a lease.
    pub(crate) fn writer(&self, slot: u32) -> Option<ClientId> {
        self.changes.as_ref()?.writers.get(&slot).copied()
    }

    /// A client has a slot mapped once more from now on (`true`), or once less.
    pub(crate) fn map(&mut self, slot: u32, client: ClientId, mapped: bool) {
        let slab = self.key(slot).slab;
        let this = self.slab_mut(slab);
        this.mapped = if mapped { this.mapped + 1 } else { this.mapped - 1 };
        let changed = this.mapped == u32::from(mapped);
        let Some(changes) = &mut self.changes else { return };
        changes.map(slot, client, mapped);
        if changed {
            changes.slabs.push(slab);
        }
    }

    /// At a start: a slab's memory is of this generation. `found`: it is another process's, and is set aside for the
    /// namespace whose pages are in it. `seen`: processes have slots of it mapped, so nobody else gets it.
    pub(crate) fn begin_slab(&mut self, slab: u32, generation: u32, found: bool, seen: bool) {
        (self.slab_mut(slab).generation, self.slab_mut(slab).seen) = (generation, seen);
        if found {
            self.set_aside(slab);
        }
    }

    /// At a start: a slab has no memory, and the last that it had was of this generation. It is not one of those of DRAM.
    pub(crate) fn begin_absent(&mut self, slab: u32, generation: u32) {
        self.empty.retain(|other| *other != slab);
        self.make_absent(slab, generation);
    }

    /// Slabs without pages whose memory another process left.
    pub(crate) fn aside(&self) -> &[u32] {
        &self.aside
    }

    /// Nobody has slots of a slab mapped any more that another process left.
    pub(crate) fn end_seen(&mut self, slab: u32) {
        self.slab_mut(slab).seen = false;
    }

    /// Whether a slab waits for the namespace of what was found in it.
    pub(crate) fn is_aside(&self, slab: u32) -> bool {
        self.aside().contains(&slab)
    }

    /// A slab that was set aside is a namespace's from now on.
    pub(crate) fn take_in(&mut self, slab: u32, class: u32, taken: &TakenIn<'_>) {
        let slots = taken.found.iter().chain(taken.held).map(|slot| slot + 1).max().unwrap_or(0);
        let mut metas = vec![SlotMeta::new(NONE, SlotState::Free); slots as usize];
        for (slots, state) in [(taken.found, SlotState::Found), (taken.held, SlotState::Doomed)] {
            for slot in slots {
                metas[*slot as usize].become_state(state);
            }
        }
        self.end_aside(slab, class, metas);
    }

    /// Whether a slot holds what another process left, and no page has it yet.
    pub(crate) fn is_found(&self, slot: u32) -> bool {
        let key = self.key(slot);
        let slab = self.slabs().get(key.slab as usize);
        slab.and_then(|slab| slab.metas.get(key.slot as usize))
            .is_some_and(|meta| meta.state() == SlotState::Found)
    }

    /// A found slot is a page's from now on.
    pub(crate) fn give_found(&mut self, slot: u32, owner: u32) {
        let meta = self.meta_mut(slot);
        debug_assert_eq!(meta.state(), SlotState::Found, "a slot has one page");
        meta.become_state(SlotState::Used);
        meta.owner = owner;
        self.touch(slot);
    }

    /// What a found slot holds is of no use: it is free.
    pub(crate) fn drop_found(&mut self, slot: u32) {
        if self.is_found(slot) {
            self.meta_mut(slot).become_state(SlotState::Used);
            self.disown(slot);
        }
    }

    /// An empty slab is for what was found in it.
    pub(super) fn set_aside(&mut self, slab: u32) {
        self.empty.retain(|other| *other != slab);
        self.aside.push(slab);
    }

    /// A slab that was set aside is cut for a namespace, and has these slots.
    pub(super) fn end_aside(&mut self, slab: u32, class: u32, metas: Vec<SlotMeta>) {
        self.aside.retain(|other| *other != slab);
        self.end_seen(slab);
        let (slot_bytes, tenant) =
            (self.classes[class as usize].slot_bytes, self.classes[class as usize].tenant);
        let this = &mut self.slabs[slab as usize];
        (this.class, this.tenant, this.metas, this.free_head, this.touched) =
            (class, tenant, metas, NONE, self.tick);
        for (at, meta) in this.metas.iter_mut().enumerate().rev() {
            match meta.state() {
                SlotState::Free => meta.owner = std::mem::replace(&mut this.free_head, at as u32),
                _ => this.used += 1,
            }
        }
        let used = u64::from(this.used);
        self.classes[class as usize].used += used;
        self.classes[class as usize].slabs += 1;
        self.used_bytes += used * slot_bytes;
        if used == 0 { self.put_back(slab) } else { self.relink(slab) }
    }
}
