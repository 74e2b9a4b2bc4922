//! Turns that begin here and ended elsewhere, and pages that come from there. Owns: asking where a session is, that it goes on here,
//! who has a prefix,
//! and the wait of a reload for the next page. Must not know: the directory, how pages travel.

use super::Engine;
use super::afar::Pull;
use super::brought::CameFrom;
use super::lookup::{Lookup, PagesOf};
use super::reload::Wish;
use super::second_copies::SecondCopy;
use super::session::{BeginTurn, SessionKey};
use super::waits::Waits;
use crate::cluster::{Cluster, MemberCard, NameAsk, Where};
use crate::limits::{
    FIND_TURN_SPARE, FIND_TURN_WAIT, PULL_PAGE_WAIT, PULL_PAGE_WAIT_PERCENT, SECOND_COPY_PERCENT_MAX,
};
use std::sync::Arc;
use std::time::Instant;
use tokio::task::{JoinHandle, spawn_blocking};
use turnkv_cluster::{MemberState, PrefixAsk, PullError, Tip};
use turnkv_pool::{Found, FromElsewhere, LIST_CHUNK_PAGES, ListStart, NamespaceIndex};
use turnkv_proto::{BlockHash, Error, NamespaceId, SessionId};

/// A session whose home is another member.
pub(super) enum AtHome {
    /// The caller goes there.
    Goes(Arc<MemberCard>),
    /// What it says of the session, and the pull of all its pages.
    Named(CameFrom, Pull),
    /// It does not answer: what it has is not known, but that it had so many turns.
    Silent(Arc<MemberCard>, u32),
    /// It is gone, after so many turns.
    Lost(u32),
}

/// Whether the session's next turn is why its home is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NextTurn {
    /// It begins now, here or, where the caller may go there, at the home.
    Begins { may_go: bool },
    /// It will begin here.
    Later,
}

/// Where a session's next turn is.
enum WentOn {
    /// Here, with what its home names, if it has one.
    Here,
    /// At its home.
    There(Arc<MemberCard>),
    /// Here, and what its home had in so many turns is out of reach.
    Lost(u32),
}

impl Engine {
    /// Before a turn begins here: where the session's last one ended, if that was not here, and its pages on their way from there.
    /// Bounded in time, however much its home names; the turn begins whatever it finds, unless that is a home to which the caller may go
    /// instead.
    pub(crate) async fn find_turn(self: &Arc<Self>, ask: &BeginTurn<'_>) -> Option<Arc<MemberCard>> {
        let cluster = self.cluster()?;
        let ns = self.find_namespace(&ask.of.namespace).ok()?;
        if self.afar.pages_of(&ask.of.namespace, &ask.of.session).is_some() {
            return None;
        }
        let home = tokio::time::timeout(FIND_TURN_WAIT, self.go_there(cluster, ns, ask)).await;
        let home = home.unwrap_or_else(|_| {
            tracing::debug!(
                session = ask.of.session.as_str(),
                "a session's home did not say in time what it has"
            );
            WentOn::Here
        });
        let brought = self.afar.brought.take(&ask.of.namespace, &ask.of.session);
        let ended = match home {
            WentOn::There(member) => return Some(member),
            WentOn::Here => 0,
            WentOn::Lost(turns) => turns,
        };
        // Of what its home named, what came before is here; and where the home says more of it, that is known already.
        if let Some(brought) = brought
            && self.turn_of(ns, &ask.of.session).is_none_or(|turn| turn < brought.from.turns)
        {
            let (engine, session) = (Arc::clone(self), ask.of.session.clone());
            done(spawn_blocking(move || {
                engine.goes_on_here(ns, &session, brought.from, &brought.hashes);
            }))
            .await;
        }
        if ended > 0
            && let Err(error) = self.decide().pool.count_turns(ns, &ask.of.session, ended, self.now())
        {
            tracing::debug!(%error, session = ask.of.session.as_str(), "its turns are counted anew");
        }
        None
    }

    /// Has what a session's home names pulled, and the session go on here. Returns the home instead, asking it nothing, where the caller
    /// may go there.
    async fn go_there(
        self: &Arc<Self>,
        cluster: &Cluster,
        ns: NamespaceIndex,
        ask: &BeginTurn<'_>,
    ) -> WentOn {
        let turn = NextTurn::Begins { may_go: ask.may_go };
        match self.at_home(cluster, &ask.of, ask.ended, turn).await {
            Some(AtHome::Goes(member)) => WentOn::There(member),
            Some(AtHome::Silent(_, turns) | AtHome::Lost(turns)) => WentOn::Lost(turns),
            Some(AtHome::Named(from, pull)) => {
                self.follow(ns, &ask.of.session, from, pull).await;
                WentOn::Here
            }
            None => WentOn::Here,
        }
    }

