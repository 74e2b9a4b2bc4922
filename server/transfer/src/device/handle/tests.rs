//! Whole copies on the host device: bytes, checksums, order, everything that can go wrong.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::*;
use crate::checksum;
use crate::device::host::HostControl;
use crate::limits::STAGING_BYTES_USUAL;
use crate::region::{HugePages, Region, RegionOptions};

mod early;
mod engine;
mod gather;
mod lent;
mod pinning;

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
        self.device.inner.core.registry.is_direct(&self.region.slot(0, PAGE).unwrap());
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
        // SAFETY: the page lies inside the device's memory, which is this process's, and nothing is under way
        // on it.
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
            SlotPage { slot: self.region.slot(page * PAGE, PAGE).unwrap().into(), plan }
        };
        pages.map(one).collect()
    }

    fn assert_no_faults(&self) {
        assert_eq!(self.control.faults(), Vec::<String>::new());
    }
}

/// Out and back in every way of copying, pinned or not, whole pages or fragments, with calls that take their
/// time.
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
        assert!(slot.page().to_vec() == expected, "page {page} in its slot");
        rig.write(page, &[0; PAGE]);
        slot.claim().unwrap().fill(&expected);
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

/// A driver that loads a kernel, or takes memory, has an engine's launches wait meanwhile: all of that is
/// done at the opening.
#[test]
fn an_open_device_has_nothing_left_to_load_or_to_take() {
    let rig = Rig::new(strict(), 6).registered();
    let free = rig.device.memory().unwrap().free_bytes;
    rig.control.hold(rig.engine);
    engine_copies(&rig, 4, 5);
    for piece in [768, PAGE] {
        let filled = rig.device.fill(rig.pages(0..4, piece), None).unwrap();
        wait(filled.landed()).unwrap();
        let drained = rig.device.drain(rig.pages(0..4, piece), None, 1, true).unwrap();
        wait(drained.landed()).unwrap();
    }
    rig.control.let_go();
    rig.assert_no_faults();
    assert_eq!(rig.device.memory().unwrap().free_bytes, free, "taken while the engine is at work");
}

/// What an engine's kernel would do: write a page, or read one, on its own stream.
fn engine_copies(rig: &Rig, source: usize, target: usize) {
    let at = |page: usize| rig.memory.address() + (page * PAGE) as u64;
    let request = crate::device::CopyRequest { target: at(target), source: at(source), bytes: PAGE };
    // SAFETY: both pages lie inside the device's memory, which outlives the stream's work; order is what the
    // test is about.
    unsafe { rig.device.driver().copy(request, rig.engine).unwrap() };
}

#[test]
fn pages_are_read_after_the_work_that_writes_them() {
    let rig =
        Rig::new(HostOptions { delay_max: Duration::from_millis(2), seed: 3, ..strict() }, 4).registered();
    rig.control.hold(rig.engine);
    engine_copies(&rig, 1, 0);
    let mark = rig.device.mark(rig.engine).unwrap();
    let flight = rig.device.fill(rig.pages(0..1, 4 << 10), Some(mark)).unwrap();
    thread::sleep(Duration::from_millis(30));
    assert!(!flight.is_done(), "it reads what is still being written");
    rig.control.let_go();
    let landed = wait(flight.landed()).unwrap();
    assert_eq!(landed.checksums, [checksum(&pattern(1, PAGE))], "the bytes that the engine wrote");
    rig.assert_no_faults();
}

#[test]
fn pages_are_written_after_the_work_that_reads_them_and_before_the_work_that_waits() {
    let rig =
        Rig::new(HostOptions { delay_max: Duration::from_millis(2), seed: 4, ..strict() }, 4).registered();
    rig.region.slot(0, PAGE).unwrap().claim().unwrap().fill(&pattern(77, PAGE));
    rig.control.hold(rig.engine);
    engine_copies(&rig, 0, 2);
    let mark = rig.device.mark(rig.engine).unwrap();
    let flight = rig.device.drain(rig.pages(0..1, 4 << 10), Some(mark), 24, true).unwrap();
    wait(flight.enqueued()).unwrap();
    for layer in 0..24 {
        flight.wait_layer(layer, rig.engine).unwrap();
    }
    engine_copies(&rig, 0, 3);
    assert!(!flight.is_done());
    rig.control.let_go();
    wait(flight.landed()).unwrap();
    wait(rig.device.passed(&rig.device.mark(rig.engine).unwrap()).unwrap().landed()).unwrap();
    assert!(rig.read(2) == pattern(0, PAGE), "read before it was overwritten");
    assert!(rig.read(3) == pattern(77, PAGE), "read after it had come");
    rig.assert_no_faults();
}

