//! What becomes of a call when its transfers fail, come late, come in another order, or find no room: what is kept is a
//! beginning of what was offered, and nothing stays leased or in flight.

use super::*;
use crate::engine::durable::Durability;
use crate::engine::offload::Outcomes;
use crate::engine::stats::EvictFrom;
use crate::limits::{MANY_PAGES, REMOTE_TRIES_MAX, STRIPE_BYTES, STRIPED_BYTES_MIN, WHOLE_BYTES_MAX};
use turnkv_mutate::{Random, each_seed};
use turnkv_pool::Outcome as Becomes;
use turnkv_proto::ErrorKind;
use turnkv_proto::limits::RAILS_MAX;

/// An offload as a thread of its own waits for it.
type Call = JoinHandle<Result<Option<OffloadCommitted>, Error>>;

impl Rig {
    /// Offers what an ask says, as a call of the client.
    fn call(&self, ask: RemoteOffload) -> Call {
        let (engine, client) = (Arc::clone(&self.engine), Arc::clone(&self.client));
        let call = move || {
            let mut begun = engine.begin_offload_now(client.id, &ask.begin).unwrap().unwrap();
            block_on(engine.fill_remote(&client, &ask, &mut begun, &|| false))
        };
        std::thread::Builder::new().name("call".to_owned()).spawn(call).unwrap()
    }

    /// How many leading ones of the pages of `Rig::offload` are here.
    fn here(&self, pages: u8) -> usize {
        let hashes: Vec<BlockHash> = (1..=pages).map(|at| BlockHash([at; 32])).collect();
        self.engine.present_pages(&self.namespace, &hashes).unwrap()
    }

    /// Nothing of the last call is left anywhere.
    fn is_idle(&self) {
        assert_eq!((self.leases(), self.engine.remote.inflight_bytes()), (0, 0));
    }

    fn forget_all(&self) {
        self.engine.evict(Some(&self.namespace), EvictFrom::Everywhere).unwrap();
    }
}

fn dropped_of(call: Call) -> Vec<u32> {
    call.join().unwrap().unwrap().unwrap().dropped
}

fn arrives(posted: Posted, byte: u8) {
    write(posted.operation().local(), byte);
    posted.complete(Outcome::Done);
}

#[test]
fn pages_that_land_in_another_order_are_kept_as_if_they_had_come_in_theirs() {
    let rig = Rig::new();
    let rail = rig.rail();
    let mut random = Random::new(3);
    for _ in 0..4 {
        let call = rig.offload(6, 9, &Arc::default());
        let mut posted: Vec<Posted> = (0..6).map(|_| rail.next()).collect();
        while !posted.is_empty() {
            arrives(posted.swap_remove(random.below(posted.len())), 9);
        }
        assert_eq!((dropped_of(call), rig.here(6)), (Vec::new(), 6));
        rig.is_idle();
        rig.forget_all();
    }
}

/// Whatever fails of which transfer, and how often: what is kept is what a plain list of the outcomes says.
#[test]
fn what_is_kept_is_the_beginning_before_the_first_page_that_did_not_come() {
    let rig = Rig::new();
    let rail = rig.rail_over(Fabric::Verbs, NIC);
    let mut partly = 0;
    each_seed(12, |random| {
        let pages = 1 + random.below(6) as u8;
        // Of each page how often it fails before it comes, and of whom nothing good ever comes.
        let mut fails: Vec<u32> =
            (0..pages).map(|_| [0, 0, 1, REMOTE_TRIES_MAX - 1][random.below(4)]).collect();
        let bad = random.one_in(2).then(|| random.below(usize::from(pages)));
        if let Some(bad) = bad {
            fails[bad] = REMOTE_TRIES_MAX;
        }
        let call = rig.offload(pages, 9, &Arc::default());
        let mut first = None;
        let deadline = Instant::now() + SOON;
        while !call.is_finished() {
            assert!(Instant::now() < deadline, "a call waits for nothing");
            let posted = rail.posted.lock().pop();
            let Some(posted) = posted else {
                std::thread::yield_now();
                continue;
            };
            let page = (posted.operation().remote().offset() / PAGE as u64) as usize;
            match fails[page] {
                0 => arrives(posted, 9),
                _ => {
                    fails[page] -= 1;
                    first = first.or(Some(page));
                    posted.complete(Outcome::Failed(Cause::Device("played".to_owned())));
                }
            }
        }
        let kept = bad.unwrap_or(usize::from(pages));
        let dropped: Vec<u32> = (kept as u32..u32::from(pages)).collect();
        assert_eq!((dropped_of(call), rig.here(pages)), (dropped, kept));
        partly += usize::from(kept > 0 && kept < usize::from(pages));
        rig.is_idle();
        rig.forget_all();
    });
    assert!(partly > 1, "only {partly} calls were kept in part: this proves little");
}

