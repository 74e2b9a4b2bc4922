//! Turns that begin here and ended elsewhere, and pages that come from there. Owns: asking where a session is, that it goes on here,
//! and the wait of a reload for the next page. Must not know: the directory, how pages travel.

use super::Engine;
use super::afar::Pull;
use super::reload::Wish;
use super::session::{BeginTurn, SessionKey};
use super::waits::Waits;
use crate::cluster::{Cluster, MemberCard, Where};
use crate::limits::PULL_PAGE_WAIT;
use std::sync::Arc;
use turnkv_cluster::Tip;
use turnkv_pool::{LIST_CHUNK_PAGES, ListStart, NamespaceIndex};
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

/// What a session's home has of it.
pub(crate) struct HomeOf {
    /// Who.
    pub(crate) member: Arc<MemberCard>,
    /// As the directory has it.
    pub(crate) tip: Tip,
    /// Members that were asked before.
    pub(crate) redirects: u32,
}

impl Engine {
    /// Before a turn begins here: where the session's last one ended, if that was not here, and its pages on their way from there.
    /// Bounded in time; whatever it finds, the turn begins.
    pub(crate) async fn find_turn(&self, ask: &BeginTurn<'_>) {
        let Some(cluster) = self.cluster() else { return };
        let Ok(ns) = self.find_namespace(&ask.of.namespace) else { return };
        if self.afar.pages_of(&ask.of).is_some() {
            return;
        }
        let SessionKey { namespace, session } = &ask.of;
        let here = self.turn_of(ns, session).unwrap_or(0);
        let found = cluster.whereabouts(namespace, session, ask.ended.max(here)).await;
        self.go_there(cluster, ns, &ask.of, found, 0).await;
    }

    /// Asks a home which pages it has, and the next one that it names; has them pulled.
    pub(crate) async fn go_there(
        &self,
        cluster: &Cluster,
        ns: NamespaceIndex,
        of: &SessionKey,
        mut found: Where,
        mut redirects: u32,
    ) {
        let SessionKey { namespace, session } = of;
        // `pull_failed` names no third one.
        while let Where::Home { member, tip } = found {
            let named = match cluster.name_session(member.member.id, namespace, session).await {
                Ok(named) => named,
                Err(error) => {
                    found = cluster.pull_failed(namespace, session, tip, error, redirects);
                    redirects += 1;
                    continue;
                }
            };
            let turns = named.turn.max(tip.turn);
            if self.goes_on_here(ns, session, turns, &named.hashes) {
                let home = HomeOf { member, tip, redirects };
                self.pull_session(of, turns, home, named.hashes, named.tail_tokens);
            }
            return;
        }
    }

    /// A session goes on here after so many turns, with what is here of its list. False: it has had a later one here.
    fn goes_on_here(
        &self,
        ns: NamespaceIndex,
        session: &SessionId,
        turns: u32,
        hashes: &[BlockHash],
    ) -> bool {
        let (start, now) = (self.list_here(ns, None, hashes), self.now());
        let goes_on = self.decide().pool.continue_session(ns, session, turns, start, now);
        if matches!(goes_on, Ok(true)) {
            self.remember(ns, session);
        }
        goes_on.unwrap_or(false)
    }

    fn pull_session(
        &self,
        of: &SessionKey,
        turns: u32,
        home: HomeOf,
        hashes: Vec<BlockHash>,
        tail_tokens: u32,
    ) {
        let here = self.present_pages(&of.namespace, &hashes).unwrap_or(hashes.len());
        if here < hashes.len() {
            let HomeOf { member, tip, redirects } = home;
            self.afar.begin(Pull {
                id: 0,
                namespace: of.namespace,
                session: Some((of.clone(), turns)),
                hashes: hashes.into(),
                here,
                tail_tokens,
                member,
                tip: Some(tip),
                redirects,
            });
        }
    }

    /// How far a list is here that goes on from a page that is.
    fn list_here(
        &self,
        ns: NamespaceIndex,
        mut from: Option<ListStart>,
        hashes: &[BlockHash],
    ) -> Option<ListStart> {
        for chunk in hashes.chunks(LIST_CHUNK_PAGES as usize) {
            let Some(next) = self.decide().pool.list_start(ns, from, chunk) else { break };
            from = Some(next);
            if Some(&next.page()) != chunk.last() {
                break;
            }
        }
        from
    }

    /// Pages of a session came: its list goes on with them, unless its turn has made another one of it. Returns how far it is here.
    pub(crate) fn list_grew(
        &self,
        namespace: &NamespaceId,
        session: &SessionId,
        from: Option<ListStart>,
        hashes: &[BlockHash],
    ) -> Option<ListStart> {
        let Ok(ns) = self.find_namespace(namespace) else { return from };
        let (to, now) = (self.list_here(ns, from, hashes)?, self.now());
        self.decide().pool.extend_list(ns, session, from, to, now);
        self.remember(ns, session);
        Some(to)
    }

    /// How far the list of a pulled session is here.
    pub(crate) fn list_of(&self, namespace: &NamespaceId, hashes: &[BlockHash]) -> Option<ListStart> {
        self.list_here(self.find_namespace(namespace).ok()?, None, hashes)
    }

    /// How many of these pages, which follow those that are here, are on their way from another pool.
    pub(super) fn afar_after(&self, namespace: &NamespaceId, hashes: &[BlockHash]) -> u32 {
        self.afar.coming(namespace, hashes) as u32
    }

    /// How many pages of a session, of which so many leading ones are here, are on their way from another pool.
    pub(super) fn afar_of(&self, of: &SessionKey, here: u32) -> u32 {
        self.afar.pages_of(of).map_or(0, |pages| (pages as u32).saturating_sub(here))
    }

    /// Whether the first page of a reload is on its way from another pool and not here yet.
    pub(super) fn lacks_afar(&self, wish: &Wish<'_>) -> bool {
        let first = &wish.ask.hashes[..wish.ask.hashes.len().min(1)];
        let is_coming = first.iter().any(|first| self.waits_for_afar(wish, first));
        is_coming && self.look(wish.ns, first, self.now()).is_ok_and(|found| found.present == 0)
    }

    /// Whether a reload waits for this page, if it is not here.
    pub(super) fn waits_for_afar(&self, wish: &Wish<'_>, page: &BlockHash) -> bool {
        wish.ask.may_fetch && wish.ask.wait_ms > 0 && self.afar.is_coming(&wish.ask.namespace, page)
    }

    /// Waits for the first page of a reload if another pool's pages are on their way, as long as the caller would. It then takes what
    /// is here, and its caller asks again for the rest, which comes meanwhile.
    pub(super) async fn afar_landed(&self, wish: &Wish<'_>) {
        if !self.lacks_afar(wish) {
            return;
        }
        let until = wish.deadline.min(self.clock.now() + PULL_PAGE_WAIT);
        let _waits = Waits::begin(&self.afar.waiting_reloads);
        loop {
            let mut landed = std::pin::pin!(self.afar.landed.notified());
            landed.as_mut().enable();
            if !self.lacks_afar(wish) || self.clock.until(until, landed).await.is_none() {
                return;
            }
        }
    }
}
