//! Descriptors that the next program in this process finds, by name: what whoever started this one gave it, or what the program before
//! left open, then what is kept. Owns: the list, and what of its environment a start makes of it. Must not know: what they are of.

use crate::limits::{KEPT_NAME_BYTES_MAX, LISTEN_FDS_MAX};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Of the process that is to have them.
pub(crate) const LISTEN_PID: &str = "LISTEN_PID";
/// How many there are: from number 3 on.
pub(crate) const LISTEN_FDS: &str = "LISTEN_FDS";
/// What each is called.
pub(crate) const LISTEN_FDNAMES: &str = "LISTEN_FDNAMES";

/// The first of them.
const FIRST: RawFd = 3;

/// The descriptors: shared by all who have to do with them.
#[derive(Clone, Default)]
pub(crate) struct HeldDescriptors(Arc<Mutex<Holding>>);

#[derive(Default)]
struct Holding {
    kept: BTreeMap<String, OwnedFd>,
    /// Names that came with more descriptors than one: nobody knows which is meant.
    doubtful: BTreeSet<String>,
}

impl HeldDescriptors {
    /// What came, each with its name. What has none that can be ours is closed.
    pub(crate) fn of(came: impl IntoIterator<Item = (String, OwnedFd)>) -> HeldDescriptors {
        let mut holding = Holding::default();
        for (name, fd) in came.into_iter().filter(|(name, _)| is_name(name)) {
            let is_known = !holding.doubtful.contains(&name);
            if is_known && holding.kept.insert(name.clone(), fd).is_some() {
                holding.kept.remove(&name);
                holding.doubtful.insert(name);
            }
        }
        HeldDescriptors(Arc::new(Mutex::new(holding)))
    }

    /// All of them, once more each.
    ///
    /// # Errors
    /// The system has no descriptor more.
    pub(super) fn all(&self) -> io::Result<BTreeMap<String, OwnedFd>> {
        let holding = self.0.lock();
        holding.kept.iter().map(|(name, fd)| Ok((name.clone(), fd.try_clone()?))).collect()
    }

    /// Names of what is of no use.
    pub(super) fn doubtful(&self) -> BTreeSet<String> {
        self.0.lock().doubtful.clone()
    }

    /// Holds another one.
    ///
    /// # Errors
    /// The system has no descriptor more.
    pub(super) fn hold(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        let fd = fd.try_clone_to_owned()?;
        self.0.lock().kept.insert(name.to_owned(), fd);
        Ok(())
    }

    /// Lets go of one.
    pub(super) fn let_go(&self, name: &str) {
        self.0.lock().kept.remove(name);
    }

    /// Looks at all of them while nobody changes any.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&BTreeMap<String, OwnedFd>) -> T) -> T {
        look(&self.0.lock().kept)
    }
}

/// Which descriptors a service manager says that it left open for this process, as its environment has it: their numbers and names.
pub(crate) fn listed(variable: impl Fn(&str) -> Option<String>, pid: u32) -> Vec<(RawFd, String)> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    if number(LISTEN_PID) != Some(pid) {
        return Vec::new();
    }
    let count = number(LISTEN_FDS).map_or(0, |count| count as usize).min(LISTEN_FDS_MAX);
    let names = variable(LISTEN_FDNAMES).unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    // One that nobody named is closed, like any that nobody asked for.
    (FIRST..).take(count).map(|fd| (fd, names.next().unwrap_or_default())).collect()
}

/// Whether a name can be a descriptor's, at a keeper and at systemd.
pub(super) fn is_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b':';
    (1..=KEPT_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn fd() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn only_the_process_that_is_meant_has_the_descriptors_of_its_environment() {
        let environment = |pid: &'static str, count: &'static str, names: &'static str| {
            move |name: &str| {
                let value = match name {
                    LISTEN_PID => pid,
                    LISTEN_FDS => count,
                    _ => names,
                };
                Some(value.to_owned())
            }
        };
        let named = |fd, name: &str| (fd, name.to_owned());
        assert_eq!(listed(environment("7", "2", "a:b"), 7), [named(3, "a"), named(4, "b")]);
        assert_eq!(listed(environment("7", "2", "a"), 7), [named(3, "a"), named(4, "")]);
        assert_eq!(listed(environment("8", "2", "a:b"), 7), []);
        assert_eq!(listed(environment("7", "-1", "a:b"), 7), []);
        assert_eq!(listed(environment("7", "4294967295", ""), 7).len(), LISTEN_FDS_MAX);
        assert_eq!(listed(|_| None, 7), []);
    }

    #[test]
    fn of_a_name_that_came_twice_nothing_is_believed() {
        let held = HeldDescriptors::of(["a", "b", "a", "a"].map(|name| (name.to_owned(), fd())));
        assert_eq!(held.all().unwrap().keys().collect::<Vec<_>>(), ["b"]);
        assert_eq!(held.doubtful(), BTreeSet::from(["a".to_owned()]));
        held.hold("c", fd().as_fd()).unwrap();
        held.let_go("b");
        assert_eq!(held.look(|kept| kept.len()), 1);
    }

    #[test]
    fn names_are_short_and_plain() {
        assert!(is_name("slab-65535-4294967295"));
        for name in ["", "a:b", "a b", "a\n", "\u{e4}", &"x".repeat(KEPT_NAME_BYTES_MAX + 1)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
