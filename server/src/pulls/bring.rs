//! One pull, part by part: slots here, their bytes from the member, a commit. Owns: the order of these, and that pages come parents
//! first. Must not know: other pulls, who waits.

use super::fault::PullFault;
use super::part::PartSize;
use super::puller::Puller;
use crate::engine::afar::Pull;
use crate::engine::clients::InlineCaller;
use crate::engine::inline::InlineOffload;
use crate::engine::offload::{BeginOffload, Outcomes};
use crate::limits::{PULL_PART_WAIT, PULL_SLOT_PAUSE, PULL_SLOT_WAIT, PULL_STALL_MAX};
use std::time::{Duration, Instant};
use tokio::time::sleep;
use turnkv_client::{Namespace, PageTarget, ReloadOptions, SlotTarget};
use turnkv_pool::Outcome;
use turnkv_proto::limits::LEASE_PAGES_MAX;
use turnkv_proto::{CheckedSpec, Shards};
use turnkv_transfer::PageMut;

/// One part: pages that follow one another.
struct PulledPart<'a> {
    pull: &'a Pull,
    home: &'a Namespace,
    shards: Shards,
    /// The first of them.
    at: usize,
    pages: usize,
}

/// What came of a part.
#[derive(Default)]
struct Came {
    /// Leading pages of it that are here now.
    pages: usize,
    /// Of these, pages that travelled.
    travelled: usize,
    /// Why the next one is not.
    fault: Option<PullFault>,
}

impl Puller {
    /// Brings the pages of a pull that are not here; `at` says how far it has come.
    pub(super) async fn bring(&self, pull: &Pull, at: &mut usize) -> Result<(), PullFault> {
        let spec = self.engine.namespace_spec(&pull.namespace)?;
        let home = self.peers.namespace(&pull.member, &spec).await?;
        let (shards, page_bytes) = whole_pages(&spec)?;
        let mut size = PartSize::new(page_bytes, LEASE_PAGES_MAX / shards.count());
        let mut list = pull
            .session
            .as_ref()
            .and_then(|_| self.engine.list_of(&pull.namespace, &pull.hashes[..pull.here]));
        let (mut moved, mut travelled) = (Instant::now(), 0);
        while *at < pull.hashes.len() {
            let pages = size.pages().min(pull.hashes.len() - *at);
            let _room = self.asked.ask(page_bytes * pages as u64).await.ok_or(PullFault::Other)?;
            let began = Instant::now();
            let came = self.bring_part(&PulledPart { pull, home: &home, shards, at: *at, pages }).await?;
            let here = &pull.hashes[*at..*at + came.pages];
            *at += came.pages;
            travelled += came.travelled as u64;
            self.counts.came(came.travelled, page_bytes);
            if let Some(session) = pull.session.as_ref().filter(|_| !here.is_empty()) {
                list = self.engine.list_grew(&pull.namespace, session, list, here).or(list);
            }
            self.engine.afar.pages_settled(pull, here);
            match came.fault {
                Some(PullFault::Room) | None if came.pages == 0 => {
                    // Who has computed the page, or holds the slots, is done in a moment.
                    if moved.elapsed() > PULL_STALL_MAX {
                        return Err(PullFault::Room);
                    }
                    sleep(PULL_SLOT_PAUSE).await;
                    continue;
                }
                Some(PullFault::Room | PullFault::Unreachable) | None => {}
                Some(fault) => return Err(fault),
            }
            if came.pages == 0 {
                return Err(PullFault::Unreachable);
            }
            size.took(began.elapsed());
            moved = Instant::now();
        }
        if pull.session.is_none() && !pull.expected {
            self.engine.second_copy_came(pull, travelled * page_bytes);
        }
        Ok(())
    }

