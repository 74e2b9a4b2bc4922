//! What the device must do.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn a_segment_is_free_again_when_nothing_in_it_is_needed() {
    let mut device = Device::new(4, 1, Speed::default());
    let places: Vec<NvmePlace> = (0..7).map_while(|block| device.append(block)).collect();
    assert_eq!(places.len(), 7, "four segments of one page, and three to spare");
    assert!(device.append(9).is_none() && device.needs_room());
    assert_eq!(device.worst_segment(|_| 1), Some(places[0].segment.into()), "the oldest of equals");
    assert_eq!(device.live_extents(places[0].segment.into()), [(0, places[0])]);
    device.forget(places[0]);
    assert!(device.append(9).is_some() && device.append(10).is_none());
}

#[test]
fn operations_queue_at_the_devices_speed() {
    let speed = Speed { read_bytes_s: Some(1000), write_bytes_s: None };
    let mut device = Device::new(1000, 10, speed);
    assert_eq!([device.read_done(5), device.read_done(5), device.read_done(100)], [15, 25, 110]);
    assert_eq!(device.write_done(7), 7);
}

#[test]
fn a_device_of_any_size_holds_what_it_is_said_to_and_no_segment_more_than_it_has() {
    for pages in [1, 2, 511, 512, 513, 1023, 1024, 5_000] {
        let mut device = Device::new(pages, 1, Speed::default());
        let places: Vec<NvmePlace> = (0..).map_while(|block| device.append(block)).collect();
        let kept = pages * u64::from(Device::kept_percent(pages)) / 100;
        assert!(places.len() as u64 >= kept, "{} places for {pages} pages, {kept} kept", places.len());
        assert!(places.len() as u64 <= pages + 3, "{} places for {pages} pages", places.len());
        assert!(!device.has_room() && device.needs_room());
        let of = |place: &NvmePlace| (place.segment, place.block);
        let mut names: Vec<(u16, u32)> = places.iter().map(of).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), places.len(), "a place is given once");
    }
}

#[test]
fn a_device_without_a_speed_takes_no_time_and_one_with_the_least_takes_all() {
    let slow = Speed { read_bytes_s: Some(0), write_bytes_s: Some(1) };
    let mut device = Device::new(4, 1 << 20, slow);
    assert_eq!(device.write_done(0), (1 << 20) * 1000, "a second a byte");
    assert_eq!(device.read_done(0), (1 << 20) * 1000, "no bytes in a second are at least one");
    let mut endless = Device::new(4, u64::MAX, Speed { read_bytes_s: Some(u64::MAX), write_bytes_s: None });
    assert!(endless.read_done(1) >= 1);
    assert_eq!(Device::new(4, 1, Speed::default()).read_done(77), 77);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_not_forgotten_is_where_it_was_put_whatever_else_comes_and_goes(
        pages in prop_oneof![1u64..40, 1024u64..4000],
        ops in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), 1usize..40), 1..80),
    ) {
        let mut device = Device::new(pages, 1, Speed::default());
        let (mut plain, mut block) = (BTreeMap::new(), 0);
        let key = |place: NvmePlace| (place.segment, place.block);
        for (appends, which, times) in ops {
            let mut segments = BTreeSet::new();
            for _ in 0..times {
                if appends {
                    let had_room = device.has_room();
                    let place = device.append(block);
                    prop_assert_eq!(place.is_some(), had_room);
                    if let Some(place) = place {
                        prop_assert!(plain.insert(key(place), (place, block)).is_none(), "it is somebody's");
                        segments.insert(place.segment);
                        block += 1;
                    }
                } else if !plain.is_empty() {
                    let name = *plain.keys().nth(which.index(plain.len())).expect("one of them");
                    let (place, _) = plain.remove(&name).expect("it is there");
                    device.forget(place);
                    segments.insert(place.segment);
                }
            }
            for segment in segments {
                let live = device.live_extents(segment.into()).into_iter();
                let live = live.map(|(block, place)| (key(place), (place, block)));
                let own = plain.range((segment, 0)..=(segment, u32::MAX)).map(|(key, what)| (*key, *what));
                prop_assert_eq!(live.collect::<Vec<_>>(), own.collect::<Vec<_>>());
            }
            if let Some(worst) = device.worst_segment(|_| 0) {
                let extents = device.segments[worst as usize].extents.len();
                prop_assert_eq!(extents, device.segment_pages, "it is full");
            }
        }
        // With nothing needed any more there is as much room as on a new one, but for what the open segment has used up.
        plain.into_values().for_each(|(place, _)| device.forget(place));
        let segments = device.segments.len();
        let most = segments * device.segment_pages;
        let room = std::iter::from_fn(|| device.append(0)).take(2 * most).count();
        prop_assert!((most - device.segment_pages..=most).contains(&room));
        prop_assert!(device.segments.iter().all(|segment| segment.extents.len() == device.segment_pages));
    }
}
