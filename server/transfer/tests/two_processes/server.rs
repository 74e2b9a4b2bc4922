//! The server's side of a test: one client's process, one rail to it, and what must hold of both.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use turnkv_transfer::Region;
use turnkv_transfer::fabric::{
    Completed, CompletionQueue, Initiator, Op, Operation, Outcome, RailAnswers, RegionKey, RemoteSpan,
    WhyUnposted,
};

use crate::client::SERVER;
use crate::control::{PATIENCE, Wanted, Wire, fill, has, hex, region, unhex};

pub(crate) const MIB: usize = 1 << 20;

/// Memory that the client lent.
#[derive(Clone, Copy)]
pub(crate) struct Lent(RegionKey);

impl Lent {
    /// The same memory, by a key that was never given out.
    pub(crate) fn forged(&self) -> Self {
        Self(RegionKey { key: self.0.key ^ 0x5a5a, ..self.0 })
    }
}

/// Whether a slab has all the bytes of a seed.
pub(crate) fn patterned(slab: &Arc<Region>, seed: u64) -> bool {
    has(slab, seed)
}

/// One client's process and one rail to it.
pub(crate) struct Session {
    nic: Box<dyn RailAnswers>,
    completions: Arc<CompletionQueue>,
    rail: Option<Arc<dyn Initiator>>,
    wire: Wire,
    /// None: another machine started it.
    child: Option<Child>,
    outcomes: HashMap<u64, Outcome>,
}

impl Session {
    pub(crate) fn open(engine: &Wanted) -> Self {
        let elsewhere = std::env::var("TURNKV_CLIENTS").ok();
        let listener = TcpListener::bind(elsewhere.as_deref().unwrap_or("127.0.0.1:0"));
        let listener = listener.expect("the address is ours");
        let address = listener.local_addr().expect("it is bound").to_string();
        let child = elsewhere.is_none().then(|| {
            let program = std::env::current_exe().expect("a process has a program");
            Command::new(program)
                .args(["--ignored", "--exact", "client_process"])
                .env(SERVER, address)
                .stdout(Stdio::null())
                .spawn()
                .expect("another process can be started")
        });
        let stream = accept(&listener);
        let mut session = Self {
            nic: engine.server().expect("it was there a moment ago"),
            completions: CompletionQueue::new(128),
            rail: None,
            wire: Wire::new(stream),
            child,
            outcomes: HashMap::new(),
        };
        session.wire.say(engine.name());
        session.reopen();
        session
    }

    /// Opens the rail, or another one.
    pub(crate) fn reopen(&mut self) {
        self.rail = None;
        self.wire.say("rail");
        let client = self.wire.hear().expect("the client offers a rail");
        let answer = self.nic.answer(&unhex(&client[0]), &self.completions).expect("its address is good");
        self.wire.say(&hex(&answer.address));
        assert_eq!(self.wire.hear().expect("the client connects"), ["connected"]);
        self.rail = Some(answer.rail);
    }

    pub(crate) fn lend(&mut self, seed: u64, bytes: usize) -> Lent {
        self.wire.say(&format!("lend {seed} {bytes}"));
        let words = self.wire.hear().expect("the client lends memory");
        let number = |at: usize| words[at].parse().expect("a number");
        Lent(RegionKey { key: number(0), base: number(1), bytes: number(2) })
    }

    pub(crate) fn client_has(&mut self, memory: &Lent, seed: u64) -> bool {
        self.ask(&format!("has {} {seed}", memory.0.key)) == "true"
    }

    pub(crate) fn client_keeps(&mut self, memory: &Lent, seed: u64) -> bool {
        self.ask(&format!("keep {} {seed}", memory.0.key)) == "true"
    }

    pub(crate) fn client_closes(&mut self) {
        assert_eq!(self.ask("close"), "closed");
    }

    fn ask(&mut self, words: &str) -> String {
        self.wire.say(words);
        self.wire.hear().expect("the client answers").remove(0)
    }

    /// The client's process ends at once, with SIGKILL where it is ours to send.
    pub(crate) fn client_dies(&mut self) {
        match &mut self.child {
            Some(child) => {
                child.kill().expect("it is ours");
                child.wait().expect("it is ours");
                self.child = None;
            }
            None => self.wire.say("die"),
        }
    }

    pub(crate) fn close_rail(&mut self) {
        self.rail.take().expect("there is a rail").close();
    }

    /// A slab that the NIC knows.
    pub(crate) fn slab(&self, bytes: usize) -> Arc<Region> {
        let slab = region(bytes);
        self.nic.attach(&slab).expect("the NIC takes one more");
        slab
    }

    /// The NIC lets the slab go: nobody else shares it.
    pub(crate) fn let_go(&self, slab: Arc<Region>) {
        self.nic.detach(&slab);
        self.until(|_| Arc::strong_count(&slab) == 1, "a slab that was detached is shared");
    }

