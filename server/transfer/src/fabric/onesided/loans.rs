//! What a client's domain lends over a one-sided fabric. Owns: what is lent, what was taken back and may still
//! be touched, how many rails are open. Must not know: either library, how memory is registered.
//!
//! ```text
//! (none) --lend--> lent --take--> its caller's --keep--> quarantined --last rail gone--> dropped
//! ```

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fabric::contract::{OpenError, Quarantined, RegisterError};
use crate::limits::{DOMAIN_REGISTRATIONS_MAX, RAILS_MAX};

/// The books of one domain. A loan is whatever holds memory and its registration.
pub(in crate::fabric) struct Loans<L> {
    books: Mutex<LoanBooks<L>>,
}

struct LoanBooks<L> {
    /// By the key that the peer has.
    lent: HashMap<u64, L>,
    quarantine: Vec<L>,
    /// Rails that are open, those not connected yet included.
    rails: usize,
}

impl<L> Loans<L> {
    pub(in crate::fabric) fn new() -> Arc<Self> {
        let books = LoanBooks { lent: HashMap::new(), quarantine: Vec::new(), rails: 0 };
        Arc::new(Self { books: Mutex::new(books) })
    }

    /// That one more may be registered.
    ///
    /// # Errors
    /// `Full`: as many are in force as may be, what is in quarantine included.
    pub(in crate::fabric) fn room(&self) -> Result<(), RegisterError> {
        let books = self.books.lock();
        let in_force = books.lent.len() + books.quarantine.len();
        if in_force < DOMAIN_REGISTRATIONS_MAX { Ok(()) } else { Err(RegisterError::Full(in_force)) }
    }

    pub(in crate::fabric) fn lend(&self, key: u64, loan: L) {
        self.books.lock().lent.insert(key, loan);
    }

    /// The loan of that key, which is lent no more.
    pub(in crate::fabric) fn take(&self, key: u64) -> Option<L> {
        self.books.lock().lent.remove(&key)
    }

    /// Keeps what was taken back until the last rail that is open now is gone.
    pub(in crate::fabric) fn keep(&self, loan: L) {
        self.books.lock().quarantine.push(loan);
    }

    /// As `keep`, of what only a rail can touch: without one, the loan is dropped.
    ///
    /// # Errors
    /// It is kept.
    pub(in crate::fabric) fn keep_from_rails(&self, loan: L) -> Result<(), Quarantined> {
        let mut books = self.books.lock();
        if books.rails == 0 {
            drop(books);
            drop(loan);
            return Ok(());
        }
        books.quarantine.push(loan);
        Err(Quarantined)
    }

    /// Loans in force.
    pub(in crate::fabric) fn lent(&self) -> usize {
        self.books.lock().lent.len()
    }

    /// Opens a rail, which counts from before it is open.
    ///
    /// # Errors
    /// `Failed`: as many are open as may be; or what `open` says.
    pub(in crate::fabric) fn rail<E: RailEnd>(
        self: &Arc<Self>,
        open: impl FnOnce() -> Result<E, OpenError>,
    ) -> Result<LentRail<E, L>, OpenError> {
        let mut books = self.books.lock();
        if books.rails >= RAILS_MAX {
            return Err(OpenError::Failed(format!("{RAILS_MAX} rails of this domain are open")));
        }
        books.rails += 1;
        drop(books);
        let counted = CountedRail(Arc::clone(self));
        Ok(LentRail(ManuallyDrop::new((open()?, counted))))
    }
}

/// A client's end of a rail in one library.
pub(in crate::fabric) trait RailEnd {
    /// Ends it: the peer touches nothing through it any more.
    ///
    /// # Errors
    /// It is not sure that it ended: why.
    fn close(&mut self) -> Result<(), String>;
}

/// A client's end of a rail, which counts as one of its domain. Dropped, it is closed; one that does not close
/// stays for ever, goes on counting, and so keeps what it may still touch.
pub(in crate::fabric) struct LentRail<E: RailEnd, L>(ManuallyDrop<(E, CountedRail<L>)>);

