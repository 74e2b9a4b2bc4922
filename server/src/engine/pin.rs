//! Pin, Unpin and Describe. Owns: the step from the wire to the pool's answers. Must not know: budgets.

use super::{Engine, malformed, refuse};
use turnkv_pool::Describing;
use turnkv_proto::{BlockHash, Error, NamespaceId, SessionId, unpack_hashes, wire};

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
        let namespace = core.pool.namespace_desc(ns).map(|desc| desc.id);
        drop(core);
        if let (Some(catalog), Some(namespace)) = (&self.catalog, namespace) {
            catalog.put_pin(&namespace, &hashes, pinned.ends_in_ms)?;
        }
        let pin = pinned.pin.0.to_vec().into();
        Ok(wire::PinReply { pages: pinned.pages, pin, ends_in_ms: pinned.ends_in_ms })
    }

    /// Ends a pin. Blocking, likewise.
    pub(crate) fn unpin(&self, ask: &wire::UnpinRequest) -> Result<wire::UnpinReply, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        let pin = BlockHash::parse_optional(&ask.pin).map_err(malformed)?;
        let pin = pin.ok_or_else(|| Error::invalid("Unpin names the page that Pin answered with"))?;
        let (found, namespace) = {
            let mut core = self.core();
            (core.pool.unpin(ns, &pin).map_err(refuse)?, core.pool.namespace_desc(ns).map(|desc| desc.id))
        };
        if let (Some(catalog), Some(namespace)) = (&self.catalog, namespace) {
            catalog.put_pin(&namespace, &[pin], 0)?;
        }
        Ok(wire::UnpinReply { found })
    }

    /// Removes pins from the catalog that ended by time.
    pub(super) fn remove_ended_pins(&self) {
        let Some(catalog) = &self.catalog else { return };
        let ended: Vec<(NamespaceId, BlockHash)> = {
            let mut core = self.core();
            let ended = core.pool.take_ended_pins();
            let id = |ns| core.pool.namespace_desc(ns).map(|desc| desc.id);
            ended.into_iter().filter_map(|(ns, pin)| Some((id(ns)?, pin))).collect()
        };
        if let Err(error) = catalog.remove_ended_pins(&ended) {
            tracing::warn!(%error, "pins that ended stay in the catalog until the next start");
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
        let engine = self.router.lock().home(ns, &session).unwrap_or_default().to_owned();
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
