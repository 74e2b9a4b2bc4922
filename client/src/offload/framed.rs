//! One window of an offload over a network: copy into lent memory, one call, in which the server reads what it wants and keeps what
//! arrived. Owns: the order of these. Must not know: what comes before and after the window.

use crate::error::{Error, ErrorKind, Result};
use crate::framed::{FramedPlane, Staged};
use crate::limits::{ASK_FIRST_BYTES_MIN, YIELD_BYTES};
use crate::local::Lent;
use crate::namespace::Namespace;
use crate::offload::{Decline, Done, Granted, NotDurable, OffloadWindow};
use crate::pages::PageSource;
use turnkv_proto::wire::{self, Verb};

impl Namespace {
    /// Dropping this future at any moment takes the lent memory back; the server then gives its slots back.
    pub(crate) async fn offload_framed(
        &self,
        plane: &FramedPlane,
        mut lent: Lent,
        window: &OffloadWindow,
        pages: &[PageSource<'_>],
    ) -> Result<Done> {
        let first = window.moved.positions(self.leading_present(&mut lent, window, pages.len()).await?);
        let wanted = &pages[first..];
        let staged = if wanted.is_empty() {
            None
        } else {
            Some(plane.stage(&mut lent, wanted.len() * self.page_bytes(), window.deadline).await?)
        };
        let request = self.remote_offload(&lent, window, first, wanted, staged.as_ref()).await?;
        let called =
            lent.call::<wire::RemoteOffloadReply>(Verb::RemoteOffload, &request, window.deadline).await;
        if let Some(staged) = staged
            && !lent.is_waiting()
        {
            staged.answered();
        }
        let reply = match called {
            Ok(reply) => reply,
            Err(error) if error.kind == ErrorKind::LeaseExpired => {
                return Ok(Done { decline: Some(Decline::LeaseExpired), ..Done::default() });
            }
            Err(error) => {
                plane.doubt();
                return Err(error);
            }
        };
        if reply.commit.as_ref().is_some_and(|commit| !commit.dropped.is_empty()) {
            plane.doubt();
        }
        let begun =
            reply.begin.ok_or_else(|| Error::protocol("an offload without an answer to its begin"))?;
        let granted = Granted::read(&begun, window.pages, window.moved)?;
        match reply.commit {
            Some(commit) => granted.committed(&commit, begun.retry_after_ms),
            None if granted.fill.is_empty() => {
                let Granted { present, decline, .. } = granted;
                let (durable, retry_after_ms) = (begun.durable, begun.retry_after_ms);
                let not_durable = NotDurable::read(begun.not_durable());
                Ok(Done { present, durable, not_durable, decline, retry_after_ms, ..Done::default() })
            }
            None => Err(Error::protocol("pages granted and not committed")),
        }
    }

    /// Leading pages of a large window that the server has already: asked first, because bytes that it does not want need not be
    /// copied.
    async fn leading_present(
        &self,
        lent: &mut Lent,
        window: &OffloadWindow,
        positions: usize,
    ) -> Result<usize> {
        if positions * self.page_bytes() < ASK_FIRST_BYTES_MIN {
            return Ok(0);
        }
        let request = wire::LookupRequest {
            namespace: self.wire_id(),
            hashes: window.begin.hashes.clone(),
            session: String::new(),
        };
        let reply: wire::LookupReply = lent.call(Verb::Lookup, &request, window.deadline).await?;
        Ok((reply.present as usize).min(window.pages))
    }

    /// Copies the pages into lent memory, and names them there.
    async fn remote_offload(
        &self,
        lent: &Lent,
        window: &OffloadWindow,
        first: usize,
        pages: &[PageSource<'_>],
        staged: Option<&Staged>,
    ) -> Result<wire::RemoteOffloadRequest> {
        let begin = wire::BeginOffloadRequest { client: lent.client(), ..window.begin.clone() };
        let mut request = wire::RemoteOffloadRequest { begin: Some(begin), ..Default::default() };
        let Some(staged) = staged else { return Ok(request) };
        request.regions.push(staged.region());
        let (page_bytes, mut copied) = (self.page_bytes(), 0);
        for (number, page) in pages.iter().enumerate() {
            let offset = number * page_bytes;
            let checksum = page.fill(&staged.slot(offset, page_bytes)?)?;
            let position = (first + number) as u32;
            request.pages.push(wire::RemotePage {
                position,
                checksum,
                spans: vec![span(offset, page_bytes)],
            });
            copied += page_bytes;
            if copied >= YIELD_BYTES {
                copied = 0;
                tokio::task::yield_now().await;
                window.deadline.check()?;
            }
        }
        Ok(request)
    }
}

/// A page in the only region of a call.
pub(crate) fn span(offset: usize, bytes: usize) -> wire::RemoteSpan {
    wire::RemoteSpan { region: 0, offset: offset as u64, bytes: bytes as u32 }
}
