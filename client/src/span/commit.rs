//! Pages that were written in place become the pool's. Owns: their checksums, the windows of a commit. Must not know: how the
//! slots came here.

use super::{Access, Mapped, PageSpan, Standing};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{WINDOW_PAGES_MAX, YIELD_BYTES};
use crate::offload::{Decline, NotDurable, OffloadOptions, OffloadReport};
use std::sync::Arc;
use turnkv_proto::wire::{self, OffloadOutcome, Verb};
use turnkv_proto::{BlockHash, pack_hashes};

/// How to commit in place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitOptions {
    /// As for an offload.
    pub offload: OffloadOptions,
    /// Every page hangs on the parent, not on the page before it, and belongs to no session's list.
    pub siblings: bool,
    /// The pages will be looked at further: they are made read-only. Else they are to be vacated now.
    pub keep: bool,
}

impl PageSpan {
    /// Commits the pages at the places from `place` on, all of them writable. Nothing is copied, and everything stays where
    /// it is. The caller must not write these places any more.
    pub async fn commit(
        &mut self,
        row: usize,
        place: usize,
        options: &CommitOptions,
        hashes: &[BlockHash],
    ) -> Result<OffloadReport> {
        let CommitOptions { offload, siblings, keep } = options;
        let options = offload;
        options.check(self.namespace.page_tokens())?;
        self.namespace.moved_alone(options.shard, options.shards)?;
        self.find_all(row, place, hashes.len())?;
        let ready = (place..place + hashes.len()).all(|at| self.standing(row, at) == Standing::Writable);
        if !ready || hashes.is_empty() {
            return Err(Error::invalid("a commit in place is for reserved slots of this server"));
        }
        let link = Arc::clone(&self.namespace.link);
        let call = link.admit()?;
        let deadline = link.deadline(options.deadline);
        let mut report = OffloadReport { durable: options.durable, ..OffloadReport::default() };
        let result =
            self.commit_windows((row, place), options, *siblings, hashes, deadline, &mut report).await;
        if *keep {
            self.protect(row, place, report.stored + report.present)?;
        }
        let result = call.end_after(report.stored + report.present > 0, result);
        report.conclude(hashes.len(), result)
    }

