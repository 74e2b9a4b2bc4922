//! Pages read where they lie. Owns: leasing, verifying and mapping them, copying those that may not be
//! mapped. Must not know: what is reserved.

use super::{Access, Mapped, PageSpan, unmappable};
use crate::backoff::Attempts;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::YIELD_BYTES;
use crate::local::{HeldSlots, Holding, Server, WillMap};
use crate::offload::window_pages;
use crate::reload::shm::{Next, Pages};
use crate::reload::{MissCause, ReloadOptions, ReloadReport, ReloadWindow};
use std::sync::Arc;
use std::time::Instant;
use turnkv_proto::BlockHash;
use turnkv_proto::wire::{SlotRef, TierKind};
use turnkv_transfer::{Checksum, Slot};

/// A page that a window's lease is on.
struct FoundPage {
    slot: Slot,
    place: SlotRef,
    checksum: u64,
    tier: TierKind,
}

impl PageSpan {
    /// Puts the leading pages that are there, each verified, at the places from `place` on. What was at these
    /// places is vacated. Pages on NVMe are read into slots first. Pages are mapped, for reading; those that
    /// this process may not map, because it holds its part of the pool's memory, are copied into private
    /// memory.
    pub async fn hold(
        &mut self,
        row: usize,
        place: usize,
        options: &ReloadOptions,
        hashes: &[BlockHash],
    ) -> Result<ReloadReport> {
        options.check()?;
        let (namespace, link) = (self.namespace.clone(), Arc::clone(&self.namespace.link));
        namespace.moved_alone(options.shard, options.shards)?;
        self.find_all(row, place, hashes.len())?;
        let call = link.admit()?;
        let deadline = link.deadline(options.deadline);
        let mut report = ReloadReport::default();
        let result = self.hold_windows((row, place), options, hashes, deadline, &mut report).await;
        let result = call.end_after(report.pages > 0, result);
        report.conclude(hashes.len(), result)
    }

