//! Tests of slots, against a list of who has which.

use super::{SlotState, Slots};
use crate::ids::NONE;
use hashbrown::HashMap;
use proptest::prelude::*;

const SLAB: u64 = 64 << 10;
const SLABS: u32 = 3;
/// Bytes of a shard of each namespace, and what a slot of it takes.
const SHARDS: [(u64, u64); 2] = [(4 << 10, 4 << 10), (9 << 10, 12 << 10)];

/// One slot in use, as whoever has it would say.
#[derive(Clone, Copy, Debug, Default)]
struct Plain {
    class: u32,
    /// None: its page let go of it.
    owner: Option<u32>,
    leases: u32,
    ios: u32,
}

impl Plain {
    fn is_held(&self) -> bool {
        self.leases > 0 || self.ios > 0
    }
}

struct World {
    slots: Slots,
    plain: HashMap<u32, Plain>,
    pages: u32,
}

impl World {
    fn new() -> World {
        let mut slots = Slots::new(SLAB, SLABS);
        SHARDS.iter().for_each(|(bytes, _)| slots.add_class(*bytes, 0));
        World { slots, plain: HashMap::new(), pages: 0 }
    }

    /// The slots in use, in order, of which something is true.
    fn pick(&self, which: u16, is: impl Fn(&Plain) -> bool) -> Option<u32> {
        let mut some: Vec<u32> =
            self.plain.iter().filter(|(_, plain)| is(plain)).map(|(slot, _)| *slot).collect();
        some.sort_unstable();
        (!some.is_empty()).then(|| some[usize::from(which) % some.len()])
    }

    fn claim(&mut self, class: u32) {
        self.pages += 1;
        match self.slots.claim(class, self.pages) {
            Some(slot) => {
                let before =
                    self.plain.insert(slot, Plain { class, owner: Some(self.pages), ..Plain::default() });
                assert!(before.is_none(), "slot {slot} was {before:?}");
                assert_eq!(self.slots.returns(slot), 0, "what is new is not expected");
            }
            None => {
                let per_slab = SLAB / SHARDS[class as usize].1;
                let own = self.plain.values().filter(|plain| plain.class == class).count() as u64;
                assert!(own.is_multiple_of(per_slab), "there is a slot, and none was given");
            }
        }
    }

    /// Changes one slot in use, and forgets it if nobody has it any more.
    fn change(&mut self, slot: Option<u32>, change: impl FnOnce(&mut Slots, u32, &mut Plain)) {
        let Some(slot) = slot else { return };
        let plain = self.plain.get_mut(&slot).unwrap();
        change(&mut self.slots, slot, plain);
        if plain.owner.is_none() && !plain.is_held() {
            self.plain.remove(&slot);
        }
    }

    fn check(&self) {
        let gauges = self.slots.gauges();
        let bytes = |is: &dyn Fn(&Plain) -> bool| -> u64 {
            let some = self.plain.values().filter(|plain| is(plain));
            some.map(|plain| SHARDS[plain.class as usize].1).sum()
        };
        assert_eq!(gauges.used_bytes, bytes(&|_| true));
        assert_eq!(gauges.leased_bytes, bytes(&|plain| plain.leases > 0));
        assert_eq!(gauges.pinned_bytes, bytes(&Plain::is_held));
        assert_eq!(gauges.capacity_bytes, SLAB * u64::from(SLABS));
        for (slot, plain) in &self.plain {
            let meta = self.slots.meta(*slot);
            let state = if plain.owner.is_some() { SlotState::Used } else { SlotState::Doomed };
            assert_eq!((meta.state(), meta.leases(), meta.ios()), (state, plain.leases, plain.ios));
            assert_eq!(meta.owner, plain.owner.unwrap_or(NONE));
            assert_eq!(self.slots.class_of(*slot), plain.class);
            let place = self.slots.place(self.slots.key(*slot)).unwrap();
            assert!(place.offset + SHARDS[plain.class as usize].1 <= SLAB && place.bytes <= SLAB);
        }
        for (slab, this) in (0..).zip(self.slots.slabs()) {
            let is_here = |slot: &&u32| self.slots.key(**slot).slab == slab;
            assert_eq!(this.used as usize, self.plain.keys().filter(is_here).count(), "slab {slab}");
            assert_eq!(self.slots.empty().contains(&slab), this.used == 0, "slab {slab}");
        }
    }
}

