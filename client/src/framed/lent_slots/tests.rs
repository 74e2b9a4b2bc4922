//! Slots as they are lent: in few runs, to framed rails alone, and nobody's when they are taken back.

use super::super::tests::PlayedNic;
use super::*;
use turnkv_transfer::fabric::RailOffers;
use turnkv_transfer::fabric::framed::FramedDomain;
use turnkv_transfer::{HugePages, Region, RegionOptions};

const SLOT: usize = 4096;

fn region() -> Arc<Region> {
    let options = RegionOptions {
        bytes: 256 * SLOT,
        huge_pages: HugePages::Off,
        touch: false,
        lock: false,
        name: "turnkv-test".to_owned(),
    };
    Region::create(&options).unwrap().0
}

fn slots(region: &Arc<Region>, at: impl IntoIterator<Item = usize>) -> Vec<Slot> {
    at.into_iter().map(|at| region.slot(at * SLOT, SLOT).unwrap()).collect()
}

fn framed() -> (Arc<FramedDomain>, Reach) {
    let domain = FramedDomain::new();
    let reach = Reach::framed(7, &domain);
    (domain, reach)
}

#[test]
fn slots_one_behind_the_other_are_one_region_and_every_one_is_where_it_is() {
    let (one, other) = (region(), region());
    let mut all = slots(&one, [3, 4, 5, 9, 8]);
    all.extend(slots(&other, [9, 10]));
    let (domain, reach) = framed();
    let lent = LentSlots::lend(&[reach], &all).unwrap();
    let sizes: Vec<u64> = lent.regions().iter().map(|region| region.bytes / SLOT as u64).collect();
    assert_eq!((sizes, domain.registrations()), (vec![3, 1, 1, 2], 4));
    let place = |at: usize| lent.span(at, SLOT).map(|span| (span.region, span.offset / SLOT as u64));
    let places: Vec<_> = (0..all.len()).filter_map(place).collect();
    assert_eq!(places, [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (3, 0), (3, 1)]);
    assert_eq!(lent.span(all.len(), SLOT), None);
    let keys = lent.regions();
    assert!(keys.iter().all(|region| region.keys.len() == 1 && region.keys[0].domain == 7));
    drop(lent);
    assert_eq!(domain.registrations(), 0, "they are taken back");
    drop(all);
    assert_eq!(Arc::strong_count(&one), 1, "and nothing keeps them mapped");
}

#[test]
fn only_framed_rails_reach_them_and_only_so_many_runs() {
    let region = region();
    let (domain, reach) = framed();
    let nic: Arc<dyn RailOffers> = Arc::new(PlayedNic::default());
    for reaches in [vec![], vec![Reach::nic(1, &nic)], vec![Reach::nic(1, &nic), reach.clone()]] {
        assert!(LentSlots::lend(&reaches, &slots(&region, [0])).is_none());
    }
    let apart = |count: usize| slots(&region, (0..count).map(|at| 2 * at));
    assert!(LentSlots::lend(std::slice::from_ref(&reach), &apart(REMOTE_REGIONS_MAX)).is_some());
    assert!(LentSlots::lend(&[reach], &apart(REMOTE_REGIONS_MAX + 1)).is_none());
    assert_eq!(domain.registrations(), 0);
}

#[test]
fn where_as_much_as_may_be_is_lent_none_is_and_nothing_stays_lent() {
    let region = region();
    let (domain, reach) = framed();
    let lend = |count: usize| {
        LentSlots::lend(std::slice::from_ref(&reach), &slots(&region, (0..count).map(|at| 2 * at)))
    };
    let mut all = Vec::new();
    while let Some(lent) = lend(60) {
        all.push(lent);
    }
    let most = domain.registrations();
    assert!(lend(60).is_none() && most == 60 * all.len(), "{most} of {} calls", all.len());
    all.pop();
    assert!(lend(60).is_some() && domain.registrations() == most - 60);
}
