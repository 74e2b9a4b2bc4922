//! What was learned goes on in the next process: weights of the policy, curves, how fast engines prefill. Owns: when it is saved and
//! read, and how much of it at a time. Must not know: what it means (the pool does), rows.

use super::Engine;
use super::learner::LearnedSaves;
use crate::catalog::Catalog;
use crate::limits::{LEARNED_EVERY_FLUSHES, LEARNED_NAMESPACES_MAX, LEARNED_PER_FLUSH};
use turnkv_pool::NamespaceIndex;
use turnkv_transfer::checksum;

impl Engine {
    /// The pool goes on from what was learned of a namespace that was just opened, or of all of them (none), before its pages are
    /// taken in. What cannot be read begins anew.
    pub(super) fn learn_again(&self, ns: Option<NamespaceIndex>) {
        let Some(catalog) = &self.catalog else { return };
        let id = ns.and_then(|ns| self.decide().pool.namespace_desc(ns).map(|desc| desc.id));
        if id.is_some_and(|id| catalog.is_forgetting(&id)) {
            return;
        }
        let learned = match catalog.learned(id.as_ref()) {
            Ok(learned) => learned,
            Err(error) => {
                tracing::warn!(%error, "what was learned cannot be read: learning begins anew");
                None
            }
        };
        let now = self.now();
        let goes_on = learned.is_none_or(|learned| self.decide().pool.learn_again(ns, &learned, now));
        if !goes_on {
            let of = id.map_or_else(|| "all namespaces".to_owned(), |id| id.to_string());
            tracing::warn!(
                of,
                "learning begins anew: what was learned is of another version or policy, or damaged"
            );
        }
        if ns.is_none() {
            self.learned.lock().loaded = true;
        }
    }

    /// Now and then, saves what was learned of all namespaces together and of the next few.
    pub(super) fn save_learned(&self, catalog: &Catalog) {
        let mut saves = self.learned.lock();
        saves.flushes += 1;
        if saves.flushes >= LEARNED_EVERY_FLUSHES {
            saves.flushes = 0;
            self.save_some_learned(catalog, &mut saves, LEARNED_PER_FLUSH);
        }
    }

    /// Saves all of it: the server is leaving.
    pub(super) fn save_all_learned(&self, catalog: &Catalog) {
        let mut saves = self.learned.lock();
        saves.next = 0;
        for _ in (0..LEARNED_NAMESPACES_MAX).step_by(LEARNED_PER_FLUSH) {
            self.save_some_learned(catalog, &mut saves, LEARNED_PER_FLUSH);
            if saves.next == 0 {
                return;
            }
        }
    }

    /// The catalog was begun anew: all is to be written again.
    pub(super) fn save_learned_again(&self) {
        self.learned.lock().saved.clear();
    }

    fn save_some_learned(&self, catalog: &Catalog, saves: &mut LearnedSaves, most: usize) {
        if !saves.loaded {
            return;
        }
        let open = self.decide().pool.open_namespaces(LEARNED_NAMESPACES_MAX);
        let some = open.iter().skip(saves.next).take(most);
        saves.next = if saves.next + most < open.len() { saves.next + most } else { 0 };
        let mut rows = Vec::new();
        for ns in some.copied().map(Some).chain([None]) {
            // What is saved of it is still to be read.
            if ns.is_some_and(|ns| self.is_coming_back(ns)) {
                continue;
            }
            let (id, learned) = {
                let core = self.decide();
                let id = ns.and_then(|ns| core.pool.namespace_desc(ns).map(|desc| desc.id));
                (id, core.pool.learned(ns))
            };
            let Ok(learned) = learned else { continue };
            if saves.saved.get(&id) != Some(&checksum(&learned))
                && !id.is_some_and(|id| catalog.is_forgetting(&id))
            {
                rows.push((id, learned));
            }
        }
        match catalog.put_learned(&rows) {
            Ok(()) => {
                if saves.saved.len() > LEARNED_NAMESPACES_MAX {
                    saves.saved.clear();
                }
                saves.saved.extend(rows.into_iter().map(|(id, learned)| (id, checksum(&learned))));
            }
            Err(error) => tracing::debug!(%error, "what was learned is not saved yet"),
        }
    }
}
