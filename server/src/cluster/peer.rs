//! Another member as this one deals with it. Owns: the queue of what it is told, and how long it is asked nothing after it did not
//! answer. Must not know: what messages say, what follows from silence.
//!
//! ```text
//!   answering --calls that fail in a row--> paused --a round's greeting is answered--> answering
//!             --one that a turn waited for is not answered--> asked nothing, told all the same --likewise--> answering
//! ```

use super::card::MemberCard;
use super::counts::ClusterCounts;
use super::engines_known::{EnginesAsk, EnginesKnown};
use super::hold::PrefixHold;
use super::link::{LinkFault, MemberLink, NameAsk, Named};
use super::takeover::Takeover;
use crate::limits::{
    ANSWERED_ROUNDS, CLUSTER_ROUND, PEER_BATCH_MESSAGES_MAX, PEER_FAILURES_MAX, PEER_MESSAGES_MAX,
    PEER_PAUSE, PEER_SILENT_MIN,
};
use crate::seldom::Seldom;
use parking_lot::{Mutex, RwLock};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use turnkv_cluster::{Envelope, MemberId, Tip};
use turnkv_proto::{BlockHash, CheckedSpec, NamespaceId, SessionId};

/// What members are told of this one with every batch: who it is now.
pub(super) struct OwnCard {
    pub(super) cluster: String,
    pub(super) card: RwLock<Arc<MemberCard>>,
}

/// Another member.
pub(super) struct OtherMember {
    link: MemberLink,
    endpoint: String,
    queue: mpsc::Sender<QueuedWord>,
    standing: Mutex<Answering>,
    dropped: AtomicU64,
    counts: Arc<ClusterCounts>,
    said: Seldom,
}

/// What waits to leave.
enum QueuedWord {
    Note(Envelope),
    /// That this one is there.
    Greeting,
}