    /// Asks a session's home which pages it has, and the next one that it names, shortly before `FIND_TURN_WAIT` is over. None: its home is
    /// here, or nobody knows of one.
    /// A home that is being emptied takes no page of a turn, so nobody is sent to it.
    pub(super) async fn at_home(
        &self,
        cluster: &Cluster,
        of: &SessionKey,
        turns_known: u32,
        turn: NextTurn,
    ) -> Option<AtHome> {
        let SessionKey { namespace, session } = of;
        let until = Instant::now() + FIND_TURN_WAIT - FIND_TURN_SPARE;
        let (mut found, mut redirects) = (cluster.whereabouts(namespace, session, turns_known).await, 0);
        let mut silent = None;
        // `pull_failed` names no third one.
        while let Where::Home { member, tip } = found {
            if turn == (NextTurn::Begins { may_go: true }) && member.member.state == MemberState::Serving {
                return Some(AtHome::Goes(member));
            }
            let left = until.saturating_duration_since(Instant::now());
            let ask = NameAsk { namespace, session, turn_begins: turn != NextTurn::Later };
            match cluster.name_session(member.member.id, ask, left).await {
                Ok(named) => {
                    let pull = self.pull_of(of, (member, tip), named.hashes, named.tail_tokens);
                    let turns = named.turn.max(tip.turn);
                    let from = CameFrom { turns, waited_ms: named.waited_ms, begins: true };
                    return Some(AtHome::Named(from, Pull { redirects, ..pull }));
                }
                Err(error) => {
                    found = cluster.pull_failed(namespace, session, tip, error, redirects);
                    redirects += 1;
                    let is_silent = error == PullError::Unreachable;
                    silent = is_silent.then_some(AtHome::Silent(member, tip.turn));
                }
            }
        }
        if let Where::Lost(turns) = found { Some(AtHome::Lost(turns)) } else { silent }
    }

    /// A session goes on here, and has pulled what is not here. It may have very many pages, so this goes on beside whoever waits for it,
    /// and after they have stopped waiting.
    async fn follow(self: &Arc<Self>, ns: NamespaceIndex, session: &SessionId, from: CameFrom, pull: Pull) {
        let (engine, session) = (Arc::clone(self), session.clone());
        done(spawn_blocking(move || {
            engine.goes_on_here(ns, &session, from, &pull.hashes);
            engine.pull(pull);
        }))
        .await;
    }

    /// A session goes on here, with what is here of its list.
    pub(super) fn goes_on_here(
        &self,
        ns: NamespaceIndex,
        session: &SessionId,
        CameFrom { turns, waited_ms, begins }: CameFrom,
        hashes: &[BlockHash],
    ) {
        let (start, now) = (self.list_here(ns, None, hashes), self.now());
        let from = FromElsewhere { turns, pages: hashes.len() as u32, waited_ms, begins, start };
        match self.decide().pool.continue_session(ns, session, &from, now) {
            Ok(()) => self.remember(ns, session),
            Err(error) => {
                tracing::debug!(%error, session = session.as_str(), "a session does not go on here")
            }
        }
    }

    /// Before a lookup: who of the others has more of a prefix than is here, and that on its way from there. Bounded in time. True: it
    /// is to name its signposts, for there are too many others to ask each of them.
    pub(crate) async fn find_prefix(&self, ask: &Lookup) -> bool {
        let (Some(cluster), PagesOf::Hashes(hashes)) = (self.cluster(), &ask.pages) else { return false };
        if ask.only_here {
            return false;
        }
        let namespace = &ask.namespace;
        let Ok(ns) = self.find_namespace(namespace) else { return false };
        let Ok((found, coming)) = self.look_with_coming(ns, namespace, hashes) else { return false };
        let here = found.present as usize;
        if coming > 0 || here == hashes.len() {
            return false;
        }
        if !ask.only_posts && !cluster.asks_all() {
            return true;
        }
        let wanted = PrefixAsk {
            namespace: *namespace,
            hashes: hashes.clone(),
            only_posts: ask.only_posts,
            local: here,
            hint: None,
        };
        let Some((member, held)) = cluster.holder_of(wanted).await else { return false };
        // What was asked for may be a sample of the chain: its holder knows all of it.
        let Some(last) = held.checked_sub(1).and_then(|at| hashes.get(at)) else { return false };
        if let Ok(chain) = cluster.name_prefix(member.member.id, namespace, last).await {
            let pull = Pull::new(*namespace, chain, member);
            self.pull(pull);
        }
        false
    }

    /// The pull of a session from its home.
    pub(super) fn pull_of(
        &self,
        of: &SessionKey,
        (member, tip): (Arc<MemberCard>, Tip),
        hashes: Vec<BlockHash>,
        tail_tokens: u32,
    ) -> Pull {
        let (session, tip) = (Some(of.session.clone()), Some(tip));
        Pull { session, tail_tokens, tip, ..Pull::new(of.namespace, hashes, member) }
    }

