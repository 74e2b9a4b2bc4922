//! Zero-copy reads: the caller looks at pages in their slots. Owns: [`ReadLease`]. Must not know: how slots
//! are granted.

use crate::backoff::Attempts;
use crate::error::{Error, Result};
use crate::local::ReadGrant;
use crate::namespace::Namespace;
use crate::offload::window_pages;
use crate::reload::shm::{Next, Pages};
use crate::reload::{MissCause, ReloadOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_proto::{BlockHash, Shards};
use turnkv_transfer::{CopyPlan, Page};

/// A look at pages in the pool's own memory, for a bounded time. What was read counts only if
/// [`ReadLease::finish`] says so.
///
/// Its positions are those of [`ReloadOptions::shards`]: with k shards of each page, position `p * k + s` is
/// the s-th of them of page `p`; with one, positions are pages. All that the lease tells of, it tells by
/// positions.
#[derive(Debug)]
pub struct ReadLease {
    pages: Vec<(Page, u64)>,
    miss: Option<MissCause>,
    end: Instant,
    grant: ReadGrant,
}

/// Bytes of the pool's that may be read while the lease lasts. What is read counts only if
/// [`ReadLease::finish`] says so afterwards: once the lease is over the server may put another page there, so
/// there is no slice of them.
#[derive(Debug, Clone, Copy)]
pub struct LeasedPage<'a> {
    page: &'a Page,
}

impl LeasedPage<'_> {
    /// Size in bytes, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a page is never empty")]
    pub fn len(&self) -> usize {
        self.page.slot().len()
    }

    /// Where the bytes begin in this process. They are mapped for as long as the [`ReadLease`] lives; whoever
    /// reads through the pointer expects any bytes there once [`ReadLease::left`] is zero.
    pub fn as_ptr(&self) -> *const u8 {
        self.page.slot().as_ptr()
    }

    /// Copies the bytes from `offset` on into `target`.
    pub fn copy_to(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(target.len()).filter(|end| *end <= self.len());
        end.ok_or_else(|| Error::invalid("bytes past the end of a page"))?;
        self.page.copy_to(offset, target);
        Ok(())
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.page.to_vec()
    }
}

/// The lease ended before the reading did: what was read may be other pages' bytes and must be thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lease ended before the reading did: throw away what was read")]
pub struct LeaseExpired;

impl Namespace {
    /// Leases whole leading pages for reading in place: up to 64 MiB of them, so it may cover fewer than were
    /// asked for. Needs the shm data plane.
    pub async fn lease(&self, options: &ReloadOptions, hashes: &[BlockHash]) -> Result<ReadLease> {
        options.check()?;
        let moved = self.moved(options.shard, options.shards)?;
        let hashes = &hashes[..hashes.len().min(window_pages(self.shard_bytes(), moved))];
        let call = self.link.admit()?;
        call.end(self.lease_window(options, moved, hashes).await)
    }

    async fn lease_window(
        &self,
        options: &ReloadOptions,
        moved: Shards,
        hashes: &[BlockHash],
    ) -> Result<ReadLease> {
        let deadline = self.link.deadline(options.deadline);
        let mut attempts = Attempts::default();
        loop {
            let Some(lent) = self.link.lend_shm(deadline).await? else {
                return Err(Error::invalid("reading in place needs the shm data plane: reload instead"));
            };
            let window = self.reload_window(options, moved, hashes, deadline);
            let mut pages = match Pages::begin(lent, &window).await {
                Ok(pages) => pages,
                Err(error) if self.again(&error, &mut attempts, deadline).await? => continue,
                Err(error) => return Err(error),
            };
            let mut held = Vec::with_capacity(window.positions());
            let miss = loop {
                match pages.next(self, &window).await? {
                    Next::Page { slot, checksum, .. } => held.push((slot.page(), checksum)),
                    Next::Miss(cause) => break Some(cause),
                    Next::End if held.len() < window.positions() => break Some(MissCause::Busy),
                    Next::End => break None,
                }
            };
            held.truncate(moved.positions(moved.whole_pages(held.len())));
            let (end, grant) = (pages.lease_end, ReadGrant::of(&mut pages.lent));
            return Ok(ReadLease { pages: held, miss, end, grant });
        }
    }
}

impl ReadLease {
    /// How many leading positions it covers, of whole pages: as many times the shards of each as it has
    /// pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether it covers none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Why it covers no more.
    pub fn miss(&self) -> Option<MissCause> {
        self.miss
    }

    /// The page, or shard of one, at a position, where the pool has it.
    pub fn page(&self, position: usize) -> Option<LeasedPage<'_>> {
        self.pages.get(position).map(|(page, _)| LeasedPage { page })
    }

    /// Whether the bytes at a position match their checksum; if not, the pool is told when the lease ends.
    pub fn verify(&self, position: usize) -> bool {
        let Some((page, checksum)) = self.pages.get(position) else { return false };
        let matches = page.checksum() == *checksum;
        if !matches && self.left() > Duration::ZERO {
            self.grant.report_corrupt(position as u32);
        }
        matches
    }

    /// Copies bytes at a position, from `offset` on as many as the plan has, to where the plan says; so a
    /// page can be taken apart, one layer after another. Nothing is verified here: [`ReadLease::verify`] the
    /// position first.
    pub fn copy_out(&self, position: usize, offset: usize, plan: &CopyPlan) -> Result<()> {
        let (page, _) =
            self.pages.get(position).ok_or_else(|| Error::invalid("a page that the lease lacks"))?;
        let slot = page.slot();
        let inside = offset.checked_add(plan.slot_bytes()).is_some_and(|end| end <= slot.len());
        let part = inside.then(|| Arc::clone(slot.region()).slot(slot.offset() + offset, plan.slot_bytes()));
        let part = part.flatten().ok_or_else(|| Error::invalid("bytes past the end of a page"))?;
        part.page().scatter(plan);
        Ok(())
    }

    /// How long the pages may still be read.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Ends the lease and says whether what was read under it counts.
    pub fn finish(self) -> std::result::Result<(), LeaseExpired> {
        if self.left().is_zero() { Err(LeaseExpired) } else { Ok(()) }
    }
}
