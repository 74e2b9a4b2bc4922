//! Another member as this one deals with it. Owns: the queue of what it is told, and how long it is asked nothing after it did not
//! answer. Must not know: what messages say, what follows from silence.
//!
//! ```text
//!   answering --calls that fail in a row--> paused --a round's greeting is answered--> answering
//! ```

use super::card::MemberCard;
use super::counts::ClusterCounts;
use super::link::{Link, LinkFault, Named};
use crate::limits::{
    ANSWERED_ROUNDS, CLUSTER_ROUND, PEER_BATCH_MESSAGES_MAX, PEER_FAILURES_MAX, PEER_MESSAGES_MAX, PEER_PAUSE,
};
use crate::seldom::Seldom;
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use turnkv_cluster::{Envelope, MemberId};
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

/// What members are told of this one with every batch: who it is now.
pub(super) struct OwnCard {
    pub(super) cluster: String,
    pub(super) card: RwLock<Arc<MemberCard>>,
}

/// Another member.
pub(super) struct Peer {
    link: Link,
    endpoint: String,
    queue: mpsc::Sender<Outgoing>,
    standing: Mutex<Standing>,
    dropped: AtomicU64,
    counts: Arc<ClusterCounts>,
    said: Seldom,
}

/// What waits to leave.
enum Outgoing {
    Note(Envelope),
    /// That this one is there.
    Greeting,
}

/// How it answers.
struct Standing {
    last_answer: Option<Instant>,
    failures: u32,
    paused_until: Option<Instant>,
    note: String,
}

/// The same for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerReport {
    /// Its last call was answered.
    pub(crate) answers: bool,
    /// Since its last answer; none: there was none.
    pub(crate) silent: Option<Duration>,
    /// Messages that wait.
    pub(crate) waiting: usize,
    /// Messages that were dropped.
    pub(crate) dropped: u64,
    /// Why it does not answer; empty: it does.
    pub(crate) note: String,
}

impl Peer {
    /// A member at an endpoint. What is told to it leaves until nobody has it any more.
    pub(super) fn start(
        runtime: &Handle,
        to: MemberId,
        (endpoint, link): (&str, Link),
        own: &Arc<OwnCard>,
        counts: &Arc<ClusterCounts>,
    ) -> Arc<Peer> {
        let (queue, waiting) = mpsc::channel(PEER_MESSAGES_MAX);
        let standing = Standing { last_answer: None, failures: 0, paused_until: None, note: String::new() };
        let peer = Arc::new(Peer {
            link,
            endpoint: endpoint.to_owned(),
            queue,
            standing: Mutex::new(standing),
            dropped: AtomicU64::new(0),
            counts: Arc::clone(counts),
            said: Seldom::new(),
        });
        let run = PeerRun { peer: Arc::downgrade(&peer), waiting, to, own: Arc::clone(own) };
        drop(runtime.spawn(run.run()));
        peer
    }

    /// Where it is.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Puts a message into its queue; where that is full it is dropped, as any may be lost.
    pub(super) fn tell(&self, envelope: Envelope) {
        if self.queue.try_send(Outgoing::Note(envelope)).is_err() {
            self.dropped(1);
        }
    }

    /// Says to it that this one is there, with whatever else waits. A full queue is on its way anyhow.
    pub(super) fn greet(&self) {
        drop(self.queue.try_send(Outgoing::Greeting));
    }

    /// How many leading ones of these pages it has; none: it does not answer.
    pub(super) async fn count_pages(&self, namespace: &NamespaceId, hashes: &[BlockHash]) -> Option<usize> {
        if self.is_paused() {
            return None;
        }
        self.noted(self.link.count_pages(namespace, hashes).await).ok()
    }

    /// Which pages it has of a session.
    pub(super) async fn name_session(
        &self,
        namespace: &NamespaceId,
        session: &SessionId,
    ) -> Result<Named, LinkFault> {
        if self.is_paused() {
            return Err(LinkFault::paused());
        }
        self.noted(self.link.name_session(namespace, session).await)
    }

    /// Whether it answered within the last rounds.
    pub(super) fn has_answered(&self) -> bool {
        let last = self.standing.lock().last_answer;
        last.is_some_and(|last| last.elapsed() <= ANSWERED_ROUNDS * CLUSTER_ROUND)
    }

    /// Messages that wait.
    pub(super) fn waiting(&self) -> usize {
        PEER_MESSAGES_MAX - self.queue.capacity()
    }

    /// How it answers.
    pub(super) fn report(&self) -> PeerReport {
        let standing = self.standing.lock();
        PeerReport {
            answers: standing.failures == 0 && standing.last_answer.is_some(),
            silent: standing.last_answer.map(|last| last.elapsed()),
            waiting: self.waiting(),
            dropped: self.dropped.load(Ordering::Relaxed),
            note: standing.note.clone(),
        }
    }

    fn is_paused(&self) -> bool {
        self.standing.lock().paused_until.is_some_and(|until| Instant::now() < until)
    }

    /// Takes note of how a call went.
    fn noted<T>(&self, answer: Result<T, LinkFault>) -> Result<T, LinkFault> {
        let mut standing = self.standing.lock();
        match &answer {
            Ok(_) => {
                let note = String::new();
                *standing =
                    Standing { last_answer: Some(Instant::now()), failures: 0, paused_until: None, note };
            }
            Err(fault) => {
                standing.failures = standing.failures.saturating_add(1);
                standing.note = fault.to_string();
                if standing.failures >= PEER_FAILURES_MAX {
                    standing.paused_until = Some(Instant::now() + PEER_PAUSE);
                }
                drop(standing);
                self.counts.failed.increment(1);
                if fault.is_refusal
                    && let Some(unsaid) = self.said.may_say()
                {
                    tracing::warn!(endpoint = self.endpoint, %fault, unsaid, "a member of the cluster refuses this one");
                }
            }
        }
        answer
    }

    fn dropped(&self, count: usize) {
        self.dropped.fetch_add(count as u64, Ordering::Relaxed);
        self.counts.dropped.increment(count as u64);
    }
}

/// Tells a member what waits for it.
struct PeerRun {
    peer: Weak<Peer>,
    waiting: mpsc::Receiver<Outgoing>,
    to: MemberId,
    own: Arc<OwnCard>,
}

impl PeerRun {
    /// Goes on until nobody has the member any more.
    async fn run(mut self) {
        let mut batch = Vec::new();
        while self.waiting.recv_many(&mut batch, PEER_BATCH_MESSAGES_MAX).await > 0 {
            let Some(peer) = self.peer.upgrade() else { return };
            self.leave(&peer, std::mem::take(&mut batch)).await;
        }
    }

    async fn leave(&self, peer: &Peer, batch: Vec<Outgoing>) {
        let own = Arc::clone(&self.own.card.read());
        let is_greeting = batch.iter().any(|outgoing| matches!(outgoing, Outgoing::Greeting));
        let notes = batch.into_iter().filter_map(|outgoing| match outgoing {
            // What was said in a life that is over is not said in the next one's name.
            Outgoing::Note(envelope) if envelope.from == own.life() => Some(envelope.message),
            Outgoing::Note(_) | Outgoing::Greeting => None,
        });
        let notes: Vec<_> = notes.collect();
        if peer.is_paused() && !is_greeting {
            return peer.dropped(notes.len());
        }
        let told = peer.link.tell(&self.own.cluster, &own, self.to, notes.iter()).await;
        match peer.noted(told) {
            Ok(()) => peer.counts.sent.increment(notes.len() as u64),
            Err(_) => peer.dropped(notes.len()),
        }
    }
}
