//! Memory for packed bytes on their way between a page and the device. Owns: which part of it is taken, who waits for some.
//! Must not know: what is in it.
//!
//! A part is taken from the moment a page is packed, or a packed one is to be read, until the device and the decoder are done
//! with it; never while anything waits for room on the device. So every part comes free by itself, and whoever waits gets one.

use crate::limits::{BOUNCE_INFLIGHT, PAYLOAD_BYTES_MAX};
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use turnkv_transfer::{HugePages, Region, RegionOptions, Slot};

/// What a huge page has.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The memory.
pub(crate) struct BounceBuffers {
    region: Arc<Region>,
    room: Mutex<BounceRoom>,
    freed: Condvar,
}

struct BounceRoom {
    /// Free parts: where they begin, how long they are. No two touch.
    free: BTreeMap<usize, usize>,
    /// Reads that wait, oldest first. Bounded by admission.
    waiting: VecDeque<WaitingRead>,
    closed: bool,
}

struct WaitingRead {
    bytes: usize,
    go_on: Box<dyn FnOnce(Bounce) + Send>,
}

/// A part of it. Given back when it is dropped.
pub(crate) struct Bounce {
    slot: Slot,
    bounces: Arc<BounceBuffers>,
}

impl BounceBuffers {
    /// As much as goes to a device at once, several times over, and room for the largest page. `huge`: on huge pages if there are
    /// any, all of it at once: a device takes few large pieces of memory sooner than many small ones.
    pub(crate) fn create(inflight_bytes: u64, huge: bool) -> io::Result<Arc<BounceBuffers>> {
        let wanted = usize::try_from(inflight_bytes.saturating_mul(BOUNCE_INFLIGHT)).unwrap_or(usize::MAX);
        let bytes = wanted
            .clamp(PAYLOAD_BYTES_MAX as usize, 8 * PAYLOAD_BYTES_MAX as usize)
            .next_multiple_of(HUGE_PAGE_BYTES);
        let huge_pages = if huge { HugePages::Auto } else { HugePages::Off };
        let name = "turnkv-packing".to_owned();
        let options = RegionOptions { bytes, huge_pages, touch: huge, lock: false, name };
        let (region, _) = Region::create(&options)?;
        let room = BounceRoom { free: BTreeMap::from([(0, bytes)]), waiting: VecDeque::new(), closed: false };
        Ok(Arc::new(BounceBuffers { region, room: Mutex::new(room), freed: Condvar::new() }))
    }

    /// What the ring may register.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// A part for `bytes`, whole blocks: at once if there is one, else when there is, in the order of asking.
    pub(crate) fn when_free(self: &Arc<Self>, bytes: usize, go_on: Box<dyn FnOnce(Bounce) + Send>) {
        let mut room = self.room.lock();
        let taken = if room.waiting.is_empty() { room.take(bytes) } else { None };
        let Some(offset) = taken else { return room.waiting.push_back(WaitingRead { bytes, go_on }) };
        drop(room);
        if let Some(bounce) = self.part(offset, bytes) {
            go_on(bounce);
        }
    }

    /// A part for `bytes` if there is one now and nobody waits.
    pub(crate) fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Bounce> {
        let mut room = self.room.lock();
        let offset = if room.waiting.is_empty() { room.take(bytes)? } else { return None };
        drop(room);
        self.part(offset, bytes)
    }

    /// Waits for a part for `bytes`; none once this is closed.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Option<Bounce> {
        let mut room = self.room.lock();
        loop {
            if room.closed {
                return None;
            }
            // Reads go first: a turn waits for them.
            let taken = if room.waiting.is_empty() { room.take(bytes) } else { None };
            if let Some(offset) = taken {
                drop(room);
                return self.part(offset, bytes);
            }
            self.freed.wait(&mut room);
        }
    }

    /// Lets nobody wait any more for [`BounceBuffers::take`].
    pub(crate) fn close(&self) {
        self.room.lock().closed = true;
        self.freed.notify_all();
    }

    fn part(self: &Arc<Self>, offset: usize, bytes: usize) -> Option<Bounce> {
        let slot = self.region.slot(offset, bytes)?;
        Some(Bounce { slot, bounces: Arc::clone(self) })
    }

    fn give_back(self: &Arc<Self>, offset: usize, bytes: usize) {
        let mut room = self.room.lock();
        room.add(offset, bytes);
        let mut served = Vec::new();
        while let Some(first) = room.waiting.front() {
            let bytes = first.bytes;
            let Some(offset) = room.take(bytes) else { break };
            served.extend(room.waiting.pop_front().map(|waiting| (offset, bytes, waiting.go_on)));
        }
        drop(room);
        self.freed.notify_all();
        for (offset, bytes, go_on) in served {
            if let Some(bounce) = self.part(offset, bytes) {
                go_on(bounce);
            }
        }
    }
}

impl BounceRoom {
    /// The first free part that is long enough.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let (offset, length) =
            self.free.iter().find(|(_, length)| **length >= bytes).map(|(at, length)| (*at, *length))?;
        self.free.remove(&offset);
        if length > bytes {
            self.free.insert(offset + bytes, length - bytes);
        }
        Some(offset)
    }

    fn add(&mut self, offset: usize, bytes: usize) {
        let (mut start, mut length) = (offset, bytes);
        if let Some(behind) = self.free.remove(&(offset + bytes)) {
            length += behind;
        }
        let before = self.free.range(..offset).next_back().map(|(at, length)| (*at, *length));
        if let Some((at, before)) = before.filter(|(at, before)| at + before == offset) {
            (start, length) = (at, length + before);
        }
        self.free.insert(start, length);
    }
}

