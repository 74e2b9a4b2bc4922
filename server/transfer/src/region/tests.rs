//! Regions: bounds, seals, refusals, and the bytes through two mappings.

use super::*;
use crate::{Checksum, CopyPlan, checksum};
use std::time::Duration;

fn options(bytes: usize) -> RegionOptions {
    RegionOptions { bytes, huge_pages: HugePages::Off, touch: false, lock: false, name: "test".to_owned() }
}

fn region(bytes: usize) -> Arc<Region> {
    Region::create(&options(bytes)).unwrap().0
}

#[test]
fn a_region_cannot_change_its_size() {
    let region = region(8192);
    for bytes in [0, 4096, 16384] {
        assert_eq!(rustix::fs::ftruncate(region.fd(), bytes).unwrap_err(), Errno::PERM);
    }
    let more = rustix::fs::fcntl_add_seals(region.fd(), SealFlags::WRITE);
    assert_eq!(more.unwrap_err(), Errno::PERM, "no peer can seal the region against its owner");
    assert_eq!(region.slot(8191, 1).unwrap().page().to_vec(), [0]);
}

#[test]
fn descriptors_that_could_shrink_are_refused() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, 8192).unwrap();
    let refused = Region::from_fd(unsealed, 8192).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");

    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    assert!(Region::from_fd(file.into(), 8192).is_err());
    let (pipe, _writer) = std::io::pipe().unwrap();
    assert_eq!(Region::from_fd(pipe.into(), 1).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}

