//! What every engine must pass. Owns: one suite over "a pair of ends", whatever connects them. Must not know:
//! any one engine.
//!
//! An engine implements [`Ends`] in its own tests and names it to `conforms!`, which makes one test of each
//! function here.
//!
//! - `bytes`: what arrives is what was sent, of every size, many at once
//! - `refused`: keys and bounds that are not right
//! - `ended`: rails that are closed, peers that die, memory that is taken back

mod bytes;
mod ended;
mod refused;

pub(crate) use bytes::*;
pub(crate) use ended::*;
pub(crate) use refused::*;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fabric::{
    Access, Cause, CompletionQueue, Domain, Initiator, Op, OpenError, Operation, Outcome, Quarantined,
    RegionKey, RemoteSpan, Target, TargetMemory, WhyUnposted,
};
use crate::region::{HugePages, Region, RegionOptions};

/// How long anything here may take before it counts as lost: generous, the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// How an engine's two ends come to be, both in this process.
pub(crate) trait Ends {
    /// A client that knows one server.
    type Client;

    /// Whether a refusal is told apart from a rail that broke. Without, the rail ends, and what was refused
    /// is not reached all the same.
    const TELLS_REFUSALS: bool = true;
    /// Whether memory can be taken back for good while a rail of its domain lives. Without, it is
    /// quarantined until the rails are closed.
    const TAKES_BACK_AT_ONCE: bool = true;
    /// Whether a target learns from its rail that the server's end is gone. Without, only the control
    /// connection tells.
    const SEES_SERVER: bool = true;

    /// A client, with a domain of its own.
    fn client(&self) -> Self::Client;

    /// The client's memory.
    fn domain(client: &Self::Client) -> &dyn Domain;

    /// One more rail between the server and this client.
    fn rail(&self, client: &Self::Client, completions: &Arc<CompletionQueue>) -> Rail;

    /// Makes a slab known to the server.
    fn attach(&self, region: &Arc<Region>);
}

/// Both ends of a rail.
pub(crate) struct Rail {
    pub(crate) initiator: Arc<dyn Initiator>,
    pub(crate) target: Arc<dyn Target>,
}

/// An engine without its library says so, and uses no other one in its place.
pub(crate) fn needs_its_library<T>(open: impl Fn(&str) -> Result<T, OpenError>) {
    let refused = |path: &str| match open(path).map(|_| ()) {
        Err(OpenError::Unavailable(why)) => why,
        other => panic!("{path}: {other:?}"),
    };
    let why = refused("/nowhere/library.so.1");
    assert!(why.contains("/nowhere/library.so.1"), "{why}");
    refused("libc.so.6");
}

/// Makes a test of each function of the suite.
///
/// `conforms!(ends)`, or, where the engine may be missing, `conforms!(if ends)`: `ends` is given the test's
/// name, says that the test is left out, and is none then.
macro_rules! conforms {
    (if $ends:expr) => {
        conforms!($ends;
            every_size_and_offset_arrives, the_largest_operation_arrives, many_are_under_way_at_once,
            several_rails_share_a_queue, a_full_queue_hands_back, an_unknown_key_is_refused,
            what_lies_outside_is_refused, what_was_not_lent_for_this_is_refused,
            a_key_taken_back_is_refused, a_key_opens_nothing_in_another_domain, memory_lent_twice_has_two_keys,
            a_deregistered_owner_is_let_go, memory_taken_back_is_not_written_again,
            memory_taken_back_is_not_sent_again, a_closed_rail_completes_everything,
            a_dropped_rail_completes_everything, a_dead_target_completes_everything,
            a_dead_target_is_noticed_by_a_rail_at_rest,
            a_target_learns_that_its_server_is_gone, a_dead_rail_leaves_the_others
        );
    };
    ($ends:expr; $($name:ident),+) => {
        $(
            #[test]
            fn $name() {
                if let Some(ends) = ($ends)(stringify!($name)) {
                    $crate::fabric::conformance::$name(&ends);
                }
            }
        )+
    };
    ($ends:expr) => {
        conforms!(if |_: &str| Some($ends));
    };
}
pub(crate) use conforms;

/// One client with one rail and one piece of memory, and a slab of the same size.
pub(crate) struct Bench<E: Ends> {
    pub(crate) client: E::Client,
    pub(crate) completions: Arc<CompletionQueue>,
    pub(crate) rail: Rail,
    pub(crate) memory: Arc<Region>,
    pub(crate) key: RegionKey,
    pub(crate) slab: Arc<Region>,
}

impl<E: Ends> Bench<E> {
    /// Memory and slab of `bytes`, and room for so many operations.
    fn new(ends: &E, bytes: usize, operations_max: usize) -> Self {
        let client = ends.client();
        let completions = CompletionQueue::new(operations_max);
        let rail = ends.rail(&client, &completions);
        let memory = region(bytes);
        let key = lend(E::domain(&client), &memory, Access::ReadWrite);
        let slab = region(bytes);
        ends.attach(&slab);
        Self { client, completions, rail, memory, key, slab }
    }

    fn domain(&self) -> &dyn Domain {
        E::domain(&self.client)
    }

