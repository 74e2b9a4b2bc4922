//! A replay to its end: what it leaves behind, what it counts, and which sizes it refuses.

use super::*;
use crate::policy::{POLICIES, find};
use crate::trace::{Builder, Draft, Stop};
use proptest::prelude::*;

fn model(dram_pages: u64, nvme_pages: u64) -> PoolModel {
    PoolModel {
        dram_pages,
        nvme_pages,
        policy: find("session").expect("a known policy"),
        hints: None,
        page_bytes: 1 << 20,
        speed: Speed::default(),
        admission: Admission::default(),
    }
}

/// A request of one of a few sessions: which, how long after the one before, how much of its list it goes back, what it adds.
type Step = (usize, u64, u32, u32, bool);

/// Sessions that grow, go back and branch; all begin with the same two blocks.
fn talk(steps: &[Step]) -> Trace {
    let mut builder = Builder::new("talk", 16, "", "");
    let (mut lists, mut now, mut made) = (vec![vec![0u64, 1]; 4], 0, 2);
    for (session, gap, back, more, tool) in steps {
        let (list, name) = (&mut lists[*session], format!("s{session}"));
        now += gap;
        list.truncate(list.len().saturating_sub(*back as usize).max(2));
        list.extend((0..*more).map(|at| made + u64::from(at)));
        made += u64::from(*more);
        let draft = Draft {
            at_ms: now,
            session: (*session < 3).then_some(name.as_str()),
            parent: (*session == 2).then_some("s1"),
            turn: 0,
            input_tokens: 16 * list.len() as u64,
            output_tokens: 1,
            blocks: list,
            stop: if *tool { Stop::ToolUse } else { Stop::EndTurn },
        };
        builder.push(&draft).expect("a fine request");
    }
    builder.finish()
}

fn stream_of(trace: &Trace) -> (Vec<u32>, History) {
    let stream: Vec<u32> = (0..trace.requests.len() as u32).collect();
    let history = History::of(trace, &stream);
    (stream, history)
}

#[test]
fn a_tier_has_as_many_pages_as_said_and_sizes_that_none_can_have_are_refused() {
    for (dram, nvme) in
        [(0, 0), (TIER_PAGES_MAX + 1, 0), (1, TIER_PAGES_MAX + 1), (u64::MAX, 0), (1, u64::MAX)]
    {
        assert!(matches!(pool_config(&model(dram, nvme)), Err(SimError::Pages(_))), "{dram} and {nvme}");
    }
    for (dram, nvme) in [(1, 0), (15, 1), (16, 3), (17, 0), (TIER_PAGES_MAX, TIER_PAGES_MAX)] {
        let (config, slot_bytes) = pool_config(&model(dram, nvme)).expect("it can be");
        assert_eq!(u64::from(config.slab_count) * config.slab_bytes / slot_bytes, dram);
        assert_eq!(config.nvme_bytes / slot_bytes, nvme);
        assert!(u64::from(config.limits.pages_max) >= dram + nvme, "the index has room for all of them");
        assert!(Pool::new(config).is_ok(), "{dram} and {nvme}");
    }
}

#[test]
fn a_write_budget_is_of_pages_however_large_they_really_are() {
    let pages = |bytes, page_bytes| {
        let admission = Admission { write_bytes_per_day: bytes, ..Admission::default() };
        let (config, slot_bytes) =
            pool_config(&PoolModel { page_bytes, admission, ..model(64, 64) }).expect("it can be");
        config.nvme_bytes_per_day / slot_bytes
    };
    assert_eq!([pages(0, 1 << 20), pages(10 << 20, 1 << 20), pages((11 << 20) - 1, 1 << 20)], [0, 10, 10]);
    assert!(pages(1 << 20, 0) > 0 && pages(u64::MAX, 1) > 1 << 40, "no number is too large");
}

