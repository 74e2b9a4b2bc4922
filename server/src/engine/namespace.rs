//! Namespaces: opening and finding them, retiring those that nobody uses, bringing back what a restart has left. Owns: the step
//! from an id to the pool's index, and what the catalog is told of it. Must not know: sockets, segments.

use super::state::Return;
use super::{Engine, refuse};
use crate::access::TenantOf;
use crate::catalog::Loaded;
use crate::limits::RETIRE_CALLS_PER_TICK;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::sync::atomic::Ordering;
use turnkv_pool::limits::USES_PER_CALL_MAX;
use turnkv_pool::{Adoption, NamespaceDesc, NamespaceIndex, PageKey, PoolError, TenantNamespaces};
use turnkv_proto::{CheckedSpec, Error, ErrorKind, NamespaceId};

impl Engine {
    /// Opens a namespace: the same spec always gives the same id. What NVMe, and memory of the process before, have of it is there
    /// when the reply leaves, and before anybody finds it open; and it is in the catalog, if that works. At the limit one makes way: the tenant's own, where it has its share.
    pub(crate) fn open_namespace(&self, spec: &CheckedSpec) -> Result<(), Error> {
        let desc = describe(spec);
        if desc.shard_bytes > self.settings.dram.slab_bytes {
            let text = format!(
                "a page shard of {} bytes does not fit a slab of {}: set dram.slab_bytes to at least that",
                desc.shard_bytes, self.settings.dram.slab_bytes
            );
            return Err(Error::new(ErrorKind::Limit, text));
        }
        // Who opens it while somebody else does has what is found as well.
        let _turn = self.opening.lock();
        let opened = self.open_new(desc)?;
        self.note_spec(spec);
        self.archived.opened_bell.notify_one();
        if let Some(ns) = opened {
            self.learn_again(Some(ns));
            self.adopt(&[ns]);
            self.restore(ns);
            self.adopting.store(0, Ordering::Release);
            if let Some(catalog) = &self.catalog {
                catalog.put_namespace(spec);
            }
        }
        Ok(())
    }

    /// Opens a namespace in the pool. None: it is open already.
    fn open_new(&self, desc: NamespaceDesc) -> Result<Option<NamespaceIndex>, Error> {
        let now = self.now();
        let mut core = self.decide();
        if core.pool.use_namespace(&desc.id, now).is_some() {
            return Ok(None);
        }
        let opened = match core.pool.open_namespace(desc.clone()) {
            Err(PoolError::Limit(_)) => {
                let retired = core.pool.retire_oldest(&desc.tenant, now).ok_or_else(|| self.all_in_use())?;
                if let Some(catalog) = &self.catalog {
                    catalog.forget_namespace(retired);
                }
                self.metrics.retired_namespaces.increment(1);
                core.pool.retire_step(); // whoever opens many helps to clear up after them
                core.pool.open_namespace(desc)
            }
            opened => opened,
        };
        let ns = opened.map_err(refuse)?;
        self.adopting.store(u64::from(ns.0) + 1, Ordering::Release);
        self.comes_back(ns);
        Ok(Some(ns))
    }

    /// What is saved of a namespace is about to come back; said before anybody else finds it open.
    pub(super) fn comes_back(&self, ns: NamespaceIndex) {
        if self.catalog.is_some() {
            self.coming_back.lock().insert(ns, Return::Begun);
        }
    }

    /// What an open namespace is, in its owner's words.
    ///
    /// # Errors
    /// It is not open.
    pub(crate) fn namespace_spec(&self, id: &NamespaceId) -> Result<CheckedSpec, Error> {
        self.find_namespace(id)?;
        self.specs.find(id).ok_or_else(|| unknown_namespace(id))
    }

    fn note_spec(&self, spec: &CheckedSpec) {
        let specs_max = usize::from(self.settings.limits.namespaces_max);
        self.specs.note(spec, specs_max, |id| self.decide().pool.namespace(id).is_some());
    }

    fn all_in_use(&self) -> Error {
        let text = format!(
            "{} namespaces are open, and those that could make way are in use: try again when one is not, or raise limits.namespaces_max",
            self.settings.limits.namespaces_max
        );
        Error::new(ErrorKind::Limit, text)
    }

    /// Takes what NVMe has of namespaces into the index, a bounded number of pages under one lock: those written last come last,
    /// whose namespace ever they are of, so that they stay longest.
    fn adopt(&self, namespaces: &[NamespaceIndex]) -> u64 {
        let begin = |ns: &NamespaceIndex| {
            let mut core = self.decide();
            core.pool.begin_adoption(*ns).zip(core.pool.namespace_desc(*ns).cloned())
        };
        let begun = namespaces.iter().filter_map(begin).map(|(adoption, desc)| (adoption.plan(&desc), desc));
        let mut begun: Vec<(Adoption, NamespaceDesc)> = begun.collect();
        let next = |(at, (adoption, _)): (usize, &(Adoption, NamespaceDesc))| {
            Reverse((adoption.next_newest().unwrap_or(0), at))
        };
        let mut order: BinaryHeap<Reverse<(u64, usize)>> = begun.iter().enumerate().map(next).collect();
        while let Some(Reverse((_, at))) = order.pop() {
            let until = order.peek().map_or(u64::MAX, |Reverse((newest, _))| *newest);
            if self.decide().pool.adopt(&mut begun[at].0, until) {
                order.push(next((at, &begun[at])));
                std::thread::yield_now();
            }
        }
        let mut uses: Vec<(u64, PageKey)> =
            begun.iter_mut().flat_map(|(adoption, _)| adoption.take_uses()).collect();
        uses.sort_unstable_by_key(|(used, _)| *used);
        let pages: Vec<PageKey> = uses.into_iter().map(|(_, page)| page).collect();
        for some in pages.chunks(USES_PER_CALL_MAX) {
            self.decide().pool.use_again(some);
        }
        for (adoption, desc) in &begun {
            tracing::info!(namespace = %desc.id, pages = adoption.adopted(), "pages that were found are served");
        }
        begun.iter().map(|(adoption, _)| adoption.adopted()).sum()
    }