    fn read(&self, place: Stretch, op: u64) -> Operation {
        read(self.key, &self.slab, place, op)
    }

    fn write(&self, place: Stretch, op: u64) -> Operation {
        write(self.key, &self.slab, place, op)
    }

    fn post(&self, operation: Operation) {
        self.rail.initiator.post(operation).expect("there is room");
    }

    /// What the operation comes to, alone.
    fn run(&self, operation: Operation) -> Outcome {
        let op = operation.op();
        self.post(operation);
        completions(&self.completions, 1).remove(&op.0).expect("it is this one")
    }

    /// Checks that an operation came to nothing because the target refused it.
    fn assert_refused(&self, outcome: Outcome) {
        if E::TELLS_REFUSALS {
            assert_eq!(outcome, Outcome::Failed(Cause::Refused));
        } else {
            let broke = matches!(&outcome, Outcome::Failed(cause) if *cause != Cause::Cancelled);
            assert!(broke, "{outcome:?}");
            assert!(until(|| self.rail.initiator.death()).is_some(), "the rail ends with it");
        }
    }

    /// Takes memory back that nothing is under way on.
    fn take_back(&self, key: RegionKey) {
        let wanted = if E::TAKES_BACK_AT_ONCE { Ok(()) } else { Err(Quarantined) };
        assert_eq!(self.domain().deregister(key), wanted);
    }

    /// Checks that an operation that was refused left the rail either dead, and so said, or fit for more.
    fn goes_on_or_says_not(&self) {
        let place = Stretch { remote: 0, local: 0, bytes: 8 };
        match self.rail.initiator.post(self.read(place, u64::MAX)) {
            Ok(()) => {
                let outcome = completions(&self.completions, 1).remove(&u64::MAX);
                if outcome != Some(Outcome::Done) {
                    assert!(until(|| self.rail.initiator.death()).is_some(), "{outcome:?}");
                }
            }
            Err(unposted) => assert_eq!(unposted.why, WhyUnposted::Dead),
        }
    }
}

/// Where an operation's bytes are, at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    remote: usize,
    local: usize,
    bytes: usize,
}

fn remote(key: RegionKey, place: Stretch) -> RemoteSpan {
    let bytes = u32::try_from(place.bytes).expect("it has 32 bits");
    RemoteSpan::new(key, place.remote as u64, bytes).expect("it lies inside")
}

fn read(key: RegionKey, slab: &Arc<Region>, place: Stretch, op: u64) -> Operation {
    let into = slab.slot(place.local, place.bytes).expect("it lies inside");
    Operation::read(remote(key, place), into, Op(op)).expect("both have one length")
}

fn write(key: RegionKey, slab: &Arc<Region>, place: Stretch, op: u64) -> Operation {
    let from = slab.slot(place.local, place.bytes).expect("it lies inside");
    Operation::write(from, remote(key, place), Op(op)).expect("both have one length")
}

fn lend(domain: &dyn Domain, memory: &Arc<Region>, access: Access) -> RegionKey {
    let owner = Arc::clone(memory);
    domain.register(TargetMemory::Host(owner), access).expect("it can be registered")
}

/// Memory, all zeros.
pub(crate) fn region(bytes: usize) -> Arc<Region> {
    let options = RegionOptions {
        bytes,
        huge_pages: HugePages::Off,
        touch: true,
        lock: false,
        name: "turnkv-conformance".to_owned(),
    };
    Region::create(&options).expect("there is memory").0
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut words = Vec::with_capacity(bytes + 8);
    while words.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words.extend_from_slice(&state.to_le_bytes());
    }
    words.truncate(bytes);
    words
}

fn fill(region: &Arc<Region>, offset: usize, bytes: &[u8]) {
    region.slot(offset, bytes.len()).expect("it lies inside").claim().unwrap().fill(bytes);
}

fn content(region: &Arc<Region>, offset: usize, bytes: usize) -> Vec<u8> {
    region.slot(offset, bytes).expect("it lies inside").page().to_vec()
}

fn assert_content(region: &Arc<Region>, offset: usize, wanted: &[u8], what: &str) {
    let found = content(region, offset, wanted.len());
    let first = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
    assert_eq!(first, None, "{what}: the first byte that differs, of {}", wanted.len());
}

/// The outcomes of exactly so many operations of different names, and that there are no more.
fn completions(queue: &CompletionQueue, count: usize) -> HashMap<u64, Outcome> {
    let deadline = Instant::now() + PATIENCE;
    let mut outcomes = HashMap::new();
    let mut taken = Vec::new();
    while outcomes.len() < count {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "{} of {count} operations completed", outcomes.len());
        queue.poll(&mut taken, left);
        for done in taken.drain(..) {
            let before = outcomes.insert(done.op.0, done.outcome);
            assert_eq!(before, None, "operation {} completed twice", done.op.0);
        }
    }
    assert_eq!(queue.admitted(), 0, "nothing else is under way");
    outcomes
}

/// What `look` finds, looking until it does or patience ends.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match look() {
            Some(found) => return Some(found),
            None if Instant::now() >= deadline => return None,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
