//! Which servers' slots this process is writing, or has mapped. Owns: the account of it, one for all clients of this copy of the library, so that a server that
//! took over the memory of one before can be told that nothing is under way from then. Must not know: connections, what is
//! written.
//!
//! A write counts from before its slots are asked for: a grant may be on its way while the server ends. So once another server has
//! answered, what the account does not have is not written, and never will be.

use crate::limits::ACCOUNTS_WAIT;
use parking_lot::Mutex;
use rustix::rand::{GetRandomFlags, getrandom};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Accounts of all servers that this process is connected to, or has writes under way for: at most one a connection.
static ACCOUNTS: Mutex<Vec<Weak<Account>>> = Mutex::new(Vec::new());

/// Some write is in no account: nothing is ever said of any.
static INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// What is being written into slots of one server process.
#[derive(Debug)]
pub(super) struct Account {
    /// Names the memory: that of the servers before and after, if they have the same.
    memory: u64,
    instance: u64,
    /// Whose writes: a process that was forked has the accounts of the one before it, but none of its threads.
    process: u32,
    under_way: AtomicUsize,
    /// Leases of mapped slots, and those asked for.
    mapped: AtomicUsize,
}

/// Slots are asked for, or written.
#[derive(Debug)]
pub(super) struct Writing {
    account: Arc<Account>,
}

/// Slots are mapped, or asked for to map them.
#[derive(Debug)]
pub(super) struct Mapping {
    account: Arc<Account>,
}

/// Names this copy of the library in its process; 0: the system gave no random number, so nothing is ever said.
pub(super) fn library() -> u64 {
    static LIBRARY: OnceLock<u64> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let mut bytes = [0; 8];
        match getrandom(&mut bytes[..], GetRandomFlags::empty()) {
            Ok(8) => u64::from_le_bytes(bytes),
            _ => 0,
        }
    })
}

impl Account {
    /// The account of a server process. None: its memory does not outlive it.
    pub(super) fn of(memory: u64, instance: u64) -> Option<Arc<Account>> {
        if memory == 0 {
            return None;
        }
        let process = std::process::id();
        let none = AtomicUsize::default;
        let new = || Arc::new(Account { memory, instance, process, under_way: none(), mapped: none() });
        // A process that was forked while a thread had the lock never gets it.
        let Some(mut accounts) = ACCOUNTS.try_lock_for(ACCOUNTS_WAIT) else {
            INCOMPLETE.store(true, Ordering::SeqCst);
            return Some(new());
        };
        accounts.retain(|account| account.strong_count() > 0);
        let is_it = |known: &Arc<Account>| {
            (known.memory, known.instance, known.process) == (memory, instance, process)
        };
        if let Some(known) = accounts.iter().filter_map(Weak::upgrade).find(is_it) {
            return Some(known);
        }
        let account = new();
        accounts.push(Arc::downgrade(&account));
        Some(account)
    }

    /// Slots are about to be asked for, to write them.
    pub(super) fn begin(self: &Arc<Self>) -> Writing {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        Writing { account: Arc::clone(self) }
    }

    /// Slots are about to be asked for, to map them.
    pub(super) fn begin_mapping(self: &Arc<Self>) -> Mapping {
        self.mapped.fetch_add(1, Ordering::SeqCst);
        Mapping { account: Arc::clone(self) }
    }

    /// Whether this process writes to no slot of a server that had this one's memory before it. Asked when this one has answered.
    pub(super) fn is_settled(&self) -> bool {
        self.none_before(|other| &other.under_way)
    }

    /// Whether it has none mapped either, but for those that this one has taken over.
    pub(super) fn has_all_mapped(&self) -> bool {
        self.none_before(|other| &other.mapped)
    }

    fn none_before(&self, count: impl Fn(&Account) -> &AtomicUsize) -> bool {
        if INCOMPLETE.load(Ordering::SeqCst) || library() == 0 {
            return false;
        }
        let Some(accounts) = ACCOUNTS.try_lock_for(ACCOUNTS_WAIT) else {
            INCOMPLETE.store(true, Ordering::SeqCst);
            return false;
        };
        let mut before = accounts.iter().filter_map(Weak::upgrade).filter(|other| self.is_after(other));
        before.all(|other| count(&other).load(Ordering::SeqCst) == 0)
    }

    fn is_after(&self, other: &Account) -> bool {
        (other.memory, other.process) == (self.memory, self.process) && other.instance != self.instance
    }
}

impl Writing {
    /// Nobody can say when it ends: it counts as long as the process lives.
    pub(super) fn never_ends(self) {
        std::mem::forget(self);
    }
}

impl Mapping {
    /// Names the memory that the slots are in.
    pub(super) fn memory(&self) -> u64 {
        self.account.memory
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.account.mapped.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.account.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_for_the_server_before_is_not_settled_by_whichever_client_it_is() {
        let before = Account::of(1, 10).unwrap();
        let same = Account::of(1, 10).unwrap();
        let writing = same.begin();
        let after = Account::of(1, 11).unwrap();
        assert!(!after.is_settled() && before.is_settled(), "its own writes are no matter");
        assert!(Account::of(2, 12).unwrap().is_settled(), "another memory");
        drop((before, same));
        assert!(!after.is_settled(), "no connection is left, and the write goes on");
        let own = after.begin();
        drop(writing);
        assert!(after.is_settled());
        drop(own);
    }

    #[test]
    fn what_may_never_end_is_never_settled() {
        Account::of(3, 10).unwrap().begin().never_ends();
        assert!(!Account::of(3, 11).unwrap().is_settled());
        assert!(Account::of(0, 11).is_none(), "memory that does not outlive its server");
    }
}