#[test]
fn expected_times_cost_nothing_until_one_is_told() {
    let mut slots = Slots::new(SLAB, SLABS);
    slots.add_class(SHARDS[0].0, 0);
    let some: Vec<u32> = (0..16).map(|page| slots.claim(0, page).unwrap()).collect();
    let bytes = slots.bytes();
    assert!(some.iter().all(|slot| slots.returns(*slot) == 0));
    some.iter().for_each(|slot| slots.set_returns(*slot, 0));
    assert_eq!(slots.bytes(), bytes);
    slots.set_returns(some[5], 77);
    assert!(slots.bytes() > bytes && slots.bytes() <= bytes + 16 * 4, "it is counted");
    let told: Vec<u32> = some.iter().map(|slot| slots.returns(*slot)).collect();
    assert!(told.iter().enumerate().all(|(at, told)| *told == if at == 5 { 77 } else { 0 }), "{told:?}");
    slots.disown(some[5]);
    let again = slots.claim(0, 99).unwrap();
    assert_eq!((again, slots.returns(again)), (some[5], 0), "the next page there is another one");
}

#[test]
fn a_slot_that_is_held_is_nobody_elses_until_the_last_hold_ends() {
    let mut slots = Slots::new(SLAB, 1);
    slots.add_class(SHARDS[0].0, 0);
    let all: Vec<u32> = std::iter::from_fn(|| slots.claim(0, 1)).collect();
    assert_eq!(all.len() as u64, SLAB / SHARDS[0].1);
    let slot = all[3];
    slots.lease(slot);
    slots.begin_io(slot);
    slots.disown(slot);
    assert!(slots.claim(0, 2).is_none());
    slots.unlease(slot);
    assert!(slots.claim(0, 2).is_none(), "an operation in flight holds it as well");
    slots.end_io(slot);
    assert_eq!(slots.claim(0, 2), Some(slot));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn gauges_and_states_are_those_of_a_list(
        steps in prop::collection::vec((0..9u8, any::<u16>()), 1..400),
    ) {
        let mut world = World::new();
        for (what, which) in steps {
            match what {
                0..=2 => world.claim(u32::from(which) % SHARDS.len() as u32),
                3 => world.change(world.pick(which, |plain| plain.owner.is_some()), |slots, slot, plain| {
                    plain.owner = None;
                    slots.disown(slot);
                }),
                4 => world.change(world.pick(which, |plain| plain.owner.is_some()), |slots, slot, plain| {
                    plain.leases += 1;
                    slots.lease(slot);
                }),
                5 => world.change(world.pick(which, |plain| plain.leases > 0), |slots, slot, plain| {
                    plain.leases -= 1;
                    slots.unlease(slot);
                }),
                6 => world.change(world.pick(which, |plain| plain.owner.is_some() && plain.ios == 0), |slots, slot, plain| {
                    plain.ios += 1;
                    slots.begin_io(slot);
                }),
                7 => world.change(world.pick(which, |plain| plain.ios > 0), |slots, slot, plain| {
                    plain.ios -= 1;
                    slots.end_io(slot);
                }),
                _ => {
                    if let Some(slot) = world.pick(which, |plain| plain.owner.is_some()) {
                        world.slots.set_returns(slot, u32::from(which));
                        prop_assert_eq!(world.slots.returns(slot), u32::from(which));
                    }
                }
            }
            world.check();
        }
    }
}
