//! The driver over a pair that does what a test tells it. Shows: that an operation ends once, whatever the
//! pair does, and that nothing is let go while the pair may touch it.

use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::mpsc;

use super::*;
use crate::fabric::conformance::region;
use crate::fabric::onesided::pair::{Broken, Part};
use crate::fabric::operation::{Completed, Op, Operation, RegionKey, RemoteSpan, WhyUnposted};
use crate::limits::NIC_RAIL_OPERATIONS_MAX;

const PART: u32 = 1024;
const PARTS: usize = 4;

/// What a test sees of its pair, and tells it.
#[derive(Default)]
struct Script {
    /// Tokens that the pair has, with their offset in the target's memory and their size.
    given: Vec<(u32, u64, u32)>,
    /// What it says next.
    landings: Vec<LandedPart>,
    broken: Option<Cause>,
    /// Parts that it takes at most.
    room: usize,
    /// Times that it does not end when it is asked.
    stubborn: u32,
    destroyed: u32,
}

#[derive(Default)]
struct TestNic {
    script: Arc<Mutex<Script>>,
    registered: Arc<AtomicUsize>,
    refusals: AtomicU32,
    /// A registration waits for it.
    gate: Option<Mutex<mpsc::Receiver<()>>>,
}

struct Memory(Arc<AtomicUsize>);

impl Drop for Memory {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Nic for TestNic {
    type Memory = Memory;
    type Pair = TestPair;
    const POLLED_AT_REST: bool = false;

    fn register(&self, _region: &Region) -> Result<Memory, String> {
        if let Some(gate) = &self.gate {
            gate.lock().recv().expect("the test lives");
        }
        let refused = |left: u32| left.checked_sub(1);
        if self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, refused).is_ok() {
            return Err("no pages can be pinned".to_owned());
        }
        self.registered.fetch_add(1, Ordering::SeqCst);
        Ok(Memory(Arc::clone(&self.registered)))
    }
}

struct TestPair(Arc<Mutex<Script>>);

// SAFETY: it touches no memory at all.
unsafe impl Pair for TestPair {
    type Memory = Memory;

    fn parts_max(&self) -> usize {
        PARTS
    }

    fn part_bytes_max(&self) -> u32 {
        PART
    }

    unsafe fn give(&mut self, parts: &[Part<'_, Memory>]) -> Result<usize, Broken> {
        let mut script = self.0.lock();
        let taken = parts.len().min(script.room - script.given.len().min(script.room));
        script.given.extend(parts[..taken].iter().map(|part| (part.token, part.remote, part.bytes)));
        script.broken.take().map_or(Ok(taken), |cause| Err(Broken { taken, cause }))
    }

    fn land(&mut self, landed: &mut Vec<LandedPart>) -> Result<(), Cause> {
        landed.append(&mut self.0.lock().landings);
        Ok(())
    }

    fn destroy(&mut self) -> Result<(), String> {
        let mut script = self.0.lock();
        if script.stubborn > 0 {
            script.stubborn -= 1;
            return Err("busy".to_owned());
        }
        script.destroyed += 1;
        Ok(())
    }
}

/// One rail, whose turns the test takes.
struct Stage {
    lane: RailLane<TestNic>,
    locals: Arc<Locals<TestNic>>,
    script: Arc<Mutex<Script>>,
    registered: Arc<AtomicUsize>,
    rail: Arc<NicRail>,
    completions: Arc<CompletionQueue>,
    region: Arc<Region>,
    now: Instant,
}

impl Stage {
    fn new(nic: TestNic) -> Self {
        let (script, registered) = (Arc::clone(&nic.script), Arc::clone(&nic.registered));
        script.lock().room = PARTS;
        let completions = CompletionQueue::new(64);
        let bell = Arc::new(Bell::default());
        let locals = Locals::new(Arc::new(nic), Arc::clone(&bell));
        let (rail, core) = NicRail::open(&completions, &bell);
        let lane = RailLane::new(core, TestPair(Arc::clone(&script)));
        let region = region(1 << 16);
        Self { lane, locals, script, registered, rail, completions, region, now: Instant::now() }
    }

    fn attached() -> Self {
        let stage = Self::new(TestNic::default());
        stage.locals.attach(&stage.region).expect("there is room");
        stage.until_registered(1);
        stage
    }

    fn until_registered(&self, count: usize) {
        while self.registered.load(Ordering::SeqCst) != count || self.locals.counts().1 > 0 {
            std::thread::yield_now();
        }
    }

