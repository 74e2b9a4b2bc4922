//! Servers that do not keep to the protocol: the client ends the rail, and no byte of memory changes that was
//! not lent, or not asked for rightly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pair::{Lender, Random};
use crate::fabric::conformance::{pattern, region};
use crate::fabric::framed::wire::{Answered, Asked, HEADER_BYTES, Range, Request};
use crate::fabric::{Access, Cause, Domain, HostMemory, Target, TargetMemory};
use crate::limits::{FRAMED_STALL, OPERATION_BYTES_MAX, REGISTRATIONS_MAX};

const BYTES: usize = 64 << 10;

fn filled(lender: &Lender) -> Vec<u8> {
    let bytes = pattern(1, lender.memory.len());
    lender.memory.slot(0, bytes.len()).unwrap().claim().unwrap().fill(&bytes);
    bytes
}

fn content(lender: &Lender) -> Vec<u8> {
    lender.memory.slot(0, lender.memory.len()).unwrap().page().to_vec()
}

#[test]
fn headers_that_are_none_end_the_rail() {
    let lent = |lender: &Lender| Range { key: lender.key.key, offset: 0, bytes: 64 };
    for flaw in 0..HEADER_BYTES * 8 + 3 {
        let lender = Lender::new(BYTES, FRAMED_STALL);
        let before = filled(&lender);
        let good = Request { asked: Asked::Write, op: 0, range: lent(&lender) };
        let mut header = good.encode();
        match flaw.checked_sub(HEADER_BYTES * 8) {
            None => header[flaw / 8] ^= 1 << (flaw % 8),
            Some(0) => header = [0; HEADER_BYTES],
            Some(1) => {
                let range = Range { bytes: OPERATION_BYTES_MAX as u32 + 1, ..good.range };
                header = Request { range, ..good }.encode();
            }
            Some(_) => header = Request { range: Range { bytes: 0, ..good.range }, ..good }.encode(),
        }
        lender.peer.send(&header);
        lender.peer.try_send(&[0x55; 64]);
        assert_eq!(lender.peer.until_end(), 0, "it is not answered");
        assert!(matches!(lender.death(), Cause::Protocol(_)));
        assert_eq!(content(&lender), before);
        assert_eq!(lender.domain.registrations(), 1, "other rails of the domain go on");
    }
}

#[test]
fn a_server_that_dies_in_the_middle_leaves_the_rest_as_it_was() {
    let payload = pattern(2, BYTES);
    for sent in [0, 1, BYTES / 2, BYTES - 1] {
        let lender = Lender::new(BYTES, FRAMED_STALL);
        let before = filled(&lender);
        lender.ask(Asked::Write, 0, BYTES as u32);
        lender.peer.send(&payload[..sent]);
        lender.peer.0.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(lender.death(), Cause::PeerGone);
        let wanted = [&payload[..sent], &before[sent..]].concat();
        assert_eq!(content(&lender), wanted);
    }
}

#[test]
fn refused_payloads_are_dropped_and_the_rail_goes_on() {
    let lender = Lender::new(BYTES, FRAMED_STALL);
    let before = filled(&lender);
    let key = lender.key.key;
    let bytes = 3 << 20;
    let ranges = [
        Range { key: key ^ 1, offset: 0, bytes },
        Range { key, offset: 0, bytes },
        Range { key, offset: u64::MAX, bytes },
        Range { key, offset: BYTES as u64, bytes: 1 },
    ];
    for (op, range) in ranges.into_iter().enumerate() {
        let op = op as u32 * 2;
        lender.peer.send(&Request { asked: Asked::Write, op, range }.encode());
        lender.peer.send(&vec![0x77; range.bytes as usize]);
        assert_eq!(lender.peer.reply(), super::super::wire::Reply { answered: Answered::Refused, op });
        lender.peer.send(&Request { asked: Asked::Read, op: op + 1, range }.encode());
        assert_eq!(lender.peer.reply().answered, Answered::Refused);
    }
    assert_eq!(content(&lender), before);
    lender.ask(Asked::Read, 9, BYTES as u32);
    assert_eq!(lender.peer.reply().answered, Answered::Data { bytes: BYTES as u32 });
    assert_eq!(lender.peer.receive(BYTES), before);
}

/// Taking memory back does not wait for a server that is in the middle of writing it.
#[test]
fn memory_is_taken_back_in_the_middle_of_a_payload() {
    let lender = Lender::new(BYTES, FRAMED_STALL);
    let before = filled(&lender);
    let payload = pattern(2, BYTES);
    lender.ask(Asked::Write, 0, BYTES as u32);
    lender.peer.send(&payload[..BYTES / 2]);
    while content(&lender)[BYTES / 2 - 1] != payload[BYTES / 2 - 1] {
        std::thread::yield_now();
    }
    lender.domain.deregister(lender.key).unwrap();
    assert_eq!(Arc::strong_count(&lender.memory), 1);
    lender.peer.send(&payload[BYTES / 2..]);
    assert_eq!(lender.peer.reply().answered, Answered::Refused);
    assert_eq!(content(&lender)[BYTES / 2..], before[BYTES / 2..]);
    assert_eq!(lender.target.death(), None, "the rail goes on");
}

