//! Whole copies on the host device: bytes, checksums, order, everything that can go wrong.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::*;
use crate::checksum;
use crate::device::host::HostControl;
use crate::region::{HugePages, Region, RegionOptions};

const PAGE: usize = 96 << 10;

/// Waits for a future on this thread: flights need no runtime.
fn wait<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
        assert!(Instant::now() < deadline, "the device does not answer");
        thread::sleep(Duration::from_micros(50));
    }
}

fn region(pages: usize) -> Arc<Region> {
    let options = RegionOptions {
        bytes: pages * PAGE,
        huge_pages: HugePages::Off,
        touch: false,
        lock: false,
        name: "test".to_owned(),
    };
    Region::create(&options).unwrap().0
}

fn strict() -> HostOptions {
    HostOptions { strict: true, ..HostOptions::default() }
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed;
    let mut step = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..bytes).map(|_| step()).collect()
}

/// A device whose memory of `pages` pages is full of pages that can be told apart.
struct Rig {
    device: Device,
    control: HostControl,
    memory: Arc<DeviceBuffer>,
    region: Arc<Region>,
    engine: Stream,
}

impl Rig {
    fn new(options: HostOptions, pages: usize) -> Self {
        let control = options.control.clone();
        let device = Device::host(options).unwrap();
        let memory = device.allocate(pages * PAGE).unwrap();
        let engine = device.driver().new_stream(Priority::Low).unwrap();
        let rig = Self { device, control, memory, region: region(pages), engine };
        for page in 0..pages {
            rig.write(page, &pattern(page as u64, PAGE));
        }
        rig
    }

    /// Waits until the slab is pinned.
    fn registered(self) -> Self {
        self.device.inner.core.registry.is_direct(&self.region);
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.device.stats().registered_bytes == 0 {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(1));
        }
        self
    }

    fn write(&self, page: usize, bytes: &[u8]) {
        let target =
            std::ptr::with_exposed_provenance_mut::<u8>(self.memory.address() as usize + page * PAGE);
        // SAFETY: the page lies inside the device's memory, which is this process's, and nothing is under way on it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    fn read(&self, page: usize) -> Vec<u8> {
        let source = std::ptr::with_exposed_provenance::<u8>(self.memory.address() as usize + page * PAGE);
        // SAFETY: as in `write`.
        unsafe { std::slice::from_raw_parts(source, PAGE) }.to_vec()
    }

    /// Pages of the device's memory in pieces of `piece` bytes, each with its slot.
    fn pages(&self, pages: std::ops::Range<usize>, piece: usize) -> Vec<SlotPage> {
        let pieces =
            |page: usize| (0..PAGE / piece).map(move |at| (page * PAGE + at * piece, piece)).collect();
        let one = |page: usize| {
            let pieces: Vec<(usize, usize)> = pieces(page);
            let plan = self.memory.plan(&pieces).unwrap();
            SlotPage { slot: self.region.slot(page * PAGE, PAGE).unwrap(), plan }
        };
        pages.map(one).collect()
    }

    fn assert_no_faults(&self) {
        assert_eq!(self.control.faults(), Vec::<String>::new());
    }
}

/// Out and back in every way of copying, pinned or not, whole pages or fragments, with calls that take their time.
#[test]
fn pages_go_out_and_come_back_in_every_way() {
    let mut seed = 0;
    for copy in [CopyChoice::Auto, CopyChoice::Engine, CopyChoice::Batch, CopyChoice::Kernel] {
        for (kernels, batches, registers) in
            [(true, true, true), (false, true, true), (false, false, true), (true, true, false)]
        {
            for piece in [PAGE, 4 << 10, 768] {
                seed += 1;
                let device = DeviceOptions {
                    copy,
                    staging_bytes: 1 << 20,
                    chunk_bytes: 64 << 10,
                    ..Default::default()
                };
                let delay_max = Duration::from_micros(200);
                let options =
                    HostOptions { device, kernels, batches, registers, delay_max, seed, ..strict() };
                let rig = Rig::new(options, 6);
                let rig = if registers { rig.registered() } else { rig };
                round_trip(&rig, piece);
                let stats = rig.device.stats();
                assert_eq!(stats.direct_bytes > 0, registers, "{stats:?}");
                assert_eq!(stats.staged_bytes > 0, !registers, "{stats:?}");
                assert_eq!(stats.flights, 0);
                rig.assert_no_faults();
            }
        }
    }
}

fn round_trip(rig: &Rig, piece: usize) {
    let mark = rig.device.mark(rig.engine).unwrap();
    let flight = rig.device.fill(rig.pages(0..6, piece), Some(mark)).unwrap();
    let landed = wait(flight.landed()).unwrap();
    for page in 0..6 {
        let expected = pattern(page as u64, PAGE);
        assert_eq!(landed.checksums[page], checksum(&expected), "page {page}");
        let slot = rig.region.slot(page * PAGE, PAGE).unwrap();
        assert!(slot.bytes() == expected, "page {page} in its slot");
        rig.write(page, &[0; PAGE]);
    }
    let layers = PAGE / piece;
    let flight = rig.device.drain(rig.pages(0..6, piece), None, layers, true).unwrap();
    wait(flight.enqueued()).unwrap();
    flight.wait_layer(layers - 1, rig.engine).unwrap();
    assert!(flight.wait_layer(layers, rig.engine).is_err(), "there is no such layer");
    let back = wait(flight.landed()).unwrap();
    assert_eq!(back.checksums, landed.checksums);
    for page in 0..6 {
        assert!(rig.read(page) == pattern(page as u64, PAGE), "page {page} back on the device");
    }
}