    fn operation(&self, op: u64, bytes: u32) -> Operation {
        let key = RegionKey { key: 7, base: 0x1000, bytes: 1 << 16 };
        let span = RemoteSpan::new(key, 16, bytes).expect("it lies inside");
        let slot = self.region.slot(0, bytes as usize).expect("it lies inside");
        Operation::read(span, slot, Op(op)).expect("both have one length")
    }

    fn post(&self, op: u64, bytes: u32) {
        self.rail.post(self.operation(op, bytes)).expect("there is room");
    }

    fn turn(&mut self) -> Turn {
        self.lane.turn(&self.locals, &mut Vec::new(), self.now)
    }

    /// The pair says that these parts landed.
    fn land(&self, count: usize, outcome: &Result<(), Cause>) {
        let mut script = self.script.lock();
        let tokens: Vec<u32> = script.given.drain(..count).map(|(token, ..)| token).collect();
        script
            .landings
            .extend(tokens.into_iter().map(|token| LandedPart { token, outcome: outcome.clone() }));
    }

    fn completed(&self) -> Vec<(u64, Outcome)> {
        let mut done: Vec<Completed> = Vec::new();
        self.completions.poll(&mut done, Duration::ZERO);
        done.into_iter().map(|done| (done.op.0, done.outcome)).collect()
    }
}

#[test]
fn an_operation_is_cut_and_ends_with_its_last_part() {
    let mut stage = Stage::attached();
    stage.post(1, 5 * PART + 100);
    assert_eq!(stage.rail.queued_bytes(), u64::from(5 * PART + 100));
    assert_eq!(stage.turn(), Turn::Moved);
    let given =
        stage.script.lock().given.iter().map(|(_, remote, bytes)| (*remote, *bytes)).collect::<Vec<_>>();
    let wanted: Vec<(u64, u32)> = (0..4).map(|part| (0x1010 + part * u64::from(PART), PART)).collect();
    assert_eq!(given, wanted, "as many as the pair takes, in order");
    stage.land(4, &Ok(()));
    assert_eq!(stage.turn(), Turn::Moved);
    assert_eq!(stage.completed(), []);
    assert_eq!(stage.turn(), Turn::Moved);
    let last =
        stage.script.lock().given.iter().map(|(_, remote, bytes)| (*remote, *bytes)).collect::<Vec<_>>();
    assert_eq!(last, [(0x1010 + 4 * u64::from(PART), PART), (0x1010 + 5 * u64::from(PART), 100)]);
    stage.land(2, &Ok(()));
    stage.turn();
    assert_eq!(stage.completed(), [(1, Outcome::Done)]);
    assert_eq!(stage.rail.queued_bytes(), 0);
    assert_eq!(stage.turn(), Turn::Rest);
}

#[test]
fn a_pair_without_room_is_given_the_same_parts_again() {
    let mut stage = Stage::attached();
    stage.script.lock().room = 0;
    stage.post(1, PART);
    stage.turn();
    assert_eq!(stage.turn(), Turn::Wait);
    stage.script.lock().room = 1;
    assert_eq!(stage.turn(), Turn::Moved);
    stage.land(1, &Ok(()));
    stage.turn();
    assert_eq!(stage.completed(), [(1, Outcome::Done)]);
}

#[test]
fn nothing_completes_before_the_pair_is_gone() {
    let mut stage = Stage::attached();
    for op in 0..6 {
        stage.post(op, PART);
    }
    stage.script.lock().stubborn = 3;
    stage.turn();
    stage.land(1, &Ok(()));
    stage.land(1, &Err(Cause::Refused));
    stage.turn();
    // Those that landed end at once, those that never began too; what the pair has waits for its end.
    let refused = (1, Outcome::Failed(Cause::Refused));
    let cancelled = |op| (op, Outcome::Failed(Cause::Cancelled));
    assert_eq!(stage.completed(), [(0, Outcome::Done), refused, cancelled(4), cancelled(5)]);
    assert_eq!(stage.rail.death(), Some(Cause::Refused));
    let unposted = stage.rail.post(stage.operation(9, PART)).expect_err("the rail is dead");
    assert_eq!(unposted.why, WhyUnposted::Dead);
    for _ in 0..2 {
        assert_eq!(stage.turn(), Turn::Wait, "it is not asked again at once");
        assert_eq!(stage.completed(), []);
        stage.now += DESTROY_PAUSE;
        assert_eq!(stage.turn(), Turn::Wait);
        assert!(stage.lane.asked.is_some() && !stage.lane.gone);
    }
    stage.now += DESTROY_PAUSE;
    assert_eq!(stage.turn(), Turn::Moved);
    assert_eq!(stage.completed(), [cancelled(2), cancelled(3)]);
    assert!(stage.lane.gone);
    assert_eq!((stage.script.lock().destroyed, stage.rail.queued_bytes()), (1, 0));
}

#[test]
fn a_pair_that_breaks_while_it_is_given_parts_ends() {
    let mut stage = Stage::attached();
    (0..3).for_each(|op| stage.post(op, PART));
    let why = Cause::Device("no such queue pair".to_owned());
    stage.script.lock().broken = Some(why.clone());
    stage.script.lock().room = 1;
    stage.turn();
    assert_eq!(stage.rail.death(), Some(why.clone()));
    let mut ended = stage.completed();
    ended.sort_by_key(|(op, _)| *op);
    let cancelled = |op| (op, Outcome::Failed(Cause::Cancelled));
    assert_eq!(ended, [cancelled(0), (1, Outcome::Failed(why)), cancelled(2)], "it broke at the second");
}

#[test]
fn a_gone_peer_is_everybody_s_cause() {
    let mut stage = Stage::attached();
    (0..3).for_each(|op| stage.post(op, PART));
    stage.turn();
    stage.land(1, &Err(Cause::PeerGone));
    stage.turn();
    let gone = |op| (op, Outcome::Failed(Cause::PeerGone));
    assert_eq!(stage.completed(), [gone(0), gone(1), gone(2)]);
}

#[test]
fn a_rail_without_progress_ends_and_one_with_progress_does_not() {
    let mut stage = Stage::attached();
    (0..4).for_each(|op| stage.post(op, PART));
    stage.turn();
    for op in 0..3 {
        stage.now += RAIL_STALL;
        assert_eq!(stage.turn(), Turn::Wait);
        stage.land(1, &Ok(()));
        stage.turn();
        assert_eq!(stage.completed(), [(op, Outcome::Done)]);
    }
    stage.now += RAIL_STALL + Duration::from_millis(1);
    stage.turn();
    assert_eq!(stage.completed(), [(3, Outcome::Failed(Cause::Stalled))]);
    assert_eq!(stage.rail.death(), Some(Cause::Stalled));
}

#[test]
fn a_rail_at_rest_may_rest_for_any_time() {
    let mut stage = Stage::attached();
    stage.turn();
    stage.now += 100 * RAIL_STALL;
    assert_eq!(stage.turn(), Turn::Rest);
    stage.post(1, PART);
    assert_eq!(stage.turn(), Turn::Moved, "it began just now");
    assert_eq!(stage.turn(), Turn::Wait);
}

#[test]
fn a_closed_rail_ends_what_it_has() {
    let mut stage = Stage::attached();
    (0..5).for_each(|op| stage.post(op, PART));
    stage.turn();
    stage.rail.close();
    assert_eq!(stage.rail.death(), Some(Cause::Cancelled));
    stage.turn();
    let outcomes: Vec<_> = stage.completed().into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, vec![Outcome::Failed(Cause::Cancelled); 5]);
    assert_eq!(Arc::strong_count(&stage.region), 2, "only the registration shares it");
}

