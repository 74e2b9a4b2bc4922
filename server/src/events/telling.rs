//! What is told: page changes wait here until they are a message. Owns: the queue, the numbers' order, what happens when it is full.
//! Must not know: connections.

use super::batch::{Teller, batch};
use super::counts::EventCounts;
use super::kept::KeptMessages;
use crate::config::EventsConfig;
use crate::limits::{EVENTS_BATCH_MAX, EVENTS_WAITING_MAX};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{Notify, watch};
use turnkv_pool::PageChange;

/// What there is to tell, and what was told.
pub(crate) struct Events {
    pub(super) config: EventsConfig,
    /// This life of the server: later ones have higher numbers.
    incarnation: u64,
    waiting: Mutex<Untold>,
    told: Notify,
    pub(super) kept: Mutex<KeptMessages>,
    /// The number that the next message will have.
    pub(super) next: watch::Sender<u64>,
    pub(super) counts: EventCounts,
}

/// Page changes that are not published yet, in order.
#[derive(Default)]
struct Untold {
    changes: Vec<PageChange>,
    /// More came than have room, or this is the begin: what subscribers know is nothing any more.
    cleared: bool,
}

impl Events {
    /// Nothing is told yet; the first message will say that a new life begins with nothing.
    pub(crate) fn new(config: &EventsConfig) -> Arc<Events> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Arc::new(Events {
            incarnation: since.as_millis() as u64,
            waiting: Mutex::new(Untold { cleared: true, ..Untold::default() }),
            told: Notify::new(),
            kept: Mutex::new(KeptMessages::new(config.kept_bytes)),
            next: watch::channel(0).0,
            counts: EventCounts::new(),
            config: config.clone(),
        })
    }

    /// What changed by a decision, in the order of decisions: its caller has the pool's lock, so nothing here waits.
    pub(crate) fn tell(&self, changes: Vec<PageChange>) {
        if changes.is_empty() {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.changes.len() + changes.len() > EVENTS_WAITING_MAX {
            self.counts.lost(waiting.changes.len() + changes.len());
            *waiting = Untold { changes: Vec::new(), cleared: true };
        } else {
            waiting.changes.extend(changes);
        }
        drop(waiting);
        self.told.notify_one();
    }

    /// Publishes what waits, for ever.
    pub(crate) async fn run(self: Arc<Self>) -> Result<(), Infallible> {
        loop {
            self.publish();
            self.told.notified().await;
        }
    }

    fn publish(&self) {
        loop {
            let Untold { changes, cleared } = std::mem::take(&mut *self.waiting.lock());
            if changes.is_empty() && !cleared {
                self.counts.waiting(0);
                return;
            }
            self.counts.waiting(changes.len());
            let mut parts = changes.chunks(EVENTS_BATCH_MAX);
            let first = parts.next().unwrap_or(&[]);
            self.put(cleared, first);
            parts.for_each(|part| self.put(false, part));
        }
    }

    fn put(&self, cleared: bool, changes: &[PageChange]) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let teller = Teller { incarnation: self.incarnation, names: self.config.names };
        let payload = batch(since.as_secs_f64(), teller, cleared, changes);
        self.counts.published(changes.len());
        let next = self.kept.lock().push(payload);
        self.next.send_replace(next);
    }

    /// The topic of every message of this life.
    pub(super) fn topic(&self) -> Vec<u8> {
        format!("{}@{}", self.config.topic, self.incarnation).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use turnkv_pool::PageTier;
    use turnkv_proto::{BlockHash, NamespaceId};

    fn changes(count: usize) -> Vec<PageChange> {
        let change = PageChange {
            namespace: NamespaceId([1; 32]),
            page_tokens: 16,
            hash: BlockHash([2; 32]),
            parent: None,
            tier: PageTier::Dram,
            here: true,
        };
        vec![change; count]
    }

    #[test]
    fn what_there_is_no_room_for_is_told_as_nothing_is_known() {
        let config = EventsConfig::at(std::net::SocketAddr::from(([127, 0, 0, 1], 1)));
        let events = Events::new(&config);
        events.publish();
        let waits = |events: &Events| {
            let waiting = events.waiting.lock();
            (waiting.changes.len(), waiting.cleared)
        };
        assert_eq!(waits(&events), (0, false), "the begin was told");
        events.tell(changes(EVENTS_WAITING_MAX));
        assert_eq!(waits(&events), (EVENTS_WAITING_MAX, false));
        events.tell(changes(1));
        assert_eq!(waits(&events), (0, true), "one more, and all are let go of");
        events.tell(changes(3));
        assert_eq!(waits(&events), (3, true), "what comes later is told after that");
        events.tell(changes(2 * EVENTS_WAITING_MAX));
        assert_eq!(waits(&events), (0, true));
        let before = *events.next.borrow();
        events.publish();
        assert_eq!(*events.next.borrow(), before + 1, "one message says so");
    }
}