/// A server that reads no more of what it asked for, or a network that carries no more, holds nobody up who takes memory back: the rail
/// ends then, not when it would have stalled.
#[test]
fn memory_that_is_taken_back_in_the_middle_of_leaving_ends_the_rail_at_once() {
    let lender = Lender::new(OPERATION_BYTES_MAX, FRAMED_STALL);
    lender.ask(Asked::Read, 0, OPERATION_BYTES_MAX as u32);
    assert!(matches!(lender.peer.reply().answered, Answered::Data { .. }));
    std::thread::sleep(Duration::from_millis(50)); // until there is no room, on most machines
    let began = Instant::now();
    lender.domain.deregister(lender.key).unwrap();
    assert_eq!(lender.death(), Cause::Cancelled);
    assert!(began.elapsed() < FRAMED_STALL / 2, "not before {:?}", began.elapsed());
    assert_eq!(Arc::strong_count(&lender.memory), 1);
}

/// Another memory that is taken back is no matter of a rail that waits.
#[test]
fn memory_beside_what_leaves_is_taken_back_and_the_rail_goes_on() {
    let lender = Lender::new(8 << 20, FRAMED_STALL);
    let bytes = filled(&lender);
    let owner: Arc<dyn HostMemory> = Arc::<crate::region::Region>::clone(&lender.memory);
    let other = lender.domain.register(TargetMemory::Host(owner), Access::Read).unwrap();
    lender.ask(Asked::Read, 0, bytes.len() as u32);
    assert!(matches!(lender.peer.reply().answered, Answered::Data { .. }));
    lender.domain.deregister(other).unwrap();
    assert_eq!(lender.peer.receive(bytes.len()), bytes);
    assert_eq!(lender.target.death(), None);
}

/// Pages are lent together and taken back one by one: what was looked at is not changed any more, by a write that comes late or one
/// that was under way, and others are still written.
#[test]
fn a_page_that_was_taken_back_is_not_written_while_others_are() {
    const PAGE: usize = 8192;
    let lender = Lender::new(4 * PAGE, FRAMED_STALL);
    let before = filled(&lender);
    // The last place first.
    let page =
        |at: usize| -> Arc<dyn HostMemory> { Arc::new(lender.memory.slot((3 - at) * PAGE, PAGE).unwrap()) };
    let key = lender.domain.register_pages((0..4).map(page).collect(), Access::Write).unwrap();
    let held = |at: usize| content(&lender)[(3 - at) * PAGE..][..PAGE].to_vec();
    let ask = |asked, op, offset: usize, bytes: usize| {
        let range = Range { key: key.key, offset: offset as u64, bytes: bytes as u32 };
        lender.peer.send(&Request { asked, op, range }.encode());
    };
    let payload = pattern(2, PAGE);
    ask(Asked::Write, 0, 0, PAGE);
    lender.peer.send(&payload);
    assert_eq!(lender.peer.reply().answered, Answered::Ack);
    assert_eq!(held(0), payload);
    lender.domain.take_back_page(key, 0);
    ask(Asked::Write, 1, 100, 64);
    lender.peer.send(&[0x77; 64]);
    assert_eq!(lender.peer.reply().answered, Answered::Refused);
    assert_eq!(held(0), payload);
    // In the middle of the next one.
    ask(Asked::Write, 2, PAGE, PAGE);
    lender.peer.send(&payload[..PAGE / 2]);
    while held(1)[PAGE / 2 - 1] != payload[PAGE / 2 - 1] {
        std::thread::yield_now();
    }
    lender.domain.take_back_page(key, 1);
    lender.peer.send(&payload[PAGE / 2..]);
    assert_eq!(lender.peer.reply().answered, Answered::Refused);
    assert_eq!(held(1)[PAGE / 2..], before[2 * PAGE..][PAGE / 2..PAGE]);
    // No write is of two pages, or of none; the last one is still lent.
    for (op, offset, bytes) in [(3, 2 * PAGE + 1, PAGE), (4, 4 * PAGE, 1), (5, 3 * PAGE - 1, 2)] {
        ask(Asked::Write, op, offset, bytes);
        lender.peer.send(&vec![0x77; bytes]);
        assert_eq!(lender.peer.reply().answered, Answered::Refused, "{offset} {bytes}");
    }
    ask(Asked::Read, 6, 3 * PAGE, 1);
    assert_eq!(lender.peer.reply().answered, Answered::Refused, "lent to be written only");
    ask(Asked::Write, 7, 3 * PAGE, PAGE);
    lender.peer.send(&payload);
    assert_eq!(lender.peer.reply().answered, Answered::Ack);
    assert_eq!((held(2), held(3)), (before[PAGE..2 * PAGE].to_vec(), payload));
    lender.domain.deregister(key).unwrap();
    assert_eq!(Arc::strong_count(&lender.memory), 2, "only what was lent with the lender is");
    assert!(lender.domain.register_pages(Vec::new(), Access::Write).is_err());
}

