//! Pin and Unpin. Owns: the verbs' order, and that a pin is saved before it is answered.
//! Must not know: budgets, rows.

use super::lookup::PagesOf;
use super::{Engine, refuse};
use crate::cluster::Where;
use crate::limits::PIN_AFAR_RETRY_MS;
use turnkv_pool::limits::PROTECTIONS_PER_TENANT_MAX;
use turnkv_pool::{NamespaceIndex, Pinned};
use turnkv_proto::{BlockHash, Error, ErrorKind, NamespaceId};

/// A prefix to be protected.
pub(crate) struct Pin {
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// Its pages from the first one on, or those of a session.
    pub(crate) prefix: PagesOf,
    /// Of a session: so many leading pages; none: all.
    pub(crate) pages: Option<usize>,
    /// For how long; 0: the pool's default.
    pub(crate) ttl_ms: u64,
    /// Another member is to have it too.
    pub(crate) second: bool,
}

/// What became of one.
#[derive(Clone, Debug)]
pub(crate) struct PinHere {
    /// As the pool says it.
    pub(crate) pinned: Pinned,
    /// The last page that is protected, or why none is.
    pub(crate) last: Result<BlockHash, NotPinned>,
}

/// Why no page is protected.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum NotPinned {
    /// The first page is not here.
    #[error("no page of it is here")]
    Absent,
    /// It is.
    #[error(
        "the tenant protects as much as it may already: limits.protected_percent of DRAM, in {PROTECTIONS_PER_TENANT_MAX} pins and sessions"
    )]
    Budget,
}

/// A protection to be ended.
pub(crate) struct Unpin {
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// The last page that was asked for.
    pub(crate) pin: BlockHash,
}

impl Engine {
    /// Before a session is pinned here: whether it is here. Bounded in time.
    ///
    /// # Errors
    /// It lives at another member, which is named, or what is to be pinned is on its way from there.
    pub(crate) async fn may_pin(&self, ask: &Pin) -> Result<(), Error> {
        let (PagesOf::Session(session), Some(cluster)) = (&ask.prefix, self.cluster()) else { return Ok(()) };
        let ns = self.find_namespace(&ask.namespace)?;
        let here = self.session_hashes(ns, session).map_or(0, |hashes| hashes.len());
        if let Some(all) = self.afar.pages_of(&ask.namespace, session) {
            let wanted = ask.pages.map_or(all, |pages| pages.min(all));
            if here >= wanted {
                return Ok(());
            }
            let text = format!(
                "{here} of the session's {wanted} pages are here, the others are on their way from another member: pin it when they have come"
            );
            return Err(Error::busy(PIN_AFAR_RETRY_MS, text));
        }
        if here > 0 {
            return Ok(());
        }
        match cluster.whereabouts(&ask.namespace, session, 0).await {
            Where::Home { member, .. } => {
                let text = format!(
                    "the session is at home at {} ({}): pin it there, or begin a turn of it here first",
                    member.name, member.endpoint
                );
                Err(Error::new(ErrorKind::SessionUnknown, text))
            }
            Where::Here | Where::Nowhere | Where::Lost(_) => Ok(()),
        }
    }

    /// Protects a prefix, given by its pages or as a session's. Blocking: it is in the catalog before the reply leaves.
    pub(crate) fn pin(&self, ask: &Pin) -> Result<PinHere, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        let all = self.hashes_of(ns, &ask.prefix)?;
        let mut hashes: &[BlockHash] = &all;
        if let PagesOf::Session(_) = ask.prefix {
            hashes = &hashes[..hashes.len().min(ask.pages.unwrap_or(usize::MAX))];
            if hashes.is_empty() {
                return Err(Error::invalid("the session has no page to pin yet: end a turn of it first"));
            }
        }
        let now = self.now();
        let mut pinning = self.decide().pool.begin_pin(ns, hashes, ask.ttl_ms, now).map_err(refuse)?;
        let mut core = self.decide_in_slices(|core| core.pool.pin_some(&mut pinning, hashes));
        let pinned = core.pool.end_pin(pinning, now);
        drop(core);
        self.save_pin(ns, pinned.pin)?;
        let last = (pinned.pages as usize).checked_sub(1).and_then(|at| hashes.get(at)).copied();
        let last = match last {
            Some(last) => Ok(last),
            None if self.count_held(&ask.namespace, &hashes[..hashes.len().min(1)])? == 0 => {
                Err(NotPinned::Absent)
            }
            None => Err(NotPinned::Budget),
        };
        Ok(PinHere { pinned, last })
    }

    /// How much longer a pin holds; none: there is none.
    pub(crate) fn pin_ends_in(&self, namespace: &NamespaceId, pin: &BlockHash) -> Option<u64> {
        let (ns, now) = (self.find_namespace(namespace).ok()?, self.now());
        self.decide().pool.pin_ends_in(ns, pin, now)
    }

    /// Ends a pin; says whether there was one. Blocking, likewise.
    pub(crate) fn unpin(&self, ask: &Unpin) -> Result<bool, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        let found = self.decide().pool.unpin(ns, &ask.pin).map_err(refuse)?;
        self.save_pin(ns, ask.pin)?;
        Ok(found)
    }

    /// Saves a pin as it is now: durably, if the catalog works, else as soon as it does.
    fn save_pin(&self, ns: NamespaceIndex, pin: BlockHash) -> Result<(), Error> {
        let Some(catalog) = &self.catalog else { return Ok(()) };
        let full = |what: &str| {
            let text = format!("{what}: the pin holds until the server restarts");
            Err(Error::new(ErrorKind::Internal, text))
        };
        if !catalog.mark_pin(ns, pin) {
            return full("the catalog cannot be written, and too many pins wait for it");
        }
        match self.save_pins(catalog, || catalog.take_marked_pin(ns, pin)) {
            Ok(unlisted) if unlisted > 0 => full("the catalog has no room for another list"),
            Ok(_) => Ok(()),
            // The catalog says what is wrong when it begins and when it is over.
            Err(error) => {
                tracing::debug!(%error, "a pin is not saved yet");
                Ok(())
            }
        }
    }
}