    async fn hold_windows(
        &mut self,
        (row, place): (usize, usize),
        options: &ReloadOptions,
        hashes: &[BlockHash],
        deadline: Deadline,
        report: &mut ReloadReport,
    ) -> Result<()> {
        let namespace = self.namespace.clone();
        let mut attempts = Attempts::default();
        while report.pages < hashes.len() && report.miss.is_none() {
            let at = report.pages;
            let moved = namespace.moved_alone(options.shard, options.shards)?;
            let window = &hashes[at..hashes.len().min(at + window_pages(namespace.shard_bytes(), moved))];
            let mut window = namespace.reload_window(options, moved, window, deadline);
            window.begin.hold = true;
            match self.hold_window((row, place + at), &window, report).await {
                Ok(()) if report.pages == at && report.miss.is_none() => report.miss = Some(MissCause::Busy),
                Ok(()) => attempts.progressed(),
                Err(error) if namespace.again(&error, &mut attempts, deadline).await? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Maps a window's pages, or copies them when they may not be mapped.
    async fn hold_window(
        &mut self,
        (row, place): (usize, usize),
        window: &ReloadWindow,
        report: &mut ReloadReport,
    ) -> Result<()> {
        let Some(lent) = self.namespace.link.lend_shm(window.deadline).await? else {
            return Err(Error::invalid("pages can be mapped through the shm data plane only"));
        };
        let mut pages = Pages::begin(lent, window).await?;
        let (found, miss) = self.find_pages(&mut pages, window).await?;
        report.miss = miss;
        if found.is_empty() {
            return Ok(());
        }
        // A page that failed to come from NVMe is a position of the lease too: it ends with the others, when
        // all are released.
        let Some(lease) = pages.lent.read_lease() else {
            return Err(Error::protocol("pages without a lease"));
        };
        let (server, pool) = (pages.lent.server(), Arc::clone(pages.lent.pool()));
        let slots = (0..).zip(&found).map(|(position, found)| (position, found.place)).collect();
        let (namespace, shard) = (self.namespace.id().0, window.begin.shard);
        let of = HeldSlots { namespace, shard, reserved: false, slots };
        let wish = WillMap::begin(&pages.lent);
        match pool.hold(&mut pages.lent, lease, (of, wish), window.deadline).await {
            Err(error) if error.kind == ErrorKind::LeaseExpired => {
                report.miss = Some(MissCause::LeaseExpired);
                return Ok(());
            }
            Err(error) => return Err(error),
            Ok(Holding::Refused) => {
                return self.copy_in(row, place, &found, &mut pages, window, report).await;
            }
            Ok(Holding::Held) => {}
        }
        drop(pages); // its connection is free for what follows
        let good = self.verify(&found, report).await;
        let corrupt = if good < found.len() { vec![good as u32] } else { Vec::new() };
        if good == 0 {
            pool.release(&server, lease, &[], corrupt);
            return Ok(());
        }
        if good < found.len() {
            let bad: Vec<u32> = (good as u32..found.len() as u32).collect();
            pool.release(&server, lease, &bad, corrupt);
        }
        self.leases.insert((server.instance, lease), good);
        self.take_in(row, place, found, good, (&server, lease), report)
    }

    /// The leading pages of a window that are in slots, and why the next one is not.
    async fn find_pages(
        &self,
        pages: &mut Pages,
        window: &ReloadWindow,
    ) -> Result<(Vec<FoundPage>, Option<MissCause>)> {
        let mut found = Vec::with_capacity(window.pages);
        loop {
            match pages.next(&self.namespace, window).await? {
                Next::Page { slot, place, checksum, tier, .. } => {
                    found.push(FoundPage { slot, place, checksum, tier });
                }
                Next::Miss(cause) => return Ok((found, Some(cause))),
                Next::End => return Ok((found, None)),
            }
        }
    }

    /// How many leading pages have the bytes that their checksums promise; the next one, if any, is a miss.
    async fn verify(&self, found: &[FoundPage], report: &mut ReloadReport) -> usize {
        let mut checked = 0;
        for (position, FoundPage { slot, checksum, .. }) in found.iter().enumerate() {
            if self.namespace.link.config.verify && slot.page().checksum() != *checksum {
                self.note_corrupt(position, report);
                return position;
            }
            checked += slot.len();
            if checked >= YIELD_BYTES {
                checked = 0;
                tokio::task::yield_now().await;
            }
        }
        found.len()
    }

    fn note_corrupt(&self, position: usize, report: &mut ReloadReport) {
        let namespace = self.namespace.id();
        tracing::warn!(%namespace, position, "a page in DRAM does not verify: it is a miss");
        report.miss = Some(MissCause::Checksum);
    }

    fn take_in(
        &mut self,
        row: usize,
        place: usize,
        found: Vec<FoundPage>,
        good: usize,
        (server, lease): (&Server, u64),
        report: &mut ReloadReport,
    ) -> Result<()> {
        let mut mapped = found.into_iter().take(good).enumerate().map(|(position, found)| {
            let FoundPage { slot, tier, .. } = found;
            let (server, position) = (server.clone(), position as u32);
            (Mapped { access: Access::Read(slot.page()), server, lease, position }, tier)
        });
        for (at, (page, tier)) in mapped.by_ref().enumerate() {
            if let Err(error) = self.vacate(row, place + at, 1).and_then(|()| self.map(row, place + at, page))
            {
                let rest: Vec<Mapped> = mapped.map(|(page, _)| page).collect();
                self.release(rest);
                return Err(error);
            }
            self.counts.held += 1;
            report.count(tier);
        }
        Ok(())
    }

    /// Copies pages into private memory while their read lease lasts.
    async fn copy_in(
        &mut self,
        row: usize,
        place: usize,
        found: &[FoundPage],
        pages: &mut Pages,
        window: &ReloadWindow,
        report: &mut ReloadReport,
    ) -> Result<()> {
        let (piece_bytes, mut copied) = (self.piece_bytes(), 0);
        for (position, FoundPage { slot, checksum, tier, .. }) in found.iter().enumerate() {
            self.vacate(row, place + position, 1)?;
            let mut sum = Checksum::new();
            for piece in 0..self.pieces {
                let number = self.number(piece, row, place + position);
                let done = self.memory.copy_in(number, slot, piece * piece_bytes, &mut sum);
                done.map_err(|error| unmappable(&error))?;
            }
            // The order matters: only a copy that ended within the lease is a copy of this page.
            if Instant::now() >= pages.lease_end {
                report.miss = Some(MissCause::LeaseExpired);
                return Ok(());
            }
            if self.namespace.link.config.verify && sum.finish() != *checksum {
                pages.lent.report_corrupt(position as u32);
                self.note_corrupt(position, report);
                return Ok(());
            }
            self.counts.copied += 1;
            report.count(*tier);
            copied += slot.len();
            if copied >= YIELD_BYTES {
                copied = 0;
                tokio::task::yield_now().await;
                window.deadline.check()?;
            }
        }
        Ok(())
    }
}
