//! Namespaces that retire: at the limit, the one that nobody has used for longest makes way for a new one.
//! Owns: who goes, and dropping all of it in steps. Must not know: who asks for room, the catalog.
//!
//! Nobody finds a namespace that retires, so its sessions, pins and pages go in any order and at any pace, leaves before what
//! they hang on. Its place is free when its last operation in flight has ended.

use crate::Pool;
use crate::entry::NONE;
use crate::ids::{NamespaceIndex, Now, PageKey};
use crate::limits::{NAMESPACE_SPARED_MS, NAMESPACES_RETIRING_MAX, RETIRE_STEPS_PER_CALL};
use crate::protection::Owner;
use crate::residency::Removal;
use turnkv_proto::NamespaceId;

/// A namespace that retires, and how far that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retiring {
    pub(crate) ns: NamespaceIndex,
    /// Sessions, then pins, then pages up to here are gone.
    sessions: u32,
    protections: u32,
    pages: u32,
    /// The page that is next, on the way down to a leaf or up from one.
    page: Option<PageKey>,
}

impl Pool {
    /// Begins to retire the namespace that was used longest ago, those first that hold nothing. None: all are in use (leased
    /// slots; or they hold something and were used a short while ago), or enough of them retire already.
    pub fn retire_oldest(&mut self, now: Now) -> Option<NamespaceId> {
        let now = self.tick(now);
        if self.namespaces.retiring.len() >= NAMESPACES_RETIRING_MAX {
            return None;
        }
        let candidate = |(ns, used): (NamespaceIndex, Now)| {
            let (at, class) = (ns.0, &self.slots.classes[usize::from(ns.0)]);
            let named = self.sessions.len_of(ns) > 0 || self.protections.pins_of(ns) > 0;
            let holds = named || self.pages.live_of(at) > 0 || class.used > 0;
            let needed = class.leased > 0 || holds && used.saturating_add(NAMESPACE_SPARED_MS) > now;
            (!needed).then_some((holds, used, ns))
        };
        let (_, _, ns) = self.namespaces.open().filter_map(candidate).min()?;
        let id = self.namespaces.id(ns);
        self.namespaces.close(ns);
        self.namespaces.retiring.push_back(Retiring {
            ns,
            sessions: 0,
            protections: 0,
            pages: 0,
            page: None,
        });
        Some(id)
    }

    /// Namespaces that retire.
    pub fn retiring(&self) -> usize {
        self.namespaces.retiring.len()
    }

    /// Drops some of what namespaces that retire still hold. True: there is more that could be dropped now.
    pub fn retire_step(&mut self) -> bool {
        self.begin_call();
        let mut steps = RETIRE_STEPS_PER_CALL;
        for _ in 0..self.namespaces.retiring.len() {
            let Some(mut next) = self.namespaces.retiring.pop_front() else { return false };
            self.retire_sessions(&mut next, &mut steps);
            self.retire_pins(&mut next, &mut steps);
            self.retire_pages(&mut next, &mut steps);
            if steps == 0 {
                self.namespaces.retiring.push_front(next);
                return true;
            }
            if self.pages.live_of(next.ns.0) > 0 || self.slots.classes[usize::from(next.ns.0)].used > 0 {
                self.namespaces.retiring.push_back(next); // what it waits for are operations in flight
                continue;
            }
            self.spared.forget(next.ns.0);
            self.policy.namespace_gone(next.ns.0);
            self.slots.close_class(next.ns.0);
            self.namespaces.vacate(next.ns.0);
        }
        false
    }

    fn retire_sessions(&mut self, next: &mut Retiring, steps: &mut u32) {
        while *steps > 0 && self.sessions.len_of(next.ns) > 0 && next.sessions < self.sessions.end() {
            *steps -= 1;
            if self.sessions.namespace_at(next.sessions) == Some(next.ns) {
                self.forget(next.sessions, false);
            }
            next.sessions += 1;
        }
    }

    fn retire_pins(&mut self, next: &mut Retiring, steps: &mut u32) {
        while *steps > 0 && self.protections.pins_of(next.ns) > 0 && next.protections < self.protections.end()
        {
            *steps -= 1;
            let pin = self.protections.pin_at(next.protections).filter(|(ns, _)| *ns == next.ns);
            if let Some((ns, pin)) = pin {
                self.unprotect(Owner::Pin(ns, pin));
            }
            next.protections += 1;
        }
    }

    fn retire_pages(&mut self, next: &mut Retiring, steps: &mut u32) {
        while *steps > 0 && self.pages.live_of(next.ns.0) > 0 {
            let at = next.page.take().and_then(|page| self.pages.resolve(page)).or_else(|| {
                let own = |at: &u32| self.pages.is_live(*at) && self.pages[*at].ns == next.ns.0;
                Some(next.pages).filter(|at| *at < self.pages.end()).filter(own)
            });
            let Some(index) = at else {
                if next.pages >= self.pages.end() {
                    return;
                }
                *steps -= 1;
                next.pages += 1;
                continue;
            };
            let child = self.pages[index].first_child;
            if child != NONE {
                *steps -= 1;
                next.page = Some(self.pages.key(child));
                continue;
            }
            *steps = steps.saturating_sub(u32::from(self.pages.shards(index)));
            let parent = self.pages[index].parent;
            self.remove_leaf(index, Removal::Dropped);
            next.page = (parent != NONE).then(|| self.pages.key(parent));
        }
    }
}