#[test]
fn a_request_that_is_longer_than_memory_is_served_as_far_as_there_is_room() {
    for (dram, nvme) in [(1, 0), (4, 0), (4, 40)] {
        let trace = talk(&[(0, 0, 0, 20, true), (0, 5_000, 0, 0, true), (0, 5_000, 0, 1, true)]);
        let (stream, history) = stream_of(&trace);
        let counts = replay(&trace, &stream, &history, &model(dram, nvme), || ()).expect("it ends");
        assert_eq!((counts.requests, counts.blocks, counts.infinite_hits), (3, 67, 44));
        assert_eq!(counts.hits() + counts.lost(), counts.infinite_hits, "{dram} and {nvme}");
        assert!(counts.hits() >= 2 * dram.min(3), "{dram} and {nvme}: {counts:?}");
        assert!(counts.declined + counts.evicted > 0 || nvme > 0, "{dram} and {nvme}: {counts:?}");
    }
}

#[test]
fn a_stream_of_nothing_counts_nothing() {
    let trace = talk(&[]);
    let (stream, history) = stream_of(&trace);
    assert_eq!(replay(&trace, &stream, &history, &model(1, 1), || ()).ok(), Some(Counts::default()));
    let tuning = CurveTuning::default();
    let (counts, curve) =
        replay_curve(&trace, &stream, &history, &model(1, 1), tuning, || ()).expect("it ends at once");
    assert_eq!((counts, curve.references), (Counts::default(), 0.0));
}

#[test]
fn each_request_is_told_once_and_in_its_order() {
    let steps: Vec<Step> = (0..20).map(|at| (at % 4, 100, 0, 1, true)).collect();
    let trace = talk(&steps);
    let (stream, history) = stream_of(&trace);
    let mut ticks = 0;
    let counts = replay(&trace, &stream, &history, &model(8, 0), || ticks += 1).expect("it ends");
    assert_eq!((ticks, counts.requests), (20, 20));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_replay_ends_with_nothing_under_way_and_its_counts_add_up(
        steps in prop::collection::vec((0usize..4, 0u64..20_000, 0u32..6, 0u32..8, any::<bool>()), 1..18),
        policy in 0..POLICIES.len(),
        tiers in (1u64..40, prop_oneof![Just(0u64), 1u64..60]),
        rates in (prop::option::of(1u64 << 18..1 << 30), prop::option::of(1u64 << 18..1 << 30)),
        (hints, reused, budget) in (any::<bool>(), any::<bool>(), prop_oneof![Just(0u64), 1u64 << 20..1 << 40]),
    ) {
        let trace = talk(&steps);
        let (stream, history) = stream_of(&trace);
        let admit = if reused { Admit::Reused } else { Admit::All };
        let model = PoolModel {
            policy: POLICIES[policy],
            hints: hints.then(HintRules::default),
            speed: Speed { read_bytes_s: rates.0, write_bytes_s: rates.1 },
            admission: Admission { admit, write_bytes_per_day: budget },
            ..model(tiers.0, tiers.1)
        };
        let mut replay = Replay::new(&trace, &stream, &history, &model).expect("it can be");
        replay.run(&mut || ()).expect("it ends");
        replay.pool.check().expect("the pool adds up");
        let (stats, counts) = (replay.pool.stats(), replay.counts);
        prop_assert_eq!((replay.events.len(), replay.reads.len()), (0, 0), "all that was begun has ended");
        prop_assert_eq!((stats.leases, stats.dram.pinned_bytes), (0, 0), "nothing is held");
        prop_assert_eq!(counts.hits() + counts.lost(), counts.infinite_hits);
        prop_assert_eq!(counts.infinite_hits, history.infinite_hits);
        prop_assert_eq!((counts.requests, counts.blocks), (stream.len() as u64, history.blocks));
        prop_assert!(counts.turns_from_dram <= counts.turns_hit && counts.turns_hit <= counts.requests);
        prop_assert!(counts.wait_ms_max <= counts.wait_ms);
        prop_assert!(stats.pages <= counts.stored, "what is there was stored");
        prop_assert!(counts.nvme_read >= counts.prefetched);
        let no_nvme = (counts.nvme_hits, counts.nvme_read, counts.nvme_written, counts.wait_ms, counts.prefetched);
        prop_assert!(tiers.1 > 0 || no_nvme == (0, 0, 0, 0, 0), "{:?}", counts);
    }
}