#[test]
fn what_the_peer_refuses_is_not_tried_again() {
    let rig = Rig::new();
    let rail = rig.rail();
    for cause in [Cause::Refused, Cause::Protocol("played")] {
        let call = rig.offload(2, 9, &Arc::default());
        rail.next().complete(Outcome::Failed(cause));
        arrives(rail.next(), 9);
        assert_eq!(dropped_of(call), [0, 1], "the second one came, and has no parent");
        assert!(rail.posted.lock().is_empty() && rail.death().is_none());
        rig.is_idle();
    }
    assert_eq!(rig.here(2), 0);
}

#[test]
fn positions_without_memory_and_spans_of_another_length_cost_what_they_are_of_and_no_lease() {
    let rig = Rig::new();
    let rail = rig.rail();
    let hashes: Vec<BlockHash> = (1..=3).map(|at| BlockHash([at; 32])).collect();
    let mut pages = targets(3, 9);
    pages.remove(1);
    let call = rig.call(RemoteOffload { begin: offer(rig.namespace, hashes.clone()), pages });
    arrives(rail.next(), 9);
    arrives(rail.next(), 9);
    assert_eq!((dropped_of(call), rig.here(3)), (vec![1, 2], 1));
    rig.is_idle();
    let region = Arc::new(LentRegion { keys: vec![(FRAMED, REGION)] });
    for bytes in [PAGE as u32 - 1, PAGE as u32 + 1] {
        let mut pages = targets(3, 9);
        pages[2].spans = vec![LentSpan::new(&region, 0, bytes).unwrap()];
        let call = rig.call(RemoteOffload { begin: offer(rig.namespace, hashes.clone()), pages });
        let refused = call.join().unwrap().err().unwrap().message;
        assert!(refused.contains("its spans have"), "{refused}");
        rig.is_idle();
    }
    assert_eq!(rig.here(3), 1, "nothing of it is kept, and nothing is lost");
}

#[test]
fn a_call_without_any_rail_is_told_so_and_one_that_comes_meanwhile_is_used() {
    let rig = Rig::new();
    let call = rig.offload(3, 9, &Arc::default());
    assert_eq!(dropped_of(call), [0, 1, 2], "there is no rail");
    rig.is_idle();
    let (first, call) = (rig.rail(), rig.offload(2, 9, &Arc::default()));
    let (one, other) = (first.next(), first.next());
    let second = rig.rail();
    first.close();
    one.complete(Outcome::Failed(Cause::PeerGone));
    second.read(9);
    other.complete(Outcome::Failed(Cause::PeerGone));
    second.read(9);
    assert_eq!((dropped_of(call), rig.here(2)), (Vec::new(), 2));
    rig.is_idle();
}

/// Spans of which a page's bytes are made, in slot order, each over the memory of another region.
#[test]
fn a_page_of_several_spans_is_put_together_in_their_order() {
    let rig = Rig::new();
    let rail = rig.rail();
    let region = Arc::new(LentRegion { keys: vec![(FRAMED, REGION)] });
    let parts = [(3 * PAGE as u64, 1_000_u32), (0, 7), (64, PAGE as u32 - 1_007)];
    let spans = parts.map(|(offset, bytes)| LentSpan::new(&region, offset, bytes).unwrap()).to_vec();
    let mut whole = Vec::new();
    for (at, (_, bytes)) in parts.iter().enumerate() {
        whole.extend(vec![at as u8 + 1; *bytes as usize]);
    }
    let page = RemotePage { position: 0, checksum: checksum(&whole), spans, carried: Bytes::new() };
    let begin = offer(rig.namespace, vec![BlockHash([1; 32])]);
    let call = rig.call(RemoteOffload { begin, pages: vec![page] });
    let mut posted = [rail.next(), rail.next(), rail.next()];
    posted.reverse();
    for posted in posted {
        let at =
            parts.iter().position(|(offset, _)| posted.operation().remote().offset() == *offset).unwrap();
        assert_eq!(posted.operation().bytes(), parts[at].1);
        arrives(posted, at as u8 + 1);
    }
    assert_eq!(
        (dropped_of(call), rig.here(1)),
        (Vec::new(), 1),
        "its checksum says that each is in its place"
    );
    rig.is_idle();
}

