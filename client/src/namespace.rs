//! An open namespace. Owns: its checked shape, opening it again after a server restart. Must not know: connections.

use crate::backoff::Attempts;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::grpc;
use crate::link::Link;
use crate::members::Members;
use std::sync::Arc;
use turnkv_proto::{BlockHash, CheckedSpec, NamespaceId};
use turnkv_proto::{Shards, wire};

/// An open namespace: everything that needs to know a page's shape. Clones are cheap.
#[derive(Debug, Clone)]
pub struct Namespace {
    pub(crate) members: Arc<Members>,
    /// The member that is asked; of a namespace in its user's hands the first one.
    pub(crate) link: Arc<Link>,
    spec: Arc<CheckedSpec>,
}

impl Namespace {
    pub(crate) fn new(members: Arc<Members>, spec: CheckedSpec) -> Namespace {
        Namespace { link: members.first(), members, spec: Arc::new(spec) }
    }

    /// The same namespace at this member.
    pub(crate) fn at(&self, link: Arc<Link>) -> Namespace {
        Namespace { link, ..self.clone() }
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

    /// Opens the namespace for the first time, and has an embedded pool know that somebody is there.
    pub(crate) async fn open_first(&self, deadline: Deadline) -> Result<()> {
        let call = self.link.admit()?;
        let opened = async {
            self.open(deadline).await?;
            self.link.heartbeat(deadline).await
        };
        call.end(opened.await)
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
    /// open again now, or it was busy, did nothing, and said when to ask again, which is now, or its process gave way to another
    /// one, which listens.
    pub(crate) async fn again(
        &self,
        error: &Error,
        attempts: &mut Attempts,
        deadline: Deadline,
    ) -> Result<bool> {
        if let ErrorKind::Busy { retry_after_ms: retry_after_ms @ 1.. } = error.kind {
            return Ok(attempts.pause(retry_after_ms, deadline).await);
        }
        if error.kind == ErrorKind::Unavailable && attempts.may_reconnect() {
            return Ok(self.link.listens(deadline).await);
        }
        if error.kind != ErrorKind::NamespaceUnknown || attempts.reopened {
            return Ok(false);
        }
        attempts.reopened = true;
        tracing::debug!(namespace = %self.spec.id(), "the server does not know the namespace: opening it again");
        self.open(deadline).await?;
        Ok(true)
    }

    /// The shards that a call moves of each page: `count` from `first` on, 0 meaning one.
    pub(crate) fn moved(&self, first: u16, count: u16) -> Result<Shards> {
        let moved = Shards::new(first.into(), count.into()).filter(|moved| moved.end() <= self.shards());
        moved.ok_or_else(|| {
            let (count, all) = (count.max(1), self.shards());
            Error::invalid(format!("{count} shards from shard {first} on, of a namespace with {all} shards"))
        })
    }

    /// The same for what moves one shard alone.
    pub(crate) fn moved_alone(&self, first: u16, count: u16) -> Result<Shards> {
        match self.moved(first, count)? {
            moved if moved.count() == 1 => Ok(moved),
            _ => Err(Error::invalid(
                "this call is for one shard of each page: offload and reload move several",
            )),
        }
    }

    /// Checks what every verb with pages is given: the bytes of each shard that is moved, page after page.
    pub(crate) fn check_pages(
        &self,
        moved: Shards,
        hashes: &[BlockHash],
        lens: impl ExactSizeIterator<Item = usize>,
    ) -> Result<()> {
        let (given, pages, wanted) = (lens.len(), hashes.len(), moved.positions(hashes.len()));
        if given != wanted {
            return Err(Error::invalid(match moved.count() {
                1 => format!("{given} pages for {pages} hashes"),
                count => format!(
                    "{given} pieces of memory for {pages} hashes: with {count} shards of each page moved it takes {wanted}, page after page"
                ),
            }));
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