#[test]
fn a_thread_that_dies_lets_go_of_nothing_that_its_pair_may_touch() {
    for stubborn in [0, 1] {
        let stage = Stage::attached();
        let Stage { mut lane, locals, script, completions, region, now, rail, .. } = stage;
        let key = RegionKey { key: 7, base: 0, bytes: 1 << 16 };
        let span = RemoteSpan::new(key, 0, PART).expect("it lies inside");
        let slot = region.slot(0, PART as usize).expect("it lies inside");
        rail.post(Operation::write(slot, span, Op(1)).expect("one length")).expect("there is room");
        lane.turn(&locals, &mut Vec::new(), now);
        script.lock().stubborn = stubborn;
        drop(lane);
        let mut done = Vec::new();
        completions.poll(&mut done, Duration::ZERO);
        assert_eq!(done.len(), usize::from(stubborn == 0), "it completes only if the pair is gone");
        assert!(matches!(rail.death(), Some(Cause::Device(_))));
    }
}

#[test]
fn as_many_as_a_rail_holds_and_no_more() {
    let stage = Stage::attached();
    let completions = CompletionQueue::new(NIC_RAIL_OPERATIONS_MAX + 10);
    let (rail, core) = NicRail::open(&completions, &Arc::new(Bell::default()));
    for op in 0..NIC_RAIL_OPERATIONS_MAX as u64 {
        rail.post(stage.operation(op, 8)).expect("there is room");
    }
    let unposted = rail.post(stage.operation(0, 8)).expect_err("there is none");
    assert_eq!(unposted.why, WhyUnposted::Full);
    drop(core.end(Cause::PeerGone));
}