#[test]
fn a_region_shorter_than_announced_is_refused() {
    let region = region(8192);
    let fd = || region.fd().try_clone_to_owned().unwrap();
    for bytes in [0, 8193, usize::MAX] {
        assert_eq!(Region::from_fd(fd(), bytes).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{bytes}");
    }
    assert_eq!(Region::from_fd(fd(), 4096).unwrap().len(), 4096);
}

#[test]
fn slots_are_checked_against_the_region() {
    let region = region(8192);
    assert!(region.slot(0, 8192).is_some());
    assert!(region.slot(8191, 1).is_some());
    for (offset, len) in [(0, 0), (0, 8193), (8192, 1), (8191, 2), (usize::MAX, 1), (1, usize::MAX)] {
        assert!(region.slot(offset, len).is_none(), "{offset} {len}");
    }
    assert!(region.prefault(100, 8092).is_ok());
    assert!(region.prefault(1, 8192).is_err() && region.prefault(usize::MAX, 2).is_err());
    assert!(Region::create(&options(0)).is_err());
}

#[test]
fn two_mappings_see_the_same_page() {
    let ours = Region::create(&RegionOptions { touch: true, ..options(1 << 20) }).unwrap().0;
    let theirs = Region::from_fd(ours.fd().try_clone_to_owned().unwrap(), 1 << 20).unwrap();
    let page: Vec<u8> = (0..100_000usize).map(|i| (i.wrapping_mul(31) >> 3) as u8).collect();
    let (slot, seen) = (ours.slot(4096, page.len()).unwrap(), theirs.slot(4096, page.len()).unwrap());
    let (filled, sum) = slot.claim().unwrap().fill(&page);
    assert_eq!(sum, checksum(&page));
    assert_eq!((seen.page().to_vec(), seen.page().checksum()), (page.clone(), sum));
    let damage = seen.claim().unwrap().fill_at(99_999, &[!page[99_999]]);
    assert_eq!(damage, checksum(&[!page[99_999]]));
    assert_ne!(filled.checksum(), sum);
    let mut back = vec![0; page.len()];
    assert_eq!(filled.drain(&mut back), seen.page().checksum());
    assert_eq!((&back[..99_999], back[99_999]), (&page[..99_999], !page[99_999]));
}

#[test]
fn parts_are_copied_out_and_summed_within_the_slot_only() {
    let slot = region(8192).slot(100, 300).unwrap();
    let page: Vec<u8> = (0..300u32).map(|at| at as u8).collect();
    let (slot, _) = slot.claim().unwrap().fill(&page);
    let mut part = [0; 10];
    slot.copy_to(290, &mut part);
    assert_eq!(part, page[290..]);
    assert_eq!((slot.checksum_of(0), slot.checksum_of(77)), (checksum(&[]), checksum(&page[..77])));
    let buffers = crate::PieceBuffers::new(200);
    let mut sum = Checksum::new();
    let pieces = [buffers.copy_page(&slot, 0..200, &mut sum), buffers.copy_page(&slot, 200..300, &mut sum)];
    assert_eq!((pieces.concat(), sum.finish()), (page.clone(), checksum(&page)));
    let past = |read: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err();
    assert!(past(&|| slot.copy_to(291, &mut [0; 10])));
    assert!(past(&|| slot.copy_to(usize::MAX, &mut [0; 10])));
    assert!(past(&|| assert_eq!(slot.checksum_of(301), 0)));
    assert!(past(&|| drop(buffers.copy_page(&slot, 250..301, &mut Checksum::new()))));
}

#[test]
fn a_slot_outlives_the_handle_of_its_region() {
    let region = region(4096);
    let slot = region.slot(0, 4096).unwrap();
    drop(region);
    let (page, sum) = slot.claim().unwrap().fill(&[7; 4096]);
    drop(slot);
    assert_eq!((page.to_vec()[4095], sum), (7, checksum(&[7; 4096])));
}

#[test]
fn wishes_are_granted_or_explained() {
    let wished = RegionOptions { huge_pages: HugePages::Auto, touch: true, lock: true, ..options(4 << 20) };
    let (region, report) = Region::create(&wished).unwrap();
    assert_eq!(region.len(), 4 << 20);
    for granted in [&report.huge, &report.locked] {
        assert!(granted.is_yes() || granted.why_not().is_some_and(|why| why.len() > 20), "{report:?}");
    }
    // Whatever pages it got, another process can map all or a part of it, and both can go.
    for bytes in [4 << 20, 5000] {
        let theirs = Region::from_fd(region.fd().try_clone_to_owned().unwrap(), bytes).unwrap();
        let (_, sum) = theirs.slot(0, 5000).unwrap().claim().unwrap().fill(&[3; 5000]);
        assert_eq!(region.slot(0, 5000).unwrap().page().checksum(), sum);
    }
    let (_, report) = Region::create(&RegionOptions { bytes: 5000, ..wished }).unwrap();
    assert!(report.huge.why_not().unwrap().contains("2 MiB"), "{report:?}");
    let (_, report) = Region::create(&options(4096)).unwrap();
    assert_eq!(report, RegionReport { huge: Granted::NotAsked, locked: Granted::NotAsked });
}

#[test]
fn kept_memory_is_as_it_was_and_waits_for_no_huge_page() {
    const BYTES: usize = 8 << 20;
    let scattered = RegionOptions { touch: true, ..options(BYTES) };
    let (before, _) = Region::create(&scattered).unwrap();
    for at in (0..BYTES).step_by(1 << 20) {
        before.slot(at, 2).unwrap().claim().unwrap().fill(&[(at >> 20) as u8, 0x5a]);
    }
    let kept = || before.fd().try_clone_to_owned().unwrap();
    let wished = RegionOptions { huge_pages: HugePages::Auto, ..options(BYTES) };
    let (late, report) = Region::adopt(kept(), &wished, Instant::now()).unwrap();
    assert!(report.huge.why_not().is_some_and(|why| why.contains("the next one")), "{report:?}");
    let (in_time, report) = Region::adopt(kept(), &wished, Instant::now() + Duration::from_secs(60)).unwrap();
    // A kernel that gives none says why.
    assert!(report.huge.is_yes() || !report.huge.why_not().unwrap().contains("the next one"), "{report:?}");
    let touched = RegionOptions { touch: true, ..wished.clone() };
    let (late_and_touched, _) = Region::adopt(kept(), &touched, Instant::now()).unwrap();
    for at in (0..BYTES).step_by(1 << 20) {
        for after in [&late, &in_time, &late_and_touched] {
            assert_eq!(after.slot(at, 2).unwrap().page().to_vec(), [(at >> 20) as u8, 0x5a]);
        }
    }
    let other = RegionOptions { bytes: BYTES / 2, ..wished };
    let refused = Region::adopt(kept(), &other, Instant::now()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn missing_huge_pages_have_a_cause() {
    use crate::huge::CollapseError;
    let refused = Region::create_huge(&options(5000)).unwrap_err();
    assert!(matches!(refused, ReservedError::Ragged { bytes: 5000 }), "{refused}");
    let small = Region::create_ordinary(&options(8192)).unwrap();
    // SAFETY: nobody else knows of the mapping.
    let refused = unsafe { collapse(small.base, small.bytes) }.unwrap_err();
    assert!(matches!(refused, CollapseError::TooSmall { bytes: 8192 }), "{refused}");
}

#[test]
fn a_tail_page_is_zero_beyond_its_tokens() {
    use crate::plan::{PageLayout, TensorShape, TensorView};
    let mut memory = [1u8; 3 * 8];
    let shape =
        TensorShape { heads: 1, tokens: 3, row_bytes: 8, head_stride_bytes: 24, token_stride_bytes: 8 };
    // SAFETY: the array outlives the plan, and only this thread uses it.
    let view = unsafe { TensorView::new(memory.as_mut_ptr(), shape).unwrap() };
    let plan = CopyPlan::page(PageLayout::LayerKvHeadToken, &[view], 4, 0, 3).unwrap();
    let slot = region(4096).slot(64, 32).unwrap();
    slot.claim().unwrap().fill(&[9; 32]);
    let (page, sum) = slot.claim().unwrap().gather(&plan);
    assert_eq!(page.to_vec(), [[1; 8], [1; 8], [1; 8], [0; 8]].concat());
    assert_eq!(sum, page.checksum());
    let (page, sum) = slot.claim().unwrap().fill(&[5; 32]);
    assert_eq!(page.scatter(&plan), sum);
    assert_eq!(memory, [5; 24]);
}

#[test]
fn regions_made_by_several_threads_keep_their_places() {
    let make = |thread: u8| {
        let wished = RegionOptions { huge_pages: HugePages::Auto, ..options(4 << 20) };
        let mut kept = std::collections::VecDeque::new();
        for round in 0..200u8 {
            let (region, _) = Region::create(&wished).unwrap();
            let mark = [thread, round, 0x5a];
            region.slot(0, 3).unwrap().claim().unwrap().fill(&mark);
            kept.push_back((region, mark));
            if kept.len() > 8 {
                let (region, mark) = kept.pop_front().unwrap();
                assert_eq!(
                    region.slot(0, 3).unwrap().page().to_vec(),
                    mark,
                    "another thread's region is in this one's place"
                );
            }
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || make(thread)))));
}
