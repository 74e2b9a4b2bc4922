//! What the device must do.

use super::*;

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