#[test]
fn a_region_that_nobody_attached_is_registered_for_its_operations() {
    let mut stage = Stage::new(TestNic::default());
    stage.post(1, PART);
    assert_eq!(stage.turn(), Turn::Wait, "it is being registered");
    stage.until_registered(1);
    assert_eq!(stage.turn(), Turn::Moved);
    stage.land(1, &Ok(()));
    stage.turn();
    assert_eq!(stage.completed(), [(1, Outcome::Done)]);
    assert_eq!(stage.registered.load(Ordering::SeqCst), 0, "and let go with the last of them");
    assert_eq!(Arc::strong_count(&stage.region), 1);
}

#[test]
fn a_region_that_cannot_be_registered_fails_its_operations_and_is_tried_again() {
    let mut stage = Stage::new(TestNic { refusals: AtomicU32::new(1), ..TestNic::default() });
    stage.locals.attach(&stage.region).expect("it is tried in the background");
    while stage.locals.counts().2 == 0 {
        std::thread::yield_now();
    }
    stage.post(1, PART);
    stage.turn();
    let why = Cause::Device("no pages can be pinned".to_owned());
    assert_eq!(stage.completed(), [(1, Outcome::Failed(why))]);
    assert_eq!(stage.rail.death(), None, "the rail is well");
    stage.post(2, PART);
    stage.turn();
    stage.until_registered(1);
    stage.turn();
    stage.land(1, &Ok(()));
    stage.turn();
    assert_eq!(stage.completed(), [(2, Outcome::Done)]);
    assert_eq!(
        stage.registered.load(Ordering::SeqCst),
        1,
        "it is attached: not registered for each operation"
    );
}

#[test]
fn a_detached_region_goes_with_its_last_operation() {
    let mut stage = Stage::attached();
    stage.post(1, PART);
    stage.turn();
    stage.locals.detach(&stage.region);
    assert_eq!(stage.registered.load(Ordering::SeqCst), 1, "an operation needs it");
    stage.locals.attach(&stage.region).expect("there is room");
    assert_eq!(stage.locals.counts().0, 1, "it is the same registration again");
    stage.locals.detach(&stage.region);
    stage.land(1, &Ok(()));
    stage.turn();
    assert_eq!(stage.completed(), [(1, Outcome::Done)]);
    assert_eq!(stage.registered.load(Ordering::SeqCst), 0);
    assert_eq!(Arc::strong_count(&stage.region), 1);
}

#[test]
fn a_region_detached_while_it_is_registered_is_swept() {
    let (open, gate) = mpsc::sync_channel(1);
    let stage = Stage::new(TestNic { gate: Some(Mutex::new(gate)), ..TestNic::default() });
    stage.locals.attach(&stage.region).expect("there is room");
    stage.locals.attach(&stage.region).expect("twice is once");
    stage.locals.detach(&stage.region);
    open.send(()).expect("the registrar waits");
    stage.until_registered(1);
    stage.locals.sweep();
    assert_eq!(stage.registered.load(Ordering::SeqCst), 0);
}

#[test]
fn the_thread_drives_a_rail_and_ends_with_the_last_one() {
    let nic = TestNic::default();
    let (script, registered) = (Arc::clone(&nic.script), Arc::clone(&nic.registered));
    script.lock().room = PARTS;
    let driver = NicDriver::start(Arc::new(nic), "fabric-test").expect("there is a thread");
    let region = region(1 << 16);
    driver.attach(&region).expect("there is room");
    let completions = CompletionQueue::new(4);
    let rail = driver.open(TestPair(Arc::clone(&script)), &completions).expect("there is room");
    let key = RegionKey { key: 7, base: 0, bytes: 1 << 16 };
    let span = RemoteSpan::new(key, 0, PART).expect("it lies inside");
    let slot = region.slot(0, PART as usize).expect("it lies inside");
    rail.post(Operation::read(span, slot, Op(3)).expect("one length")).expect("there is room");
    while script.lock().given.is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(driver.report(), NicReport { rails: 1, regions: 1, ..NicReport::default() });
    drop(driver);
    drop(rail);
    let mut done = Vec::new();
    assert_eq!(completions.poll(&mut done, Duration::from_secs(60)), 1);
    assert_eq!(done[0].outcome, Outcome::Failed(Cause::Cancelled));
    while registered.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
}
