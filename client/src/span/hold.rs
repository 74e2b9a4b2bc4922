//! Pages read where they lie. Owns: leasing, verifying and mapping them. Must not know: what is reserved.

use super::{Mapped, PageSpan};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::YIELD_BYTES;
use crate::offload::window_pages;
use crate::reload::shm::{Next, Pages};
use crate::reload::{MissCause, ReloadOptions, ReloadReport};
use std::sync::Arc;
use turnkv_proto::BlockHash;

impl PageSpan {
    /// Maps the leading pages that are there, each verified, at the places from `place` on, for reading. What was at these
    /// places is vacated. Pages on NVMe are read into slots first.
    pub async fn hold(
        &mut self,
        row: usize,
        place: usize,
        options: &ReloadOptions,
        hashes: &[BlockHash],
    ) -> Result<ReloadReport> {
        options.check()?;
        let (namespace, link) = (self.namespace.clone(), Arc::clone(&self.namespace.link));
        namespace.check_pages(options.shard, hashes, hashes.iter().map(|_| namespace.page_bytes()))?;
        if let Some(last) = hashes.len().checked_sub(1) {
            self.find(row, place + last)?;
        }
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
        let mut reopened = false;
        while report.pages < hashes.len() && report.miss.is_none() {
            let at = report.pages;
            let window = &hashes[at..hashes.len().min(at + window_pages(namespace.shard_bytes()))];
            match self.hold_window((row, place + at), options, window, deadline, report).await {
                Ok(()) if report.pages == at && report.miss.is_none() => report.miss = Some(MissCause::Busy),
                Ok(()) => {}
                Err(error) if namespace.reopened(&error, &mut reopened, deadline).await? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn hold_window(
        &mut self,
        (row, place): (usize, usize),
        options: &ReloadOptions,
        hashes: &[BlockHash],
        deadline: Deadline,
        report: &mut ReloadReport,
    ) -> Result<()> {
        let namespace = self.namespace.clone();
        let Some(lent) = namespace.link.lend(deadline).await? else {
            return Err(Error::invalid("pages can be mapped through the shm data plane only"));
        };
        let window = namespace.reload_window(options, hashes, deadline);
        let mut pages = Pages::begin(lent, &window).await?;
        let mut found = Vec::with_capacity(hashes.len());
        loop {
            match pages.next(&namespace, &window).await? {
                Next::Page { slot, checksum, tier, .. } => found.push((slot, checksum, tier)),
                Next::Miss(cause) => {
                    report.miss = Some(cause);
                    break;
                }
                Next::End => break,
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        // A page that failed to come from NVMe is a position of the lease too: it ends with the others, when all are released.
        let Some(lease) = pages.lent.read_lease() else {
            return Err(Error::protocol("pages without a lease"));
        };
        let (server, pool) = (pages.lent.server(), Arc::clone(pages.lent.pool()));
        match pool.hold(&mut pages.lent, lease, deadline).await {
            Err(error) if error.kind == ErrorKind::LeaseExpired => {
                report.miss = Some(MissCause::LeaseExpired);
                return Ok(());
            }
            held => held?,
        }
        drop(pages); // its connection is free for what follows
        let good = self.verify(&found, report).await;
        let corrupt = if good < found.len() { vec![good as u32] } else { Vec::new() };
        if good == 0 {
            pool.release(&server, lease, Vec::new(), corrupt);
            return Ok(());
        }
        if good < found.len() {
            pool.release(&server, lease, (good as u32..found.len() as u32).collect(), corrupt);
        }
        self.leases.insert((server.instance, lease), good);
        self.take_in(row, place, found, good, (&server, lease), report)
    }

    /// How many leading pages have the bytes that their checksums promise; the next one, if any, is a miss.
    async fn verify(
        &self,
        found: &[(turnkv_transfer::Slot, u64, turnkv_proto::wire::TierKind)],
        report: &mut ReloadReport,
    ) -> usize {
        let mut checked = 0;
        for (position, (slot, checksum, _)) in found.iter().enumerate() {
            if self.namespace.link.config.verify && slot.checksum() != *checksum {
                let namespace = self.namespace.id();
                tracing::warn!(%namespace, position, "a page in DRAM does not verify: it is a miss");
                report.miss = Some(MissCause::Checksum);
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

    fn take_in(
        &mut self,
        row: usize,
        place: usize,
        found: Vec<(turnkv_transfer::Slot, u64, turnkv_proto::wire::TierKind)>,
        good: usize,
        (server, lease): (&crate::local::Server, u64),
        report: &mut ReloadReport,
    ) -> Result<()> {
        let mut mapped = found.into_iter().take(good).enumerate().map(|(position, (slot, _, tier))| {
            let (server, position) = (server.clone(), position as u32);
            (Mapped { slot, server, lease, position, writable: false }, tier)
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
}