/// A server that asked for memory and does not read the answer cannot hold it, and gets no other bytes for it.
#[test]
fn memory_is_taken_back_while_its_bytes_wait_to_leave() {
    let lender = Lender::new(OPERATION_BYTES_MAX, FRAMED_STALL);
    lender.ask(Asked::Read, 0, OPERATION_BYTES_MAX as u32);
    assert_eq!(lender.peer.reply().answered, Answered::Data { bytes: OPERATION_BYTES_MAX as u32 });
    lender.domain.deregister(lender.key).unwrap();
    assert_eq!(Arc::strong_count(&lender.memory), 1);
    lender
        .memory
        .slot(0, OPERATION_BYTES_MAX)
        .unwrap()
        .claim()
        .unwrap()
        .fill(&vec![0xee; OPERATION_BYTES_MAX]);
    let mut came = Vec::new();
    match std::io::Read::read_to_end(&mut (&lender.peer.0), &mut came) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    assert!(came.len() < OPERATION_BYTES_MAX, "it ended before the last byte");
    assert!(came.iter().all(|&byte| byte == 0), "bytes of other use left");
    assert_eq!(lender.death(), Cause::Cancelled);
}

/// Good requests with bits flipped, bytes cut out or put in, in any order: whatever comes of it, memory that was
/// not lent stays as it was, and what the payloads say is written nowhere but where a header said.
#[test]
fn mutated_streams_never_reach_other_memory() {
    let mut random = Random::new(0x9e37_79b9);
    for _ in 0..300 {
        let lender = Lender::new(8192, FRAMED_STALL);
        let kept = region(8192);
        let owner: Arc<dyn HostMemory> = Arc::<crate::region::Region>::clone(&kept);
        lender.domain.register(TargetMemory::Host(owner), crate::fabric::Access::ReadWrite).unwrap();
        let mut stream = Vec::new();
        for op in 0..4 {
            let asked = if random.below(2) == 0 { Asked::Read } else { Asked::Write };
            let bytes = 1 + random.below(4096) as u32;
            let range = Range { key: lender.key.key, offset: random.below(8192) as u64, bytes };
            stream.extend_from_slice(&Request { asked, op, range }.encode());
            if asked == Asked::Write {
                stream.extend_from_slice(&vec![0xaa; bytes as usize]);
            }
        }
        random.mutate(&mut stream);
        lender.peer.try_send(&stream);
        // It may have hung up already.
        lender.peer.0.shutdown(std::net::Shutdown::Write).unwrap_or_default();
        lender.peer.until_end();
        assert!(matches!(lender.death(), Cause::PeerGone | Cause::Protocol(_)));
        assert_eq!(kept.slot(0, 8192).unwrap().page().to_vec(), vec![0; 8192]);
        assert!(content(&lender).iter().all(|byte| matches!(byte, 0 | 0xaa) || stream.contains(byte)));
    }
}

#[test]
fn registrations_are_bounded() {
    let lender = Lender::new(4096, FRAMED_STALL);
    let lend = || {
        let owner: Arc<dyn HostMemory> = Arc::<crate::region::Region>::clone(&lender.memory);
        lender.domain.register(TargetMemory::Host(owner), crate::fabric::Access::Read)
    };
    for _ in 1..REGISTRATIONS_MAX {
        lend().unwrap();
    }
    assert!(lend().is_err());
    lender.domain.deregister(lender.key).unwrap();
    lend().unwrap();
}

/// Claims of 64 MiB each cost a client what one call reads.
#[test]
fn half_sent_payloads_cost_no_memory() {
    let before = resident_bytes();
    let lenders: Vec<_> = (0..64).map(|_| Lender::new(4096, FRAMED_STALL)).collect();
    for lender in &lenders {
        let range = Range { key: 1, offset: 0, bytes: OPERATION_BYTES_MAX as u32 };
        lender.peer.send(&Request { asked: Asked::Write, op: 0, range }.encode());
        lender.peer.send(&[1; 1 << 20]);
    }
    let grown = resident_bytes().saturating_sub(before);
    // Other tests of this process run beside this one; 4 GiB is what was announced.
    assert!(grown < 1 << 30, "{grown} bytes more");
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
