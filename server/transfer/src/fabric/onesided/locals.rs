//! Slabs that a NIC knows. Owns: the server's own registrations, made in the background, and when they go.
//! Must not know: operations, rails.
//!
//! ```text
//! attach:    (none) -> Pending -> Ready ----- detach ------> Lent -> (gone with its last operation)
//! operation: (none) -> Pending -> Ready -- first look ----> Lent -> (gone with its last operation)
//!                          \----> Failed -- told once ----> tried again by the next operation
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::fabric::contract::RegisterError;
use crate::fabric::onesided::bell::Bell;
use crate::fabric::onesided::pair::Nic;
use crate::limits::{LOCAL_REGIONS_MAX, REGISTRARS_MAX};
use crate::region::Region;

/// A registered slab.
pub(super) struct Local<M> {
    /// Goes before the region: what a NIC may touch stays mapped.
    memory: M,
    _region: Arc<Region>,
}

impl<M> Local<M> {
    #[cfg(test)]
    pub(super) fn of(memory: M, region: &Arc<Region>) -> Arc<Self> {
        Arc::new(Self { memory, _region: Arc::clone(region) })
    }

    pub(super) fn memory(&self) -> &M {
        &self.memory
    }
}

/// What is known of a slab that an operation needs.
pub(super) enum Found<M> {
    Ready(Arc<Local<M>>),
    /// It is being registered: the bell rings when that is done.
    Pending,
    /// It cannot be registered: why.
    Failed(String),
}

/// All slabs of one NIC.
pub(super) struct Locals<N: Nic> {
    nic: Arc<N>,
    bell: Arc<Bell>,
    books: Mutex<LocalBooks<N::Memory>>,
}

struct LocalBooks<M> {
    /// By the region's address; an entry that could outlive its region holds no registration of it.
    entries: HashMap<usize, LocalEntry<M>>,
    waiting: VecDeque<Arc<Region>>,
    registrars: usize,
    failed: u64,
}

struct LocalEntry<M> {
    attached: bool,
    state: LocalState<M>,
}

enum LocalState<M> {
    Pending,
    Ready(Arc<Local<M>>),
    Lent(Weak<Local<M>>),
    Failed(String),
}

impl<N: Nic> Locals<N> {
    pub(super) fn new(nic: Arc<N>, bell: Arc<Bell>) -> Arc<Self> {
        let books =
            LocalBooks { entries: HashMap::new(), waiting: VecDeque::new(), registrars: 0, failed: 0 };
        Arc::new(Self { nic, bell, books: Mutex::new(books) })
    }

    /// Registers a slab in the background and keeps it until it is detached.
    pub(super) fn attach(self: &Arc<Self>, region: &Arc<Region>) -> Result<(), RegisterError> {
        let mut books = self.books.lock();
        let lent = match books.entries.get_mut(&key(region)) {
            Some(LocalEntry { state: LocalState::Lent(lent), .. }) => lent.upgrade(),
            Some(entry) if !matches!(entry.state, LocalState::Failed(_)) => {
                entry.attached = true;
                return Ok(());
            }
            Some(_) | None => None,
        };
        if let Some(local) = lent {
            books.entries.insert(key(region), LocalEntry { attached: true, state: LocalState::Ready(local) });
            return Ok(());
        }
        self.begin(&mut books, region, true)
    }

    /// Lets a slab go when its last operation has ended.
    pub(super) fn detach(&self, region: &Arc<Region>) {
        let mut books = self.books.lock();
        let Some(entry) = books.entries.get_mut(&key(region)) else { return };
        entry.attached = false;
        let ready = match &entry.state {
            LocalState::Ready(local) => Some(Arc::clone(local)),
            LocalState::Pending | LocalState::Lent(_) | LocalState::Failed(_) => None,
        };
        if let Some(local) = &ready {
            entry.state = LocalState::Lent(Arc::downgrade(local));
        }
        // Taking a large registration back takes long: others look things up meanwhile.
        drop(books);
        drop(ready);
    }

