//! What a message says by itself is checked before the engine is asked, and its answers keep their bytes on the wire.

use super::*;
use crate::access::Guest;
use crate::engine::durable::NotDurable;
use crate::engine::offload::{OffloadBegun, OffloadCommitted, Outcomes};
use turnkv_pool::LeaseId;
use turnkv_proto::limits::LEASE_PAGES_MAX;
use turnkv_proto::{ErrorKind, wire};

const NAMESPACE: &[u8] = &[1; 32];

fn guest() -> Guest {
    Guest::of_everything()
}

fn offload(hashes: usize) -> wire::BeginOffloadRequest {
    let hashes = vec![2; hashes].into();
    wire::BeginOffloadRequest { namespace: NAMESPACE.into(), hashes, ..Default::default() }
}

fn is_invalid<T>(decoded: Result<T, Error>, word: &str) {
    let error = decoded.err().unwrap();
    assert!(error.kind == ErrorKind::Invalid && error.message.contains(word), "{error}");
}

#[test]
fn an_offer_is_checked() {
    let ask = offload::begin(&offload(64), &guest()).unwrap();
    assert_eq!((ask.hashes.len(), ask.shards, ask.parent), (2, Shards::one(0), None));
    is_invalid(offload::begin(&offload(0), &guest()), "names no page");
    is_invalid(offload::begin(&offload(33), &guest()), "multiple of 32");
    let of = |change: fn(&mut wire::BeginOffloadRequest)| {
        let mut raw = offload(32 * 2_000);
        change(&mut raw);
        offload::begin(&raw, &guest())
    };
    is_invalid(of(|raw| raw.shards = 64), "too many for one call");
    is_invalid(of(|raw| (raw.shard, raw.shards) = (65_535, 2)), "out of range");
    is_invalid(of(|raw| raw.namespace = vec![1; 31].into()), "namespace");
    is_invalid(of(|raw| raw.parent = vec![1; 31].into()), "block hash");
    is_invalid(of(|raw| raw.session = "a\nb".to_owned()), "session");
}

#[test]
fn positions_are_bounded_and_counted() {
    let commit = |positions: usize, checksums: usize| {
        let (pages, checksums) = (vec![0; positions], vec![0; checksums]);
        offload::commit(&wire::CommitOffloadRequest { lease: 3, pages, checksums, ..Default::default() })
    };
    assert_eq!(commit(2, 2).unwrap().pages, [(0, 0), (0, 0)]);
    is_invalid(commit(2, 1), "2 positions but 1 checksums");
    is_invalid(commit(LEASE_PAGES_MAX + 1, LEASE_PAGES_MAX + 1), "at most");
    let end = reload::end(wire::EndReloadRequest { lease: 3, client: 0, corrupt: vec![5, 1, 5] }).unwrap();
    assert_eq!((end.lease, end.corrupt), (LeaseId(3), vec![1, 5]));
}

#[test]
fn pages_are_named_or_a_session_is() {
    let lookup = |session: &str, hashes: &[u8]| {
        let (session, hashes) = (session.to_owned(), hashes.to_vec().into());
        lookup::ask(
            &wire::LookupRequest { namespace: NAMESPACE.into(), session, hashes, ..Default::default() },
            &guest(),
        )
    };
    assert!(matches!(lookup("", &[1; 64]).unwrap().pages, PagesOf::Hashes(hashes) if hashes.len() == 2));
    assert!(matches!(lookup("s", &[1; 64]).unwrap().pages, PagesOf::Session(_)));
    is_invalid(lookup("", &[1; 63]), "multiple of 32");
    let pin = |session: &str, hashes: &[u8]| {
        let (session, hashes) = (session.to_owned(), hashes.to_vec().into());
        let raw = wire::PinRequest { namespace: NAMESPACE.into(), session, hashes, ..Default::default() };
        pin::pin(&raw, &guest())
    };
    is_invalid(pin("s", &[1; 32]), "either");
    is_invalid(pin("", &[]), "either");
    assert!(pin("s", &[]).is_ok() && pin("", &[1; 32]).is_ok());
}

#[test]
fn answers_say_what_the_engine_does() {
    let begun = |outcomes, durable| {
        let (lease, lease_ms, slots, retry_after_ms) = (None, 0, Vec::new(), 0);
        offload::begun(OffloadBegun { lease, lease_ms, outcomes, slots, retry_after_ms, durable })
    };
    let (draining, present) = (wire::OffloadOutcome::Draining as i32, wire::OffloadOutcome::Present as i32);
    let reply = begun(Outcomes::AllDraining(2), None);
    assert_eq!((reply.outcomes, reply.lease, reply.durable), (vec![draining; 2], 0, false));
    let reply = begun(Outcomes::AllPresent(2), Some(Ok(())));
    assert_eq!((reply.outcomes, reply.durable, reply.not_durable), (vec![present; 2], true, 0));
    let why = [
        (NotDurable::NoTier, wire::NotDurable::NoTier),
        (NotDurable::Timeout, wire::NotDurable::Timeout),
        (NotDurable::Changed, wire::NotDurable::Changed),
        (NotDurable::Lost, wire::NotDurable::Lost),
        (NotDurable::Device, wire::NotDurable::Device),
    ];
    for (why, name) in why {
        let durable = Some(Err(why));
        let reply = offload::committed(OffloadCommitted { dropped: vec![1], durable });
        assert_eq!((reply.not_durable(), reply.durable, reply.dropped), (name, false, vec![1]));
    }
}
