//! A session whose next turn begins here, by the word of whoever routes, though its last one ended at another member: its pages come
//! before the turn does. Owns: when that is. Must not know: how pages come, whose pages make room.

use super::Engine;
use super::afar::Pull;
use super::lookup::PagesOf;
use super::prefetch::{Prefetch, PrefetchBegun, When};
use super::pull::AtHome;
use super::session::SessionKey;
use crate::cluster::Where;
use crate::limits::{FIND_TURN_WAIT, PREFETCH_AFAR_AHEAD};
use std::sync::Arc;
use std::time::Duration;
use turnkv_proto::{Error, ErrorKind};

impl Engine {
    /// Brings a session's pages, or the given ones, into DRAM, now or by a time, from another member where its last turn ended there.
    /// Nobody waits for pages; that member is asked for their names, within `FIND_TURN_WAIT`.
    pub(crate) async fn prefetch_from_anywhere(
        self: &Arc<Self>,
        ask: &Prefetch,
    ) -> Result<PrefetchBegun, Error> {
        let coming = self.prefetch_afar(ask).await;
        match (self.prefetch(ask), coming) {
            (Ok(begun), coming) => {
                Ok(PrefetchBegun { started: begun.started + coming.unwrap_or(0), ..begun })
            }
            // Not here, and so nothing of it in DRAM.
            (Err(error), Some(started)) if error.kind == ErrorKind::SessionUnknown => {
                Ok(PrefetchBegun { started, ready: 0 })
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Pages that are on their way from another member now; none: the session does not live at one.
    async fn prefetch_afar(self: &Arc<Self>, ask: &Prefetch) -> Option<u32> {
        let (session, ms) = match &ask.when {
            When::Now(PagesOf::Session(session)) => (session, 0),
            When::Within { session, ms } => (session, *ms),
            When::Now(PagesOf::Hashes(_)) => return None,
        };
        let cluster = self.cluster()?;
        let of = SessionKey { namespace: ask.namespace, session: session.clone() };
        let early = Duration::from_millis(ms).saturating_sub(PREFETCH_AFAR_AHEAD);
        if early.is_zero() {
            return self.bring_ahead(&of).await;
        }
        let Where::Home { .. } = cluster.whereabouts(&of.namespace, &of.session, 0).await else {
            return None;
        };
        let Some(place) = self.expected.place() else {
            tracing::debug!(
                session = session.as_str(),
                "too many sessions are waited with: this one comes with its turn"
            );
            return Some(0);
        };
        let engine = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(early).await;
            engine.bring_ahead(&of).await;
            drop(place);
        });
        Some(0)
    }

    /// Has pulled what is not here of a session that lives elsewhere. Its home stays what it is until a turn begins here.
    async fn bring_ahead(&self, of: &SessionKey) -> Option<u32> {
        let found = self.at_home(self.cluster()?, of, 0, false);
        let AtHome::Named(_, pull) = tokio::time::timeout(FIND_TURN_WAIT, found).await.ok()?? else {
            return None;
        };
        Some(self.pull(Pull { session: None, tip: None, expected: true, ..pull }).unwrap_or(0))
    }
}