    /// The registration that covers a region; one that nobody attached is made for who asks.
    pub(super) fn find(self: &Arc<Self>, region: &Arc<Region>) -> Found<N::Memory> {
        let mut books = self.books.lock();
        if let Some(entry) = books.entries.get_mut(&key(region)) {
            match &entry.state {
                LocalState::Pending => return Found::Pending,
                LocalState::Ready(local) => {
                    let local = Arc::clone(local);
                    if !entry.attached {
                        entry.state = LocalState::Lent(Arc::downgrade(&local));
                    }
                    return Found::Ready(local);
                }
                LocalState::Lent(lent) => {
                    if let Some(local) = lent.upgrade() {
                        return Found::Ready(local);
                    }
                }
                LocalState::Failed(why) => {
                    let why = why.clone();
                    entry.state = LocalState::Lent(Weak::new());
                    return Found::Failed(why);
                }
            }
        }
        // A slab that is attached stays so when its registration is tried again.
        let attached = books.entries.get(&key(region)).is_some_and(|entry| entry.attached);
        match self.begin(&mut books, region, attached) {
            Ok(()) => Found::Pending,
            Err(why) => Found::Failed(why.to_string()),
        }
    }

    /// Lets go of what was registered for operations that did not come: their rails died.
    pub(super) fn sweep(&self) {
        let mut books = self.books.lock();
        let mut unwanted = Vec::new();
        for entry in books.entries.values_mut().filter(|entry| !entry.attached) {
            if let LocalState::Ready(local) = &entry.state {
                let lent = LocalState::Lent(Arc::downgrade(local));
                unwanted.push(std::mem::replace(&mut entry.state, lent));
            }
        }
        drop(books);
        drop(unwanted);
    }

    /// Slabs that are registered, that wait to be, and that could not be.
    pub(super) fn counts(&self) -> (usize, usize, u64) {
        let books = self.books.lock();
        let is_ready = |entry: &&LocalEntry<N::Memory>| match &entry.state {
            LocalState::Ready(_) => true,
            LocalState::Lent(lent) => lent.strong_count() > 0,
            LocalState::Pending | LocalState::Failed(_) => false,
        };
        let is_pending = |entry: &&LocalEntry<N::Memory>| matches!(entry.state, LocalState::Pending);
        let entries = || books.entries.values();
        (entries().filter(is_ready).count(), entries().filter(is_pending).count(), books.failed)
    }

    fn begin(
        self: &Arc<Self>,
        books: &mut LocalBooks<N::Memory>,
        region: &Arc<Region>,
        attached: bool,
    ) -> Result<(), RegisterError> {
        if books.entries.len() >= LOCAL_REGIONS_MAX {
            books.entries.retain(|_, entry| entry.is_alive());
        }
        if books.entries.len() >= LOCAL_REGIONS_MAX {
            return Err(RegisterError::Full(LOCAL_REGIONS_MAX));
        }
        if books.registrars < REGISTRARS_MAX {
            let locals = Arc::clone(self);
            let thread = std::thread::Builder::new().name("fabric-register".to_owned());
            match thread.spawn(move || locals.work()) {
                Ok(_) => books.registrars += 1,
                Err(_) if books.registrars > 0 => {}
                Err(error) => return Err(RegisterError::Failed(format!("no thread for it: {error}"))),
            }
        }
        books.waiting.push_back(Arc::clone(region));
        books.entries.insert(key(region), LocalEntry { attached, state: LocalState::Pending });
        Ok(())
    }

    /// A registrar's life: until nothing waits.
    fn work(&self) {
        loop {
            let mut books = self.books.lock();
            let Some(region) = books.waiting.pop_front() else {
                books.registrars -= 1;
                return;
            };
            drop(books);
            let made = self.nic.register(&region);
            let mut books = self.books.lock();
            let state = match made {
                Ok(memory) => LocalState::Ready(Arc::new(Local { memory, _region: Arc::clone(&region) })),
                Err(why) => {
                    books.failed += 1;
                    LocalState::Failed(why)
                }
            };
            if let Some(entry) = books.entries.get_mut(&key(&region)) {
                entry.state = state;
            }
            drop(books);
            self.bell.ring();
        }
    }
}

impl<M> LocalEntry<M> {
    /// Whether it still says anything.
    fn is_alive(&self) -> bool {
        match &self.state {
            LocalState::Lent(lent) => lent.strong_count() > 0,
            LocalState::Pending | LocalState::Ready(_) => true,
            LocalState::Failed(_) => self.attached,
        }
    }
}

fn key(region: &Arc<Region>) -> usize {
    Arc::as_ptr(region).addr()
}
