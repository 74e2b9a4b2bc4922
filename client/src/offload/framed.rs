//! One window of an offload over a network, piece by piece: copy into lent memory, one call, in which the server reads what it wants
//! and keeps what arrived. Owns: the order of these, and that nothing is copied over what the server may still read. Must not know:
//! what comes before and after the window.
//!
//! ```text
//! copy 0 --ask 0--> copy 1 (while the server reads 0) --answer 0, ask 1--> copy 2 (over 0) --answer 1, ask 2--> ...
//! ```
//! Pages that are lent where they are have their checksums taken in place of the copy.

use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::framed::{Copies, FramedPlane, LentFor, OwnPages, Staged};
use crate::limits::{
    ASK_FIRST_BYTES_MIN, FRAMED_PIECE_BYTES_MAX, OWN_PIECE_BYTES_MAX, WINDOW_BYTES_MAX, YIELD_BYTES,
};
use crate::local::Lent;
use crate::namespace::Namespace;
use crate::offload::{Decline, Done, Granted, NotDurable, OffloadWindow, pages_within};
use crate::pages::PageSource;
use bytes::Bytes;
use std::future::Future;
use std::ops::Range;
use turnkv_proto::limits::CARRIED_BYTES_MAX;
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::PageMemory;
use turnkv_transfer::device::{Device, PageSlot};
use turnkv_transfer::fabric::Access;

/// What the server is asked to take at a time: the pages of one call, and where they are lent.
struct Piece {
    window: OffloadWindow,
    request: wire::RemoteOffloadRequest,
}

/// Where pages come from that go through lent memory.
pub(crate) trait Stage: Sync {
    /// Bytes of pages that are put there, and sent, at a time.
    const PIECE_BYTES_MAX: u64;

    /// The device that they are on, if any.
    fn device(&self) -> Option<&Device> {
        None
    }

    /// These positions, if all of them may be lent where they are.
    fn own(&self, _positions: Range<usize>) -> Option<Vec<PageMemory>> {
        None
    }

    /// Fills these parts of lent memory with the positions from `first` on; gives their checksums, in order. However this ends, the memory
    /// is lent to no other call while anything writes to it.
    fn stage(
        &self,
        first: usize,
        slots: Vec<PageSlot>,
        memory: &Staged,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<u64>>> + Send;
}

impl Stage for [PageSource<'_>] {
    const PIECE_BYTES_MAX: u64 = FRAMED_PIECE_BYTES_MAX;

    fn own(&self, positions: Range<usize>) -> Option<Vec<PageMemory>> {
        self[positions].iter().map(PageSource::own).collect()
    }

    async fn stage(
        &self,
        first: usize,
        slots: Vec<PageSlot>,
        _memory: &Staged,
        deadline: Deadline,
    ) -> Result<Vec<u64>> {
        let (mut checksums, mut copied) = (Vec::with_capacity(slots.len()), 0);
        for (source, slot) in self[first..].iter().zip(&slots) {
            let PageSlot::Host(slot) = slot else {
                return Err(Error::invalid("no CPU can fill a page in a device's memory"));
            };
            checksums.push(source.fill(slot)?);
            copied += slot.len();
            if copied >= YIELD_BYTES {
                copied = 0;
                tokio::task::yield_now().await;
                deadline.check()?;
            }
        }
        Ok(checksums)
    }
}

/// What is to become pieces: the pages of a window behind those that the server has.
struct Wanted<'a, S: Stage + ?Sized> {
    window: &'a OffloadWindow,
    sources: &'a S,
    /// Pages that the server has already.
    present: usize,
    /// Pages of a piece.
    step: usize,
    /// None: the server has all pages.
    lent_for: Option<LentFor>,
    /// The request carries them: what a transfer needs beside takes longer than to send so few.
    carried: bool,
}

