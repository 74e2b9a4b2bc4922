//! What only the archive has, for lookups, turns, prefetches and reloads; and what the archiver asks of the pool. Owns: when pages are asked
//! for, and the wait of a reload for them. Must not know: stores, queues.

use super::Engine;
use super::archived::{ArchivedIndex, ArchivedPage};
use super::reload::Wish;
use super::session::SessionKey;
use super::waits::Waits;
use crate::limits::{ARCHIVE_FOUND_MAX, ARCHIVE_LOOK_SLICES_MAX};
use std::collections::BTreeSet;
use std::time::Duration;
use turnkv_pool::{NamespaceIndex, RestingSession, RestingWalk};
use turnkv_proto::{BlockHash, Error, NamespaceId};

impl Engine {
    /// How many of these pages, which follow those that are here, only the archive has: they are on their way from now on. None
    /// where reloads do not wait for them.
    pub(super) fn archived_after(&self, namespace: &NamespaceId, hashes: &[BlockHash]) -> u32 {
        if hashes.is_empty() || !self.archived.may_find(|| self.now()) {
            return 0;
        }
        let count = self.archived.want_following(namespace, hashes, self.now());
        if self.archived.wait.is_zero() { 0 } else { count }
    }

    /// How many pages of a session only the archive has, of which so many leading ones are here: they are on their way from now on.
    pub(super) fn archived_of(&self, ns: NamespaceIndex, of: &SessionKey, here: u32) -> u32 {
        if !self.archived.may_find(|| self.now()) {
            return 0;
        }
        let now = self.now();
        let is_known = |index: &ArchivedIndex| index.session(&of.namespace, &of.session).is_some();
        // The index is let go of before the pool's lock is taken.
        let looks = here > 0 && is_known(&self.archived.index.read());
        let last = match looks {
            true => self.session_hashes(ns, &of.session).ok().and_then(|hashes| hashes.last().copied()),
            false => None,
        };
        let index = self.archived.index.read();
        let Some(session) = index.session(&of.namespace, &of.session) else { return 0 };
        let total = session.pages.len() as u32;
        // Where it went on from other pages than those that are archived, the others are of no use to it.
        if total <= here || here > 0 && !last.is_some_and(|last| session.has(here, &last)) {
            return 0;
        }
        let page = ArchivedPage { snapshot: session.snapshot, at: total - 1 };
        drop(index);
        if self.archived.want(&of.namespace, page, now) { total - here } else { 0 }
    }

    /// Sessions at rest that have at least so many pages and are idle for so long, or about to leave NVMe, of a part of the table: as
    /// many as are found in it, each with how many pages it has and the last of them.
    pub(crate) fn resting(
        &self,
        walk: &mut RestingWalk,
        pages_min: u32,
        idle: Duration,
    ) -> Vec<(SessionKey, u32, BlockHash)> {
        let (now, idle_ms) = (self.now(), idle.as_millis() as u64);
        let is_wanted = |one: &RestingSession| {
            one.info.pages >= pages_min && (one.info.idle_ms >= idle_ms || one.is_leaving)
        };
        let (mut found, mut slices) = (Vec::new(), 0);
        let core = self.decide_in_slices(|core| {
            slices += 1;
            core.pool.resting_some(walk, is_wanted, ARCHIVE_FOUND_MAX, &mut found, now)
                || found.len() >= ARCHIVE_FOUND_MAX
                || slices >= ARCHIVE_LOOK_SLICES_MAX
        });
        let key = |one: RestingSession| {
            let namespace = core.pool.namespace_desc(one.info.ns)?.id;
            Some((SessionKey { namespace, session: one.info.session }, one.info.pages, one.last))
        };
        found.into_iter().filter_map(key).collect()
    }

    /// How many leading ones of these pages are here.
    pub(crate) fn present_pages(
        &self,
        namespace: &NamespaceId,
        hashes: &[BlockHash],
    ) -> Result<usize, Error> {
        let ns = self.find_namespace(namespace)?;
        Ok(self.look(ns, hashes, self.now())?.present as usize)
    }

    /// The tenants of the namespaces that are open.
    pub(crate) fn open_tenants(&self) -> BTreeSet<String> {
        self.specs.tenants(|id| self.find_namespace(id).is_ok())
    }

    /// When something is to be done that waits so long from now on, on the engine's clock, in milliseconds.
    pub(crate) fn moment_after(&self, pause: Duration) -> u64 {
        self.now() + pause.as_millis() as u64
    }

    /// Whether a reload should wait for pages that only the archive has.
    pub(super) fn lacks_archived(&self, wish: &Wish<'_>) -> bool {
        let ask = wish.ask;
        let may_wait = ask.may_fetch && ask.wait_ms > 0 && !self.archived.wait.is_zero();
        if !may_wait || !self.archived.may_find(|| self.now()) {
            return false;
        }
        let now = self.now();
        // Most reloads are of what is here: the first page tells whether the archive knows of the chain at all.
        let is_known = ask
            .hashes
            .first()
            .is_some_and(|first| self.archived.index.read().find(&ask.namespace, first).is_some());
        let Some(found) = is_known.then(|| self.look(wish.ns, &ask.hashes, now).ok()).flatten() else {
            return false;
        };
        let missing = ask.hashes.get(found.present as usize..).unwrap_or_default();
        // What is on its way from another pool is nearer.
        let is_afar = missing.first().is_some_and(|first| self.waits_for_afar(wish, first));
        !missing.is_empty() && !is_afar && self.archived.want_following(&ask.namespace, missing, now) > 0
    }

    /// Waits for pages that only the archive has, as long as the caller would and no longer than was configured.
    pub(super) async fn archived_landed(&self, wish: &Wish<'_>) {
        if !self.lacks_archived(wish) {
            return;
        }
        let until = wish.deadline.min(self.clock.now() + self.archived.wait);
        let _waits = Waits::begin(&self.archived.waiting_reloads);
        loop {
            let mut landed = std::pin::pin!(self.archived.landed.notified());
            landed.as_mut().enable();
            if !self.lacks_archived(wish) || self.clock.until(until, landed).await.is_none() {
                return;
            }
        }
    }
}