/// Waits until something holds, which a device that works has brought about by then.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Checksums take their time beside the copies, not between them: they are held up here, and bytes arrive all
/// the same.
#[test]
fn copies_do_not_wait_for_checksums() {
    let rig = Rig::new(strict(), 6).registered();
    for page in 0..4 {
        rig.region.slot(page * PAGE, PAGE).unwrap().claim().unwrap().fill(&pattern(50 + page as u64, PAGE));
    }
    rig.control.hold_checksums();
    let first = rig.device.drain(rig.pages(0..2, 4 << 10), None, 0, true).unwrap();
    let second = rig.device.drain(rig.pages(2..4, 4 << 10), None, 1, true).unwrap();
    wait(second.enqueued()).unwrap();
    second.wait_layer(0, rig.engine).unwrap();
    let there = rig.device.passed(&rig.device.mark(rig.engine).unwrap()).unwrap();
    wait(there.landed()).unwrap();
    assert!(rig.read(3) == pattern(53, PAGE), "the second reload is there");
    assert!(!first.is_done() && !second.is_done(), "nobody says so before it is verified");
    let filled = rig.device.fill(rig.pages(4..6, 4 << 10), None).unwrap();
    let slot = rig.region.slot(5 * PAGE, PAGE).unwrap();
    wait_until("the offload's bytes", || slot.page().to_vec() == pattern(5, PAGE));
    assert!(!filled.is_done());
    rig.control.let_go();
    for (flight, pages) in [(first, [50, 51]), (second, [52, 53]), (filled, [4, 5])] {
        let expected = pages.map(|page| checksum(&pattern(page, PAGE)));
        assert_eq!(wait(flight.landed()).unwrap().checksums, expected);
    }
    rig.assert_no_faults();
}

/// A reload that is verified part by part, while its next part comes: every page has its own checksum.
#[test]
fn pages_of_every_part_have_their_own_checksums() {
    for layers in [0, 1, 3] {
        let device = DeviceOptions { chunk_bytes: 2 * PAGE, ..DeviceOptions::default() };
        let delay_max = Duration::from_micros(100);
        let rig = Rig::new(HostOptions { device, delay_max, ..strict() }, 5).registered();
        for page in 0..5 {
            rig.region
                .slot(page * PAGE, PAGE)
                .unwrap()
                .claim()
                .unwrap()
                .fill(&pattern(60 + page as u64, PAGE));
        }
        let flight = rig.device.drain(rig.pages(0..5, PAGE / 3), None, layers, true).unwrap();
        let expected: Vec<u64> = (60..65).map(|page| checksum(&pattern(page, PAGE))).collect();
        assert_eq!(wait(flight.landed()).unwrap().checksums, expected);
        rig.assert_no_faults();
    }
}

/// The same without the mark is found out, even where the bytes happen to be right: else the tests above
/// prove nothing.
#[test]
fn work_without_an_order_is_found_out() {
    let rig = Rig::new(strict(), 4).registered();
    rig.control.hold(rig.engine);
    engine_copies(&rig, 1, 0);
    let flight = rig.device.fill(rig.pages(0..1, PAGE), None).unwrap();
    wait(flight.landed()).unwrap();
    rig.control.let_go();
    assert!(rig.control.faults()[0].contains("nothing orders them"), "{:?}", rig.control.faults());
}

/// Any call may fail in any way: the flight ends with an error or in time, nothing is used after it was
/// freed, and unless the device broke, the next copy works.
#[test]
fn every_call_may_fail() {
    let kinds = [
        DeviceErrorKind::Invalid,
        DeviceErrorKind::NoMemory,
        DeviceErrorKind::Unsupported,
        DeviceErrorKind::Broken,
    ];
    for (number, kind) in kinds.into_iter().enumerate() {
        for call in 0..14 {
            let device = DeviceOptions { staging_bytes: 1 << 20, ..DeviceOptions::default() };
            let registers = (number + call) % 2 == 0;
            let rig = Rig::new(HostOptions { device, registers, ..strict() }, 6);
            let rig = if registers { rig.registered() } else { rig };
            rig.control.fail_after(call as u64, kind);
            let mark = rig.device.mark(rig.engine);
            let flight = mark.and_then(|mark| rig.device.fill(rig.pages(0..6, 4 << 10), Some(mark)));
            let landed = flight.and_then(|flight| wait(flight.landed()));
            if let Ok(landed) = &landed {
                let expected: Vec<u64> = (0..6).map(|page| checksum(&pattern(page, PAGE))).collect();
                assert_eq!(landed.checksums, expected, "{kind:?} at call {call}");
            }
            rig.assert_no_faults();
            assert_eq!(rig.device.stats().flights, 0);
            rig.control.fail_no_more();
            if rig.device.check().is_ok() {
                (0..12).for_each(|_| round_trip(&rig, 4 << 10)); // also what the failed call had taken is free again
            } else {
                assert!(
                    rig.device.fill(rig.pages(0..6, PAGE), None).is_err(),
                    "a broken device takes no more"
                );
            }
        }
    }
}

