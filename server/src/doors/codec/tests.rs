//! What a message says by itself is checked before the engine is asked, and its answers keep their bytes on the wire.

use super::*;
use crate::access::Guest;
use crate::engine::durable::NotDurable;
use crate::engine::offload::{OffloadBegun, OffloadCommitted, Outcomes};
use crate::engine::remote::offload::RemoteOffload;
use crate::engine::stats::EvictFrom;
use crate::limits::SNAPSHOT_TOKENS_MAX;
use crate::snapshots::create::CaptureWish;
use std::time::Duration;
use turnkv_pool::LeaseId;
use turnkv_proto::limits::{
    CARRIED_BYTES_MAX, LEASE_PAGES_MAX, RAIL_OFFERS_MAX, RAILS_HELD_MAX, REGION_KEYS_MAX, REMOTE_REGIONS_MAX,
    REMOTE_SPANS_MAX, RENEW_LEASES_MAX, RESERVE_PAGES_MAX,
};
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

#[test]
fn slots_that_a_client_maps_are_named_in_bounds_and_in_pairs() {
    let reserve = |pages: u32, shard: u32| {
        let raw = wire::ReserveRequest {
            namespace: NAMESPACE.into(),
            pages,
            shard,
            lease: 0,
            ..Default::default()
        };
        held::reserve(&raw, &guest())
    };
    let most = RESERVE_PAGES_MAX;
    assert_eq!(
        reserve(most, 65_535).map(|ask| (ask.pages, ask.shard, ask.lease)).unwrap(),
        (most, 65_535, None)
    );
    is_invalid(reserve(most + 1, 0), "split it");
    is_invalid(reserve(1, 65_536), "out of range");
    let commit = |pages: usize, positions: usize, checksums: usize, session: &str, siblings: bool| {
        let raw = wire::CommitReservedRequest {
            namespace: NAMESPACE.into(),
            hashes: vec![2; 32 * pages].into(),
            positions: (0..positions as u32).collect(),
            checksums: vec![7; checksums],
            session: session.to_owned(),
            siblings,
            ..Default::default()
        };
        held::commit(&raw, &guest())
    };
    assert_eq!(commit(2, 2, 2, "s", false).unwrap().filled, [(0, 7), (1, 7)]);
    assert!(
        commit(2, 2, 2, "", true).is_ok()
            && commit(LEASE_PAGES_MAX, LEASE_PAGES_MAX, LEASE_PAGES_MAX, "", false).is_ok()
    );
    for (pages, positions, checksums) in [(1, 2, 2), (2, 1, 2), (2, 2, 1)] {
        is_invalid(commit(pages, positions, checksums, "", false), "in one commit");
    }
    is_invalid(commit(2, 2, 2, "s", true), "siblings are no session's list");
    let too_many = LEASE_PAGES_MAX + 1;
    is_invalid(commit(too_many, too_many, too_many, "", false), "at most");
    let take = |positions: usize, slots: usize| {
        let slots = vec![wire::SlotRef { slab: 1, generation: 2, offset: 3 }; slots];
        let positions = (0..positions as u32).collect();
        held::take_over(
            wire::TakeOverRequest { namespace: NAMESPACE.into(), positions, slots, ..Default::default() },
            &guest(),
        )
    };
    assert_eq!(take(3, 3).unwrap().slots.len(), 3);
    is_invalid(take(3, 2), "3 positions and 2 slots");
    is_invalid(take(0, too_many), "at most");
}

#[test]
fn leases_and_positions_that_are_named_twice_or_in_any_order_are_named_once() {
    let renew = |leases: Vec<u64>| held::renew(&wire::RenewRequest { leases, ..Default::default() });
    assert_eq!(renew(vec![5, 1, 5, 3]).unwrap(), [1, 3, 5].map(LeaseId));
    assert!(renew(vec![1; RENEW_LEASES_MAX]).is_ok_and(|leases| leases == [LeaseId(1)]));
    is_invalid(renew(vec![1; RENEW_LEASES_MAX + 1]), "split it");
    let release = |positions: usize, corrupt: Vec<u32>| {
        let positions = vec![0; positions];
        held::release(wire::ReleaseRequest { lease: 9, positions, corrupt, ..Default::default() })
    };
    let asked = release(2, vec![4, 4, 1]).unwrap();
    assert_eq!((asked.lease, asked.corrupt), (LeaseId(9), vec![1, 4]));
    is_invalid(release(LEASE_PAGES_MAX + 1, Vec::new()), "at most");
    is_invalid(release(0, vec![0; LEASE_PAGES_MAX + 1]), "at most");
}

/// A RemoteReload of so many pages, each with a span, before a test changes it.
fn remote_reload(pages: usize) -> wire::RemoteReloadRequest {
    let hashes = vec![2; 32 * pages].into();
    let begin = wire::BeginReloadRequest { namespace: NAMESPACE.into(), hashes, ..Default::default() };
    let key = wire::RemoteKey { domain: 3, key: 4, base: 0 };
    let region = wire::RemoteRegion { bytes: 1 << 20, keys: vec![key] };
    let span = wire::RemoteSpan { region: 0, offset: 0, bytes: 4096 };
    let page = |position| wire::RemotePage { position, spans: vec![span], ..Default::default() };
    let pages = (0..pages as u32).map(page).collect();
    wire::RemoteReloadRequest {
        begin: Some(begin),
        regions: vec![region],
        pages,
        verify: true,
        carry_bytes_max: 0,
    }
}

