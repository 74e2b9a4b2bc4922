//! What is merged, who copies what, and that nothing is lost between.

use proptest::prelude::*;

use super::*;

const SPEEDS: Speeds = Speeds { to_device_bytes_max: 8 << 10, upload_tables: true };
const MEANS: Means =
    Means { choice: CopyChoice::Auto, batch: true, kernels: true, chunk_bytes: 1 << 20, speeds: SPEEDS };

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
fn an_offload_goes_in_one_batch_whatever_its_pieces_are() {
    let mut pieces = many(100, 4 << 10);
    pieces.push(piece(1 << 50, 1 << 51, 2 << 20));
    let work = choose(pieces.clone(), Way::ToSlots, MEANS);
    assert!(
        matches!(&work[..], [Work::Batch(all)] if all.len() == 101),
        "it takes nothing of the engine's: {work:?}"
    );
    let without = choose(pieces, Way::ToSlots, Means { batch: false, ..MEANS });
    assert!(
        matches!(&without[..], [Work::Engine(large), Work::Kernel(small)] if large.len() == 1 && small.len() == 100),
        "a call for each small piece costs more than a kernel: {without:?}"
    );
}

#[test]
fn pieces_that_a_kernel_copies_faster_go_to_one_if_they_are_enough() {
    let mut pieces = many(100, 8 << 10);
    pieces.extend(many(2, (8 << 10) + 1));
    let work = choose(pieces.clone(), Way::ToDevice, MEANS);
    assert!(
        matches!(&work[..], [Work::Batch(large), Work::Kernel(small)] if large.len() == 2 && small.len() == 100)
    );
    let within = choose(pieces, Way::Within, MEANS);
    assert!(
        matches!(&within[..], [Work::Kernel(all)] if all.len() == 102),
        "within the device a kernel copies all"
    );
    let few = choose(many(KERNEL_PIECES_MIN as u64 - 1, 4 << 10), Way::ToDevice, MEANS);
    assert!(matches!(&few[..], [Work::Batch(_)]), "too few for a launch: {few:?}");
    let slow = Speeds { to_device_bytes_max: 0, ..SPEEDS };
    let never = choose(many(100, 64), Way::ToDevice, Means { speeds: slow, ..MEANS });
    assert!(matches!(&never[..], [Work::Batch(_)]), "a kernel that is never faster: {never:?}");
    let without = choose(many(100, 4 << 10), Way::ToDevice, Means { kernels: false, ..MEANS });
    assert!(matches!(&without[..], [Work::Batch(_)]));
    let neither = choose(many(100, 4 << 10), Way::ToDevice, Means { kernels: false, batch: false, ..MEANS });
    assert!(matches!(&neither[..], [Work::Engine(_)]));
    let one = choose(many(1, 2 << 20), Way::ToDevice, MEANS);
    assert!(matches!(&one[..], [Work::Engine(_)]), "one copy is no batch");
}

/// What an engine waits for layer by layer is enqueued as a whole, or it waits for the last layer.
#[test]
fn layers_in_more_pieces_than_a_stream_is_given_at_once_go_by_kernel() {
    let at_once = STREAM_CALLS_MAX * BATCH_COPIES_A_CALL;
    let by = |layers, pieces, means: Means| {
        choose(many(100, 32 << 10), Way::ToDevice, means.of_job(layers, pieces, 0))
    };
    assert!(matches!(&by(36, at_once, MEANS)[..], [Work::Batch(_)]));
    assert!(by(36, at_once + 1, MEANS).iter().all(|work| matches!(work, Work::Kernel(_))));
    assert!(matches!(&by(1, at_once + 1, MEANS)[..], [Work::Batch(_)]), "nobody begins with a part of it");
    assert!(matches!(&by(36, at_once + 1, Means { kernels: false, ..MEANS })[..], [Work::Batch(_)]));
    let batch = Means { choice: CopyChoice::Batch, ..MEANS };
    assert!(matches!(&by(36, at_once + 1, batch)[..], [Work::Batch(_)]), "the owner chose");
}

/// A conversation of 32,768 tokens: a stream is given all layers at once.
#[test]
fn layers_of_many_bytes_go_in_few_launches() {
    let (layers, pages, bytes) = (36, 2048, 32 << 10);
    let means = MEANS.of_job(layers, 2 * layers * pages, 2 * layers * pages * bytes);
    let layer = || choose(many(2 * pages as u64, bytes), Way::ToDevice, means);
    let launches: usize = (0..layers).map(|_| layer().len()).sum();
    assert!(launches <= LAYERED_LAUNCHES_MAX + layers, "{launches}");
    assert!(launches * crate::limits::COPY_LAUNCH_CALLS + 2 * layers < STREAM_CALLS_MAX);
    let usual = MEANS.of_job(1, 2 * layers * pages, 2 * layers * pages * bytes);
    assert_eq!(usual.chunk_bytes, MEANS.chunk_bytes, "nobody begins with a part of it");
}

#[test]
fn the_owner_of_a_device_may_choose() {
    let large = || many(10, 1 << 20);
    let means = |choice| Means { choice, ..MEANS };
    for way in [Way::ToSlots, Way::ToDevice, Way::Within] {
        assert!(matches!(&choose(large(), way, means(CopyChoice::Batch))[..], [Work::Batch(_)]));
        assert!(matches!(&choose(many(100, 64), way, means(CopyChoice::Engine))[..], [Work::Engine(_)]));
        let kernels = choose(large(), way, means(CopyChoice::Kernel));
        assert!(kernels.len() == 10 && kernels.iter().all(|work| matches!(work, Work::Kernel(_))));
        let cannot = choose(large(), way, Means { kernels: false, ..means(CopyChoice::Kernel) });
        assert!(matches!(&cannot[..], [Work::Batch(_)]), "{cannot:?}");
    }
}

fn bytes_of(work: &[Work]) -> Vec<(u64, u64)> {
    let mut bytes = Vec::new();
    let mut add =
        |target: u64, source: u64, count: u64| bytes.extend((0..count).map(|at| (target + at, source + at)));
    for work in work {
        match work {
            Work::Engine(requests) | Work::Batch(requests) | Work::Kernel(requests) => {
                requests.iter().for_each(|request| add(request.target, request.source, request.bytes as u64));
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
        way in prop_oneof![Just(Way::ToSlots), Just(Way::ToDevice), Just(Way::Within)],
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
        let work = choose(merged, way, Means { choice, batch, kernels, chunk_bytes, speeds: SPEEDS });
        prop_assert_eq!(bytes_of(&work), bytes_of(&[Work::Engine(plain)]));
        for work in &work {
            if let Work::Kernel(pieces) = work {
                prop_assert!(kernels && pieces.len() <= COPY_PIECES_MAX);
                prop_assert!(pieces.iter().map(|piece| piece.bytes).sum::<usize>() <= chunk_bytes);
            }
            prop_assert!(batch || !matches!(work, Work::Batch(_)));
        }
    }
}