    /// Brings back what was saved, as far as it fits this server: those namespaces first whose pages are on NVMe. What does not
    /// fit waits: its pages are kept for a while, and so is what is saved of it.
    pub(super) fn bring_back(&self, loaded: Loaded) {
        let Some(catalog) = &self.catalog else { return };
        let mut specs = loaded.namespaces;
        specs.sort_by_cached_key(|spec| !self.decide().pool.has_strangers(&spec.id()));
        let mut opened_now = Vec::new();
        for spec in &specs {
            let opened = {
                let mut core = self.decide();
                let opened = core.pool.open_namespace(describe(spec));
                opened.inspect(|ns| self.comes_back(*ns))
            };
            match opened {
                Ok(ns) => {
                    self.note_spec(spec);
                    catalog.note_namespace(spec, true);
                    opened_now.push(ns);
                }
                Err(error) => tracing::warn!(
                    namespace = %spec.id(),
                    "a saved namespace is not opened ({error}): its pages are kept until it is, or their time is over"
                ),
            }
        }
        opened_now.iter().for_each(|ns| self.learn_again(Some(*ns)));
        let pages = self.adopt(&opened_now);
        let sessions: u64 = opened_now.into_iter().map(|ns| self.restore(ns)).sum();
        let unknown = |id: &NamespaceId| {
            let core = self.decide();
            core.pool.namespace(id).is_none() && !core.pool.has_strangers(id)
        };
        loaded.ids.into_iter().filter(unknown).for_each(|id| catalog.forget_namespace(id));
        let strangers = self.decide().pool.stats().stranger_extents;
        tracing::info!(pages, strangers, sessions, "recovered");
    }

    /// Drops some of what namespaces that retire still hold, and of what is kept for namespaces that nobody opens.
    pub(super) fn clear_namespaces(&self) {
        for _ in 0..RETIRE_CALLS_PER_TICK {
            if !self.decide().pool.retire_step() {
                break;
            }
        }
        let now = self.now();
        for _ in 0..RETIRE_CALLS_PER_TICK {
            let (more, gone) = {
                let mut core = self.decide();
                let (more, mut gone) = core.pool.forget_strangers(now);
                gone.retain(|id| core.pool.namespace(id).is_none());
                (more, gone)
            };
            for id in gone {
                tracing::info!(namespace = %id, "nobody opened this namespace for long: its pages are not kept any more");
                if let Some(catalog) = &self.catalog {
                    catalog.forget_namespace(id);
                }
            }
            if !more {
                break;
            }
        }
    }

    /// The open namespaces of some tenants.
    pub(super) fn namespaces_of(&self, tenants: &BTreeSet<String>) -> TenantNamespaces {
        let mut finding = TenantNamespaces::default();
        drop(self.decide_in_slices(|core| core.pool.find_of_tenants(tenants, &mut finding)));
        finding
    }

    /// The pool's index of a namespace that was opened. One whose pages are still being taken in is not open yet: nobody is to
    /// miss what is here, and who opens it waits for them.
    pub(super) fn find_namespace(&self, id: &NamespaceId) -> Result<NamespaceIndex, Error> {
        let now = self.now();
        let found = self.decide().pool.use_namespace(id, now);
        let found = found.filter(|ns| self.adopting.load(Ordering::Acquire) != u64::from(ns.0) + 1);
        found.ok_or_else(|| unknown_namespace(id))
    }
}

impl TenantOf for Engine {
    fn tenant_of(&self, namespace: &NamespaceId) -> Result<String, Error> {
        let ns = self.find_namespace(namespace)?;
        let tenant = self.decide().pool.namespace_desc(ns).map(|desc| desc.tenant.clone());
        tenant.ok_or_else(|| unknown_namespace(namespace))
    }
}

fn unknown_namespace(id: &NamespaceId) -> Error {
    Error::new(ErrorKind::NamespaceUnknown, format!("namespace {id} is not open here"))
}

/// What the pool must know of a namespace.
fn describe(spec: &CheckedSpec) -> NamespaceDesc {
    NamespaceDesc {
        id: spec.id(),
        tenant: spec.tenant().to_owned(),
        shard_bytes: spec.shard_bytes(),
        page_tokens: spec.page_tokens(),
        shards: spec.shards(),
    }
}
