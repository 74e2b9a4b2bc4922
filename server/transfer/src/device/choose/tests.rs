//! What is merged, who copies what, and that nothing is lost between.

use proptest::prelude::*;

use super::*;

const MEANS: Means = Means { choice: CopyChoice::Auto, batch: true, kernels: true, chunk_bytes: 1 << 20 };

fn piece(target: u64, source: u64, bytes: usize) -> CopyRequest {
    CopyRequest { target, source, bytes }
}

fn many(count: u64, bytes: usize) -> Vec<CopyRequest> {
    (0..count).map(|at| piece(at * 10 * bytes as u64, (1 << 40) + at * 7 * bytes as u64, bytes)).collect()
}

#[test]
fn pieces_that_touch_on_both_sides_are_one() {
    let mut pieces = Vec::new();
    for next in [piece(100, 500, 8), piece(108, 508, 8), piece(116, 600, 8), piece(200, 608, 8)] {
        push_merged(&mut pieces, next);
    }
    assert_eq!(pieces, [piece(100, 500, 16), piece(116, 600, 8), piece(200, 608, 8)]);
}

#[test]
fn large_pieces_go_to_the_copy_engines_and_many_small_ones_to_a_kernel() {
    let mut pieces = many(100, 4 << 10);
    pieces.push(piece(1 << 50, 1 << 51, ENGINE_PIECE_BYTES_MIN));
    let work = choose(pieces, MEANS);
    assert!(
        matches!(&work[..], [Work::Engine(large), Work::Kernel(small)] if large.len() == 1 && small.len() == 100)
    );
    let few = choose(many(ENGINE_COPIES_MAX as u64, 4 << 10), MEANS);
    assert!(matches!(&few[..], [Work::Engine(_)]), "too few for a launch: {few:?}");
    let without = choose(many(100, 4 << 10), Means { kernels: false, ..MEANS });
    assert!(matches!(&without[..], [Work::Batch(_)]));
    let neither = choose(many(100, 4 << 10), Means { kernels: false, batch: false, ..MEANS });
    assert!(matches!(&neither[..], [Work::Engine(_)]));
}

#[test]
fn the_owner_of_a_device_may_choose() {
    let large = || many(10, 1 << 20);
    let means = |choice| Means { choice, ..MEANS };
    assert!(matches!(&choose(large(), means(CopyChoice::Batch))[..], [Work::Batch(_)]));
    assert!(matches!(&choose(many(100, 64), means(CopyChoice::Engine))[..], [Work::Engine(_)]));
    let kernels = choose(large(), means(CopyChoice::Kernel));
    assert!(kernels.len() == 10 && kernels.iter().all(|work| matches!(work, Work::Kernel(_))));
    let cannot = choose(large(), Means { kernels: false, ..means(CopyChoice::Kernel) });
    assert!(matches!(&cannot[..], [Work::Engine(_)]), "{cannot:?}");
}

fn bytes_of(work: &[Work]) -> Vec<(u64, u64)> {
    let mut bytes = Vec::new();
    let mut add =
        |target: u64, source: u64, count: u64| bytes.extend((0..count).map(|at| (target + at, source + at)));
    for work in work {
        match work {
            Work::Engine(requests) | Work::Batch(requests) => {
                requests.iter().for_each(|request| add(request.target, request.source, request.bytes as u64));
            }
            Work::Kernel(pieces) => {
                pieces.iter().for_each(|piece| add(piece.target, piece.source, piece.bytes))
            }
        }
    }
    bytes.sort_unstable();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_is_copied_once_and_no_launch_is_too_long(
        sizes in proptest::collection::vec((1usize..600, 0u64..3, 0u64..3), 1..40),
        chunk_bytes in 64usize..2000,
        choice in prop_oneof![Just(CopyChoice::Auto), Just(CopyChoice::Engine), Just(CopyChoice::Batch), Just(CopyChoice::Kernel)],
        kernels in any::<bool>(),
        batch in any::<bool>(),
    ) {
        let (mut target, mut source) = (1000, 1_000_000);
        let (mut plain, mut merged) = (Vec::new(), Vec::new());
        for (bytes, target_gap, source_gap) in sizes {
            (target, source) = (target + target_gap, source + source_gap);
            plain.push(piece(target, source, bytes));
            push_merged(&mut merged, piece(target, source, bytes));
            (target, source) = (target + bytes as u64, source + bytes as u64);
        }
        let work = choose(merged, Means { choice, batch, kernels, chunk_bytes });
        prop_assert_eq!(bytes_of(&work), bytes_of(&[Work::Engine(plain)]));
        for work in &work {
            if let Work::Kernel(pieces) = work {
                prop_assert!(kernels && pieces.len() <= COPY_PIECES_MAX);
                prop_assert!(pieces.iter().map(|piece| piece.bytes).sum::<u64>() <= chunk_bytes as u64);
            }
            prop_assert!(batch || !matches!(work, Work::Batch(_)));
        }
    }
}
