//! What is known of one slot, in eight bytes. Owns: how it is packed. Must not know: slabs, when a state changes.

/// What a slot is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum SlotState {
    Free,
    Used,
    /// Under a held lease, before anybody knows what page it will hold.
    Reserved,
    /// Another process left a page's bytes in it, which is not taken in yet.
    Found,
    /// Its page is gone, but a lease or an operation in flight still holds it.
    Doomed,
}

/// Bits of the state; operations in flight; leases: the rest.
const STATE_BITS: u32 = 3;
const IO_BITS: u32 = 4;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;
const ONE_IO: u32 = 1 << STATE_BITS;
const IO_MASK: u32 = (1 << IO_BITS) - 1;
const ONE_LEASE: u32 = 1 << (STATE_BITS + IO_BITS);

/// Leases that one slot can be under: more are not given.
pub(crate) const SLOT_LEASES_MAX: u32 = u32::MAX / ONE_LEASE;

/// One slot.
#[derive(Clone, Copy)]
pub(crate) struct SlotMeta {
    /// The entry whose bytes are here; of a free slot, the next free one.
    pub(crate) owner: u32,
    /// Its state, and who holds it.
    held: u32,
}

const _: () = assert!(size_of::<SlotMeta>() <= 8, "it is part of the price of a page");

impl SlotMeta {
    /// A slot that nobody holds.
    pub(crate) const fn new(owner: u32, state: SlotState) -> SlotMeta {
        SlotMeta { owner, held: state as u32 }
    }

    pub(crate) fn state(&self) -> SlotState {
        match self.held & STATE_MASK {
            1 => SlotState::Used,
            2 => SlotState::Reserved,
            3 => SlotState::Found,
            4 => SlotState::Doomed,
            _ => SlotState::Free,
        }
    }

    pub(in crate::memory) fn become_state(&mut self, state: SlotState) {
        self.held = self.held & !STATE_MASK | state as u32;
    }

    /// Leases on it, and operations in flight, as they are.
    pub(crate) fn leases(&self) -> u32 {
        self.held / ONE_LEASE
    }

    pub(crate) fn ios(&self) -> u32 {
        (self.held / ONE_IO) & IO_MASK
    }

    /// Whether a lease or an operation in flight keeps it from being given to another page.
    pub(crate) fn is_held(&self) -> bool {
        self.held > STATE_MASK
    }

    pub(super) fn add_lease(&mut self) {
        debug_assert!(self.leases() < SLOT_LEASES_MAX, "callers ask whether there is room for a lease");
        self.held += ONE_LEASE;
    }

    pub(super) fn drop_lease(&mut self) {
        debug_assert!(self.leases() > 0, "a lease ends once");
        self.held -= ONE_LEASE;
    }

    pub(super) fn add_io(&mut self) {
        debug_assert!(self.ios() < IO_MASK, "a slot is read into, or written, once at a time");
        self.held += ONE_IO;
    }

    pub(super) fn drop_io(&mut self) {
        debug_assert!(self.ios() > 0, "an operation ends once");
        self.held -= ONE_IO;
    }
}

#[cfg(test)]
mod tests;