/// How it answers.
struct Answering {
    last_answer: Option<Instant>,
    failures: u32,
    paused_until: Option<Instant>,
    /// Until then it is asked for nothing: a turn waited for its answer in vain.
    unasked_until: Option<Instant>,
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

impl Answering {
    /// As it is after an answer, or before the first one.
    fn new(last_answer: Option<Instant>) -> Answering {
        let (paused_until, unasked_until) = (None, None);
        Answering { last_answer, failures: 0, paused_until, unasked_until, note: String::new() }
    }
}

impl OtherMember {
    /// A member at an endpoint. What is told to it leaves until nobody has it any more.
    pub(super) fn start(
        runtime: &Handle,
        to: MemberId,
        (endpoint, link): (&str, MemberLink),
        own: &Arc<OwnCard>,
        counts: &Arc<ClusterCounts>,
    ) -> Arc<OtherMember> {
        let (queue, waiting) = mpsc::channel(PEER_MESSAGES_MAX);
        let standing = Answering::new(None);
        let peer = Arc::new(OtherMember {
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
        if self.queue.try_send(QueuedWord::Note(envelope)).is_err() {
            self.dropped(1);
        }
    }

    /// Says to it that this one is there, with whatever else waits. A full queue is on its way anyhow.
    pub(super) fn greet(&self) {
        drop(self.queue.try_send(QueuedWord::Greeting));
    }

    /// How many leading ones of these pages it has; none: it does not answer.
    pub(super) async fn count_pages(&self, namespace: &NamespaceId, hashes: &[BlockHash]) -> Option<usize> {
        if self.is_unasked() {
            return None;
        }
        self.noted(self.link.count_pages(namespace, hashes).await).ok()
    }

    /// The pages that end with this one, in order. It has so long to name them.
    pub(super) async fn name_prefix(
        &self,
        namespace: &NamespaceId,
        last: &BlockHash,
        most: Duration,
    ) -> Result<Vec<BlockHash>, LinkFault> {
        if self.is_unasked() {
            return Err(LinkFault::paused());
        }
        self.waited_for(self.link.name_prefix(namespace, last, most).await, most)
    }

    /// Which pages it has of a session. It has so long to name them.
    pub(super) async fn name_session(&self, ask: NameAsk<'_>, most: Duration) -> Result<Named, LinkFault> {
        if self.is_unasked() {
            return Err(LinkFault::paused());
        }
        self.waited_for(self.link.name_session(ask, most).await, most)
    }

    /// What it knows of engines, and of the prompt's pages if it is the one to ask. None: it does not answer.
    pub(super) async fn look_at_engines(
        &self,
        ask: &EnginesAsk<'_>,
        with_pages: bool,
    ) -> Option<EnginesKnown> {
        if self.is_unasked() {
            return None;
        }
        // Not noted: who is too slow for a router may well name a session's pages.
        self.link.look_at_engines(ask, with_pages).await.ok()
    }

    /// Has it hold a prefix, or let go of it. Returns why it does not; empty: it does.
    pub(super) async fn hold_prefix(
        &self,
        cluster: &str,
        from: MemberId,
        hold: &PrefixHold,
    ) -> Result<String, LinkFault> {
        if self.is_unasked() {
            return Err(LinkFault::paused());
        }
        self.noted(self.link.hold_prefix(cluster, from, hold).await)
    }

    /// Has it take a session over.
    pub(super) async fn offer_session(
        &self,
        cluster: &str,
        (spec, session, tip): (&CheckedSpec, &SessionId, Tip),
    ) -> Result<Takeover, LinkFault> {
        if self.is_unasked() {
            return Err(LinkFault::paused());
        }
        self.noted(self.link.offer_session(cluster, spec, session, tip).await)
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

    fn is_unasked(&self) -> bool {
        self.is_paused() || self.standing.lock().unasked_until.is_some_and(|until| Instant::now() < until)
    }

    /// Takes note of how a call went that a turn or a lookup waited for so long: the next one does not.
    fn waited_for<T>(&self, answer: Result<T, LinkFault>, most: Duration) -> Result<T, LinkFault> {
        let stands_still = answer.as_ref().is_err_and(|fault| fault.is_silence) && most >= PEER_SILENT_MIN;
        let answer = self.noted(answer);
        if stands_still {
            self.standing.lock().unasked_until = Some(Instant::now() + PEER_PAUSE);
        }
        answer
    }

    /// Takes note of how a call went.
    fn noted<T>(&self, answer: Result<T, LinkFault>) -> Result<T, LinkFault> {
        let mut standing = self.standing.lock();
        match &answer {
            Ok(_) => {
                *standing = Answering::new(Some(Instant::now()));
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
    peer: Weak<OtherMember>,
    waiting: mpsc::Receiver<QueuedWord>,
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

    async fn leave(&self, peer: &OtherMember, batch: Vec<QueuedWord>) {
        let own = Arc::clone(&self.own.card.read());
        let is_greeting = batch.iter().any(|outgoing| matches!(outgoing, QueuedWord::Greeting));
        let notes = batch.into_iter().filter_map(|outgoing| match outgoing {
            // What was said in a life that is over is not said in the next one's name.
            QueuedWord::Note(envelope) if envelope.from == own.life() => Some(envelope.message),
            QueuedWord::Note(_) | QueuedWord::Greeting => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::PEER_TELL_MAX;
    use turnkv_cluster::{Incarnation, Member, MemberState, Message};
    use turnkv_transfer::tls::TlsConfig;

    fn card(name: &str) -> MemberCard {
        let (id, state) = (MemberId::of(name), MemberState::Serving);
        let member = Member { id, incarnation: Incarnation(1), weight: 1, state };
        MemberCard { name: name.to_owned(), endpoint: String::new(), zone: String::new(), member }
    }

    fn peer_at(endpoint: &str) -> Arc<OtherMember> {
        let own = OwnCard { cluster: "t".to_owned(), card: RwLock::new(Arc::new(card("own"))) };
        let link = MemberLink::new(endpoint, &TlsConfig::default()).unwrap();
        let counts = Arc::new(ClusterCounts::new());
        let to = MemberId::of("other");
        OtherMember::start(&Handle::current(), to, (endpoint, link), &Arc::new(own), &counts)
    }

    fn word() -> Envelope {
        let (from, message) = (card("own").life(), Message::Over { latest: Incarnation(1) });
        Envelope { from, to: MemberId::of("other"), message }
    }

    /// Accepts, and says nothing.
    fn silent_place() -> (std::net::TcpListener, String) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        (listener, endpoint)
    }

    #[tokio::test]
    async fn a_silent_member_costs_a_queue_and_no_more() {
        let (_listener, endpoint) = silent_place();
        let peer = peer_at(&endpoint);
        let (said, batch) = (PEER_MESSAGES_MAX + 500, PEER_BATCH_MESSAGES_MAX);
        (0..said).for_each(|_| peer.tell(word()));
        assert!(peer.waiting() <= PEER_MESSAGES_MAX);
        let report = peer.report();
        assert!(report.dropped as usize >= said - PEER_MESSAGES_MAX - batch, "{report:?}");
        // What was under way comes to nothing in time, and after some tries nothing more is tried: all that waited is dropped.
        tokio::time::sleep(PEER_TELL_MAX * (PEER_FAILURES_MAX + 1)).await;
        let report = peer.report();
        assert_eq!((report.waiting, report.dropped as usize, report.answers), (0, said, false), "{report:?}");
        assert!(report.note.contains("no answer within"), "{report:?}");
        // Whoever asks it something is told so at once.
        let began = Instant::now();
        assert_eq!(peer.count_pages(&NamespaceId([1; 32]), &[BlockHash([1; 32])]).await, None);
        assert!(began.elapsed() < Duration::from_millis(10));
    }

    #[tokio::test]
    async fn a_member_that_is_not_there_is_noted_and_ends_with_its_last_user() {
        let (listener, endpoint) = silent_place();
        drop(listener);
        let peer = peer_at(&endpoint);
        peer.greet();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let report = peer.report();
        assert!(!report.answers && report.silent.is_none() && !report.note.is_empty(), "{report:?}");
        let weak = Arc::downgrade(&peer);
        drop(peer);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(weak.upgrade().is_none());
    }
}