#[test]
fn a_stream_that_never_ends_breaks_the_device_in_bounded_time() {
    let device = DeviceOptions { stuck_after: Duration::from_millis(200), ..DeviceOptions::default() };
    let rig = Rig::new(HostOptions { device, ..strict() }, 4).registered();
    rig.control.hold(rig.engine);
    engine_copies(&rig, 1, 0);
    let mark = rig.device.mark(rig.engine).unwrap();
    let flight = rig.device.fill(rig.pages(0..2, PAGE), Some(mark)).unwrap();
    let safe = Arc::new(Mutex::new(None));
    let told = Arc::clone(&safe);
    flight.abandon(Box::new(move |is_safe| *told.lock() = Some(is_safe)));
    let error = wait(flight.landed()).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Broken);
    assert_eq!(*safe.lock(), Some(false), "whoever holds a lease for it is told not to end it");
    let of_the_lane = TABLE_BYTES + STAGING_BYTES_USUAL / 2;
    assert_eq!(rig.device.stats().quarantined_bytes, (2 * PAGE + of_the_lane) as u64);
    let slots = Arc::strong_count(&rig.region);
    assert!(slots > 2, "the slots are never given back: {slots}");
    assert!(rig.device.drain(rig.pages(0..1, PAGE), None, 0, true).is_err());
}

#[test]
fn what_is_dropped_under_way_is_kept_until_it_is_done() {
    let rig = Rig::new(strict(), 4).registered();
    let Rig { device, control, memory, region, .. } = rig;
    let pages: Vec<SlotPage> = (0..4)
        .map(|page| SlotPage {
            slot: region.slot(page * PAGE, PAGE).unwrap().into(),
            plan: memory.plan(&[(page * PAGE, PAGE)]).unwrap(),
        })
        .collect();
    control.hold_all();
    drop(device.fill(pages, None).unwrap());
    let (memory, region) = (Arc::downgrade(&memory), {
        let weak = Arc::downgrade(&region);
        drop(memory);
        drop(region);
        weak
    });
    drop(device);
    thread::sleep(Duration::from_millis(400));
    assert!(memory.strong_count() > 0 && region.strong_count() > 0, "freed while the device uses it");
    control.let_go();
    let deadline = Instant::now() + Duration::from_secs(10);
    while memory.strong_count() > 0 || region.strong_count() > 0 {
        assert!(Instant::now() < deadline, "never freed");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(control.faults(), Vec::<String>::new());
}

#[test]
fn copies_within_the_device_follow_the_slot_order() {
    let rig = Rig::new(HostOptions { delay_max: Duration::from_micros(300), ..strict() }, 4);
    let part = |page: usize, piece: usize| rig.pages(page..page + 1, piece).remove(0).plan;
    let flight =
        rig.device.copy(vec![(part(0, 768), part(2, 4 << 10)), (part(1, PAGE), part(3, 768))], None, 0);
    wait(flight.unwrap().landed()).unwrap();
    assert!(rig.read(2) == pattern(0, PAGE) && rig.read(3) == pattern(1, PAGE));
    assert_eq!(rig.device.stats().device_bytes, 2 * PAGE as u64);
    rig.assert_no_faults();
}

#[test]
fn a_slab_without_room_is_staged_until_another_one_goes() {
    let device = DeviceOptions { pinned_bytes_max: Some(4 * PAGE as u64), ..DeviceOptions::default() };
    let rig = Rig::new(HostOptions { device, ..strict() }, 4).registered();
    let other = region(4);
    let pages = |region: &Arc<Region>| {
        let plan = rig.memory.plan(&[(0, PAGE)]).unwrap();
        vec![SlotPage { slot: region.slot(0, PAGE).unwrap().into(), plan }]
    };
    let deadline = Instant::now() + Duration::from_secs(10);
    while rig.device.stats().refused == 0 {
        wait(rig.device.fill(pages(&other), None).unwrap().landed()).unwrap();
        assert!(Instant::now() < deadline, "it was never asked for");
    }
    let staged = rig.device.stats().staged_bytes;
    wait(rig.device.fill(pages(&other), None).unwrap().landed()).unwrap();
    assert_eq!(rig.device.stats().staged_bytes, staged + PAGE as u64);
    let Rig { device, control, memory, region: first, .. } = rig;
    drop(first);
    let plan = memory.plan(&[(0, PAGE)]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let slot = other.slot(0, PAGE).unwrap();
        let before = device.stats();
        wait(device.fill(vec![SlotPage { slot: slot.into(), plan: plan.clone() }], None).unwrap().landed())
            .unwrap();
        if device.stats().direct_bytes > before.direct_bytes {
            break;
        }
        assert!(Instant::now() < deadline, "{:?}", device.stats());
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(device.stats().registered_bytes, 4 * PAGE as u64);
    assert_eq!(control.faults(), Vec::<String>::new());
}

#[test]
fn a_slab_far_from_the_device_is_counted() {
    let touched = region(4);
    touched.prefault(0, touched.len()).unwrap();
    let Some(node) = touched.numa_node() else { return }; // a kernel that does not say
    for (numa_node, far) in [(Some(node), 0), (Some(node + 1), 4 * PAGE as u64), (None, 0)] {
        let mut rig = Rig::new(HostOptions { numa_node, ..strict() }, 4);
        rig.region = Arc::clone(&touched);
        let rig = rig.registered();
        assert_eq!(rig.device.stats().far_bytes, far, "{numa_node:?}");
    }
}
