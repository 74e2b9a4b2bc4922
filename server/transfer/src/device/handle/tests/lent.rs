//! Memory of the device that NICs read and write: bytes, gaps, what comes before a read, whose it is, who may have it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::*;
use crate::device::buffer::ExportedBuffer;
use crate::fabric::DeviceTarget;
use crate::limits::EXPORT_STEP_BYTES;

const PAGES: usize = 6;

/// What a NIC that was told of the memory sees of it.
struct Nic(File, DeviceTarget);

impl Nic {
    fn of(lent: &Arc<ExportedBuffer>) -> Self {
        let target = lent.target().unwrap();
        Self(File::from(target.dma_buf.try_clone().unwrap()), target)
    }

    fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.0.read_exact_at(&mut read, self.1.offset + offset as u64).unwrap();
        read
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.write_all_at(bytes, self.1.offset + offset as u64).unwrap();
    }
}

/// The rig's pages in pieces, each with its slot in lent memory.
fn lent_pages(rig: &Rig, lent: &Arc<ExportedBuffer>, piece: usize) -> Vec<SlotPage> {
    let place = |(page, slot_page): (usize, SlotPage)| SlotPage {
        slot: PageSlot::Device(lent.slot(page * PAGE, PAGE).unwrap()),
        ..slot_page
    };
    rig.pages(0..PAGES, piece).into_iter().enumerate().map(place).collect()
}

#[test]
fn pages_go_to_nics_and_come_from_them_in_every_way() {
    for (seed, copy) in
        [CopyChoice::Auto, CopyChoice::Engine, CopyChoice::Batch, CopyChoice::Kernel].into_iter().enumerate()
    {
        for piece in [PAGE, 4 << 10, 768] {
            let device = DeviceOptions { copy, chunk_bytes: 64 << 10, ..DeviceOptions::default() };
            let delay_max = Duration::from_micros(200);
            let options = HostOptions { device, delay_max, seed: seed as u64, ..strict() };
            let rig = Rig::new(options, PAGES);
            let lent = rig.device.export(PAGES * PAGE).unwrap();
            assert_eq!(lent.len() % EXPORT_STEP_BYTES, 0);
            let (nic, mark) = (Nic::of(&lent), rig.device.mark(rig.engine).unwrap());
            let filled = rig.device.fill(lent_pages(&rig, &lent, piece), Some(mark)).unwrap();
            let landed = wait(filled.landed()).unwrap();
            for page in 0..PAGES {
                let expected = pattern(page as u64, PAGE);
                assert_eq!(landed.checksums[page], checksum(&expected));
                assert!(nic.read(page * PAGE, PAGE) == expected, "page {page} in pieces of {piece}");
                nic.write(page * PAGE, &pattern(100 + page as u64, PAGE));
            }
            assert_eq!(rig.control.flushes(), 0, "only what NICs wrote is flushed");
            for layers in [0, 2] {
                // A page in one piece has one layer.
                let layers = if piece == PAGE { 0 } else { layers };
                let drained = rig.device.drain(lent_pages(&rig, &lent, piece), None, layers, true).unwrap();
                let landed = wait(drained.landed()).unwrap();
                for page in 0..PAGES {
                    let expected = pattern(100 + page as u64, PAGE);
                    assert_eq!(landed.checksums[page], checksum(&expected));
                    assert!(rig.read(page) == expected, "page {page} in pieces of {piece}");
                }
            }
            assert_eq!(rig.control.flushes(), 2, "once a reload");
            let stats = rig.device.stats();
            assert_eq!((stats.lent_bytes, stats.device_bytes), (3 * (PAGES * PAGE) as u64, stats.lent_bytes));
            assert_eq!((stats.direct_bytes, stats.staged_bytes, stats.flights), (0, 0, 0));
            rig.assert_no_faults();
        }
    }
}

/// What was there before is another session's.
#[test]
fn gaps_of_partial_pages_are_zeros_to_nics() {
    const LARGE: usize = 8 * PAGE;
    let device = DeviceOptions { staging_bytes: 1 << 20, ..DeviceOptions::default() };
    let rig = Rig::new(HostOptions { device, ..strict() }, LARGE / PAGE);
    let lent = rig.device.export(LARGE).unwrap();
    let nic = Nic::of(&lent);
    nic.write(0, &vec![0xEE; lent.len()]);
    // One of the gaps is longer than any piece of staging memory.
    let parts = [1000..1001, 30_000..31_000, 700_000..LARGE - 500];
    let plan = rig.memory.page(0, LARGE, &parts).unwrap();
    let slot = PageSlot::Device(lent.slot(4096, LARGE).unwrap());
    let landed = wait(rig.device.fill(vec![SlotPage { slot, plan }], None).unwrap().landed()).unwrap();
    let from: Vec<u8> = (0..LARGE / PAGE).flat_map(|page| rig.read(page)).collect();
    let mut expected = vec![0; LARGE];
    for part in parts {
        expected[part.clone()].copy_from_slice(&from[part]);
    }
    assert!(nic.read(4096, LARGE) == expected && nic.read(4096 + LARGE, 4096) == vec![0xEE; 4096]);
    assert_eq!(landed.checksums, [checksum(&expected)]);
    rig.assert_no_faults();
}

