//! What is kept, refused and let go of, at somebody who has room for some of it, loses all of it, or is lost himself.

use super::*;
use std::sync::Arc;
use turnkv_mutate::each_seed;

/// Somebody who keeps as much as there is room for.
#[derive(Default)]
struct Played(Mutex<PlayedState>);

#[derive(Default)]
struct PlayedState {
    kept: BTreeMap<String, OwnedFd>,
    room: usize,
    is_gone: bool,
}

impl Keeps for Arc<Played> {
    fn find(&self) -> io::Result<BTreeMap<String, OwnedFd>> {
        let state = self.0.lock();
        state.kept.iter().map(|(name, fd)| Ok((name.clone(), fd.try_clone()?))).collect()
    }

    fn keep(&self, kept: &[(String, BorrowedFd<'_>)]) -> io::Result<()> {
        let mut state = self.0.lock();
        if state.is_gone {
            return Err(io::ErrorKind::NotConnected.into());
        }
        for (name, fd) in kept {
            if state.kept.len() >= state.room && !state.kept.contains_key(name) {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            state.kept.insert(name.clone(), fd.try_clone_to_owned()?);
        }
        Ok(())
    }

    fn drop_kept(&self, name: &str) -> io::Result<()> {
        self.0.lock().kept.remove(name);
        Ok(())
    }

    fn names(&self) -> BTreeSet<String> {
        self.0.lock().kept.keys().cloned().collect()
    }

    fn is_gone(&self) -> bool {
        self.0.lock().is_gone
    }

    fn replace(&self, _: bool, keep_all: &dyn Fn() -> io::Result<()>) -> Option<io::Result<String>> {
        {
            let mut state = self.0.lock();
            if !std::mem::take(&mut state.is_gone) {
                return None;
            }
            // Another one is there, which has nothing.
            state.kept.clear();
        }
        Some(keep_all().map(|()| "another one keeps it".to_owned()))
    }

    fn hands_down(&self) -> bool {
        false
    }

    fn describe(&self) -> Option<String> {
        None
    }

    fn trouble(&self) -> String {
        String::new()
    }
}

fn fd() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

fn with_room(room: usize) -> (Custody, Arc<Played>) {
    let played = Arc::new(Played(Mutex::new(PlayedState { room, ..PlayedState::default() })));
    (Custody::new(Box::new(Arc::clone(&played))), played)
}

/// Everybody's names, in order.
fn names(names: &BTreeSet<String>) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

/// Slabs come and go, and so do room and the one who keeps: what is refused is at any moment what is wanted and not kept. Once
/// it is mended with room for all, all of it is kept.
#[test]
fn what_is_wanted_is_kept_or_counted_as_refused_whatever_becomes_of_who_keeps_it() {
    let mut refused_once = 0;
    each_seed(200, |random| {
        let (custody, played) = with_room(4);
        let memory = fd();
        let wanted: Mutex<BTreeSet<String>> = Mutex::default();
        let keep_memory = || {
            let all = wanted.lock().clone();
            all.iter().try_for_each(|name| custody.keep(&[(name.clone(), memory.as_fd())]))
        };
        for _ in 0..40 {
            let name = format!("slab-{}", random.below(8));
            match random.below(6) {
                0 => {
                    wanted.lock().remove(&name);
                    custody.drop_kept(&name).unwrap();
                }
                1 => played.0.lock().room = random.below(9),
                2 => played.0.lock().is_gone = true,
                3 => drop(custody.mend(false, &keep_memory)),
                _ => {
                    wanted.lock().insert(name.clone());
                    drop(custody.keep(&[(name, memory.as_fd())]));
                }
            }
            if custody.is_gone() {
                continue;
            }
            let (kept, wanted) = (custody.names(), wanted.lock());
            let refused = custody.refused.lock().clone();
            assert!(
                kept.is_subset(&wanted) && refused.is_subset(&wanted),
                "{kept:?} {refused:?} of {wanted:?}"
            );
            assert!(kept.is_disjoint(&refused), "{kept:?} {refused:?}: it is not kept, or it is");
            refused_once += u32::from(!refused.is_empty());
        }
        (played.0.lock().room, played.0.lock().is_gone) = (20, true);
        assert!(custody.mend(true, &keep_memory).is_some_and(|mended| mended.is_ok()));
        assert_eq!((custody.names(), custody.refused()), (wanted.lock().clone(), 0));
    });
    assert!(refused_once > 500, "only {refused_once} times something was refused: this proves little");
}

#[test]
fn listening_sockets_are_no_memory_and_wait_until_somebody_takes_them_over() {
    let (custody, played) = with_room(10);
    for name in ["slab-1", "listen-local-7-9", "listen-tcp", "listen-metrics"] {
        played.0.lock().kept.insert(name.to_owned(), fd());
    }
    let memory = custody.find().unwrap();
    assert_eq!(memory.keys().collect::<Vec<_>>(), ["slab-1"]);
    assert_eq!((names(&custody.names()), custody.count()), (vec!["slab-1"], 4));
    let (name, _fd) = custody.take_found("local-").unwrap();
    assert_eq!(name, "local-7-9");
    assert!(custody.take_found("local-").is_none(), "it is somebody's now");
    assert!(custody.take_found("grpc-").is_none());
    assert_eq!(custody.take_found("tcp").unwrap().0, "tcp");
    custody.keep_listening("tcp", fd().as_fd()).unwrap();
    assert!(custody.keeps_listening() && custody.keeps("listen-tcp"));
    custody.stop_listening("tcp").unwrap();
    assert!(!custody.keeps("listen-tcp") && custody.keeps_listening(), "there is none that is not kept");
    // The one of metrics is nobody's, and goes with all others.
    custody.keep_listening("grpc-1-2", fd().as_fd()).unwrap();
    custody.stop_listening_at_all().unwrap();
    assert_eq!(custody.names().len(), 1);
    assert!(played.names().iter().all(|name| name == "slab-1" || name == "listen-local-7-9"));
    assert!(!custody.keeps_listening(), "the next server does not get it");
}

#[test]
fn a_socket_that_finds_no_room_is_kept_once_there_is_some() {
    let (custody, played) = with_room(1);
    let memory = fd();
    let keep_memory = || custody.keep(&[("slab-1".to_owned(), memory.as_fd())]);
    keep_memory().unwrap();
    let refused = custody.keep_listening("tcp", fd().as_fd()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
    assert_eq!((custody.refused(), custody.keeps_listening()), (1, false));
    assert!(custody.mend(false, &keep_memory).unwrap().is_err(), "there is still none");
    played.0.lock().room = 2;
    assert!(custody.mend(false, &keep_memory).unwrap().is_ok());
    assert_eq!((custody.refused(), custody.keeps_listening()), (0, true));
    assert!(custody.mend(false, &keep_memory).is_none(), "all is as it should be");
    played.0.lock().is_gone = true;
    assert!(custody.mend(false, &keep_memory).unwrap().is_ok(), "another one is given all of it");
    assert_eq!((custody.count(), custody.keeps_listening()), (2, true));
}

#[test]
fn of_several_that_do_not_all_find_room_those_that_did_are_not_refused() {
    let (custody, _) = with_room(2);
    let memory = fd();
    let all: Vec<(String, BorrowedFd<'_>)> =
        (1..=3).map(|slab| (format!("slab-{slab}"), memory.as_fd())).collect();
    assert!(custody.keep(&all).is_err());
    assert_eq!(names(&custody.names()), ["slab-1", "slab-2"]);
    assert_eq!(names(&custody.refused.lock()), ["slab-3"]);
    custody.drop_kept("slab-1").unwrap();
    custody.drop_kept("slab-3").unwrap();
    assert_eq!(custody.refused(), 0, "what is not wanted any more is not refused");
}