    /// Has pulled what is not here. Returns how many pages that is; none: too many pulls wait.
    pub(super) fn pull(&self, mut pull: Pull) -> Option<u32> {
        pull.here = self.present_pages(&pull.namespace, &pull.hashes).unwrap_or(pull.hashes.len());
        let coming = (pull.hashes.len() - pull.here) as u32;
        (coming == 0 || self.afar.begin(pull)).then_some(coming)
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
        let (mut end, now) = (from, self.now());
        for chunk in hashes.chunks(LIST_CHUNK_PAGES as usize) {
            let mut core = self.decide();
            let Some(to) = core.pool.list_start(ns, end, chunk) else { break };
            core.pool.extend_list(ns, session, end, to, now);
            end = Some(to);
            if Some(&to.page()) != chunk.last() {
                break;
            }
        }
        self.remember(ns, session);
        end
    }

    /// How far the list of a pulled session is here.
    pub(crate) fn list_of(&self, namespace: &NamespaceId, hashes: &[BlockHash]) -> Option<ListStart> {
        self.list_here(self.find_namespace(namespace).ok()?, None, hashes)
    }

    /// How many leading ones of these pages are here, and how many that follow are on their way from another pool. A page that comes
    /// between the look for the one and that for the other is in neither: then both look again.
    pub(super) fn look_with_coming(
        &self,
        ns: NamespaceIndex,
        namespace: &NamespaceId,
        hashes: &[BlockHash],
    ) -> Result<(Found, u32), Error> {
        if !self.afar.has_any() {
            return Ok((self.look(ns, hashes, self.now())?, 0));
        }
        let mut found = self.look(ns, hashes, self.now())?;
        loop {
            let coming = self.afar.coming(namespace, &hashes[found.present as usize..]);
            if coming > 0 {
                return Ok((found, coming as u32));
            }
            let again = self.look(ns, hashes, self.now())?;
            if again.present <= found.present {
                return Ok((again, 0));
            }
            found = again;
        }
    }

    /// How many pages of a session, of which so many leading ones are here, are on their way from another pool.
    pub(super) fn afar_of(&self, of: &SessionKey, here: u32) -> u32 {
        self.afar.pages_of(&of.namespace, &of.session).map_or(0, |pages| (pages as u32).saturating_sub(here))
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

    /// Waits for the first page of a reload if another pool's pages are on their way, for a part of the time that the caller would: a pool
    /// that stands still leaves the rest of it to whoever has the page as well. It then takes what is here, and its caller asks again for
    /// the rest, which comes meanwhile.
    pub(super) async fn afar_landed(&self, wish: &Wish<'_>) {
        if !self.lacks_afar(wish) {
            return;
        }
        let now = self.clock.now();
        let share = wish.deadline.saturating_sub(now) * PULL_PAGE_WAIT_PERCENT / 100;
        let until = now + share.min(PULL_PAGE_WAIT);
        let _waits = Waits::begin(&self.afar.waiting_reloads);
        loop {
            let mut landed = std::pin::pin!(self.afar.landed.notified());
            landed.as_mut().enable();
            if !self.lacks_afar(wish) {
                return;
            }
            if self.clock.until(until, landed).await.is_none() {
                break;
            }
        }
        if let Some(first) = wish.ask.hashes.first().filter(|_| self.lacks_afar(wish)) {
            self.afar.waited_in_vain(&wish.ask.namespace, first);
        }
    }

    /// Bytes that second copies may take of memory like other pages.
    pub(crate) fn second_copy_bytes_max(&self) -> u64 {
        self.settings.dram.bytes / 100 * SECOND_COPY_PERCENT_MAX
    }

    /// All pages of a prefix are here, and so many bytes of them came from another member, which has them, too: unless somebody uses
    /// them here, they go first.
    pub(crate) fn second_copy_came(&self, pull: &Pull, bytes: u64) {
        let Some(last) = pull.hashes.last() else { return };
        let copy = SecondCopy { namespace: pull.namespace, last: *last, keep: pull.here as u32, bytes };
        // Looking at a page that another pull had brought was a use of it.
        self.goes_before_others(&copy);
        if bytes == 0 {
            return;
        }
        let beyond = self.afar.second_copies.came(copy, self.second_copy_bytes_max());
        beyond.iter().for_each(|copy| self.goes_before_others(copy));
    }

    fn goes_before_others(&self, copy: &SecondCopy) {
        let now = self.now();
        let mut core = self.decide();
        if let Some(ns) = core.pool.namespace(&copy.namespace) {
            core.pool.leave_prefix(ns, &copy.last, copy.keep, now);
        }
    }
}

/// Waits for what goes on beside its caller.
async fn done(went_on: JoinHandle<()>) {
    if let Err(error) = went_on.await {
        tracing::error!(%error, "a session that was found does not go on here");
    }
}
