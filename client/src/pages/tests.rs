//! Pages that arrive in pieces, whatever the pieces are, and pieces that are none of theirs.

use super::*;
use crate::error::ErrorKind;
use proptest::prelude::*;
use turnkv_transfer::checksum;

const PAGE: usize = 4096;

fn bytes_of(seed: u8) -> Vec<u8> {
    (0..PAGE).map(|at| (at / 13) as u8 ^ (at as u8).wrapping_mul(seed | 1)).collect()
}

fn slot() -> Slot {
    let options = RegionOptions {
        bytes: PAGE,
        huge_pages: HugePages::Off,
        touch: false,
        lock: false,
        name: "test".to_owned(),
    };
    Region::create(&options).unwrap().0.slot(0, PAGE).unwrap()
}

/// Where a page is cut into pieces, and each of these into parts.
fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::btree_set(1..PAGE, 0..12).prop_map(|cuts| cuts.into_iter().collect())
}

fn pieces(bytes: &[u8], cuts: &[usize], parts: usize) -> Vec<(u64, Vec<Bytes>)> {
    let mut edges = vec![0];
    edges.extend(cuts);
    edges.push(bytes.len());
    let piece = |edge: &[usize]| {
        let whole = &bytes[edge[0]..edge[1]];
        let parts = whole.chunks(whole.len().div_ceil(parts)).map(Bytes::copy_from_slice).collect();
        (edge[0] as u64, parts)
    };
    edges.windows(2).map(piece).collect()
}

fn arrive(target: &mut PageTarget<'_>, pieces: &[(u64, Vec<Bytes>)], staging: &mut Staging) -> u64 {
    let mut arriving = Arriving::new(PAGE);
    for (number, (offset, parts)) in pieces.iter().enumerate() {
        let whole = arriving.take(*offset, parts, target, staging).unwrap();
        assert_eq!(whole, number + 1 == pieces.len(), "whole with the last piece only");
    }
    arriving.finish(target)
}

proptest! {
    #[test]
    fn a_page_is_whole_with_its_checksum_however_it_was_cut(
        cuts in cuts(), parts in 1..4usize, seed in any::<u8>()
    ) {
        let sent = bytes_of(seed);
        let (pieces, mut staging) = (pieces(&sent, &cuts, parts), Staging::default());
        let mut back = vec![0; PAGE];
        let sum = arrive(&mut PageTarget::Bytes(&mut back), &pieces, &mut staging);
        prop_assert!(back == sent);
        prop_assert_eq!(sum, checksum(&sent));
        let mut target = SlotTarget { page: slot().claim().unwrap(), checksum: 0 };
        let sum = arrive(&mut PageTarget::Slot(&mut target), &pieces, &mut staging);
        prop_assert_eq!((sum, target.checksum), (checksum(&sent), sum));
        prop_assert!(target.page.seal().to_vec() == sent);
    }
}

#[test]
fn a_piece_that_is_not_the_next_one_is_refused_and_none_of_it_is_kept() {
    let sent = bytes_of(3);
    let part = |from: usize, to: usize| vec![Bytes::copy_from_slice(&sent[from..to])];
    // How far the page is, the offset that the piece names, and the piece.
    let wrong = [
        (0, 1, part(0, 10)),
        (100, 0, part(0, 100)),
        (100, 99, part(99, 200)),
        (100, 101, part(101, 200)),
        (100, 100, Vec::new()),
        (100, 100, vec![Bytes::new()]),
        (4000, 4000, vec![Bytes::from(vec![0; 97])]),
        (4000, 4000, vec![Bytes::from(vec![0; 96]), Bytes::from_static(b"x")]),
        (100, u64::MAX, part(100, 200)),
        (100, 100 + (1 << 32), part(100, 200)),
    ];
    for (received, offset, parts) in wrong {
        let (mut back, mut staging) = (vec![0xEE; PAGE], Staging::default());
        let mut target = PageTarget::Bytes(&mut back);
        let mut arriving = Arriving::new(PAGE);
        if received > 0 {
            assert!(!arriving.take(0, &part(0, received), &mut target, &mut staging).unwrap());
        }
        let refused = arriving.take(offset, &parts, &mut target, &mut staging).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Internal, "{received} {offset}");
        assert_eq!(back[..received], sent[..received]);
        assert!(
            back[received..].iter().all(|byte| *byte == 0xEE),
            "{received} {offset}: nothing was written"
        );
    }
}

#[test]
fn one_page_at_a_time_is_put_together_and_a_page_of_no_bytes_is_none() {
    let mut staging = Staging::default();
    let first = staging.page(PAGE).unwrap();
    let busy = staging.page(PAGE).unwrap_err();
    assert_eq!(busy.kind, ErrorKind::Internal, "two writers of one page");
    let (page, sum) = first.fill(&bytes_of(1));
    assert_eq!((page.checksum(), sum), (checksum(&bytes_of(1)), checksum(&bytes_of(1))));
    assert!(staging.page(PAGE).is_ok(), "the page before it is sealed");
    assert!(Staging::default().page(0).is_err());
}

#[test]
fn a_slot_that_somebody_writes_is_no_source_or_target_of_another_page() {
    let slot = slot();
    let writer = slot.claim().unwrap();
    let error = PageSource::Bytes(&bytes_of(1)).fill(&slot).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Internal, "{error}");
    drop(writer);
    let sum = PageSource::Bytes(&bytes_of(1)).fill(&slot).unwrap();
    let mut back = vec![0; PAGE];
    assert_eq!(PageTarget::Bytes(&mut back).drain(&slot.page()), sum);
    assert!(back == bytes_of(1));
}