/// Decodes an offload over a network of two pages of two positions each, of which a test says these.
fn remote_offload(change: impl Fn(&mut [wire::RemotePage])) -> Result<RemoteOffload, Error> {
    let wire::RemoteReloadRequest { regions, mut pages, .. } = remote_reload(2);
    change(&mut pages);
    let begin = wire::BeginOffloadRequest { shards: 2, ..offload(64) };
    remote::offload(&wire::RemoteOffloadRequest { begin: Some(begin), regions, pages }, &guest())
}

#[test]
fn a_position_that_is_not_offered_is_refused() {
    let of = |position| remote_offload(move |pages| pages[1].position = position);
    assert_eq!(of(3).unwrap().pages[1].position, 3);
    is_invalid(of(4), "names position 4: it offers 4, from 0 on");
    is_invalid(of(u32::MAX), "names position 4294967295");
}

#[test]
fn a_request_carries_so_many_bytes_and_no_more() {
    let of = |bytes: [usize; 2]| {
        remote_offload(move |pages| {
            pages.iter_mut().zip(bytes).for_each(|(page, bytes)| page.carried = vec![1; bytes].into());
        })
    };
    let most = CARRIED_BYTES_MAX as usize;
    let ask = of([most / 2, most / 2]).unwrap();
    assert_eq!(ask.pages[1].carried.len(), most / 2);
    is_invalid(of([most / 2, most / 2 + 1]), "at most 524288 go into one call");
}

#[test]
fn memory_that_a_client_of_another_host_names_is_inside_of_what_it_lent() {
    let of = |change: &dyn Fn(&mut wire::RemoteReloadRequest)| {
        let mut raw = remote_reload(3);
        change(&mut raw);
        remote::reload(&raw, &guest())
    };
    let ask = of(&|_| ()).unwrap();
    assert!(
        ask.verify && ask.begin.hold && ask.pages.len() == 3,
        "its lease is held by transfers, not by time"
    );
    let span = |raw: &mut wire::RemoteReloadRequest, region, offset, bytes| {
        raw.pages[2].spans = vec![wire::RemoteSpan { region, offset, bytes }];
    };
    assert!(of(&|raw| span(raw, 0, (1 << 20) - 1, 1)).is_ok(), "its last byte");
    for (region, offset, bytes) in [
        (0, (1 << 20) - 1, 2),
        (0, 1 << 20, 1),
        (0, u64::MAX, 1),
        (0, u64::MAX - 1, u32::MAX),
        (0, 0, 0),
        (1, 0, 1),
        (u32::MAX, 0, 1),
    ] {
        is_invalid(
            of(&|raw| span(raw, region, offset, bytes)),
            "position 2 has no span, or one that is empty or outside",
        );
    }
    is_invalid(of(&|raw| raw.pages[1].spans.clear()), "position 1");
    is_invalid(of(&|raw| raw.regions[0].keys.clear()), "position 0");
    is_invalid(of(&|raw| raw.begin = None), "without `begin`");
    is_invalid(of(&|raw| drop(raw.pages.pop())), "2 of 3 positions");
    is_invalid(of(&|raw| raw.pages[2].position = 3), "not in order");
    is_invalid(of(&|raw| raw.pages[1].position = 0), "ascending order, each once");
    is_invalid(of(&|raw| raw.pages.swap(0, 1)), "ascending order");
}

#[test]
fn what_one_call_over_a_network_names_is_bounded() {
    let of = |change: &dyn Fn(&mut wire::RemoteReloadRequest)| {
        let mut raw = remote_reload(1);
        change(&mut raw);
        remote::reload(&raw, &guest())
    };
    let regions = |count: usize| {
        move |raw: &mut wire::RemoteReloadRequest| raw.regions = vec![raw.regions[0].clone(); count]
    };
    assert!(of(&regions(REMOTE_REGIONS_MAX)).is_ok());
    is_invalid(of(&regions(REMOTE_REGIONS_MAX + 1)), "go into one call");
    let spans = |count: usize| {
        move |raw: &mut wire::RemoteReloadRequest| raw.pages[0].spans = vec![raw.pages[0].spans[0]; count]
    };
    assert!(of(&spans(REMOTE_SPANS_MAX)).is_ok());
    is_invalid(of(&spans(REMOTE_SPANS_MAX + 1)), "go into one call");
    let keys = |count: usize| {
        move |raw: &mut wire::RemoteReloadRequest| raw.regions[0].keys = vec![raw.regions[0].keys[0]; count]
    };
    assert!(of(&keys(REGION_KEYS_MAX)).is_ok());
    is_invalid(of(&keys(REGION_KEYS_MAX + 1)), "keys: at most");
    let offers = |offers: usize, held: usize, address: usize| {
        let offer = wire::RailOffer { address: vec![1; address].into(), fabric: 77, ..Default::default() };
        remote::offers(&wire::OpenRailRequest {
            offers: vec![offer; offers],
            held: vec![1; held],
            ..Default::default()
        })
    };
    let taken = offers(RAIL_OFFERS_MAX, RAILS_HELD_MAX, 8).unwrap();
    assert!(
        taken.iter().all(|offer| offer.engine.is_none()),
        "a fabric of a later version is none, and no fault"
    );
    is_invalid(offers(RAIL_OFFERS_MAX + 1, 0, 0), "at most");
    is_invalid(offers(0, RAILS_HELD_MAX + 1, 0), "at most");
    is_invalid(offers(1, 0, 1 << 16), "too long");
}

