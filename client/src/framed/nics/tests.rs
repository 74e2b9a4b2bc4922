//! NICs that come, fail and go, and the rails over them.

use super::super::tests::{PlayedNic, PlayedRail};
use super::*;
use crate::config::FabricChoice;
use crate::error::ErrorKind;
use std::time::Duration;

impl Nics {
    /// A played NIC is open at this place.
    pub(in crate::framed) fn play(&self, at: usize) -> Arc<Nic> {
        self.play_as(at, PlayedNic::default())
    }

    pub(in crate::framed) fn play_as(&self, at: usize, nic: PlayedNic) -> Arc<Nic> {
        self.places.lock()[at].state = PlaceState::Opening;
        self.note_opened(at, Ok(Arc::new(nic)));
        match &self.places.lock()[at].state {
            PlaceState::Open(nic) => Arc::clone(nic),
            _ => panic!("it is open"),
        }
    }
}

impl Nic {
    /// A played rail over it is open, of this number at the server.
    pub(in crate::framed) fn play(&self, number: u64) -> Arc<PlayedRail> {
        let rail = PlayedRail::open();
        self.has(HeldRail { number, target: Arc::clone(&rail) as Arc<dyn Target> });
        rail
    }
}

fn nics(choice: FabricChoice, names: &[&str]) -> Arc<Nics> {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    let config = FabricConfig { choice, nics: names, ..FabricConfig::default() };
    Nics::new(&config, ("host".to_owned(), 1), &Arc::default())
}

fn numbers(nics: &[Arc<Nic>]) -> Vec<u32> {
    nics.iter().map(|nic| nic.number).collect()
}

#[test]
fn every_nic_that_is_named_is_looked_for_by_every_fabric_that_may_be_used() {
    type Places = &'static [(Engine, Option<&'static str>)];
    let table: [(FabricChoice, &[&str], Places); 5] = [
        (FabricChoice::Framed, &["a"], &[]),
        (FabricChoice::Auto, &[], &[(Engine::Verbs, None), (Engine::Libfabric, None)]),
        (FabricChoice::Verbs, &["a", "b"], &[(Engine::Verbs, Some("a")), (Engine::Verbs, Some("b"))]),
        (FabricChoice::Libfabric, &[], &[(Engine::Libfabric, None)]),
        (FabricChoice::Auto, &["a"], &[(Engine::Verbs, Some("a")), (Engine::Libfabric, Some("a"))]),
    ];
    for (choice, names, expected) in table {
        let nics = nics(choice, names);
        let places = nics.places.lock();
        let places: Vec<_> = places.iter().map(|place| (place.engine, place.name.as_deref())).collect();
        assert_eq!(places, expected, "{choice:?} {names:?}");
    }
}

#[test]
fn a_nic_that_is_not_there_says_why_and_is_left_alone_for_a_while() {
    let nics = nics(FabricChoice::Verbs, &["a", "b"]);
    nics.note_opened(0, Err("no such device".to_owned()));
    assert_eq!(nics.why_none(), "verbs: no such device");
    {
        let places = nics.places.lock();
        assert!(matches!(places[0].state, PlaceState::Closed) && places[0].pause.goes_on());
        assert!(!places[1].pause.goes_on(), "the other one is not the worse for it");
    }
    nics.note_opened(7, Err("a place that is none".to_owned()));
    let nic = nics.play(0);
    assert_eq!((nics.why_none(), numbers(&nics.lacking())), (String::new(), vec![nic.number]));
    nics.close(&nic, "it is of no use".to_owned());
    assert_eq!((nics.why_none().as_str(), nics.lacking().len()), ("verbs: it is of no use", 0));
    let again = nics.play(0);
    assert_ne!(nic.number, again.number, "memory that the old one knew is not known to the new one");
    nics.close(&nic, "it is told twice".to_owned());
    assert_eq!(numbers(&nics.lacking()), [again.number], "that was of the one before it");
}

#[test]
fn a_rail_that_ended_makes_way_for_another_after_a_pause_and_one_that_is_renewed_at_once() {
    let nics = nics(FabricChoice::Verbs, &[]);
    let nic = nics.play(0);
    assert!(nics.with_rails().is_empty());
    let rail = nic.play(9);
    assert_eq!((numbers(&nics.with_rails()), nic.held()), (vec![nic.number], Some(9)));
    assert!(nics.lacking().is_empty());
    nic.renew();
    assert_eq!((nic.held(), nics.lacking().len()), (None, 1), "it was no fault of the NIC");
    nic.play(10);
    rail.close();
    assert!(nics.lacking().is_empty() && nic.held() == Some(10), "the old one's end is no matter");
    let rail = nic.play(11);
    rail.close();
    assert!(nics.lacking().is_empty(), "not at once");
    assert_eq!((nic.held(), nics.with_rails().len()), (None, 0), "a rail that ended is none");
    assert_eq!(Arc::strong_count(&rail), 1, "it is let go");
}

#[test]
fn beside_a_rail_of_one_fabric_none_of_another_is_opened() {
    let nics = nics(FabricChoice::Auto, &["a", "b"]);
    let [verbs, other_verbs, libfabric] = [nics.play(0), nics.play(1), nics.play(2)];
    let all = vec![verbs.number, other_verbs.number, libfabric.number];
    assert_eq!(numbers(&nics.lacking()), all);
    verbs.play(1);
    assert_eq!(numbers(&nics.lacking()), [other_verbs.number]);
    verbs.lose();
    assert_eq!(numbers(&nics.lacking()), [other_verbs.number, libfabric.number]);
    libfabric.play(2);
    assert_eq!(numbers(&nics.lacking()), Vec::<u32>::new(), "that one has rails now");
}

#[tokio::test]
async fn a_call_waits_for_nics_that_are_being_opened_until_the_last_one_is_or_its_deadline() {
    let nics = nics(FabricChoice::Auto, &[]);
    nics.opened(Deadline::after(Duration::ZERO)).await.unwrap();
    for place in nics.places.lock().iter_mut() {
        place.state = PlaceState::Opening;
    }
    let late = nics.opened(Deadline::after(Duration::from_millis(5))).await;
    assert_eq!(late.unwrap_err().kind, ErrorKind::Deadline);
    let waiting = tokio::spawn({
        let nics = Arc::clone(&nics);
        async move { nics.opened(Deadline::after(Duration::from_secs(20))).await }
    });
    tokio::task::yield_now().await;
    nics.note_opened(0, Err("no such device".to_owned()));
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "one is still being opened");
    nics.play(1);
    waiting.await.unwrap().unwrap();
}
