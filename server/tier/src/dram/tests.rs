//! Slabs: creation, renewal, bounds, budget.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const SLAB: u64 = 1 << 20;

fn config(slabs: u32) -> DramConfig {
    DramConfig {
        slab_bytes: SLAB,
        slab_count: slabs,
        huge_pages: HugePages::Off,
        lock: false,
        check_available: true,
    }
}

#[test]
fn slots_lie_in_their_slab_and_generation() {
    let (tier, report) = DramTier::new(config(3)).unwrap();
    assert_eq!(report.bytes, 3 * SLAB);
    assert_eq!((report.locked_bytes, report.lock_warning), (0, None));
    let slot = tier.slot(2, 0, SLAB - 4096, 4096).unwrap();
    slot.claim().unwrap().fill(&[7; 4096]);
    assert!(tier.slot(2, 0, SLAB - 4096, 4097).is_none());
    assert!(tier.slot(2, 1, 0, 4096).is_none());
    assert!(tier.slot(3, 0, 0, 4096).is_none());
    assert!(tier.slot(0, 0, u64::MAX, 4096).is_none());
}

#[test]
fn a_renewed_slab_is_empty_and_its_old_memory_is_gone() {
    let (tier, _) = DramTier::new(config(1)).unwrap();
    let old = tier.slot(0, 0, 0, 4096).unwrap();
    old.claim().unwrap().fill(&[7; 4096]);
    let region = tier.renew(0, 5).unwrap().unwrap();
    assert_eq!(tier.region(0).unwrap().1, 5);
    assert!(Arc::ptr_eq(&region, &tier.region(0).unwrap().0));
    assert!(tier.slot(0, 0, 0, 4096).is_none());
    assert_eq!(tier.slot(0, 5, 0, 4096).unwrap().page().to_vec(), [0; 4096]);
    assert_eq!(rustix::fs::fstat(old.region().fd()).unwrap().st_blocks, 0);
    assert_eq!(old.page().to_vec(), [0; 4096]);
    assert!(tier.renew(1, 1).is_none());
}

#[test]
fn a_renewal_that_comes_late_changes_nothing() {
    let (tier, _) = DramTier::new(config(1)).unwrap();
    assert!(tier.awaits(0, 2) && !tier.awaits(0, 0) && !tier.awaits(1, 1));
    let region = tier.renew(0, 2).unwrap().unwrap();
    assert!(tier.renew(0, 1).is_none(), "another thread was faster with a later one");
    assert!(Arc::ptr_eq(&region, &tier.region(0).unwrap().0));
    assert_eq!(tier.region(0).unwrap().1, 2);
    assert!(tier.awaits(0, 3) && !tier.awaits(0, 2) && !tier.awaits(0, 1));
}

#[test]
fn a_budget_above_the_hosts_memory_is_refused_with_both_numbers() {
    let huge = DramConfig {
        slab_bytes: 1 << 40,
        slab_count: 64,
        huge_pages: HugePages::Off,
        lock: false,
        check_available: true,
    };
    let error = DramTier::new(huge).unwrap_err();
    assert!(matches!(error, DramError::Budget { asked_bytes, .. } if asked_bytes == 64 << 40));
    assert!(error.to_string().contains("70368744177664"));
}

#[test]
fn impossible_slabs_are_refused() {
    for (slab_bytes, slab_count) in [(0, 1), (4097, 1), (4096, 0), (4096, SLABS_MAX + 1)] {
        let config = DramConfig {
            slab_bytes,
            slab_count,
            huge_pages: HugePages::Off,
            lock: false,
            check_available: true,
        };
        assert!(matches!(DramTier::new(config), Err(DramError::Config(_))));
    }
}

#[test]
fn a_lock_is_counted_or_explained() {
    let (tier, report) = DramTier::new(DramConfig { lock: true, ..config(2) }).unwrap();
    assert!(report.locked_bytes == 2 * SLAB || report.lock_warning.is_some());
    assert_eq!(tier.locked_bytes(), report.locked_bytes);
}

#[test]
fn a_slab_that_leaves_gives_its_memory_back_and_another_one_comes() {
    let (tier, _) = DramTier::new(config(2)).unwrap();
    let old = tier.region(1).unwrap().0;
    tier.give_back(1, 1);
    assert!(tier.region(1).is_none() && tier.slot(1, 0, 0, 4096).is_none());
    assert_eq!(rustix::fs::fstat(old.fd()).unwrap().st_blocks, 0, "whoever maps it keeps nothing of it");
    assert_eq!((tier.report().bytes, tier.regions().len()), (SLAB, 1));
    let region = tier.make(1, 2).unwrap().unwrap();
    tier.give_back(1, 1);
    assert!(Arc::ptr_eq(&region, &tier.region(1).unwrap().0), "what comes late takes nothing away");
    tier.make(200, 1).unwrap().unwrap();
    assert_eq!(tier.report().bytes, 3 * SLAB);
    assert!(tier.region(199).is_none() && tier.region(200).is_some());
    assert!(tier.make(SLABS_MAX, 1).is_none());
}

