//! Pages in memory of one's own: the same bytes and sums as anywhere else.

use super::*;
use crate::checksum::checksum;
use crate::region::{HugePages, Region, RegionOptions};

const PAGE: usize = 8192;

fn region(pages: usize) -> Arc<Region> {
    let options = RegionOptions {
        bytes: pages * PAGE,
        huge_pages: HugePages::Off,
        touch: false,
        lock: false,
        name: "test".to_owned(),
    };
    Region::create(&options).expect("there is memory").0
}

fn page(region: &Arc<Region>, number: usize) -> Slot {
    region.slot(number * PAGE, PAGE).expect("it lies inside")
}

fn memory(region: &Arc<Region>, number: usize) -> PageMemory {
    PageMemory::new(Arc::new(page(region, number)))
}

#[test]
fn what_is_copied_to_and_from_it_is_what_its_checksum_says() {
    let (mine, slots) = (region(2), region(1));
    let bytes: Vec<u8> = (0..PAGE).map(|at| (at % 251) as u8).collect();
    page(&mine, 0).claim().expect("nobody else writes it").fill(&bytes);
    let (from, to) = (memory(&mine, 0), memory(&mine, 1));
    assert_eq!((from.len(), from.checksum()), (PAGE, checksum(&bytes)));
    let (slot, sum) = from.fill(page(&slots, 0).claim().expect("nobody else writes it"));
    assert_eq!((slot.to_vec(), sum), (bytes.clone(), checksum(&bytes)));
    assert_eq!(to.drain(&slot), checksum(&bytes));
    assert_eq!(page(&mine, 1).page().to_vec(), bytes);
}

#[test]
fn pieces_go_in_and_out_with_the_checksum_of_the_whole() {
    let mine = region(2);
    let bytes: Vec<u8> = (0..PAGE).map(|at| (at % 241) as u8).collect();
    let (to, mut sum) = (memory(&mine, 1), Checksum::new());
    for (at, piece) in bytes.chunks(1000).enumerate() {
        to.put(at * 1000, piece, &mut sum);
    }
    assert_eq!((sum.finish(), to.checksum()), (checksum(&bytes), checksum(&bytes)));
    assert_eq!(page(&mine, 0).page().to_vec(), [0; PAGE], "nothing beside it");
    let (mut back, mut sum) = (BytesMut::new(), Checksum::new());
    for start in (0..PAGE).step_by(3000) {
        to.append_to(start..PAGE.min(start + 3000), &mut back, &mut sum);
    }
    assert_eq!((&back[..], sum.finish()), (&bytes[..], checksum(&bytes)));
}

#[test]
#[should_panic(expected = "inside its page")]
fn a_piece_that_sticks_out_is_refused() {
    memory(&region(2), 0).put(PAGE - 1, &[1, 2], &mut Checksum::new());
}

#[test]
#[should_panic(expected = "lie apart")]
fn a_page_is_not_copied_onto_itself() {
    let mine = region(1);
    let _copied = memory(&mine, 0).fill(page(&mine, 0).claim().expect("nobody else writes it"));
}