impl Bounce {
    /// Its memory.
    pub(crate) fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Gives back all but its first `bytes`, whole blocks.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let (offset, length) = (self.slot.offset(), self.slot.len());
        if let Some(slot) = self.slot.region().slot(offset, bytes).filter(|_| bytes < length) {
            self.slot = slot;
            self.bounces.give_back(offset + bytes, length - bytes);
        }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        self.bounces.give_back(self.slot.offset(), self.slot.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const BLOCK: usize = 4096;
    const MIB: usize = 1 << 20;

    #[test]
    fn parts_are_given_back_whole() {
        let bounces = BounceBuffers::create(0, false).unwrap();
        let all = bounces.region().len();
        for sizes in [[1, 2, 3, 4], [4, 3, 2, 1], [7, 1, 7, 1]] {
            let mut parts: Vec<Bounce> =
                sizes.iter().map(|mib| bounces.try_take(mib * MIB).unwrap()).collect();
            parts.swap(0, 2);
            parts[1].shrink(BLOCK);
            parts.swap(1, 3);
            drop(parts);
            assert_eq!(bounces.room.lock().free, BTreeMap::from([(0, all)]), "{sizes:?}");
        }
        assert!(bounces.try_take(all + BLOCK).is_none());
    }

    #[test]
    fn whoever_waits_is_served_in_order_and_before_those_who_come_later() {
        let bounces = BounceBuffers::create(0, false).unwrap();
        let all = bounces.try_take(bounces.region().len()).unwrap();
        let served = Arc::new(AtomicUsize::new(0));
        for number in 0..3 {
            let order = Arc::clone(&served);
            let go_on = move |bounce: Bounce| {
                assert_eq!(order.fetch_add(1, Ordering::Relaxed), number);
                assert_eq!(bounce.slot().len(), 40 * MIB);
            };
            bounces.when_free(40 * MIB, Box::new(go_on));
        }
        assert!(bounces.try_take(BLOCK).is_none(), "nothing is free");
        drop(all);
        assert_eq!(served.load(Ordering::Relaxed), 3, "each gave its part back to the next");
        assert!(bounces.try_take(bounces.region().len()).is_some());
    }

    #[test]
    fn a_taker_waits_for_room_and_goes_when_it_is_closed() {
        let bounces = BounceBuffers::create(0, false).unwrap();
        let all = bounces.try_take(bounces.region().len()).unwrap();
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| bounces.take(MIB).map(|bounce| bounce.slot().len()));
            drop(all);
            assert_eq!(taker.join().unwrap(), Some(MIB));
            let _all = bounces.try_take(bounces.region().len()).unwrap();
            let taker = scope.spawn(|| bounces.take(MIB).is_none());
            bounces.close();
            assert!(taker.join().unwrap());
        });
    }

    /// Free parts as whoever looks at every MiB would tell them.
    fn free_of(taken: &[bool]) -> BTreeMap<usize, usize> {
        let mut free = BTreeMap::new();
        for (at, _) in taken.iter().enumerate().filter(|(_, taken)| !**taken) {
            match free.last_entry() {
                Some(mut last) if last.key() + last.get() == at * MIB => *last.get_mut() += MIB,
                _ => drop(free.insert(at * MIB, MIB)),
            }
        }
        free
    }

    #[test]
    fn no_two_have_the_same_memory_and_what_is_free_is_one_part_where_it_touches() {
        let bounces = BounceBuffers::create(0, false).unwrap();
        turnkv_mutate::each_seed(100, |random| {
            let mut taken = vec![false; bounces.region().len() / MIB];
            let mut parts: Vec<Bounce> = Vec::new();
            for _ in 0..60 {
                let wanted = 1 + random.below(20);
                match random.below(3) {
                    0 => {
                        let fits = taken.split(|taken| *taken).any(|free| free.len() >= wanted);
                        let part = bounces.try_take(wanted * MIB);
                        assert_eq!(part.is_some(), fits, "{wanted} MiB of {taken:?}");
                        parts.extend(part);
                    }
                    1 if !parts.is_empty() => drop(parts.swap_remove(random.below(parts.len()))),
                    2 if !parts.is_empty() => {
                        let which = random.below(parts.len());
                        parts[which].shrink(wanted * MIB);
                    }
                    _ => {}
                }
                taken.fill(false);
                for slot in parts.iter().map(Bounce::slot) {
                    let part = &mut taken[slot.offset() / MIB..(slot.offset() + slot.len()) / MIB];
                    assert!(part.iter().all(|taken| !taken), "{slot:?} is another part's too");
                    part.fill(true);
                }
                assert_eq!(bounces.room.lock().free, free_of(&taken));
            }
        });
    }

    /// A read that asks for much is not passed by those that ask for little, or it would wait for ever.
    #[test]
    fn what_does_not_fit_the_first_that_waits_is_nobody_elses() {
        let bounces = BounceBuffers::create(0, false).unwrap();
        let whole = bounces.region().len();
        let small = bounces.try_take(MIB).unwrap();
        let rest = bounces.try_take(whole - MIB).unwrap();
        let served = Arc::new(Mutex::new(Vec::new()));
        for bytes in [whole, MIB] {
            let served = Arc::clone(&served);
            bounces.when_free(bytes, Box::new(move |part| served.lock().push(part.slot().len())));
        }
        drop(rest);
        assert!(served.lock().is_empty() && bounces.try_take(MIB).is_none(), "the first one waits");
        drop(small);
        assert_eq!(*served.lock(), [whole, MIB]);
    }
}
