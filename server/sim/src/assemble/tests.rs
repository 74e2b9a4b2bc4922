//! Which calls are one request.

use super::{Assembled, Assembler, Call, CallKind};
use crate::limits::{ASSEMBLE_IDLE_MS, ASSEMBLE_OPEN_MAX};
use proptest::prelude::*;

fn call(kind: CallKind, at_ms: u64, session: Option<u64>, parent: Option<u64>, blocks: &[u64]) -> Call {
    Call { kind, at_ms, session, client: 1, parent, blocks: blocks.to_vec() }
}

fn assemble(calls: &[Call]) -> (Vec<Assembled>, u64) {
    let (mut assembler, mut done) = (Assembler::default(), Vec::new());
    for call in calls {
        assembler.take(call.clone(), |request| done.push(request));
    }
    assembler.finish(|request| done.push(request));
    (done, assembler.headless)
}

use CallKind::{BeginTurn, EndTurn, Offload, Reload};

#[test]
fn a_turn_is_what_its_end_says_at_the_time_it_began() {
    let (done, headless) = assemble(&[
        call(BeginTurn, 5, Some(7), None, &[]),
        call(Offload, 6, Some(7), None, &[1, 2]),
        call(Offload, 7, Some(7), Some(2), &[3]),
        call(EndTurn, 8, Some(7), None, &[1, 2, 3]),
        call(BeginTurn, 20, Some(7), None, &[]),
        call(Reload, 21, Some(7), None, &[1, 2, 3]),
        call(EndTurn, 29, Some(7), None, &[1, 2, 3, 4]),
    ]);
    let request =
        |at_ms, turn, blocks: &[u64]| Assembled { at_ms, session: Some(7), turn, blocks: blocks.to_vec() };
    assert_eq!(done, [request(5, 1, &[1, 2, 3]), request(20, 2, &[1, 2, 3, 4])]);
    assert_eq!(headless, 0);
}

#[test]
fn without_sessions_an_offload_goes_on_from_its_reload() {
    let (done, _) = assemble(&[
        call(Reload, 0, None, None, &[1, 2, 3]),
        call(Offload, 1, None, None, &[1, 2, 3]),
        call(Reload, 2, None, None, &[1, 2, 3]),
        call(Reload, 3, None, None, &[1, 8, 9]),
        call(Offload, 4, None, Some(3), &[4, 5]),
        call(Offload, 5, None, Some(1), &[8, 9]),
    ]);
    let blocks: Vec<&[u64]> = done.iter().map(|request| request.blocks.as_slice()).collect();
    assert_eq!(blocks, [[1, 2, 3].as_slice(), &[1, 2, 3, 4, 5], &[1, 8, 9]]);
}

#[test]
fn a_reload_in_pieces_is_one_request() {
    let (done, _) = assemble(&[
        call(Offload, 0, None, None, &[1, 2, 3, 4]),
        call(Reload, 1, None, None, &[1, 2]),
        call(Reload, 2, None, None, &[3, 4]),
    ]);
    assert_eq!(done.len(), 2);
    assert_eq!(done[1].blocks, [1, 2, 3, 4]);
}

#[test]
fn sessions_that_tell_no_turns_end_them_by_reloading_again() {
    let (done, _) = assemble(&[
        call(Offload, 0, Some(3), None, &[1, 2]),
        call(Reload, 5, Some(3), None, &[1, 2]),
        call(Offload, 6, Some(3), Some(2), &[3]),
        call(Reload, 9, Some(3), None, &[1, 2, 3]),
    ]);
    let blocks: Vec<usize> = done.iter().map(|request| request.blocks.len()).collect();
    assert_eq!(blocks, [2, 3, 3]);
}

#[test]
fn what_hangs_on_an_unknown_block_is_counted_and_left_out() {
    let (done, headless) = assemble(&[call(Offload, 0, None, Some(99), &[1])]);
    assert_eq!((done.len(), headless), (0, 1));
}

#[test]
fn requests_end_by_time_and_by_number() {
    let (mut assembler, mut done) = (Assembler::default(), 0);
    for at in 0..=ASSEMBLE_OPEN_MAX as u64 {
        assembler.take(call(Reload, 0, None, None, &[at + 1]), |_| done += 1);
    }
    assert_eq!(done, 1, "the oldest made room");
    assembler.take(call(Reload, ASSEMBLE_IDLE_MS + 1, None, None, &[9]), |_| done += 1);
    assert_eq!(done, 1 + ASSEMBLE_OPEN_MAX);
}