    /// Begins to move all pages of a slab.
    pub(crate) fn begin_all(&self, memory: &Lent, slab: &Arc<Region>, page_bytes: usize, reads: bool) {
        let rail = self.rail.as_ref().expect("there is a rail");
        for (page, at) in (0..slab.len()).step_by(page_bytes).enumerate() {
            let bytes = u32::try_from(page_bytes).expect("a page is small");
            let remote = RemoteSpan::new(memory.0, at as u64, bytes).expect("it lies inside");
            let slot = slab.slot(at, page_bytes).expect("it lies inside");
            let op = Op(page as u64);
            let operation =
                if reads { Operation::read(remote, slot, op) } else { Operation::write(slot, remote, op) };
            rail.post(operation.expect("one length")).expect("there is room");
        }
    }

    /// Moves all pages of a slab; what each came to.
    pub(crate) fn run_all(
        &mut self,
        memory: &Lent,
        slab: &Arc<Region>,
        page_bytes: usize,
        reads: bool,
    ) -> HashMap<u64, Outcome> {
        self.begin_all(memory, slab, page_bytes, reads);
        self.take(slab.len() / page_bytes);
        std::mem::take(&mut self.outcomes)
    }

    /// Waits until one of those under way is over.
    pub(crate) fn first_completion(&mut self) {
        self.take(1);
    }

    /// All of so many end, each once.
    pub(crate) fn assert_all_end(&mut self, count: usize) {
        self.take(count);
        let outcomes = std::mem::take(&mut self.outcomes);
        assert_eq!(outcomes.len(), count);
        assert_eq!(self.completions.admitted(), 0);
    }

    /// Operations with a client that is gone fail. Those that were under way may all have been done before it
    /// went, and a rail at rest need not learn of it by itself: so it is asked for more.
    pub(crate) fn assert_peer_s_end_is_noticed(&mut self, memory: &Lent, slab: &Arc<Region>) {
        let deadline = Instant::now() + PATIENCE;
        let rail = Arc::clone(self.rail.as_ref().expect("there is a rail"));
        while rail.post(read_of_8_bytes(memory.0, slab)).is_ok() {
            self.take(1);
            if std::mem::take(&mut self.outcomes).remove(&0) != Some(Outcome::Done) {
                return;
            }
            assert!(Instant::now() < deadline, "operations with a client that is gone are done");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The rail says that it is dead and takes no more, and its queue pair goes.
    pub(crate) fn assert_rail_ends(&mut self) {
        if let Some(rail) = self.rail.take() {
            self.until(|_| rail.death().is_some(), "a rail that failed is not dead");
            let unposted = rail.post(read_of_8_bytes(RegionKey { key: 1, base: 0, bytes: 8 }, &region(8)));
            assert_eq!(unposted.expect_err("it is dead").why, WhyUnposted::Dead);
            assert_eq!(rail.queued_bytes(), 0);
        }
        self.until(|session| session.nic.report().rails == 0, "a dead rail's queue pair is there");
    }

    /// Nobody writes to a slab whose operations are over.
    pub(crate) fn assert_untouched(&self, slab: &Arc<Region>) {
        fill(slab, 77);
        std::thread::sleep(Duration::from_millis(200));
        assert!(has(slab, 77), "a slot was written after its operation was over");
    }

    /// The NIC has nothing of the client any more.
    pub(crate) fn assert_nothing_left(&self) {
        assert_eq!((self.nic.report().rails, self.nic.report().regions), (0, 0));
    }

    /// Hangs up; the client's process ends well.
    pub(crate) fn end(self) {
        let Self { nic, rail, wire, child, .. } = self;
        drop((rail, wire, nic));
        if let Some(mut child) = child {
            assert!(child.wait().expect("it is ours").success(), "the client's process failed");
        }
    }

    fn take(&mut self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut taken: Vec<Completed> = Vec::new();
        while self.outcomes.len() < count {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} of {count} operations are over", self.outcomes.len());
            self.completions.poll(&mut taken, left);
            for done in taken.drain(..) {
                let before = self.outcomes.insert(done.op.0, done.outcome);
                assert_eq!(before, None, "operation {} ended twice", done.op.0);
            }
        }
    }

    fn until(&self, holds: impl Fn(&Self) -> bool, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn read_of_8_bytes(key: RegionKey, slab: &Arc<Region>) -> Operation {
    let remote = RemoteSpan::new(key, 0, 8).expect("it lies inside");
    let slot = slab.slot(0, 8).expect("it lies inside");
    Operation::read(remote, slot, Op(0)).expect("one length")
}

/// The client's connection; a client that could not start does not hold the test up for ever.
fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).expect("it can be set");
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).expect("it can be set");
                return stream;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("no client connects: {error}"),
        }
    }
}