#[test]
fn growth_beyond_the_hosts_memory_is_refused() {
    let (tier, _) = DramTier::new(DramConfig { slab_bytes: 1 << 20, ..config(1) }).unwrap();
    assert!(tier.check_growth(1).is_ok());
    assert!(matches!(tier.check_growth(SLABS_MAX * 4096 - 1), Err(DramError::Budget { .. })));
}

/// Of each slab that ever was: its generation, and what its memory holds, if it has some.
type Model = BTreeMap<u32, (u32, Option<u8>)>;

fn check_slab(tier: &DramTier, model: &Model, slab: u32) {
    let known = model.get(&slab).copied();
    let (generation, holds) = known.map_or((0, None), |(generation, holds)| (generation, holds));
    assert_eq!(tier.region(slab).map(|(_, generation)| generation), holds.map(|_| generation));
    for asked in [generation.wrapping_sub(1), generation, generation + 1] {
        let slot = tier.slot(slab, asked, SLAB - 4096, 4096);
        let wanted = holds.filter(|_| asked == generation);
        assert_eq!(slot.map(|slot| slot.page().to_vec()), wanted.map(|byte| vec![byte; 4096]));
        assert_eq!(tier.awaits(slab, asked), known.is_some() && generation < asked, "slab {slab}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Threads that renew and give back come in any order: generations are what orders them.
    #[test]
    fn a_slab_is_what_the_latest_generation_made_of_it(
        steps in proptest::collection::vec((0u8..4, 0u32..4, 0u32..6), 1..40)
    ) {
        let (tier, _) = DramTier::new(config(2)).unwrap();
        let mut model: Model = BTreeMap::from([(0, (0, Some(0))), (1, (0, Some(0)))]);
        for (step, slab, generation) in steps {
            let known = model.get(&slab).copied();
            // Without memory, the same generation is a try that failed before.
            let is_later = |(now, holds): (u32, Option<u8>)| generation > now || generation == now && holds.is_none();
            match step {
                0 => {
                    let made = tier.make(slab, generation).map(|made| made.is_ok());
                    let wanted = known.is_none_or(is_later);
                    prop_assert_eq!(made, wanted.then_some(true));
                    if wanted {
                        for below in 0..slab {
                            model.entry(below).or_insert((0, None));
                        }
                        model.insert(slab, (generation, Some(0)));
                    }
                }
                1 => {
                    let made = tier.renew(slab, generation).map(|made| made.is_ok());
                    let wanted = known.is_some_and(is_later);
                    prop_assert_eq!(made, wanted.then_some(true));
                    if wanted {
                        model.insert(slab, (generation, Some(0)));
                    }
                }
                2 => {
                    tier.give_back(slab, generation);
                    if known.is_some_and(|(now, _)| generation > now) {
                        model.insert(slab, (generation, None));
                    }
                }
                _ => if let Some((now, Some(holds))) = known {
                    let slot = tier.slot(slab, now, SLAB - 4096, 4096).unwrap();
                    slot.claim().unwrap().fill(&[holds + 1; 4096]);
                    model.insert(slab, (now, Some(holds + 1)));
                },
            }
            (0..5).for_each(|slab| check_slab(&tier, &model, slab));
            let with_memory = model.values().filter(|(_, holds)| holds.is_some()).count();
            prop_assert_eq!(tier.report().bytes, with_memory as u64 * SLAB);
            prop_assert_eq!(tier.regions().len(), with_memory);
            prop_assert_eq!(tier.numbers() as usize, model.len());
        }
    }
}

/// What a process that is gone left must be what it says: another length is not mapped and read past its end.
#[test]
fn kept_memory_of_another_size_is_no_slab() {
    let kept = |bytes: u64| {
        let fd = rustix::fs::memfd_create("kept", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        SlabMemory::Kept(fd)
    };
    for bytes in [0, SLAB - 1, SLAB - 4096] {
        let starts = vec![SlabStart::default(), SlabStart { generation: 3, memory: kept(bytes) }];
        let refused = DramTier::start(config(2), starts);
        assert!(matches!(refused, Err(DramError::Slab { slab: 1, .. })), "{bytes}: {refused:?}");
    }
    for count in [1, 3] {
        let starts = (0..count).map(|_| SlabStart::default()).collect();
        assert!(matches!(DramTier::start(config(2), starts), Err(DramError::Config(_))), "{count} starts");
    }
    let absent = SlabStart { generation: 7, memory: SlabMemory::Absent };
    let (tier, report) = DramTier::start(config(2), vec![SlabStart::default(), absent]).unwrap();
    assert_eq!((report.bytes, tier.region(1).is_none()), (SLAB, true));
    assert!(tier.make(1, 6).is_none() && tier.make(1, 7).unwrap().is_ok(), "it goes on from its generation");
}