/// Clients name whatever they like: the pool declines such pages, but the recording has heard of them.
#[test]
fn blocks_that_follow_themselves_are_no_path_and_end_no_recording() {
    let twice = [call(Offload, 0, None, None, &[1, 2, 1]), call(Offload, 1, None, Some(1), &[3])];
    let itself = [call(Offload, 0, None, None, &[5]), call(Offload, 1, None, Some(5), &[5])];
    let turned = [
        call(Offload, 0, None, None, &[7, 8]),
        call(EndTurn, 1, Some(4), None, &[8, 7]),
        call(Reload, 2, None, None, &[7]),
        call(Offload, 3, None, Some(8), &[9]),
    ];
    for (calls, left_out) in [(&twice[..], 2), (&itself, 1), (&turned, 0)] {
        let (done, headless) = assemble(calls);
        assert_eq!(headless, left_out, "{calls:?}: {done:?}");
        for request in done {
            let mut blocks = request.blocks.clone();
            blocks.sort_unstable();
            blocks.dedup();
            assert_eq!(blocks.len(), request.blocks.len(), "{request:?} has a block twice");
        }
    }
}

#[test]
fn what_came_late_or_twice_makes_no_second_request() {
    let turn = [
        call(BeginTurn, 5, Some(7), None, &[]),
        call(Reload, 6, Some(7), None, &[1, 2]),
        call(Offload, 7, Some(7), Some(2), &[3]),
        call(Offload, 8, Some(7), Some(2), &[3]),
        call(Offload, 9, Some(7), Some(1), &[2]),
        call(EndTurn, 10, Some(7), None, &[1, 2, 3]),
    ];
    let mut calls = vec![call(Offload, 0, None, None, &[1, 2])];
    calls.extend(turn);
    let (done, headless) = assemble(&calls);
    let of_session: Vec<&[u64]> =
        done.iter().filter(|one| one.session == Some(7)).map(|one| one.blocks.as_slice()).collect();
    assert_eq!((of_session, headless), (vec![&[1, 2, 3][..]], 0));
    // A turn that ended with less than was offered early is what was offered.
    let (done, _) = assemble(&[
        call(BeginTurn, 0, Some(7), None, &[]),
        call(Offload, 1, Some(7), None, &[1, 2, 3]),
        call(EndTurn, 2, Some(7), None, &[1, 2]),
    ]);
    assert_eq!((done.len(), done[0].blocks.len()), (1, 3));
}

#[test]
fn a_request_waits_exactly_as_long_as_said_for_its_next_call() {
    for (gap, requests) in [(ASSEMBLE_IDLE_MS, 1), (ASSEMBLE_IDLE_MS + 1, 2)] {
        let (done, _) = assemble(&[
            call(Offload, 3, Some(1), None, &[1]),
            call(Offload, 3 + gap, Some(1), Some(1), &[2]),
        ]);
        assert_eq!(done.len(), requests, "after {gap} ms");
        assert_eq!(done.last().map(|one| one.blocks.len()), Some(2), "all its blocks, from the root");
    }
}

/// The calls of one session: each turn reloads what it has, offers what is new, and ends with all of it.
fn session_calls(session: u64, turns: &[usize]) -> (Vec<Call>, Vec<Vec<u64>>) {
    let (mut calls, mut wanted, mut list) = (Vec::new(), Vec::new(), Vec::<u64>::new());
    for grows in turns {
        let has = list.len();
        list.extend((has..has + grows).map(|at| (session << 32) | (at as u64 + 1)));
        calls.push(call(BeginTurn, 0, Some(session), None, &[]));
        if has > 0 {
            calls.push(call(Reload, 0, Some(session), None, &list[..has]));
        }
        for at in has..list.len() {
            let parent = at.checked_sub(1).map(|at| list[at]);
            calls.push(call(Offload, 0, Some(session), parent, &list[at..=at]));
        }
        calls.push(call(EndTurn, 0, Some(session), None, &list));
        wanted.extend((!list.is_empty()).then(|| list.clone()));
    }
    (calls, wanted)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn sessions_whose_calls_are_mixed_are_put_together_as_if_each_were_alone(
        sessions in prop::collection::vec(prop::collection::vec(0usize..4, 1..5), 1..5),
        order in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
    ) {
        let (mut queues, mut wanted) = (Vec::new(), Vec::new());
        for (at, turns) in sessions.iter().enumerate() {
            let (calls, lists) = session_calls(at as u64 + 1, turns);
            queues.push(calls.into_iter());
            wanted.push(lists);
        }
        let (mut mixed, mut order) = (Vec::new(), order.into_iter());
        while !queues.is_empty() {
            let at = order.next().map_or(0, |index| index.index(queues.len()));
            match queues[at].next() {
                Some(call) => mixed.push(Call { at_ms: mixed.len() as u64, ..call }),
                None => drop(queues.remove(at)),
            }
        }
        let (done, headless) = assemble(&mixed);
        prop_assert_eq!(headless, 0);
        for (at, lists) in wanted.iter().enumerate() {
            let own = done.iter().filter(|one| one.session == Some(at as u64 + 1));
            let own: Vec<(u32, &Vec<u64>)> = own.map(|one| (one.turn, &one.blocks)).collect();
            prop_assert_eq!(own, (1..).zip(lists).collect::<Vec<_>>());
        }
    }
}
