//! A session whose next turn begins here, by the word of whoever routes, though its last one ended at another member: its pages come
//! before the turn does. Owns: when that is. Must not know: how pages come, whose pages make room.

use super::Engine;
use super::afar::Pull;
use super::lookup::PagesOf;
use super::prefetch::{Prefetch, PrefetchBegun, When};
use super::pull::{AtHome, NextTurn};
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
                let coming = coming.unwrap_or_else(|why| {
                    tracing::debug!(%why, "of a session only what is here is read ahead");
                    None
                });
                let coming = coming.unwrap_or_default();
                let ready = begun.ready.max(coming.ready);
                Ok(PrefetchBegun { started: begun.started + coming.started, ready })
            }
            (Err(error), Ok(Some(coming))) if error.kind == ErrorKind::SessionUnknown => Ok(coming),
            (Err(error), Err(why)) if error.kind == ErrorKind::SessionUnknown => Err(why),
            (Err(error), _) => Err(error),
        }
    }

    /// What is here already of a session that lives at another member, and what is on its way now; none: it does not live at one.
    ///
    /// # Errors
    /// It does, and none comes.
    async fn prefetch_afar(self: &Arc<Self>, ask: &Prefetch) -> Result<Option<PrefetchBegun>, Error> {
        let (session, ms) = match &ask.when {
            When::Now(PagesOf::Session(session)) => (session, 0),
            When::Within { session, ms } => (session, *ms),
            When::Now(PagesOf::Hashes(_)) => return Ok(None),
        };
        let Some(cluster) = self.cluster() else { return Ok(None) };
        let of = SessionKey { namespace: ask.namespace, session: session.clone() };
        let early = Duration::from_millis(ms).saturating_sub(PREFETCH_AFAR_AHEAD);
        if early.is_zero() && !self.is_draining() {
            return self.bring_ahead(&of).await;
        }
        let Where::Home { member, .. } = cluster.whereabouts(&of.namespace, &of.session, 0).await else {
            return Ok(None);
        };
        if self.is_draining() {
            let text = format!(
                "this pool is being emptied: the session stays at {}, have its next turn begin there or at another one",
                member.name
            );
            return Err(Error::new(ErrorKind::Draining, text));
        }
        let Some(place) = self.expected.place() else {
            tracing::debug!(
                session = session.as_str(),
                "too many sessions are waited with: this one comes with its turn"
            );
            return Ok(Some(PrefetchBegun::default()));
        };
        let engine = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(early).await;
            if let Err(why) = engine.bring_ahead(&of).await {
                tracing::debug!(%why, session = of.session.as_str(), "a session is not brought ahead of its turn");
            }
            drop(place);
        });
        Ok(Some(PrefetchBegun::default()))
    }

    /// Has pulled what is not here of a session that lives elsewhere, and read what is on NVMe here. Its home stays what it is until a
    /// turn begins here.
    async fn bring_ahead(self: &Arc<Self>, of: &SessionKey) -> Result<Option<PrefetchBegun>, Error> {
        let Some(cluster) = self.cluster() else { return Ok(None) };
        let found = tokio::time::timeout(FIND_TURN_WAIT, self.at_home(cluster, of, 0, NextTurn::Later)).await;
        let silent = |who: &str| {
            let text = format!("{who} does not say what it has of the session: ask again later, or compute");
            Error::new(ErrorKind::Unavailable, text)
        };
        match found {
            Ok(Some(AtHome::Named(from, pull))) => {
                let hashes = Arc::clone(&pull.hashes);
                let ns = self.find_namespace(&of.namespace)?;
                let here = self.promote_pages(ns, &hashes)?;
                self.afar.brought.note(of.namespace, of.session.clone(), from, hashes);
                let pull = Pull { session: None, tip: None, expected: true, ..pull };
                let started = here.started + self.pull(pull).unwrap_or(0);
                Ok(Some(PrefetchBegun { started, ..here }))
            }
            Ok(Some(AtHome::Silent(member, _))) => Err(silent(&member.name)),
            Ok(Some(AtHome::Goes(_) | AtHome::Lost(_)) | None) => Ok(None),
            Err(_) => Err(silent("its home")),
        }
    }
}