impl<E: RailEnd, L> Deref for LentRail<E, L> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.0.0
    }
}

impl<E: RailEnd, L> Drop for LentRail<E, L> {
    fn drop(&mut self) {
        if self.0.0.close().is_ok() {
            // SAFETY: dropped here alone, and used no more.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

/// One of a domain's rails. With the last one what is in quarantine goes.
struct CountedRail<L>(Arc<Loans<L>>);

impl<L> Drop for CountedRail<L> {
    fn drop(&mut self) {
        let mut books = self.0.books.lock();
        books.rails -= 1;
        let free = if books.rails == 0 { std::mem::take(&mut books.quarantine) } else { Vec::new() };
        // Taking registrations back takes long: others look things up meanwhile.
        drop(books);
        drop(free);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{LentRail, Loans, RailEnd};
    use crate::fabric::contract::{OpenError, Quarantined, RegisterError};
    use crate::limits::{DOMAIN_REGISTRATIONS_MAX, RAILS_MAX};

    struct TestEnd {
        closes: bool,
    }

    impl RailEnd for TestEnd {
        fn close(&mut self) -> Result<(), String> {
            if self.closes { Ok(()) } else { Err("it is busy".to_owned()) }
        }
    }

    type Memory = Arc<()>;

    fn rail(loans: &Arc<Loans<Memory>>, closes: bool) -> LentRail<TestEnd, Memory> {
        loans.rail(|| Ok(TestEnd { closes })).expect("there is room")
    }

    #[test]
    fn what_was_taken_back_goes_with_the_last_rail() {
        let (loans, memory) = (Loans::new(), Memory::default());
        loans.lend(1, Arc::clone(&memory));
        let (first, second) = (rail(&loans, true), rail(&loans, true));
        let loan = loans.take(1).expect("it was lent");
        assert!(loans.take(1).is_none() && loans.lent() == 0);
        assert_eq!(loans.keep_from_rails(loan), Err(Quarantined));
        drop(first);
        assert_eq!(Arc::strong_count(&memory), 2, "the second rail may touch it");
        drop(second);
        assert_eq!(Arc::strong_count(&memory), 1);
        assert_eq!(loans.keep_from_rails(Arc::clone(&memory)), Ok(()), "nothing can touch it");
        assert_eq!(Arc::strong_count(&memory), 1);
    }

    #[test]
    fn a_rail_that_does_not_close_keeps_what_it_may_touch() {
        let (loans, memory) = (Loans::new(), Memory::default());
        let (stuck, other) = (rail(&loans, false), rail(&loans, true));
        assert_eq!(loans.keep_from_rails(Arc::clone(&memory)), Err(Quarantined));
        drop((stuck, other));
        assert_eq!(Arc::strong_count(&memory), 2);
        drop(loans);
        assert_eq!(Arc::strong_count(&memory), 2, "also when nobody asks for it any more");
    }

    #[test]
    fn rails_and_loans_are_bounded_and_what_fails_to_open_is_not_counted() {
        let loans = Loans::<Memory>::new();
        let failed = loans.rail(|| Err::<TestEnd, _>(OpenError::Failed("no room".to_owned())));
        assert!(failed.is_err());
        let rails: Vec<_> = (0..RAILS_MAX).map(|_| rail(&loans, true)).collect();
        assert!(matches!(loans.rail(|| Ok(TestEnd { closes: true })), Err(OpenError::Failed(_))));
        drop(rails);
        drop(rail(&loans, true));
        loans.keep(Memory::default());
        for key in 1..DOMAIN_REGISTRATIONS_MAX as u64 {
            loans.room().expect("there is room");
            loans.lend(key, Memory::default());
        }
        assert_eq!(loans.room(), Err(RegisterError::Full(DOMAIN_REGISTRATIONS_MAX)));
    }
}
