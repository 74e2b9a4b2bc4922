//! Pins of shared prefixes, and one session in full. Owns: one method a verb. Must not know: pages' bytes.

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::session::{SessionInfo, count, named, packed};
use turnkv_proto::{BlockHash, wire};

/// For how long a prefix is pinned, and where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PinFor {
    /// Milliseconds; 0: an hour.
    pub ttl_ms: u64,
    /// Another member of the pool's cluster has it too: it is found there when the pool's host is gone.
    pub second_copy: bool,
}

impl PinFor {
    /// So many milliseconds, at this pool.
    pub const fn ms(ttl_ms: u64) -> PinFor {
        PinFor { ttl_ms, second_copy: false }
    }
}

/// What a pin reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// Leading pages protected: fewer than asked where they are absent, or the tenant's budget ends.
    pub pages: usize,
    /// Names the pin: the last page asked for.
    pub pin: BlockHash,
    /// When it ends by itself, unless it is pinned again.
    pub ends_in_ms: u64,
    /// Where its second copy is, if it was to have one, or why there is none: pin it again to try again.
    pub second: Option<std::result::Result<String, String>>,
}

/// All that the pool knows of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionDetail {
    /// What a list of sessions says of it.
    pub info: SessionInfo,
    /// Of its present pages, those in DRAM.
    pub dram_pages: usize,
    /// Of its present pages, those on NVMe; most are in DRAM as well.
    pub nvme_pages: usize,
    /// Leading pages that another session or branch shares.
    pub shared_pages: usize,
    /// Leading pages that give way last, by its priority.
    pub protected_pages: usize,
    /// Bytes of its present pages.
    pub bytes: u64,
    /// Its partial tail.
    pub tail: Option<BlockHash>,
    /// When it is expected back; 0: not told, or that time has passed.
    pub returns_in_ms: u64,
    /// When it is forgotten, unless something is heard of it.
    pub forgotten_in_ms: u64,
    /// When its protection ends.
    pub protected_for_ms: u64,
    /// What its owner said.
    pub priority: u32,
    /// Who ran its last turn, if that was said and is still known.
    pub engine: Option<String>,
}

impl Namespace {
    /// Protects a prefix from its first page on, for a time. Pinning it again renews it.
    pub async fn pin(&self, hashes: &[BlockHash], how: PinFor) -> Result<Pinned> {
        let request = wire::PinRequest { hashes: packed(hashes)?, ..Default::default() };
        self.pin_request(None, request, how).await
    }

    /// Protects the leading `pages` pages of a session (`None`: all of them).
    pub async fn pin_session(&self, session: &str, pages: Option<usize>, how: PinFor) -> Result<Pinned> {
        if pages == Some(0) {
            return Err(Error::invalid("a pin of no page protects nothing"));
        }
        let (session_name, pages) = (named(session)?, count(pages.unwrap_or(0))?);
        let request = wire::PinRequest { session: session_name, pages, ..Default::default() };
        self.pin_request(Some(session), request, how).await
    }

    async fn pin_request(
        &self,
        session: Option<&str>,
        what: wire::PinRequest,
        how: PinFor,
    ) -> Result<Pinned> {
        let copies = if how.second_copy { 2 } else { 1 };
        let request = wire::PinRequest { namespace: self.wire_id(), ttl_ms: how.ttl_ms, copies, ..what };
        let reply = self.tell(session, |mut client, r| async move { client.pin(r).await }, request).await?;
        let pin = BlockHash::parse_optional(&reply.pin).map_err(Error::protocol)?;
        let pin = pin.ok_or_else(|| Error::protocol("the reply to Pin names no pin"))?;
        let second = how.second_copy.then_some(match reply.second_at {
            name if !name.is_empty() => Ok(name),
            _ if reply.no_second.is_empty() => Err("the pool is of a version that makes none".to_owned()),
            _ => Err(reply.no_second),
        });
        Ok(Pinned { pages: reply.pages as usize, pin, ends_in_ms: reply.ends_in_ms, second })
    }

    /// Ends a pin. False: there is none (any more).
    pub async fn unpin(&self, pin: &BlockHash) -> Result<bool> {
        let request = wire::UnpinRequest { namespace: self.wire_id(), pin: pin.0.to_vec().into() };
        let reply = self.tell(None, |mut client, r| async move { client.unpin(r).await }, request).await?;
        Ok(reply.found)
    }

    /// All that the pool knows of a session.
    pub async fn describe_session(&self, session: &str) -> Result<SessionDetail> {
        let request = wire::DescribeRequest { namespace: self.wire_id(), session: named(session)? };
        let reply = self
            .tell(Some(session), |mut client, r| async move { client.describe(r).await }, request)
            .await?;
        let info = reply.info.unwrap_or_default();
        Ok(SessionDetail {
            info: SessionInfo::parse(info).map_err(Error::protocol)?,
            dram_pages: reply.dram_pages as usize,
            nvme_pages: reply.nvme_pages as usize,
            shared_pages: reply.shared_pages as usize,
            protected_pages: reply.protected_pages as usize,
            bytes: reply.bytes,
            tail: BlockHash::parse_optional(&reply.tail).map_err(Error::protocol)?,
            returns_in_ms: reply.returns_in_ms,
            forgotten_in_ms: reply.forgotten_in_ms,
            protected_for_ms: reply.protected_for_ms,
            priority: reply.priority,
            engine: Some(reply.engine).filter(|engine| !engine.is_empty()),
        })
    }
}
