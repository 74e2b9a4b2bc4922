//! An open namespace. Owns: its checked shape, opening it again after a server restart. Must not know: connections.

use crate::backoff::Attempts;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::grpc;
use crate::link::Link;
use std::sync::Arc;
use turnkv_proto::wire;
use turnkv_proto::{BlockHash, CheckedSpec, NamespaceId};

/// An open namespace: everything that needs to know a page's shape. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Namespace {
    pub(crate) link: Arc<Link>,
    spec: Arc<CheckedSpec>,
}

impl Namespace {
    pub(crate) fn new(link: Arc<Link>, spec: CheckedSpec) -> Namespace {
        Namespace { link, spec: Arc::new(spec) }
    }

    /// Its id.
    pub fn id(&self) -> NamespaceId {
        self.spec.id()
    }

    /// Bytes of one shard of a page.
    pub fn shard_bytes(&self) -> u64 {
        self.spec.shard_bytes()
    }

    /// Tokens of a page.
    pub fn page_tokens(&self) -> u32 {
        self.spec.page_tokens()
    }

    /// Shards of a page.
    pub fn shards(&self) -> u16 {
        self.spec.shards()
    }

    /// What it was opened with.
    pub fn spec(&self) -> &CheckedSpec {
        &self.spec
    }

    /// The id as messages carry it.
    pub(crate) fn wire_id(&self) -> bytes::Bytes {
        bytes::Bytes::copy_from_slice(&self.spec.id().0)
    }

    pub(crate) fn page_bytes(&self) -> usize {
        self.spec.shard_bytes() as usize
    }

    /// Opens the namespace at the server, which may have forgotten it in a restart.
    pub(crate) async fn open(&self, deadline: Deadline) -> Result<()> {
        let request = wire::OpenNamespaceRequest { spec: Some((&*self.spec).into()) };
        let ask = |channel| {
            let request = request.clone();
            async move { grpc::pool(channel).open_namespace(request).await }
        };
        let reply = self.link.rpc(deadline, ask).await?;
        if reply.namespace[..] != self.spec.id().0 || reply.shard_bytes != self.spec.shard_bytes() {
            return Err(Error::protocol("it works out another id or page size for this namespace"));
        }
        Ok(())
    }

    /// After an attempt at a call that failed: true if another one is worth it. Either the server forgot the namespace, which is
    /// open again now, or it was busy, did nothing, and said when to ask again, which is now.
    pub(crate) async fn again(
        &self,
        error: &Error,
        attempts: &mut Attempts,
        deadline: Deadline,
    ) -> Result<bool> {
        if let ErrorKind::Busy { retry_after_ms: retry_after_ms @ 1.. } = error.kind {
            return Ok(attempts.pause(retry_after_ms, deadline).await);
        }
        if error.kind != ErrorKind::NamespaceUnknown || attempts.reopened {
            return Ok(false);
        }
        attempts.reopened = true;
        tracing::debug!(namespace = %self.spec.id(), "the server does not know the namespace: opening it again");
        self.open(deadline).await?;
        Ok(true)
    }

    /// Checks what every verb with pages is given.
    pub(crate) fn check_pages(
        &self,
        shard: u16,
        hashes: &[BlockHash],
        lens: impl ExactSizeIterator<Item = usize>,
    ) -> Result<()> {
        if shard >= self.shards() {
            return Err(Error::invalid(format!(
                "shard {shard} of a namespace with {} shards",
                self.shards()
            )));
        }
        if lens.len() != hashes.len() {
            return Err(Error::invalid(format!("{} pages for {} hashes", lens.len(), hashes.len())));
        }
        let expected = self.page_bytes();
        for (position, len) in lens.enumerate() {
            if len != expected {
                let text = format!(
                    "page {position} has {len} bytes; this namespace's pages have {expected} a shard"
                );
                return Err(Error::invalid(text));
            }
        }
        Ok(())
    }
}
