//! What a lease allows, and how far it is: the states of the diagram in `leases`. Owns: what each of them means.
//! Must not know: which lease is in which.

/// What a lease allows, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseKind {
    Read,
    Write,
    /// A write lease past its deadline: its slots may still be written by whoever held it.
    Quarantined,
    /// Slots that a process has mapped: pages to read in place, and reserved slots to write.
    Held,
    /// A held lease that was not renewed in time. It is still mapped; a renewal makes it `Held` again.
    Unheard,
}

impl LeaseKind {
    /// Past its deadline, and its slots are not free.
    pub(crate) fn is_quarantined(self) -> bool {
        matches!(self, LeaseKind::Quarantined | LeaseKind::Unheard)
    }

    /// A process has its slots mapped.
    pub(crate) fn is_held(self) -> bool {
        matches!(self, LeaseKind::Held | LeaseKind::Unheard)
    }

    /// Time alone does not end it: whoever holds it may still write, or look at, its slots.
    pub(crate) fn is_lasting(self) -> bool {
        self != LeaseKind::Read
    }

    /// On slots to fill for pages that are in the index already.
    pub(crate) fn is_write(self) -> bool {
        matches!(self, LeaseKind::Write | LeaseKind::Quarantined)
    }
}
