//! What the end of a call says of the pool's health, and which planes an address has.

use super::*;
use crate::config::BreakerConfig;

impl Link {
    /// A call that nobody answered: enough where the breaker opens after one.
    pub(crate) fn sicken(&self) {
        let mut breaker = self.breaker.lock();
        let pass = breaker.admit(Instant::now()).unwrap();
        breaker.end(pass, Outcome::Sick, Instant::now());
    }
}

fn link(failures: u32) -> Link {
    link_that_waits(failures, 600_000)
}

fn link_that_waits(failures: u32, cooldown_ms: u64) -> Link {
    let breaker = BreakerConfig { failures, cooldown_ms };
    let config = ClientConfig { breaker, ..ClientConfig::default() };
    Link::new(&config, Address::Tcp("host".to_owned(), 1), None).unwrap()
}

fn ends(link: &Link, progress: bool, kind: Option<ErrorKind>) {
    let result = kind.map_or(Ok(()), |kind| Err(Error::new(kind, "so it ended")));
    let ended = link.admit().unwrap().end_after(progress, result.clone());
    assert_eq!(ended, result, "the result is handed on as it is");
}

#[test]
fn only_an_answer_that_did_not_come_says_that_a_pool_is_sick() {
    let busy = ErrorKind::Busy { retry_after_ms: 5 };
    let table = [
        (None, false, false),
        (Some(ErrorKind::Unavailable), false, true),
        (Some(ErrorKind::Unavailable), true, true),
        (Some(ErrorKind::Deadline), false, true),
        (Some(ErrorKind::Deadline), true, false),
        (Some(busy), false, false),
        (Some(ErrorKind::Draining), false, false),
        (Some(ErrorKind::Internal), false, false),
        (Some(ErrorKind::Device), false, false),
        (Some(ErrorKind::Limit), false, false),
        (Some(ErrorKind::LeaseExpired), false, false),
        (Some(ErrorKind::PermissionDenied), false, false),
    ];
    for (kind, progress, is_sick) in table {
        let link = link(1);
        ends(&link, progress, kind);
        assert_eq!(link.is_well(), !is_sick, "{kind:?}, progress: {progress}");
        if is_sick {
            let refused = link.admit().unwrap_err();
            assert_eq!(refused.kind, ErrorKind::BreakerOpen);
        }
    }
}

#[test]
fn who_is_not_let_through_is_told_when_or_that_another_call_is_finding_out() {
    let sick = link(1);
    sick.sicken();
    let later = sick.admit().unwrap_err().to_string();
    assert!(later.contains("is let through in 5") && later.ends_with(" ms"), "{later}");
    let sick = link_that_waits(1, 1);
    sick.sicken();
    std::thread::sleep(Duration::from_millis(3));
    let probe = sick.admit().unwrap();
    let now = sick.admit().unwrap_err().to_string();
    assert!(now.contains("finds out whether it does now"), "{now}");
    drop(probe);
}

#[test]
fn an_answer_in_between_begins_the_count_anew_and_a_call_that_is_dropped_does_not() {
    let link = link(2);
    ends(&link, false, Some(ErrorKind::Unavailable));
    ends(&link, false, Some(ErrorKind::Draining));
    ends(&link, false, Some(ErrorKind::Unavailable));
    assert!(link.is_well(), "one in a row");
    drop(link.admit().unwrap());
    assert!(link.is_well());
    ends(&link, false, Some(ErrorKind::Deadline));
    assert!(!link.is_well(), "two in a row: a dropped call says nothing");
}

#[test]
fn a_sick_pool_gets_one_attempt_a_call_and_a_well_one_as_long_as_connecting_may_take() {
    let link = link(1);
    let deadline = Deadline::after(Duration::from_secs(60));
    assert!(link.backoff(deadline).next().is_some(), "it may be restarting");
    ends(&link, false, Some(ErrorKind::Unavailable));
    assert!(link.backoff(deadline).next().is_none());
    let now = link.deadline(Some(Duration::ZERO));
    assert!(now.check().is_err() && link.deadline(None).check().is_ok());
}

#[test]
fn an_address_has_the_planes_that_reach_it_and_others_are_refused() {
    let unix = || Address::unix(PathBuf::from("/run/turnkv.sock")).unwrap();
    let http = || Address::parse("http://host:1").unwrap();
    let tcp = || Address::Tcp("host".to_owned(), 1);
    // Address, plane, and whether it has shared memory and rails; none: it is refused.
    let table = [
        (unix(), DataPlane::Auto, Some((true, false))),
        (unix(), DataPlane::Shm, Some((true, false))),
        (unix(), DataPlane::Framed, None),
        (tcp(), DataPlane::Auto, Some((false, true))),
        (tcp(), DataPlane::Framed, Some((false, true))),
        (tcp(), DataPlane::Inline, Some((false, false))),
        (tcp(), DataPlane::Shm, None),
        (http(), DataPlane::Auto, Some((false, false))),
        (http(), DataPlane::Framed, None),
        (http(), DataPlane::Shm, None),
    ];
    for (address, data_plane, expected) in table {
        let config = ClientConfig { data_plane, ..ClientConfig::default() };
        let link = Link::new(&config, address.clone(), None);
        let planes = link.ok().map(|link| (link.local.is_some(), link.framed.is_some()));
        assert_eq!(planes, expected, "{address} by {data_plane:?}");
    }
}

#[tokio::test]
async fn pages_go_inline_for_a_while_where_no_frames_were_spoken_unless_frames_were_asked_for() {
    // It takes connections and says nothing.
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = || Address::Tcp("127.0.0.1".to_owned(), listener.local_addr().unwrap().port());
    let link = |data_plane| {
        let config = ClientConfig { data_plane, ..ClientConfig::default() };
        let link = Link::new(&config, address(), None).unwrap();
        link.framed.as_ref().unwrap().note_no_frames();
        link
    };
    let past = Deadline::after(Duration::ZERO);
    assert!(matches!(link(DataPlane::Auto).way(past).await, Ok(Way::Inline)), "nobody is asked");
    let framed = link(DataPlane::Framed);
    assert_eq!(framed.way(past).await.unwrap_err().kind, ErrorKind::Deadline, "it is asked, and in vain");
    assert!(framed.lend_shm(past).await.unwrap().is_none(), "there is no shared memory over a network");
}
