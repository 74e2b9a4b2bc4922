//! Slots to write in place. Owns: reserving them, making a page's copy of its own. Must not know: commits.

use super::{Access, Mapped, PageSpan, Standing};
use crate::backoff::Attempts;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::WINDOW_PAGES_MAX;
use crate::local::{HeldSlots, Holding, SlotOf, WillMap};
use std::sync::Arc;
use std::time::Duration;
use turnkv_proto::wire::{self, OffloadOutcome, Verb};

impl PageSpan {
    /// Maps reserved slots, to be written, at up to `count` empty places. Returns at how many: fewer than
    /// asked for only when the pool had no more. Their bytes are whatever was there.
    pub async fn reserve(
        &mut self,
        row: usize,
        place: usize,
        count: usize,
        deadline: Option<Duration>,
    ) -> Result<usize> {
        self.find_all(row, place, count)?;
        for place in place..place + count {
            let at = self.find(row, place)?;
            if self.table[at].is_some() {
                return Err(Error::invalid(format!("place {place} is taken")));
            }
        }
        let missing = count.saturating_sub(self.spare.len());
        if missing > 0 {
            let link = Arc::clone(&self.namespace.link);
            let call = link.admit()?;
            let asked = self.ask_slots(missing, link.deadline(deadline)).await;
            call.end(asked)?;
        }
        let ready = count.min(self.spare.len());
        for place in place..place + ready {
            if let Some(spare) = self.spare.pop() {
                self.map(row, place, spare)?;
                self.counts.reserved += 1;
            }
        }
        Ok(ready)
    }

    /// Makes what is at a place writable: a page that others may read is copied into a reserved slot. False:
    /// there was none.
    pub async fn own(&mut self, row: usize, place: usize, deadline: Option<Duration>) -> Result<bool> {
        if matches!(self.standing(row, place), Standing::Empty | Standing::Writable) {
            return Ok(true);
        }
        if self.spare.is_empty() {
            let link = Arc::clone(&self.namespace.link);
            let call = link.admit()?;
            let asked = self.ask_slots(1, link.deadline(deadline)).await;
            call.end(asked)?;
        }
        let at = self.find(row, place)?;
        // Without a slot the page stays where it is.
        let Some(mut spare) = self.spare.pop() else { return Ok(false) };
        let Some(page) = self.table[at].take() else { return Ok(false) };
        if let Access::Write(own) = &mut spare.access {
            own.fill_from(&page.slot().page());
        }
        let mapped = self.map(row, place, spare);
        self.release(vec![page]);
        mapped?;
        self.counts.owned += 1;
        Ok(true)
    }

    /// Adds up to `count` slots to the spare ones.
    async fn ask_slots(&mut self, count: usize, deadline: Deadline) -> Result<()> {
        let namespace = self.namespace.clone();
        let (mut attempts, mut left) = (Attempts::default(), count);
        while left > 0 {
            let part = left.min(self.lease_room());
            match self.ask_part(part, deadline).await {
                Ok(got) if got == part => left -= got,
                Ok(_) => break,
                Err(error) if namespace.again(&error, &mut attempts, deadline).await? => {}
                Err(error) if error.kind == ErrorKind::LeaseExpired && self.reserved.take().is_some() => {}
                // The slots that came before are kept: the next call is told that there are no more.
                Err(error) if left < count && matches!(error.kind, ErrorKind::Busy { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Slots that can be added to the lease that reservations are added to; where it is full, the next one begins.
    fn lease_room(&mut self) -> usize {
        let has =
            self.reserved.as_ref().and_then(|(server, lease)| self.leases.get(&(server.instance, *lease)));
        match WINDOW_PAGES_MAX.saturating_sub(has.copied().unwrap_or(0)) {
            0 => {
                self.reserved = None;
                WINDOW_PAGES_MAX
            }
            room => room,
        }
    }

    async fn ask_part(&mut self, count: usize, deadline: Deadline) -> Result<usize> {
        let namespace = self.namespace.clone();
        let Some(mut lent) = namespace.link.lend_shm(deadline).await? else {
            return Err(Error::invalid("pages can be mapped through the shm data plane only"));
        };
        let server = lent.server();
        // Before slots are asked for: the server has those of a lease that is held as mapped from then on.
        let wish = WillMap::begin(&lent);
        let extended = self.reserved.clone().and_then(|(first, lease)| {
            let now = lent.pool().lease_to_extend(&first, lease)?;
            Some((first, lease, now))
        });
        let known = extended.as_ref().map_or(0, |(_, _, now)| *now);
        let request = wire::ReserveRequest {
            namespace: namespace.wire_id(),
            shard: 0,
            client: lent.client(),
            lease: known,
            pages: count as u32,
        };
        let reply: wire::ReserveReply = lent.call(Verb::Reserve, &request, deadline).await?;
        if reply.slots.len() > count || (reply.lease == 0) != (reply.slots.is_empty() && known == 0) {
            return Err(Error::protocol("it reserved what was not asked for"));
        }
        if OffloadOutcome::try_from(reply.short) == Ok(OffloadOutcome::Draining) {
            return Err(Error::new(ErrorKind::Draining, "the server takes no more pages"));
        }
        if reply.slots.is_empty() {
            return Ok(0);
        }
        let pool = Arc::clone(lent.pool());
        let id = namespace.id();
        let place = SlotOf { server: &server, namespace: &id.0, page_bytes: namespace.page_bytes() };
        let mut slots = Vec::with_capacity(reply.slots.len());
        for slot in &reply.slots {
            slots.push(pool.slot(place, Some(slot), deadline).await?.claim()?);
        }
        let places = (reply.first..).zip(reply.slots.iter().copied()).collect();
        let (server, lease) = match extended {
            Some((first, lease, _)) => {
                pool.hold_more((&first, lease), &server, places)?;
                lent.keep_lease(); // it is a held one already
                (first, lease)
            }
            None => {
                let of = HeldSlots { namespace: id.0, shard: 0, reserved: true, slots: places };
                if pool.hold(&mut lent, reply.lease, (of, wish), deadline).await? != Holding::Held {
                    return Ok(0); // somebody was faster: what was reserved ends with this operation
                }
                (server, reply.lease)
            }
        };
        self.reserved = Some((server.clone(), lease));
        *self.leases.entry((server.instance, lease)).or_insert(0) += slots.len();
        for (position, slot) in (reply.first..).zip(slots) {
            let server = server.clone();
            self.spare.push(Mapped { access: Access::Write(slot), server, lease, position });
        }
        Ok(reply.slots.len())
    }
}
