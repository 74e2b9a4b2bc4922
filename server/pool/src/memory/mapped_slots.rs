//! Slots that a process maps before anybody knows which page they will hold. Owns: their way from a free slot
//! to a page's. Must not know: who maps them, pages.

use crate::ids::NONE;
use crate::memory::slots::{SlotState, Slots};

impl Slots {
    /// Takes a free slot for a page that is not known yet. The caller leases it at once.
    pub(crate) fn reserve(&mut self, class: u32) -> Option<u32> {
        let slot = self.claim(class, NONE)?;
        self.meta_mut(slot).become_state(SlotState::Reserved);
        Some(slot)
    }

    /// A reserved slot is a page's from now on.
    pub(crate) fn adopt(&mut self, slot: u32, owner: u32) {
        let meta = self.meta_mut(slot);
        debug_assert_eq!(meta.state(), SlotState::Reserved, "a slot has one page");
        meta.become_state(SlotState::Used);
        meta.owner = owner;
        self.touch(slot);
    }

    /// A slot that was reserved when its server ended is again, if nobody but its holder has it.
    pub(crate) fn reserve_again(&mut self, slot: u32) {
        let meta = self.meta_mut(slot);
        if (meta.state(), meta.leases(), meta.ios()) == (SlotState::Doomed, 1, 0) {
            meta.become_state(SlotState::Reserved);
        }
    }

    /// No page will come into a reserved slot: it is free when its lease ends. Other slots stay as they are.
    pub(crate) fn give_up_reserved(&mut self, slot: u32) {
        let meta = self.meta_mut(slot);
        if meta.state() == SlotState::Reserved {
            meta.become_state(SlotState::Doomed);
        }
    }
}
