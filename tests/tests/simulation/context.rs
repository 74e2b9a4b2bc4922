//! What the simulated clients share: the server of this life, the model, time, chance, and what went wrong.
//! Must not know: what a client does with them.

use super::content::Shard;
use super::model::{Model, Verdict};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use turnkv::simulation::{Random, Server, Time};
use turnkv_proto::{Error, ErrorKind, Shards, wire};
use turnkv_transfer::{Region, Slot};

/// How long any call may take, beside what it asked for itself.
pub(crate) const CALL_MAX: Duration = Duration::from_secs(90);

/// Shared by everything in one run.
pub(crate) struct Context {
    pub(crate) time: Arc<Time>,
    pub(crate) random: RefCell<Random>,
    /// Chooses how many shards a call moves; none: one.
    widths: RefCell<Option<Random>>,
    pub(crate) server: RefCell<Option<Server>>,
    pub(crate) model: RefCell<Model>,
    /// Broken promises.
    pub(crate) broken: RefCell<Vec<String>>,
    /// Calls that have not been answered: since when, and which.
    pub(crate) calls: RefCell<BTreeMap<u64, (Duration, &'static str)>>,
    pub(crate) done: RefCell<BTreeMap<&'static str, u64>>,
    next_call: Cell<u64>,
    /// Folds what clients saw.
    pub(crate) trace: Cell<u64>,
    /// Pages are only added to these conversations: the tips of each namespace.
    pub(crate) tips: RefCell<Vec<Vec<u32>>>,
    pub(crate) log: bool,
}

/// A client process.
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) alive: Arc<AtomicBool>,
}

impl Context {
    pub(crate) fn new(
        time: Arc<Time>,
        random: Random,
        model: Model,
        widths: Option<Random>,
        log: bool,
    ) -> Rc<Context> {
        let tips = RefCell::new(model.spaces.iter().map(|_| Vec::new()).collect());
        Rc::new(Context {
            time,
            random: RefCell::new(random),
            widths: RefCell::new(widths),
            server: RefCell::new(None),
            model: RefCell::new(model),
            broken: RefCell::default(),
            calls: RefCell::default(),
            done: RefCell::default(),
            next_call: Cell::new(0),
            trace: Cell::new(0),
            tips,
            log,
        })
    }

    /// The server of this life; tasks do not outlive it.
    pub(crate) fn server(&self) -> Server {
        self.server.borrow().clone().expect("a task lives with a server")
    }

    /// A number below.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound)
    }

    /// Happens so many times in a hundred.
    pub(crate) fn percent(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Shards that a call moves, from this one on of a page of so many.
    pub(crate) fn shards(&self, first: u16, of: u16) -> Shards {
        let width = match &mut *self.widths.borrow_mut() {
            Some(widths) => 1 + widths.below(u64::from(of - first)) as u32,
            None => 1,
        };
        Shards::new(first.into(), width).expect("shards of a page")
    }

    /// A promise is broken.
    pub(crate) fn broken(&self, what: String) {
        self.say(|| format!("BROKEN {what}"));
        self.broken.borrow_mut().push(what);
    }

    /// Notes what happened.
    pub(crate) fn say(&self, what: impl Fn() -> String) {
        if self.log {
            use std::io::Write;
            writeln!(std::io::stderr(), "{:>9.3} {}", self.time.now().as_secs_f64(), what()).expect("stderr");
        }
    }

    /// Adds to the trace.
    pub(crate) fn note(&self, word: u64) {
        self.trace.set((self.trace.get() ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(17));
    }

    /// Runs a call and sees to it that it is answered.
    pub(crate) async fn call<T>(&self, what: &'static str, call: impl Future<Output = T>) -> T {
        let id = self.next_call.get() + 1;
        self.next_call.set(id);
        self.calls.borrow_mut().insert(id, (self.time.now(), what));
        let _answered = Answered { calls: &self.calls, id };
        let output = call.await;
        *self.done.borrow_mut().entry(what).or_default() += 1;
        output
    }

    /// Calls that have waited for longer than any may.
    pub(crate) fn overdue(&self) -> Option<String> {
        let (now, calls) = (self.time.now(), self.calls.borrow());
        let late = calls.values().find(|(since, _)| now > *since + CALL_MAX)?;
        Some(format!("{} has not been answered for {:?}", late.1, now - late.0))
    }

    /// What a client does with an error; the kinds that tell of a defect are broken promises.
    pub(crate) fn refused(&self, what: &str, error: &Error) {
        self.note(error.to_string().len() as u64);
        self.say(|| format!("{what} refused: {error}"));
        if error.kind == ErrorKind::Internal && !error.to_string().contains("catalog") {
            self.broken(format!("{what}: {error}"));
        }
    }

    /// The memory of a slot of a namespace.
    pub(crate) fn slot(&self, space: usize, at: &wire::SlotRef) -> Result<Slot, Error> {
        let (id, bytes) = {
            let model = self.model.borrow();
            (model.id(space), model.shard_bytes(space))
        };
        let slab = self.server().attach_slab(&id.0, at.slab, at.generation)?;
        // A mapping of its own, as another process has one.
        let mapped = slab.fd().try_clone_to_owned().and_then(|fd| Region::from_fd(fd, slab.len()));
        let region = mapped.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        region.slot(at.offset as usize, bytes).ok_or_else(|| Error::invalid("a slot beyond its slab"))
    }

    /// Judges the bytes of a slot; true: they are right.
    pub(crate) fn verify(&self, of: Shard, slot: &Slot, checksum: u64) -> bool {
        let verdict = self.model.borrow().judge(of, &slot.page().to_vec(), checksum);
        match verdict {
            Verdict::Right => true,
            Verdict::Corrupt => false,
            Verdict::Wrong(why) => {
                self.broken(format!("wrong bytes: {why}"));
                false
            }
        }
    }
}

struct Answered<'a> {
    calls: &'a RefCell<BTreeMap<u64, (Duration, &'static str)>>,
    id: u64,
}

impl Drop for Answered<'_> {
    fn drop(&mut self) {
        self.calls.borrow_mut().remove(&self.id);
    }
}