    async fn commit_windows(
        &mut self,
        (row, place): (usize, usize),
        options: &OffloadOptions,
        siblings: bool,
        hashes: &[BlockHash],
        deadline: Deadline,
        report: &mut OffloadReport,
    ) -> Result<()> {
        while report.stored + report.present < hashes.len() {
            let at = report.stored + report.present;
            // A window is of one lease: reservations may have more than one, after a server forgot the first.
            let first = self.lease_at(row, place + at);
            let mut end = at + 1;
            while end < hashes.len().min(at + WINDOW_PAGES_MAX) && self.lease_at(row, place + end) == first {
                end += 1;
            }
            let tail_tokens = if end == hashes.len() { options.tail_tokens } else { 0 };
            let parent = match at {
                0 => options.parent,
                at if siblings && at > 0 => options.parent,
                at => Some(hashes[at - 1]),
            };
            let options = OffloadOptions { tail_tokens, parent, ..options.clone() };
            let window = &hashes[at..end];
            let reply = self.commit_window((row, place + at), &options, siblings, window, deadline).await?;
            report.durable &= reply.durable;
            report.not_durable = report.not_durable.or(NotDurable::read(reply.not_durable()));
            self.note(&reply, (row, place + at), window.len(), report)?;
            if report.first_decline.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn commit_window(
        &mut self,
        (row, place): (usize, usize),
        options: &OffloadOptions,
        siblings: bool,
        hashes: &[BlockHash],
        deadline: Deadline,
    ) -> Result<wire::CommitReservedReply> {
        let tail = (options.tail_tokens > 0).then_some(place + hashes.len() - 1);
        let (mut positions, mut checksums, mut of, mut read) = (Vec::new(), Vec::new(), None, 0);
        for place in place..place + hashes.len() {
            let at = self.find(row, place)?;
            if tail == Some(place) {
                self.blank_tail(at, options.tail_tokens);
            }
            let Some(mapped) = self.table[at].as_ref() else { continue };
            of = Some((mapped.server.clone(), mapped.lease));
            positions.push(mapped.position);
            checksums.push(mapped.slot().page().checksum());
            read += mapped.slot().len();
            if read >= YIELD_BYTES {
                read = 0;
                tokio::task::yield_now().await;
                deadline.check()?;
            }
        }
        let Some(mut lent) = self.namespace.link.lend_shm(deadline).await? else {
            return Err(Error::invalid("pages can be mapped through the shm data plane only"));
        };
        let lease = of.and_then(|(server, lease)| lent.pool().lease_now(&server, lease));
        let lease = lease.ok_or_else(|| {
            Error::new(ErrorKind::LeaseExpired, "the server does not have what was reserved any more")
        })?;
        let request = wire::CommitReservedRequest {
            namespace: self.namespace.wire_id(),
            client: lent.client(),
            lease,
            session: if siblings { String::new() } else { options.session.clone().unwrap_or_default() },
            parent: options.parent.map(|hash| hash.0.to_vec()).unwrap_or_default().into(),
            hashes: pack_hashes(hashes).into(),
            shard: options.shard.into(),
            tail_tokens: options.tail_tokens,
            positions,
            checksums,
            siblings,
            durable: options.durable,
        };
        lent.call(Verb::CommitReserved, &request, deadline).await
    }

    /// Counts what became of a window's pages. One that was stored is the pool's from here on: nobody here has
    /// the right to write it any more.
    fn note(
        &mut self,
        reply: &wire::CommitReservedReply,
        (row, place): (usize, usize),
        pages: usize,
        report: &mut OffloadReport,
    ) -> Result<()> {
        if reply.outcomes.len() != pages {
            return Err(Error::protocol(format!("{} outcomes for {pages} pages", reply.outcomes.len())));
        }
        for (position, number) in reply.outcomes.iter().enumerate() {
            report.first_decline = match OffloadOutcome::try_from(*number).unwrap_or_default() {
                OffloadOutcome::Stored => {
                    report.stored += 1;
                    self.counts.committed += 1;
                    let at = self.find(row, place + position)?;
                    self.table[at] = self.table[at].take().map(Mapped::sealed);
                    continue;
                }
                OffloadOutcome::Present => {
                    report.present += 1;
                    continue;
                }
                OffloadOutcome::NoSpace => Some(Decline::NoSpace),
                OffloadOutcome::Outranked => Some(Decline::Outranked),
                OffloadOutcome::InFlight => Some(Decline::InFlight),
                OffloadOutcome::NoParent => Some(Decline::NoParent),
                OffloadOutcome::Draining => Some(Decline::Draining),
                OffloadOutcome::LeaseLimit => Some(Decline::LeaseLimit),
                OffloadOutcome::Unspecified | OffloadOutcome::Granted => {
                    return Err(Error::protocol("an outcome that is none of a commit in place"));
                }
            };
            return Ok(());
        }
        Ok(())
    }

    /// Pages that are looked at further: a stray write must not reach them.
    fn protect(&mut self, row: usize, place: usize, count: usize) -> Result<()> {
        for place in place..place + count {
            let at = self.find(row, place)?;
            if let Some(mapped) = self.table[at].take() {
                self.map(row, place, mapped.sealed())?;
            }
        }
        Ok(())
    }

    /// Each server process numbers its leases anew: only with the process a number names one.
    fn lease_at(&self, row: usize, place: usize) -> Option<(u64, u64)> {
        let at = self.find(row, place).ok()?;
        self.table[at].as_ref().map(|mapped| (mapped.server.instance, mapped.lease))
    }

    /// Zeros behind the last token of a partial page: what an earlier user of the slot left there is nobody's business.
    fn blank_tail(&mut self, at: usize, tail_tokens: u32) {
        let (piece_bytes, pieces) = (self.piece_bytes(), self.pieces);
        let used = piece_bytes / self.namespace.page_tokens() as usize * tail_tokens as usize;
        let zeros = vec![0; piece_bytes - used];
        if let Some(Access::Write(page)) = self.table[at].as_mut().map(|mapped| &mut mapped.access) {
            for piece in 0..pieces {
                page.fill_at(piece * piece_bytes + used, &zeros);
            }
        }
    }
}
