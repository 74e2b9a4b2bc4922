//! The thread that drives all rails of a NIC. Owns: giving work out, taking landings in, ending pairs. Must
//! not know: either library.
//!
//! A rail's life on this thread:
//!
//! ```text
//! Open --closed by its users / a part failed / no progress--> Ending --pair destroyed--> gone
//! ```
//!
//! While it is ending, its pair may still touch slots: nothing under way completes before `destroy` says that
//! the pair is gone, however often that has to be asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::fabric::completion::{CompletionQueue, Posted};
use crate::fabric::contract::{Initiator, NicReport, OpenError, RegisterError};
use crate::fabric::onesided::bell::Bell;
use crate::fabric::onesided::flights::Flights;
use crate::fabric::onesided::locals::{Found, Locals};
use crate::fabric::onesided::pair::{LandedPart, Nic, Pair};
use crate::fabric::onesided::rail::{NicRail, RailCore};
use crate::fabric::operation::{Cause, Outcome};
use crate::limits::{
    DESTROY_PAUSE, DRIVER_PAUSE_MAX, DRIVER_PAUSE_MIN, DRIVER_REST, DRIVER_YIELDS, RAIL_STALL, RAILS_MAX,
};
use crate::region::Region;

/// A NIC's thread, and the way to it. Dropped, the thread ends with its last rail.
pub(in crate::fabric) struct NicDriver<N: Nic> {
    locals: Arc<Locals<N>>,
    shared: Arc<DriverShared<N::Pair>>,
}

struct DriverShared<P> {
    bell: Arc<Bell>,
    newcomers: Mutex<Vec<(Arc<RailCore>, P)>>,
    /// The driver was dropped.
    over: AtomicBool,
    rails: AtomicUsize,
    stuck: AtomicUsize,
}

impl<N: Nic> NicDriver<N> {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has none.
    pub(in crate::fabric) fn start(nic: Arc<N>, name: &str) -> Result<Self, OpenError> {
        let bell = Arc::new(Bell::default());
        let locals = Locals::new(nic, Arc::clone(&bell));
        let shared = Arc::new(DriverShared {
            bell,
            newcomers: Mutex::new(Vec::new()),
            over: AtomicBool::new(false),
            rails: AtomicUsize::new(0),
            stuck: AtomicUsize::new(0),
        });
        let desk = Desk::<N> { locals: Arc::clone(&locals), shared: Arc::clone(&shared), rails: Vec::new() };
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || desk.work())
            .map_err(|error| OpenError::Failed(format!("no thread for the NIC: {error}")))?;
        Ok(Self { locals, shared })
    }

    /// Gives a connected pair to the thread.
    ///
    /// # Errors
    /// As many rails as there may be are open.
    pub(in crate::fabric) fn open(
        &self,
        pair: N::Pair,
        completions: &Arc<CompletionQueue>,
    ) -> Result<Arc<dyn Initiator>, OpenError> {
        let mut newcomers = self.shared.newcomers.lock();
        if self.shared.rails.load(Ordering::Relaxed) >= RAILS_MAX {
            return Err(OpenError::Failed(format!("{RAILS_MAX} rails of this NIC are open")));
        }
        self.shared.rails.fetch_add(1, Ordering::Relaxed);
        let (rail, core) = NicRail::open(completions, &self.shared.bell);
        newcomers.push((core, pair));
        drop(newcomers);
        self.shared.bell.ring();
        Ok(rail)
    }

    /// See [`crate::fabric::RailAnswers::attach`].
    pub(in crate::fabric) fn attach(&self, region: &Arc<Region>) -> Result<(), RegisterError> {
        self.locals.attach(region)
    }

    /// See [`crate::fabric::RailAnswers::detach`].
    pub(in crate::fabric) fn detach(&self, region: &Arc<Region>) {
        self.locals.detach(region);
    }

    /// What is under way.
    pub(in crate::fabric) fn report(&self) -> NicReport {
        let (regions, regions_pending, regions_failed) = self.locals.counts();
        NicReport {
            rails: self.shared.rails.load(Ordering::Relaxed),
            rails_stuck: self.shared.stuck.load(Ordering::Relaxed),
            regions,
            regions_pending,
            regions_failed,
        }
    }
}

