//! Pin, Unpin and Describe. Owns: the step from the wire to the pool's answers, and that a pin is saved before it is answered.
//! Must not know: budgets, rows.

use super::{Engine, malformed, refuse};
use turnkv_pool::{Describing, NamespaceIndex};
use turnkv_proto::{BlockHash, Error, ErrorKind, SessionId, unpack_hashes, wire};

impl Engine {
    /// Protects a prefix, given by its pages or as a session's. Blocking: it is in the catalog before the reply leaves.
    pub(crate) fn pin(&self, ask: &wire::PinRequest) -> Result<wire::PinReply, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        let mut hashes = unpack_hashes(&ask.hashes).map_err(malformed)?;
        if ask.session.is_empty() == hashes.is_empty() {
            return Err(Error::invalid("Pin names either the pages of a prefix or a session"));
        }
        if !ask.session.is_empty() {
            let session = SessionId::parse(&ask.session).map_err(malformed)?;
            hashes = self.session_hashes(ns, &session)?;
            hashes.truncate(if ask.pages == 0 { hashes.len() } else { ask.pages as usize });
            if hashes.is_empty() {
                return Err(Error::invalid("the session has no page to pin yet: end a turn of it first"));
            }
        }
        let now = self.now();
        let mut pinning = self.core().pool.begin_pin(ns, &hashes, ask.ttl_ms, now).map_err(refuse)?;
        let mut core = self.slices(|core| core.pool.pin_some(&mut pinning, &hashes));
        let pinned = core.pool.end_pin(pinning, now);
        drop(core);
        self.save_pin(ns, pinned.pin)?;
        let pin = pinned.pin.0.to_vec().into();
        Ok(wire::PinReply { pages: pinned.pages, pin, ends_in_ms: pinned.ends_in_ms })
    }

    /// Ends a pin. Blocking, likewise.
    pub(crate) fn unpin(&self, ask: &wire::UnpinRequest) -> Result<wire::UnpinReply, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        let pin = BlockHash::parse_optional(&ask.pin).map_err(malformed)?;
        let pin = pin.ok_or_else(|| Error::invalid("Unpin names the page that Pin answered with"))?;
        let found = self.core().pool.unpin(ns, &pin).map_err(refuse)?;
        self.save_pin(ns, pin)?;
        Ok(wire::UnpinReply { found })
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

    /// All that is known of one session.
    pub(crate) fn describe_session(&self, ask: &wire::DescribeRequest) -> Result<wire::DescribeReply, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        let session = SessionId::parse(&ask.session).map_err(malformed)?;
        let now = self.now();
        let mut describing = Describing::default();
        let core = self.try_slices(|core| core.pool.describe_some(ns, &session, &mut describing))?;
        let detail = core.pool.described(ns, &session, &describing, now).map_err(refuse)?;
        drop(core);
        let engine =
            self.router.lock().home(super::route::namespace(ns), &session).unwrap_or_default().to_owned();
        let info = &detail.info;
        Ok(wire::DescribeReply {
            info: Some(wire::SessionInfo {
                namespace: ask.namespace.clone(),
                session: ask.session.clone(),
                turn: info.turn,
                pages: info.pages,
                tail_tokens: info.tail_tokens,
                idle_ms: info.idle_ms,
                in_turn: info.in_turn,
            }),
            dram_pages: detail.dram_pages,
            nvme_pages: detail.nvme_pages,
            shared_pages: detail.shared_pages,
            protected_pages: detail.protected_pages,
            bytes: detail.bytes,
            tail: detail.tail.map_or(Vec::new(), |tail| tail.0.to_vec()).into(),
            returns_in_ms: detail.returns_in_ms.unwrap_or(0),
            forgotten_in_ms: detail.forgotten_in_ms,
            protected_for_ms: detail.protected_for_ms,
            priority: detail.priority,
            engine,
        })
    }
}
