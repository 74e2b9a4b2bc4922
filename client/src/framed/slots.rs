//! Slots of a pool in this process that a server writes where they are. Owns: lending each under a key of its own, and taking it back
//! as soon as its page has come, so that nothing changes any more what is checked then. Must not know: messages, pages.

use super::memory::Reach;
use crate::error::{Error, ErrorKind, Result};
use std::sync::Arc;
use turnkv_proto::wire;
use turnkv_transfer::Slot;
use turnkv_transfer::fabric::{Access, HostMemory, RegionKey, TargetMemory};

/// Slots of one call. Dropped, all are taken back: nothing touches them after that.
#[derive(Debug)]
pub(crate) struct LentSlots {
    reach: Reach,
    slots: Vec<Slot>,
    /// Those that are lent now: the first of them, and the key of each.
    from: usize,
    keys: Vec<Option<RegionKey>>,
}

impl LentSlots {
    /// Of these slots, over a rail that gives memory back at once. Lends none yet.
    pub(super) fn new(reach: Reach, slots: Vec<Slot>) -> LentSlots {
        debug_assert!(!reach.is_slow, "registering slots one by one takes no time");
        LentSlots { reach, slots, from: 0, keys: Vec::new() }
    }

    /// Lends those from this one on, under keys that nobody was told of yet.
    pub(crate) fn lend_from(&mut self, from: usize) -> Result<()> {
        self.take_back_all();
        self.from = from;
        for slot in &self.slots[from..] {
            let memory = TargetMemory::Host(Arc::new(slot.clone()) as Arc<dyn HostMemory>);
            let key = self.reach.register(memory, Access::Write).map_err(|error| {
                Error::new(ErrorKind::Internal, format!("a slot could not be lent to the server: {error}"))
            })?;
            self.keys.push(Some(key));
        }
        Ok(())
    }

    /// What names them to the server, in order.
    pub(crate) fn regions(&self) -> Vec<wire::RemoteRegion> {
        let region = |key: &RegionKey| wire::RemoteRegion {
            keys: vec![wire::RemoteKey { domain: self.reach.number, key: key.key, base: key.base }],
            bytes: key.bytes,
        };
        self.keys.iter().flatten().map(region).collect()
    }

    /// Takes one back; positions count from the first that is lent. The checksum of what is in it, which nobody changes any more.
    pub(crate) fn come(&mut self, position: usize) -> u64 {
        if let Some(key) = self.keys.get_mut(position).and_then(Option::take) {
            self.reach.take_back(key);
        }
        self.slots[self.from + position].page().checksum()
    }

    fn take_back_all(&mut self) {
        for key in self.keys.drain(..).flatten() {
            self.reach.take_back(key);
        }
    }
}

impl Drop for LentSlots {
    fn drop(&mut self) {
        self.take_back_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnkv_transfer::fabric::Domain;
    use turnkv_transfer::fabric::framed::FramedDomain;
    use turnkv_transfer::{HugePages, Region, RegionOptions};

    #[test]
    fn each_slot_has_a_key_of_its_own_until_its_page_has_come_and_all_go_with_the_call()
    -> std::result::Result<(), Box<dyn std::error::Error>> {
        let options = RegionOptions {
            bytes: 4 * 4096,
            huge_pages: HugePages::Off,
            touch: false,
            lock: false,
            name: "turnkv-test".to_owned(),
        };
        let (region, _) = Region::create(&options)?;
        let slots: Vec<Slot> = (0..4).filter_map(|at| region.slot(at * 4096, 4096)).collect();
        let domain = FramedDomain::new();
        let mut lent = LentSlots::new(Reach::framed(7, &domain), slots.clone());
        assert_eq!(domain.registrations(), 0, "nothing is lent before it is asked for");
        lent.lend_from(0)?;
        let first: Vec<u64> = lent.regions().iter().map(|region| region.keys[0].key).collect();
        assert!(first.iter().enumerate().all(|(at, key)| !first[..at].contains(key)));
        assert!(lent.regions().iter().all(|region| region.bytes == 4096 && region.keys[0].domain == 7));
        let (_, sum) = slots[1].claim()?.fill(&[3; 4096]);
        assert_eq!((lent.come(1), domain.registrations()), (sum, 3));
        lent.come(1);
        assert_eq!(domain.registrations(), 3, "it is taken back once");
        // Asked for again from the third on, under other keys.
        lent.lend_from(2)?;
        assert_eq!(domain.registrations(), 2);
        assert!(lent.regions().iter().all(|region| !first.contains(&region.keys[0].key)));
        let (_, sum) = slots[3].claim()?.fill(&[9; 4096]);
        assert_eq!((lent.come(1), domain.registrations()), (sum, 1));
        drop(lent);
        assert_eq!(domain.registrations(), 0);
        Ok(())
    }
}
