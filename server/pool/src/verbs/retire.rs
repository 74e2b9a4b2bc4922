//! Namespaces that retire: at the limit, one of the new one's tenant, or of the tenant with too many, makes
//! way. Owns: who goes, and dropping all of it in steps. Must not know: who asks for room, the catalog.
//!
//! Nobody finds a namespace that retires, so its sessions, pins and pages go in any order and at any pace,
//! leaves before what they hang on. Its place is free when its last operation in flight has ended.

use crate::Pool;
use crate::eviction::protections::Owner;
use crate::ids::{NONE, NamespaceIndex, Now};
use crate::limits::{NAMESPACE_SPARED_MS, NAMESPACES_RETIRING_MAX, RETIRE_STEPS_PER_CALL};
use crate::namespaces::gives_way::GivesWay;
use crate::namespaces::retiring::Retiring;
use crate::store::going::{Removal, Search};
use turnkv_proto::NamespaceId;

impl Pool {
    /// Begins to retire a namespace for a new one of a tenant: the one used longest ago, those first that
    /// hold nothing. A tenant that has no fewer than its equal share loses its own; for one that has fewer,
    /// the tenant with most loses one, or else anybody. None: all of these are in use (leased slots; or they
    /// hold something, were used a short while ago, and are not of a tenant with more than its share), or
    /// enough retire already.
    pub fn retire_oldest(&mut self, tenant: &str, now: Now) -> Option<NamespaceId> {
        let now = self.store.tick(now);
        if self.namespaces.retiring() >= NAMESPACES_RETIRING_MAX {
            return None;
        }
        let GivesWay { tenant: gives_way, is_own, has_too_many } =
            self.namespaces.gives_way(self.store.slots(), self.store.limits().namespaces_max, tenant)?;
        let candidate = |(ns, used): (NamespaceIndex, Now)| {
            let (at, class) = (ns.0, self.store.slots().class_at(ns.0));
            let named = self.sessions.len_of(ns) > 0 || self.store.protections().pins_of(ns) > 0;
            let holds = named || self.store.pages().live_of(at) > 0 || class.used > 0;
            let spared = holds && used.saturating_add(NAMESPACE_SPARED_MS) > now;
            let others = self.store.slots().tenant_of(at) != gives_way;
            let needed = class.leased > 0 || others && is_own || spared && (others || !has_too_many);
            (!needed).then_some((others, spared, holds, used, ns))
        };
        let (.., ns) = self.namespaces.open().filter_map(candidate).min()?;
        let id = self.namespaces.id(ns);
        self.namespaces.begin_to_retire(ns);
        Some(id)
    }

    /// Namespaces that retire.
    pub fn retiring(&self) -> usize {
        self.namespaces.retiring()
    }

    /// Drops some of what namespaces that retire still hold. True: there is more that could be dropped now.
    pub fn retire_step(&mut self) -> bool {
        self.store.call.begin();
        let mut steps = RETIRE_STEPS_PER_CALL;
        for _ in 0..self.namespaces.retiring() {
            let Some(mut next) = self.namespaces.next_retiring() else { return false };
            self.retire_sessions(&mut next, &mut steps);
            self.retire_pins(&mut next, &mut steps);
            self.retire_pages(&mut next, &mut steps);
            if steps == 0 {
                self.namespaces.put_back(next, true);
                return true;
            }
            if self.store.pages().live_of(next.ns.0) > 0 || self.store.slots().class_at(next.ns.0).used > 0 {
                self.namespaces.put_back(next, false); // what it waits for are operations in flight
                continue;
            }
            self.store.close_namespace(next.ns.0);
            self.namespaces.vacate(next.ns.0);
        }
        false
    }

    fn retire_sessions(&mut self, next: &mut Retiring, steps: &mut u32) {
        while *steps > 0 && self.sessions.len_of(next.ns) > 0 && next.sessions < self.sessions.end() {
            *steps -= 1;
            if self.sessions.namespace_at(next.sessions) == Some(next.ns) {
                self.sessions.forget(&mut self.store, next.sessions, false);
            }
            next.sessions += 1;
        }
    }

    fn retire_pins(&mut self, next: &mut Retiring, steps: &mut u32) {
        while *steps > 0
            && self.store.protections().pins_of(next.ns) > 0
            && next.protections < self.store.protections().end()
        {
            *steps -= 1;
            let pin = self.store.protections().pin_at(next.protections).filter(|(ns, _)| *ns == next.ns);
            if let Some((ns, pin)) = pin {
                self.store.unprotect(Owner::Pin(ns, pin));
            }
            next.protections += 1;
        }
    }

    fn retire_pages(&mut self, next: &mut Retiring, steps: &mut u32) {
        while *steps > 0 && self.store.pages().live_of(next.ns.0) > 0 {
            let at = next.page.take().and_then(|page| self.store.pages().resolve(page)).or_else(|| {
                let own =
                    |at: &u32| self.store.pages().is_live(*at) && self.store.pages()[*at].ns == next.ns.0;
                Some(next.pages).filter(|at| *at < self.store.pages().end()).filter(own)
            });
            let Some(index) = at else {
                if next.pages >= self.store.pages().end() {
                    return;
                }
                *steps -= 1;
                next.pages += 1;
                continue;
            };
            let child = self.store.pages()[index].first_child;
            if child != NONE {
                *steps -= 1;
                next.page = Some(self.store.pages().key(child));
                continue;
            }
            *steps = steps.saturating_sub(u32::from(self.store.pages().shards(index)));
            let parent = self.store.pages()[index].parent;
            self.store.remove_leaf(index, Removal::Dropped, Search::NONE);
            next.page = (parent != NONE).then(|| self.store.pages().key(parent));
        }
    }
}