impl Namespace {
    /// Pages go in pieces. While the server reads one the next is copied: its bytes are still in a cache when they are sent.
    ///
    /// Dropping this future at any moment takes the lent memory back; the server then gives its slots back.
    pub(crate) async fn offload_framed<S: Stage + ?Sized>(
        &self,
        plane: &FramedPlane,
        mut lent: Lent,
        window: &OffloadWindow,
        sources: &S,
    ) -> Result<Done> {
        let present = self.leading_present(&mut lent, window).await?;
        let copied_step = self.pages_at_a_time(S::PIECE_BYTES_MAX, window);
        let positions = window.moved.positions(present)..window.moved.positions(window.pages);
        let small = positions.len() * self.page_bytes() <= CARRIED_BYTES_MAX as usize;
        let own = if small { None } else { sources.own(positions.clone()).map(|own| (own, Access::Read)) };
        // Two pieces: one that is read, one that is filled.
        let copied = positions.len().min(window.moved.positions(2 * copied_step));
        let copies = Copies { device: sources.device(), bytes: copied * self.page_bytes() };
        let lent_for = match positions.is_empty() {
            true => None,
            false => Some(plane.lend(&mut lent, own, copies, window.deadline).await?),
        };
        let step = match &lent_for {
            Some(LentFor::Own(_)) => self.pages_at_a_time(OWN_PIECE_BYTES_MAX, window),
            _ => copied_step,
        };
        let is_direct = lent_for.as_ref().is_some_and(LentFor::is_direct);
        let carried = !is_direct && small && plane.has_no_nic();
        let wanted = Wanted { window, sources, present, step, lent_for, carried };
        let done = self.offload_pieces(plane, &mut lent, &wanted).await;
        if let Some(lent_for) = wanted.lent_for
            && !lent.is_waiting()
        {
            lent_for.answered();
        }
        done
    }

