//! Which tenant gives way to a new namespace. Owns: tenants' shares of the namespaces. Must not know: which of a
//! tenant's namespaces goes, and how.

use crate::memory::slots::Slots;
use crate::namespaces::table::Namespaces;
use std::collections::BTreeMap;

/// Which tenant gives way to a new namespace.
pub(crate) struct GivesWay {
    pub(crate) tenant: u32,
    /// It is the one that asks.
    pub(crate) is_own: bool,
    /// Others' shares are in what it has: it gives up what it uses, too.
    pub(crate) has_too_many: bool,
}

impl Namespaces {
    /// Who gives way to a new namespace of a tenant: itself, where it has no fewer than its equal share; else
    /// who has most.
    pub(crate) fn gives_way(&self, slots: &Slots, namespaces_max: u16, tenant: &str) -> Option<GivesWay> {
        let mut sizes: BTreeMap<u32, usize> = BTreeMap::new();
        for (ns, _) in self.open() {
            *sizes.entry(slots.tenant_of(ns.0)).or_default() += 1;
        }
        let own = sizes.iter().find(|(number, _)| self.tenant(**number) == tenant);
        let tenants = sizes.len() + usize::from(own.is_none());
        let share = (usize::from(namespaces_max) / tenants).max(1);
        if let Some((own, _)) = own.filter(|(_, has)| **has >= share) {
            return Some(GivesWay { tenant: *own, is_own: true, has_too_many: false });
        }
        let (has, fullest) = sizes.iter().map(|(number, has)| (*has, *number)).max()?;
        Some(GivesWay { tenant: fullest, is_own: false, has_too_many: has > share })
    }
}
