//! A ring never hands a byte out twice, and always has room again.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::device::Device;
use crate::device::host::HostOptions;

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pieces_in_use_never_overlap(sizes in proptest::collection::vec((1usize..4096, 0usize..3), 1..200)) {
        let device = Device::host(HostOptions::default()).unwrap();
        let mut ring = Ring::new(Arc::clone(device.driver()), 4096).unwrap();
        let mut in_use: VecDeque<(u64, usize, u64)> = VecDeque::new();
        for (bytes, freed) in sizes {
            for _ in 0..freed {
                if let Some((_, _, end)) = in_use.pop_front() {
                    ring.free_to(end);
                }
            }
            let taken = loop {
                match ring.take(bytes) {
                    Some(taken) => break taken,
                    None => {
                        let oldest = in_use.pop_front();
                        prop_assert!(oldest.is_some(), "an empty ring has room for anything it can hold");
                        ring.free_to(oldest.map_or(0, |(_, _, end)| end));
                    }
                }
            };
            let (start, end) = (taken.address(), taken.address() + bytes as u64);
            prop_assert!(start >= ring.base.addr() as u64 && end <= (ring.base.addr() + ring.len()) as u64);
            for &(other, other_bytes, _) in &in_use {
                prop_assert!(end <= other || start >= other + other_bytes as u64, "{in_use:?} {taken:?}");
            }
            in_use.push_back((start, bytes, ring.end()));
        }
    }
}