    /// Asks for piece after piece. What failed after some were kept is asked for again by whoever asked for the window.
    async fn offload_pieces<S: Stage + ?Sized>(
        &self,
        plane: &FramedPlane,
        lent: &mut Lent,
        wanted: &Wanted<'_, S>,
    ) -> Result<Done> {
        let pages = wanted.window.pages;
        let piece_from = |start: usize| start..pages.min(start.max(wanted.present) + wanted.step);
        let mut range = piece_from(0);
        let mut next = Some(self.fill_piece(lent, wanted, range.clone()).await);
        let mut done = Done::default();
        while let Some(piece) = next.take() {
            let answered = async {
                let piece = piece?;
                lent.request(Verb::RemoteOffload, &piece.request, piece.window.deadline)?;
                if range.end < pages {
                    range = piece_from(range.end);
                    next = Some(self.fill_piece(lent, wanted, range.clone()).await);
                }
                let is_direct = wanted.lent_for.as_ref().is_some_and(LentFor::is_direct);
                answer(plane, lent, &piece.window, is_direct).await
            };
            match answered.await {
                Ok(more) => done = done.then(more),
                Err(error) if done.stored + done.present == 0 => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "a piece of a window failed");
                    return Ok(done);
                }
            }
            if done.decline.is_some() {
                return Ok(done);
            }
        }
        Ok(done)
    }

    /// Pages that are sent at a time, in pieces of so many bytes. Durable pieces are large: each is flushed.
    fn pages_at_a_time(&self, piece_bytes_max: u64, window: &OffloadWindow) -> usize {
        let bytes_max = if window.durable { WINDOW_BYTES_MAX } else { piece_bytes_max };
        pages_within(bytes_max, self.shard_bytes(), window.moved)
    }

    /// Leading pages of a large window that the server has already: asked first, because bytes that it does not want need not be
    /// copied.
    async fn leading_present(&self, lent: &mut Lent, window: &OffloadWindow) -> Result<usize> {
        if window.moved.positions(window.pages) * self.page_bytes() < ASK_FIRST_BYTES_MIN {
            return Ok(0);
        }
        let request = wire::LookupRequest {
            namespace: self.wire_id(),
            hashes: window.begin.hashes.clone(),
            only_here: true,
            ..Default::default()
        };
        let reply: wire::LookupReply = lent.call(Verb::Lookup, &request, window.deadline).await?;
        Ok((reply.present as usize).min(window.pages))
    }

    /// Names the pages of a piece that the server has not where they are lent: in their own place, or in lent memory, into which they
    /// are copied beside those of the piece before.
    async fn fill_piece<S: Stage + ?Sized>(
        &self,
        lent: &Lent,
        wanted: &Wanted<'_, S>,
        pages: Range<usize>,
    ) -> Result<Piece> {
        let moved = wanted.window.moved;
        let window = wanted.window.part(pages.clone());
        let begin = wire::BeginOffloadRequest { client: lent.client(), ..window.begin.clone() };
        let mut request = wire::RemoteOffloadRequest { begin: Some(begin), ..Default::default() };
        let Some(lent_for) = &wanted.lent_for else { return Ok(Piece { window, request }) };
        request.regions.push(lent_for.region());
        let from = pages.start.max(wanted.present);
        let positions = moved.positions(from)..moved.positions(pages.end);
        request.pages = match lent_for {
            LentFor::Own(own) => self.sum_own(own, wanted, positions).await?,
            LentFor::Copies(staged) => self.copy_piece(staged, wanted, from, positions).await?,
        };
        let skipped = moved.positions(from - pages.start);
        (skipped..).zip(&mut request.pages).for_each(|(number, page)| page.position = number as u32);
        Ok(Piece { window, request })
    }

    /// Copies these positions, from page `from` on, into the half of lent memory that the piece before is not in.
    async fn copy_piece<S: Stage + ?Sized>(
        &self,
        staged: &Staged,
        wanted: &Wanted<'_, S>,
        from: usize,
        positions: Range<usize>,
    ) -> Result<Vec<wire::RemotePage>> {
        let (moved, page_bytes) = (wanted.window.moved, self.page_bytes());
        let half = (from - wanted.present) / wanted.step % 2 * moved.positions(wanted.step);
        let offsets: Vec<usize> = (half..).take(positions.len()).map(|number| number * page_bytes).collect();
        let slots: Result<Vec<PageSlot>> =
            offsets.iter().map(|offset| staged.page(*offset, page_bytes)).collect();
        let deadline = wanted.window.deadline;
        let checksums = wanted.sources.stage(positions.start, slots?, staged, deadline).await?;
        let page = |(offset, checksum): (usize, u64)| {
            let carried = match wanted.carried {
                true => staged.slot(offset, page_bytes)?.page().to_vec().into(),
                false => Bytes::new(),
            };
            Ok(wire::RemotePage {
                checksum,
                spans: vec![span(offset, page_bytes)],
                carried,
                ..Default::default()
            })
        };
        offsets.into_iter().zip(checksums).map(page).collect()
    }

    /// Takes the checksums of these positions where they are.
    async fn sum_own<S: Stage + ?Sized>(
        &self,
        own: &OwnPages,
        wanted: &Wanted<'_, S>,
        positions: Range<usize>,
    ) -> Result<Vec<wire::RemotePage>> {
        let first = wanted.window.moved.positions(wanted.present);
        let (mut pages, mut summed) = (Vec::with_capacity(positions.len()), 0);
        for position in positions {
            let (page, page_bytes) = (position - first, self.page_bytes());
            let (checksum, spans) = (own.checksum(page), vec![span(page * page_bytes, page_bytes)]);
            pages.push(wire::RemotePage { checksum, spans, ..Default::default() });
            summed += self.page_bytes();
            if summed >= YIELD_BYTES {
                summed = 0;
                tokio::task::yield_now().await;
                wanted.window.deadline.check()?;
            }
        }
        Ok(pages)
    }
}

/// What the server says of the piece that it was asked to take.
async fn answer(
    plane: &FramedPlane,
    lent: &mut Lent,
    window: &OffloadWindow,
    is_direct: bool,
) -> Result<Done> {
    let reply: wire::RemoteOffloadReply = match lent.one_reply(window.deadline).await {
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
        if is_direct {
            // No other rail reaches a device's memory: the window goes once more, by this host's.
            let retry = ErrorKind::Busy { retry_after_ms: 1 };
            return Err(Error::new(retry, "a page could not be read out of the device's memory"));
        }
    }
    let begun = reply.begin.ok_or_else(|| Error::protocol("an offload without an answer to its begin"))?;
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

/// A page in the only region of a call.
pub(crate) fn span(offset: usize, bytes: usize) -> wire::RemoteSpan {
    wire::RemoteSpan { region: 0, offset: offset as u64, bytes: bytes as u32 }
}
