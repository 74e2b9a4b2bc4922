//! Which calls are one request.

use super::{Assembled, Assembler, Call, CallKind};
use crate::limits::{ASSEMBLE_IDLE_MS, ASSEMBLE_OPEN_MAX};

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
