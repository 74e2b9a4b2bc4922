//! The open connections whose peers showed a certificate. Owns: the list, and going over it: who is not accepted any more, or whose
//! time is over, is ended. Must not know: sockets, how a connection ends.

use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::collections::HashMap;
use std::sync::Arc;
use turnkv_transfer::tls::ServerTls;

/// What a peer showed, and how its connection is ended.
pub(super) struct Shown {
    /// Its certificate, then those between it and its authority.
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// The last second of it, in Unix time.
    pub(super) not_after_s: i64,
    /// Ends the connection soon, without waiting.
    pub(super) end: Mutex<CertifiedEnd>,
}

/// What ends a connection.
pub(super) enum CertifiedEnd {
    /// Not used yet.
    By(EndConnection),
    /// It was told to end: so is whatever it becomes.
    Told,
}

/// Ends a connection soon, without waiting.
pub(crate) type EndConnection = Box<dyn Fn() + Send + Sync>;

/// All of them; as many as there are places at the door.
#[derive(Default)]
pub(super) struct CertifiedConnections {
    list: Mutex<(u64, HashMap<u64, Arc<Shown>>)>,
}

/// A connection in the list; out of it when this is dropped.
pub(crate) struct Certified {
    all: Arc<CertifiedConnections>,
    number: u64,
    shown: Arc<Shown>,
}

impl CertifiedConnections {
    /// One more.
    pub(super) fn add(self: &Arc<Self>, shown: Shown) -> Certified {
        let mut list = self.list.lock();
        list.0 += 1;
        let number = list.0;
        let shown = Arc::new(shown);
        list.1.insert(number, Arc::clone(&shown));
        drop(list);
        Certified { all: Arc::clone(self), number, shown }
    }

    /// Ends those whose time is over and, where there is a new set, those that it does not accept. Says how many.
    pub(super) fn go_over(&self, changed: Option<&ServerTls>, now: UnixTime) -> usize {
        let all: Vec<Arc<Shown>> = self.list.lock().1.values().cloned().collect();
        let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let over = |shown: &&Arc<Shown>| {
            shown.not_after_s < now_s || changed.is_some_and(|set| set.accepts(&shown.chain, now).is_err())
        };
        let ended: Vec<&Arc<Shown>> = all.iter().filter(over).collect();
        ended.iter().for_each(|shown| shown.end());
        ended.len()
    }
}

impl Shown {
    fn end(&self) {
        let ending = std::mem::replace(&mut *self.end.lock(), CertifiedEnd::Told);
        if let CertifiedEnd::By(end) = ending {
            end();
        }
    }
}

impl Certified {
    /// The connection is somebody else's from now on, who ends it so. At once, if it was told to end before.
    pub(crate) fn hand_over(&self, end: EndConnection) {
        let mut ending = self.shown.end.lock();
        match &mut *ending {
            CertifiedEnd::By(by) => *by = end,
            CertifiedEnd::Told => {
                drop(ending);
                end();
            }
        }
    }
}

impl Drop for Certified {
    fn drop(&mut self) {
        self.all.list.lock().1.remove(&self.number);
    }
}