impl<N: Nic> Drop for NicDriver<N> {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.shared.bell.ring();
    }
}

/// The thread's own.
struct Desk<N: Nic> {
    locals: Arc<Locals<N>>,
    shared: Arc<DriverShared<N::Pair>>,
    rails: Vec<RailLane<N>>,
}

/// How a turn went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    /// Nothing is under way.
    Rest,
    /// Something is under way, nothing moved.
    Wait,
    Moved,
}

impl<N: Nic> Desk<N> {
    fn work(mut self) {
        self.shared.bell.answered_by(std::thread::current());
        let mut landed = Vec::new();
        let mut idle_turns = 0_u32;
        loop {
            let newcomers = std::mem::take(&mut *self.shared.newcomers.lock());
            self.rails.extend(newcomers.into_iter().map(|(core, pair)| RailLane::new(core, pair)));
            let now = Instant::now();
            let mut turn = Turn::Rest;
            for lane in &mut self.rails {
                turn = turn.max(lane.turn(&self.locals, &mut landed, now));
            }
            self.rails.retain(|lane| !lane.gone);
            let stuck = self.rails.iter().filter(|lane| lane.asked.is_some()).count();
            // Under the lock, since whoever opens a rail counts it there.
            let waiting = self.shared.newcomers.lock();
            self.shared.rails.store(self.rails.len() + waiting.len(), Ordering::Relaxed);
            drop(waiting);
            self.shared.stuck.store(stuck, Ordering::Relaxed);
            if self.rails.is_empty() && self.shared.over.load(Ordering::Acquire) {
                return;
            }
            idle_turns = if turn == Turn::Wait { idle_turns.saturating_add(1) } else { 0 };
            match turn {
                Turn::Moved => {}
                Turn::Wait if idle_turns <= DRIVER_YIELDS => std::thread::yield_now(),
                Turn::Wait => std::thread::park_timeout(pause(idle_turns)),
                Turn::Rest => self.rest(),
            }
        }
    }

    fn rest(&self) {
        self.locals.sweep();
        if N::POLLED_AT_REST && !self.rails.is_empty() {
            std::thread::park_timeout(DRIVER_REST);
        } else {
            std::thread::park();
        }
    }
}

/// The pause after so many turns in which nothing moved: it doubles.
fn pause(idle_turns: u32) -> Duration {
    let doublings = (idle_turns - DRIVER_YIELDS).min(10);
    (DRIVER_PAUSE_MIN * (1 << doublings)).min(DRIVER_PAUSE_MAX)
}

/// One rail on the thread.
struct RailLane<N: Nic> {
    core: Arc<RailCore>,
    pair: N::Pair,
    flights: Flights<N::Memory>,
    /// When something moved last, or began to wait.
    moved: Instant,
    ending: Option<Cause>,
    /// When its pair was last asked to end, in vain.
    asked: Option<Instant>,
    gone: bool,
}

impl<N: Nic> RailLane<N> {
    fn new(core: Arc<RailCore>, pair: N::Pair) -> Self {
        let flights = Flights::new(pair.parts_max(), pair.part_bytes_max());
        Self { core, pair, flights, moved: Instant::now(), ending: None, asked: None, gone: false }
    }

    fn turn(&mut self, locals: &Arc<Locals<N>>, landed: &mut Vec<LandedPart>, now: Instant) -> Turn {
        if self.ending.is_some() {
            return self.try_end(now);
        }
        if self.core.is_closed() {
            return self.end(Cause::Cancelled, now);
        }
        let was_empty = self.flights.is_empty();
        let begun = self.begin(locals);
        if was_empty {
            self.moved = now;
        }
        let outcome = match self.give() {
            Ok(given) => self.land(landed).map(|ended| begun + given + ended),
            Err(cause) => Err(cause),
        };
        match outcome {
            Ok(0) if self.flights.is_empty() && !self.core.has_backlog() => Turn::Rest,
            Ok(0) if !self.flights.is_empty() && now.duration_since(self.moved) > RAIL_STALL => {
                self.end(Cause::Stalled, now)
            }
            Ok(0) => Turn::Wait,
            Ok(_) => {
                self.moved = now;
                Turn::Moved
            }
            Err(cause) => self.end(cause, now),
        }
    }