/// Windows of one reload may be in memory of both kinds: a NIC failed between them.
#[test]
fn a_reload_out_of_both_kinds_of_memory_is_right() {
    for first_lent in [false, true] {
        let rig = Rig::new(HostOptions { delay_max: Duration::from_micros(200), ..strict() }, PAGES);
        let rig = rig.registered();
        let lent = rig.device.export(PAGES * PAGE).unwrap();
        let nic = Nic::of(&lent);
        let mut pages = rig.pages(0..PAGES, 768);
        for (page, lent_page) in lent_pages(&rig, &lent, 768).into_iter().enumerate() {
            let bytes = pattern(200 + page as u64, PAGE);
            nic.write(page * PAGE, &bytes);
            rig.region.slot(page * PAGE, PAGE).unwrap().claim().unwrap().fill(&bytes);
            if (page % 2 == 0) == first_lent {
                pages[page] = lent_page;
            }
        }
        let landed = wait(rig.device.drain(pages, None, 0, true).unwrap().landed()).unwrap();
        for page in 0..PAGES {
            let expected = pattern(200 + page as u64, PAGE);
            assert!(rig.read(page) == expected && landed.checksums[page] == checksum(&expected), "{page}");
        }
        assert_eq!(rig.control.flushes(), 1);
        rig.assert_no_faults();
    }
}

/// Whatever it still does there, it does to memory that is nobody else's.
#[test]
fn what_a_broken_device_was_filling_is_never_given_back() {
    let rig = Rig::new(strict(), PAGES);
    let lent = rig.device.export(PAGES * PAGE).unwrap();
    let weak = Arc::downgrade(&lent);
    rig.control.hold_all();
    let flight = rig.device.fill(lent_pages(&rig, &lent, 4 << 10), None).unwrap();
    wait(flight.enqueued()).unwrap();
    rig.control.break_device("for a test");
    assert_eq!(wait(flight.landed()).unwrap_err().kind, DeviceErrorKind::Broken);
    drop((lent, flight, rig));
    thread::sleep(Duration::from_millis(50));
    assert!(weak.strong_count() > 0);
}

#[test]
fn a_nic_keeps_the_memory_for_as_long_as_it_knows_it_and_a_broken_device_for_good() {
    for breaks in [false, true] {
        let rig = Rig::new(strict(), 1);
        let before = rig.device.memory().unwrap().free_bytes;
        let lent = rig.device.export(1).unwrap();
        let (weak, nic) = (Arc::downgrade(&lent), Nic::of(&lent));
        drop(lent);
        assert!(weak.strong_count() > 0, "the NIC has a share");
        assert_eq!(rig.device.memory().unwrap().free_bytes, before - EXPORT_STEP_BYTES as u64);
        if breaks {
            rig.control.break_device("for a test");
            assert!(rig.device.memory().is_err());
            rig.device.inner.core.fail(DeviceError::new(DeviceErrorKind::Broken, "seen"));
        }
        drop(nic);
        assert_eq!(weak.strong_count(), 0);
        if !breaks {
            assert_eq!(rig.device.memory().unwrap().free_bytes, before, "it is given back");
        }
        rig.assert_no_faults();
    }
}

#[test]
fn memory_that_cannot_be_exported_says_why() {
    let refused = |device: &Device, bytes| {
        let error = device.export(bytes).unwrap_err();
        (error.kind, error.message)
    };
    let rig = Rig::new(strict(), 1);
    rig.control.refuse_export(DeviceErrorKind::Unsupported, "no dma-bufs here");
    assert_eq!(refused(&rig.device, 1), (DeviceErrorKind::Unsupported, "no dma-bufs here".to_owned()));
    let (kind, message) = refused(&rig.device, 1 << 40);
    assert!(kind == DeviceErrorKind::NoMemory && message.contains("ask for less"), "{message}");
    // Where a CPU takes the checksums it has to see the pages.
    let device = DeviceOptions { checksum: false, ..DeviceOptions::default() };
    for options in
        [HostOptions { device, ..strict() }, HostOptions { kernels: false, ..HostOptions::default() }]
    {
        let (kind, message) = refused(&Device::host(options).unwrap(), 1);
        assert!(kind == DeviceErrorKind::Unsupported && message.contains("checksum"), "{message}");
    }
}

#[test]
fn slots_lie_inside_and_names_outlive_their_device() {
    let rig = Rig::new(strict(), 1);
    let lent = rig.device.export(1).unwrap();
    for (offset, bytes) in [(0, 0), (lent.len(), 1), (1, lent.len()), (usize::MAX, 2)] {
        assert!(lent.slot(offset, bytes).is_none(), "{bytes} at {offset}");
    }
    let plan = rig.memory.plan(&[(0, PAGE)]).unwrap();
    let slot = PageSlot::Device(lent.slot(0, PAGE - 1).unwrap());
    assert_eq!(
        rig.device.fill(vec![SlotPage { slot, plan }], None).unwrap_err().kind,
        DeviceErrorKind::Invalid
    );
    let (name, other) = (rig.device.downgrade(), Device::host(strict()).unwrap());
    assert!(name.is(&rig.device) && name.is(&rig.device.clone()) && !name.is(&other) && !name.is_gone());
    drop(rig);
    assert!(name.is_gone() && !name.is(&other));
}
