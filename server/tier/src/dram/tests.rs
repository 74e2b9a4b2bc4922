//! Slabs: creation, renewal, bounds, budget.

use super::*;

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
