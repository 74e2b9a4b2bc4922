//! Pages that leave with the answer, or come with the request: the same bytes, checks and leases as those that are moved, and no transfer.

use super::*;

/// Two pages of nines are there.
fn filled() -> (Rig, Arc<PlayedRail>) {
    let rig = Rig::new();
    let rail = rig.rail();
    let call = rig.offload(2, 9, &Arc::default());
    (0..2).for_each(|_| rail.read(9));
    call.join().unwrap().unwrap();
    (rig, rail)
}

fn reload(rig: &Rig, pages: Vec<RemotePage>, verify: bool) -> Result<Listening, Error> {
    let begin = want(rig.namespace, vec![BlockHash([1; 32]), BlockHash([2; 32])]);
    let ask = RemoteReload { begin, pages, verify, may_carry: true };
    let mut run = rig.engine.begin_reload_now(rig.client.id, &ask.begin).unwrap().unwrap();
    let mut listening = Listening::default();
    block_on(rig.engine.write_remote(&rig.client, &ask, &mut run, &mut listening)).map(|()| listening)
}

#[test]
fn a_small_call_is_answered_with_its_pages_and_nothing_is_posted() {
    let (rig, rail) = filled();
    let told = reload(&rig, targets(2, 9), false).unwrap();
    assert!(told.ended && told.pages.len() == 2);
    for page in &told.pages {
        assert_eq!((&page.carried[..], page.position.checksum), (&[9; PAGE][..], checksum(&[9; PAGE])));
    }
    assert!(rail.posted.lock().is_empty());
    assert_eq!((rig.leases(), rig.engine.remote.inflight_bytes()), (0, 0));
}

#[test]
fn a_page_that_does_not_verify_is_a_miss_and_is_not_carried() {
    let (rig, _rail) = filled();
    let begin = want(rig.namespace, vec![BlockHash([1; 32])]);
    let mut run = rig.engine.begin_reload_now(rig.client.id, &begin).unwrap().unwrap();
    let place = run.next_ready().unwrap().found.unwrap();
    write(&rig.engine.slot(place).unwrap(), 3);
    drop(run);
    let told = reload(&rig, targets(2, 9), true).unwrap();
    assert!(told.ended && told.pages.len() == 1 && told.pages[0].carried.is_empty());
    assert!(told.pages[0].position.found.is_err());
}

#[test]
fn spans_that_are_shorter_than_the_page_carry_nothing() {
    let (rig, rail) = filled();
    let short = || {
        let mut pages = targets(2, 9);
        let region = Arc::new(LentRegion { keys: vec![(FRAMED, REGION)] });
        pages[0].spans = vec![LentSpan::new(&region, 0, 1).unwrap()];
        pages
    };
    let refused = reload(&rig, short(), false).err().unwrap().message;
    assert!(refused.contains("its spans have 1"), "{refused}");
    assert!(rail.posted.lock().is_empty() && rig.leases() == 0);
}

/// A NIC writes without waking anybody, so pages go by it.
#[test]
fn a_client_with_a_nic_has_its_pages_written() {
    let (rig, _rail) = filled();
    let nic = rig.rail_over(Fabric::Verbs, NIC);
    let (engine, client, namespace) = (Arc::clone(&rig.engine), Arc::clone(&rig.client), rig.namespace);
    let call = move || {
        let begin = want(namespace, vec![BlockHash([1; 32])]);
        let ask = RemoteReload { begin, pages: targets(1, 9), verify: false, may_carry: true };
        let mut run = engine.begin_reload_now(client.id, &ask.begin).unwrap().unwrap();
        let mut listening = Listening::default();
        block_on(engine.write_remote(&client, &ask, &mut run, &mut listening)).map(|()| listening)
    };
    let call = std::thread::Builder::new().name("call".to_owned()).spawn(call).unwrap();
    let posted = nic.next();
    assert_eq!(posted.operation().direction(), Direction::Write);
    posted.complete(Outcome::Done);
    let told = call.join().unwrap().unwrap();
    assert!(told.ended && told.pages[0].carried.is_empty());
}

/// Two pages of nines, which come with their request as this says of each.
fn carrying(carried: [Vec<u8>; 2]) -> Vec<RemotePage> {
    let pages = targets(2, 9).into_iter().zip(carried);
    pages.map(|(page, carried)| RemotePage { carried: carried.into(), ..page }).collect()
}

#[test]
fn pages_that_come_with_the_request_are_kept_and_nothing_is_posted() {
    let rig = Rig::new();
    let rail = rig.rail();
    let call = rig.offload_pages(carrying([vec![9; PAGE], vec![9; PAGE]]), &Arc::default());
    assert!(call.join().unwrap().unwrap().unwrap().dropped.is_empty());
    assert!(rail.posted.lock().is_empty());
    assert_eq!((rig.leases(), rig.engine.remote.inflight_bytes()), (0, 0));
    let told = reload(&rig, targets(2, 9), true).unwrap();
    assert!(told.ended && told.pages.iter().all(|page| page.carried[..] == [9; PAGE]));
}

#[test]
fn a_page_that_did_not_come_as_it_left_is_read() {
    for carried in [vec![8; PAGE], vec![9; PAGE - 1], vec![9; PAGE + 1], vec![9]] {
        let rig = Rig::new();
        let rail = rig.rail();
        let call = rig.offload_pages(carrying([vec![9; PAGE], carried]), &Arc::default());
        rail.read(9);
        assert!(call.join().unwrap().unwrap().unwrap().dropped.is_empty());
        assert!(rail.posted.lock().is_empty() && rig.leases() == 0, "one page was read, and that once");
    }
}

#[test]
fn a_page_that_is_read_otherwise_as_well_is_not_kept_and_nothing_behind_it() {
    let rig = Rig::new();
    let rail = rig.rail();
    let call = rig.offload_pages(carrying([vec![8; PAGE], vec![9; PAGE]]), &Arc::default());
    rail.read(8);
    rail.read(8);
    assert_eq!(call.join().unwrap().unwrap().unwrap().dropped, [0, 1]);
    assert_eq!((rig.leases(), rig.engine.remote.inflight_bytes()), (0, 0));
}

#[test]
fn a_page_without_a_rail_comes_with_its_request_all_the_same() {
    let rig = Rig::new();
    let call = rig.offload_pages(carrying([vec![9; PAGE], vec![9; PAGE]]), &Arc::default());
    assert!(call.join().unwrap().unwrap().unwrap().dropped.is_empty());
}