    async fn bring_part(&self, part: &PulledPart<'_>) -> Result<Came, PullFault> {
        let (mut offload, begun) =
            InlineOffload::begin(&self.engine, InlineCaller::Pulls, &part.offer()).await?;
        let outcomes = match &begun.outcomes {
            Outcomes::Each(outcomes) => outcomes.as_slice(),
            Outcomes::AllPresent(_) => return Ok(Came { pages: part.pages, ..Came::default() }),
            Outcomes::AllDraining(_) => return Err(PullFault::Room),
        };
        let is_taken = |outcome: &&Outcome| matches!(outcome, Outcome::Present | Outcome::Granted(_));
        let taken = outcomes.iter().take_while(is_taken).count();
        let declined = outcomes.get(taken).map(|outcome| PullFault::of_outcome(Some(*outcome)));
        let slots = offload.take_slots();
        let Some((first, _)) = slots.first() else {
            return Ok(Came { pages: part.shards.whole_pages(taken), travelled: 0, fault: declined });
        };
        let asked = part.shards.page(*first as usize)..part.shards.whole_pages(taken);
        let mut places = Places::new(slots, part, asked.clone());
        let hashes = &part.pull.hashes[part.at..][asked.clone()];
        let mut targets = places.targets();
        let reading = part.reading(begun.lease_ms);
        let report = tokio::select! {
            report = part.home.reload(&reading, hashes, &mut targets) => report?,
            // Dropped with everything, so that whoever has the page can store it.
            () = part.pull.gives_way.notified() => return Ok(Came { pages: asked.start, ..Came::default() }),
        };
        drop(targets);
        let pages = asked.start + report.pages;
        let filled = places.filled(part.shards.positions(pages));
        let dropped = offload.commit_taken(filled).await?.dropped;
        let fault = match (report.miss, dropped.is_empty()) {
            (_, false) => Some(PullFault::Room),
            (Some(miss), true) => Some(PullFault::of_miss(miss)),
            (None, true) => declined,
        };
        let pages = dropped.first().map_or(pages, |position| part.shards.page(*position as usize));
        Ok(Came { pages, travelled: report.pages, fault })
    }
}

impl PulledPart<'_> {
    fn offer(&self) -> BeginOffload {
        let (hashes, end) = (&self.pull.hashes, self.at + self.pages);
        BeginOffload {
            namespace: self.pull.namespace,
            session: None,
            parent: self.at.checked_sub(1).map(|before| hashes[before]),
            hashes: hashes[self.at..end].to_vec(),
            shards: self.shards,
            tail_tokens: if end == hashes.len() { self.pull.tail_tokens } else { 0 },
            wait_ms: PULL_SLOT_WAIT.as_millis() as u32,
            durable: false,
        }
    }

    /// Within a lease of so long.
    fn reading(&self, lease_ms: u32) -> ReloadOptions {
        let most = Duration::from_millis(lease_ms.into()) * 3 / 4;
        ReloadOptions {
            session: None,
            shard: self.shards.first(),
            shards: self.shards.count() as u16,
            deadline: Some(PULL_PART_WAIT.min(most)),
            here_only: true,
        }
    }
}

/// Where the pages of a part go: a slot for each position that was granted, and memory of no use for those that are here.
struct Places {
    first: usize,
    places: Vec<Place>,
}

enum Place {
    Slot(SlotTarget),
    Here(Vec<u8>),
}

impl Places {
    fn new(slots: Vec<(u32, PageMut)>, part: &PulledPart<'_>, asked: std::ops::Range<usize>) -> Places {
        let (first, end) = (part.shards.positions(asked.start), part.shards.positions(asked.end));
        let mut slots = slots.into_iter().peekable();
        let shard_bytes = part.home.shard_bytes() as usize;
        let place = |position: usize| {
            let slot = slots.next_if(|(granted, _)| *granted as usize == position);
            slot.map_or_else(
                || Place::Here(vec![0; shard_bytes]),
                |(_, page)| Place::Slot(SlotTarget { page, checksum: 0 }),
            )
        };
        Places { first, places: (first..end).map(place).collect() }
    }

    fn targets(&mut self) -> Vec<PageTarget<'_>> {
        self.places
            .iter_mut()
            .map(|place| match place {
                Place::Slot(slot) => PageTarget::Slot(slot),
                Place::Here(bytes) => PageTarget::Bytes(bytes),
            })
            .collect()
    }

    /// The slots before a position, which are whole: nobody writes them, or the others, any more.
    fn filled(self, end: usize) -> Vec<(u32, u64)> {
        let positions = (self.first..).zip(self.places).take_while(|(position, _)| *position < end);
        let slot = |(position, place): (usize, Place)| match place {
            Place::Slot(target) => Some((position as u32, target.checksum)),
            Place::Here(_) => None,
        };
        positions.filter_map(slot).collect()
    }
}

/// All shards of a namespace's pages, and the bytes of a page.
fn whole_pages(spec: &CheckedSpec) -> Result<(Shards, u64), PullFault> {
    let shards = Shards::new(0, spec.shards().into()).ok_or(PullFault::Other)?;
    Ok((shards, spec.shard_bytes() * u64::from(spec.shards())))
}