    /// Begins as many operations as there is room for; gives how many.
    fn begin(&mut self, locals: &Arc<Locals<N>>) -> usize {
        let mut begun = 0;
        while self.flights.has_room() {
            let mut found = Found::Pending;
            let next = self.core.next(|operation| {
                found = locals.find(operation.local().region());
                !matches!(found, Found::Pending)
            });
            let Some(posted) = next else { break };
            match found {
                Found::Ready(local) => self.flights.begin(posted, local),
                Found::Failed(why) => self.fail(posted, Cause::Device(why)),
                Found::Pending => break,
            }
            begun += 1;
        }
        begun
    }

    /// Gives the pair what it takes; gives how many parts that were.
    fn give(&mut self) -> Result<usize, Cause> {
        let batch = self.flights.batch();
        if batch.is_empty() {
            return Ok(0);
        }
        // SAFETY: each part lies in a slot of the region that its registration covers, and both belong to the
        // flights, which let go of them when the part landed or in `try_end`, after `destroy` said `Ok`.
        let (taken, broken) = match unsafe { self.pair.give(&batch) } {
            Ok(taken) => (taken, None),
            Err(broken) => (broken.taken, Some(broken.cause)),
        };
        drop(batch);
        self.flights.taken(taken);
        let Some(cause) = broken else { return Ok(taken) };
        self.flights.blame(&cause);
        Err(cause)
    }

    /// Takes in what landed; gives how many parts that were. The first failure ends the rail: after one, no
    /// library promises anything about the parts behind it.
    fn land(&mut self, landed: &mut Vec<LandedPart>) -> Result<usize, Cause> {
        if self.flights.given() == 0 && !N::POLLED_AT_REST {
            return Ok(0);
        }
        landed.clear();
        let mut broken = self.pair.land(landed).err();
        let parts = landed.len();
        for part in landed.drain(..) {
            if let Err(cause) = &part.outcome {
                broken.get_or_insert_with(|| cause.clone());
            }
            if let Some(finished) = self.flights.landed(part) {
                self.core.over(finished.bytes());
                finished.complete();
            }
        }
        broken.map_or(Ok(parts), Err)
    }

    fn end(&mut self, cause: Cause, now: Instant) -> Turn {
        let shared_fate = shared_fate(&cause);
        for posted in self.core.end(cause) {
            self.fail(posted, shared_fate.clone());
        }
        self.ending = Some(shared_fate);
        self.try_end(now)
    }

    fn try_end(&mut self, now: Instant) -> Turn {
        if self.asked.is_some_and(|asked| now.duration_since(asked) < DESTROY_PAUSE) {
            return Turn::Wait;
        }
        let Some(cause) = &self.ending else { return Turn::Rest };
        if self.pair.destroy().is_err() {
            self.asked = Some(now);
            return Turn::Wait;
        }
        for finished in self.flights.end(cause) {
            self.core.over(finished.bytes());
            finished.complete();
        }
        self.asked = None;
        self.gone = true;
        Turn::Moved
    }

    fn fail(&self, posted: Posted, cause: Cause) {
        self.core.over(posted.operation().bytes());
        posted.complete(Outcome::Failed(cause));
    }
}

impl<N: Nic> Drop for RailLane<N> {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        // Only a panic of this thread comes here. What the pair may still touch is never let go.
        let under_way = std::mem::replace(&mut self.flights, Flights::new(1, 1));
        drop(self.core.end(Cause::Device("the NIC's thread ended".to_owned())));
        match self.pair.destroy() {
            Ok(()) => drop(under_way),
            Err(_) => std::mem::forget(under_way),
        }
    }
}

/// What the end of a rail means for the operations that did not cause it.
fn shared_fate(cause: &Cause) -> Cause {
    match cause {
        Cause::PeerGone | Cause::Stalled => cause.clone(),
        Cause::Refused | Cause::Protocol(_) | Cause::Device(_) | Cause::Cancelled => Cause::Cancelled,
    }
}

#[cfg(test)]
mod tests;
