//! The end of an offload: filled pages become visible, or what was granted is given back. Owns: commit and
//! abort of an offload. Must not know: who copied the bytes, how slots were granted.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{ClientId, LeaseId, Now, PageKey};
use crate::memory::leases::{LeaseItem, LeaseKind};
use turnkv_proto::Shards;

/// Answer to a commit.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Committed {
    /// The pages of which all that was committed is kept, in the order committed, each once.
    pub kept: Vec<PageKey>,
    /// Positions committed but not kept: they, or the page before them, went away meanwhile.
    pub dropped: Vec<u32>,
    /// Pages that it made visible, by their last shards; also those that waited for one of these.
    pub shown: u64,
    /// Slots that are free again: granted, and dropped or not committed.
    pub freed: usize,
}

impl Pool {
    /// Makes filled pages visible: positions ascending, each with its checksum. Grants not named are freed.
    pub fn commit_offload(
        &mut self,
        lease: LeaseId,
        client: ClientId,
        filled: &[(u32, u64)],
        now: Now,
    ) -> Result<Committed, PoolError> {
        let now = self.store.tick(now);
        let held = self.leases.get(lease, client).filter(|held| held.kind.is_write());
        let held = held.ok_or(PoolError::LeaseUnknown)?;
        if held.kind == LeaseKind::Quarantined || held.deadline < now {
            // Whoever asks for a commit has finished writing: the slots are free again.
            if held.kind == LeaseKind::Write {
                self.leases.count_expired();
            }
            self.end_lease(lease);
            self.store.call.note_freed();
            return Err(PoolError::LeaseUnknown);
        }
        check_filled(filled, &held.items)?;
        let Some(held) = self.leases.remove(lease) else { return Err(PoolError::LeaseUnknown) };

        let (mut committed, mut kept) = (Committed::default(), Vec::with_capacity(filled.len()));
        let before = self.store.tally().shown;
        let mut filled = filled.iter().peekable();
        for item in &held.items {
            let checksum =
                filled.next_if(|(position, _)| *position == item.position).map(|(_, checksum)| *checksum);
            match checksum {
                Some(checksum) if self.store.commit_shard(item, held.shards, checksum) => {
                    kept.push(*item);
                }
                Some(_) => committed.dropped.push(item.position),
                None => {}
            }
        }
        committed.shown = self.store.tally().shown - before;
        self.store.give_up_grants(&held.items, held.shards);
        for item in &held.items {
            self.store.unlease(item.slot);
        }
        for item in &kept {
            if let Some(index) = self.store.pages().resolve(item.page) {
                self.store.await_shards(index);
            }
        }
        committed.freed = held.items.len() - kept.len();
        if committed.freed > 0 {
            self.store.call.note_freed();
        }
        committed.kept = whole_pages(&kept, &committed.dropped, held.shards);
        for page in committed.kept.iter().rev() {
            if let Some(index) = self.store.pages().resolve(*page) {
                self.store.touch(index);
            }
        }
        Ok(committed)
    }

    /// Gives all grants of a lease back. Also ends the quarantine of a lease that expired.
    pub fn abort_offload(&mut self, lease: LeaseId, client: ClientId) -> Result<(), PoolError> {
        let held = self.leases.get(lease, client).filter(|held| held.kind.is_write());
        held.ok_or(PoolError::LeaseUnknown)?;
        self.store.call.begin();
        self.end_lease(lease);
        self.store.call.note_freed();
        Ok(())
    }
}

/// The pages of these items, in order and each once, but for those of which a position was dropped.
fn whole_pages(kept: &[LeaseItem], dropped: &[u32], shards: Shards) -> Vec<PageKey> {
    let page = |position: u32| shards.page(position as usize);
    let torn: Vec<usize> = dropped.iter().map(|position| page(*position)).collect();
    let whole = |items: &[LeaseItem]| {
        let first = items.first().filter(|first| torn.binary_search(&page(first.position)).is_err());
        first.map(|first| first.page)
    };
    kept.chunk_by(|one, next| page(one.position) == page(next.position)).filter_map(whole).collect()
}

/// Checks that a commit names granted positions, in order, each once.
fn check_filled(filled: &[(u32, u64)], items: &[LeaseItem]) -> Result<(), PoolError> {
    let mut items = items.iter();
    let known = |(position, _): &(u32, u64)| items.any(|item| item.position == *position);
    match filled.iter().all(known) {
        true => Ok(()),
        false => Err(PoolError::Invalid("a commit names granted positions, ascending, each once")),
    }
}