/// A page from which on pages go in stripes: exactly as long, and one byte longer.
#[test]
fn a_large_page_goes_in_stripes_over_all_rails_and_one_that_fails_is_all_that_is_repeated() {
    let rig = Rig::new();
    let rails = [rig.rail(), rig.rail()];
    for (model, bytes) in [("exact", STRIPED_BYTES_MIN), ("longer", STRIPED_BYTES_MIN + 4096)] {
        let namespace = open(&rig.engine, model, bytes);
        let key = RegionKey { key: 7, base: 0, bytes: 2 * bytes };
        let region = Arc::new(LentRegion { keys: vec![(FRAMED, key)] });
        let spans = vec![LentSpan::new(&region, 0, bytes as u32).unwrap()];
        let page = RemotePage {
            position: 0,
            checksum: checksum(&vec![5; bytes as usize]),
            spans,
            carried: Bytes::new(),
        };
        let begin = offer(namespace, vec![BlockHash([1; 32])]);
        let call = rig.call(RemoteOffload { begin, pages: vec![page] });
        let stripes = bytes.div_ceil(u64::from(STRIPE_BYTES));
        let (mut seen, mut failed, deadline) = (Vec::new(), false, Instant::now() + SOON);
        while !call.is_finished() {
            assert!(Instant::now() < deadline, "a stripe is missing: {seen:?}");
            let posted = rails.iter().find_map(|rail| rail.posted.lock().pop());
            let Some(posted) = posted else {
                std::thread::yield_now();
                continue;
            };
            let place = posted.operation().remote().offset();
            if !std::mem::replace(&mut failed, true) {
                posted.complete(Outcome::Failed(Cause::Device("played".to_owned())));
                continue;
            }
            assert!(!seen.contains(&place), "a stripe that came is not asked for again");
            seen.push(place);
            arrives(posted, 5);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..stripes).map(|at| at * u64::from(STRIPE_BYTES)).collect::<Vec<_>>());
        assert_eq!(dropped_of(call), [0_u32; 0]);
        rig.is_idle();
    }
}

#[test]
fn where_a_call_has_many_pages_those_of_two_mebibytes_go_whole() {
    let rig = Rig::new();
    let rails = [rig.rail(), rig.rail()];
    let namespace = open(&rig.engine, "many", WHOLE_BYTES_MAX);
    let key = RegionKey { key: 7, base: 0, bytes: MANY_PAGES as u64 * WHOLE_BYTES_MAX };
    let region = Arc::new(LentRegion { keys: vec![(FRAMED, key)] });
    let whole = checksum(&vec![5; WHOLE_BYTES_MAX as usize]);
    let page = |position: u32| {
        let span = LentSpan::new(&region, u64::from(position) * WHOLE_BYTES_MAX, WHOLE_BYTES_MAX as u32);
        RemotePage { position, checksum: whole, spans: vec![span.unwrap()], carried: Bytes::new() }
    };
    let hashes = (0..MANY_PAGES).map(|number| BlockHash([number as u8 + 1; 32])).collect();
    let pages = (0..MANY_PAGES as u32).map(page).collect();
    let call = rig.call(RemoteOffload { begin: offer(namespace, hashes), pages });
    let (mut seen, deadline) = (Vec::new(), Instant::now() + SOON);
    while !call.is_finished() {
        assert!(Instant::now() < deadline, "a page is missing: {seen:?}");
        let Some(posted) = rails.iter().find_map(|rail| rail.posted.lock().pop()) else {
            std::thread::yield_now();
            continue;
        };
        seen.push((posted.operation().remote().offset(), u64::from(posted.operation().bytes())));
        arrives(posted, 5);
    }
    seen.sort_unstable();
    let wanted: Vec<_> =
        (0..).map(|number| (number * WHOLE_BYTES_MAX, WHOLE_BYTES_MAX)).take(seen.len()).collect();
    assert!(seen.len() > 1, "this pool has room for several");
    assert_eq!(seen, wanted);
    assert_eq!(dropped_of(call), [0_u32; 0]);
    rig.is_idle();
}

#[test]
fn a_second_offer_of_what_is_under_way_is_told_so_and_takes_nothing() {
    let rig = Rig::new();
    let rail = rig.rail();
    let call = rig.offload(2, 9, &Arc::default());
    let posted = [rail.next(), rail.next()];
    let begin = offer(rig.namespace, vec![BlockHash([1; 32]), BlockHash([2; 32])]);
    let begun = rig.engine.begin_offload_now(rig.client.id, &begin).unwrap().unwrap();
    let Outcomes::Each(outcomes) = &begun.outcomes else { panic!("it is not all there") };
    assert_eq!((outcomes.as_slice(), begun.lease), ([Becomes::InFlight; 2].as_slice(), None));
    posted.into_iter().for_each(|posted| arrives(posted, 9));
    assert!(dropped_of(call).is_empty());
    let begun = rig.engine.begin_offload_now(rig.client.id, &begin).unwrap().unwrap();
    let durable: Option<Durability> = begun.durable;
    assert_eq!((begun.lease, durable), (None, None), "all is here: there is nothing to fill");
    rig.is_idle();
}