#[test]
fn what_is_to_be_captured_is_named_once_and_its_tokens_too() {
    use wire::create_snapshot_request::What;
    let create = |what: Option<What>, tokens: &[(&str, usize)]| {
        let tokens = tokens.iter().map(|(name, count)| wire::SequenceTokens {
            sequence: (*name).to_owned(),
            tokens: vec![1; *count],
        });
        let raw = wire::CreateSnapshotRequest { namespace: NAMESPACE.into(), what, tokens: tokens.collect() };
        snapshots::create(raw, &guest())
    };
    let session = || Some(What::Session("s".to_owned()));
    let prefix = |bytes: usize, name: &str| {
        Some(What::Prefix(wire::SnapshotPrefix { hashes: vec![1; bytes].into(), name: name.to_owned() }))
    };
    let asked = create(session(), &[("s", SNAPSHOT_TOKENS_MAX - 1), ("t", 1)]).unwrap();
    assert!(matches!(asked.what, CaptureWish::Session(_)) && asked.tokens.len() == 2);
    assert!(matches!(create(Some(What::Everything(true)), &[]).unwrap().what, CaptureWish::Everything));
    assert!(
        matches!(create(prefix(64, "p"), &[]).unwrap().what, CaptureWish::Prefix(hashes, _) if hashes.len() == 2)
    );
    is_invalid(create(None, &[]), "name what is to be captured");
    is_invalid(create(Some(What::Everything(false)), &[]), "name what is to be captured");
    is_invalid(create(prefix(0, "p"), &[]), "names no page");
    is_invalid(create(prefix(63, "p"), &[]), "multiple of 32");
    is_invalid(create(prefix(32, ""), &[]), "session");
    is_invalid(create(session(), &[("s", SNAPSHOT_TOKENS_MAX), ("t", 1)]), "ids in one call");
    is_invalid(create(session(), &[("s", 1), ("s", 2)]), "named twice");
}

#[test]
fn snapshots_have_one_spelling_and_what_is_left_out_is_no_bound() {
    let name = "0123456789abcdef0123456789abcdef";
    assert_eq!(snapshots::snapshot(name).unwrap().to_string(), name);
    for other in ["", "0", &name[1..], &name.to_uppercase(), &format!("{name}0"), &name.replace('0', "g")] {
        is_invalid(snapshots::snapshot(other), "32 lowercase hexadecimal digits");
    }
    let collect = |older_than_s, stored_bytes_max| {
        let raw = wire::CollectSnapshotsRequest { older_than_s, stored_bytes_max, ..Default::default() };
        snapshots::collect(raw, &guest()).unwrap().1
    };
    let none = collect(0, 0);
    assert_eq!((none.snapshot_age_max, none.stored_bytes_max, none.sessions_only), (None, None, false));
    let ends = collect(u64::MAX, u64::MAX);
    assert_eq!(ends.snapshot_age_max, Some(Duration::from_secs(u64::MAX)));
    assert_eq!(ends.stored_bytes_max, Some(u64::MAX));
    let export = |level| {
        let raw = wire::ExportSnapshotRequest { snapshot: name.to_owned(), level, ..Default::default() };
        snapshots::export(raw, &guest()).map(|ask| ask.level)
    };
    assert_eq!((export(0).unwrap(), export(22).unwrap()), (None, Some(22)));
    is_invalid(export(u32::MAX), "level");
}

#[test]
fn prices_are_numbers_and_pages_go_from_dram_or_everywhere() {
    let advice = |price: f64| {
        let raw = wire::SizeAdviceRequest { gpu_price_per_hour: price, ..Default::default() };
        advice::ask(&raw, &guest())
    };
    assert!(advice(0.0).is_ok_and(|ask| ask.prefill_tokens_per_s.is_none() && ask.namespace.is_none()));
    for price in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -f64::MIN_POSITIVE] {
        is_invalid(advice(price), "numbers from 0");
    }
    let evict = |tier: wire::TierKind| {
        stats::evict_from(&wire::EvictRequest { tier: tier.into(), ..Default::default() })
    };
    assert!(matches!(evict(wire::TierKind::Dram), Ok(EvictFrom::Dram)));
    assert!(matches!(evict(wire::TierKind::Unspecified), Ok(EvictFrom::Everywhere)));
    is_invalid(evict(wire::TierKind::Nvme), "everywhere");
}