/// One that hears of some pages and then leaves.
struct Leaving {
    hears: usize,
    heard: Vec<u32>,
    /// The first page is in its memory.
    has_first: Arc<AtomicBool>,
}

impl ReloadAudience for Leaving {
    fn tell(&mut self, pages: Vec<ToldPage>, _: bool) -> bool {
        assert!(self.has_first.load(Ordering::Relaxed), "what comes before is not there yet");
        self.heard.extend(pages.iter().map(|page| page.position.index));
        self.heard.len() < self.hears
    }

    fn has_left(&self) -> bool {
        self.heard.len() >= self.hears
    }
}

#[test]
fn a_reload_is_told_in_order_whatever_lands_first_and_ends_when_its_caller_leaves() {
    let rig = Rig::new();
    let rail = rig.rail();
    let call = rig.offload(4, 9, &Arc::default());
    (0..4).for_each(|_| rail.read(9));
    assert!(dropped_of(call).is_empty());
    for (hears, fails) in [(usize::MAX, false), (2, false), (usize::MAX, true)] {
        let hashes: Vec<BlockHash> = (1..=4).map(|at| BlockHash([at; 32])).collect();
        let (engine, client, begin) =
            (Arc::clone(&rig.engine), Arc::clone(&rig.client), want(rig.namespace, hashes));
        let has_first = Arc::new(AtomicBool::new(false));
        let landed = Arc::clone(&has_first);
        let reload = move || {
            let ask = RemoteReload { begin, pages: targets(4, 9), verify: false, may_carry: false };
            let mut run = engine.begin_reload_now(client.id, &ask.begin).unwrap().unwrap();
            let mut told = Leaving { hears, heard: Vec::new(), has_first: landed };
            let ended = block_on(engine.write_remote(&client, &ask, &mut run, &mut told));
            (ended.map_err(|error| error.kind), told.heard)
        };
        let reload = std::thread::Builder::new().name("call".to_owned()).spawn(reload).unwrap();
        let mut posted: Vec<Posted> = (0..4).map(|_| rail.next()).collect();
        posted.reverse();
        let first = posted.pop().unwrap();
        let last = posted.remove(0);
        if fails {
            last.complete(Outcome::Failed(Cause::Refused));
        } else {
            last.complete(Outcome::Done);
        }
        posted.into_iter().for_each(|posted| posted.complete(Outcome::Done));
        has_first.store(true, Ordering::Relaxed);
        first.complete(Outcome::Done);
        let (ended, heard) = reload.join().unwrap();
        let in_order: Vec<u32> = (0..heard.len() as u32).collect();
        assert_eq!(heard, in_order, "told in the order of positions");
        match (hears, fails) {
            (usize::MAX, false) => assert_eq!((ended, heard.len()), (Ok(()), 4)),
            (_, true) => assert!(matches!(ended, Err(turnkv_proto::ErrorKind::Busy { .. })), "{ended:?}"),
            _ => assert_eq!(ended, Err(turnkv_proto::ErrorKind::LeaseUnknown), "nobody hears it any more"),
        }
        rig.is_idle();
    }
}

/// A client that lost its rails may open as many anew, whether or not the server saw them end.
#[test]
fn a_client_that_names_its_rails_has_room_for_those_that_it_lost() {
    let rig = Rig::new();
    let rails: Vec<_> = (0..RAILS_MAX).map(|_| rig.rail()).collect();
    let address = RailAddress::new(Vec::new()).unwrap();
    let offer = [OfferedRail { engine: Some(Fabric::Framed), domain: FRAMED, address }];
    let refused = rig.engine.remote.open_rail(&rig.client, &offer).err().unwrap();
    assert_eq!(refused.kind, ErrorKind::Limit, "{refused:?}");
    assert!(rig.engine.remote.compare_rails(&rig.client, &[2, 3, 4], true).is_empty());
    let Ok(Taken::Framed { secret, rail, .. }) = rig.engine.remote.open_rail(&rig.client, &offer) else {
        panic!("there is room");
    };
    assert!(rails[0].death().is_some() && rails[1..].iter().all(|rail| rail.death().is_none()));
    let joining = rig.engine.remote.join_rail(secret).unwrap();
    let played: Arc<dyn Initiator> = rig.unused_rail();
    assert!(rig.engine.remote.add_rail(&joining, &played, Box::new(())));
    assert!(rig.engine.remote.compare_rails(&rig.client, &[2, 3, 4, rail], true).is_empty());
}
