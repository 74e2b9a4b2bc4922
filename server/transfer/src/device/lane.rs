//! One stream of ours, and the thread that feeds it. Owns: the order of a lane's work, seeing that it is
//! done, giving back what it used or losing it. Must not know: how pieces become calls (`enqueue`), why pages
//! are copied.
//!
//! ```text
//!   jobs --> thread --enqueue--> stream: copies      steps: (event, what becomes free, what to do), in order
//!               ^   |---enqueue--> within: pieces <-> gathered pages, on the device                     |
//!               |   \---enqueue--> sums: checksums                                                      |
//!               \------------- polls the first step's event, with a bounded pause ----------------------/
//! ```
//! Checksums, and what is copied within the device, have streams of their own, so that copies over the link go on
//! meanwhile. Steps of all pass in one order: what a step frees was used by work before it in its own stream, or
//! before a step before it.
//!
//! An engine's thread never comes here: it leaves a job and goes on. Completion, never a drop, gives memory
//! back and ends a flight; when a driver says that the device is broken, the memory of all steps is lost for
//! good. A device that hangs is refused from then on; what it was given to write into an engine's memory goes
//! on being waited for.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::device::buffer::Scratch;
use crate::device::choose::Means;
use crate::device::core::DeviceCore;
use crate::device::driver::{DeviceError, DeviceErrorKind, Priority, Stream};
use crate::device::flight::{FlightBoard, Landed, Mark, OwnedEvent, cancelled};
use crate::device::staging::{DeviceRing, Ring, Taken};
use crate::limits::{
    CHECKSUM_PIECES_MAX, GATHER_BYTES, LANE_JOBS_MAX, POLL_PART, POLL_PAUSE_MAX, POLL_PAUSE_MIN, POLL_SLACK,
};
use crate::page::PageMut;

mod enqueue;
mod gather;
mod job;
mod lent;
mod verify;

pub(crate) use job::{Job, JobPage, Other};

/// The way to a lane's thread.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    gates: Vec<(Mark, Arc<FlightBoard>)>,
    closed: bool,
}

impl Queue {
    /// Leaves a job. Nothing was begun if this fails.
    pub(crate) fn submit(&self, job: Job) -> Result<(), DeviceError> {
        let mut waiting = self.state.lock();
        if waiting.jobs.len() >= LANE_JOBS_MAX {
            let text = format!("{LANE_JOBS_MAX} copies wait for the device already: try again later");
            return Err(DeviceError::new(DeviceErrorKind::NoMemory, text));
        }
        waiting.jobs.push_back(job);
        self.changed.notify_all();
        Ok(())
    }

    /// Has a flight end when a mark has passed.
    pub(crate) fn watch(&self, mark: Mark, flight: Arc<FlightBoard>) -> Result<(), DeviceError> {
        let mut waiting = self.state.lock();
        if waiting.gates.len() >= LANE_JOBS_MAX {
            let text = format!("{LANE_JOBS_MAX} calls wait for the engine's streams already");
            return Err(DeviceError::new(DeviceErrorKind::NoMemory, text));
        }
        waiting.gates.push((mark, flight));
        self.changed.notify_all();
        Ok(())
    }

    /// Ends the thread when what was left here is done.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }
}

/// What is due when a step's event has passed.
#[derive(Debug)]
enum Act {
    /// Only memory becomes free.
    Nothing,
    /// Staged bytes have come from the device: they go on into the slot.
    ToSlot { staged: Taken, filling: Arc<PageMut>, offset: usize },
    /// Checksums were taken: of so many pages of the job at hand, from this page on; of how many bytes each, behind others of the page.
    Sums { output: Taken, first: usize, appended: Vec<usize> },
    /// A job is done, or what had been enqueued of it.
    Finish { job: Box<Job>, on_cpu: Vec<usize>, result: Result<(), DeviceError> },
}

#[derive(Debug)]
struct Step {
    /// None: the driver would not record one; it is asked again, since without an event nobody knows that the
    /// step is done.
    event: Option<OwnedEvent>,
    stream: Stream,
    since: Instant,
    used: Used,
    calls_end: u64,
    act: Act,
}

/// Up to where the rings are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    tables: u64,
    staging: u64,
    gather: u64,
}

/// Calls that a stream was given.
#[derive(Debug, Default)]
struct Calls {
    given: u64,
    /// Of these, up to the last step.
    stepped: u64,
    /// Of these, up to the last step that passed.
    done: u64,
}

/// The thread's side of a lane.
#[derive(Debug)]
pub(crate) struct Lane {
    core: Arc<DeviceCore>,
    queue: Arc<Queue>,
    /// For copies.
    stream: Stream,
    /// For checksums.
    sums_stream: Stream,
    /// For copies within the device.
    within_stream: Stream,
    means: Means,
    /// Whether work that does not end in time is given up: where only slots are lost. An engine would use its
    /// memory again.
    gives_up: bool,
    /// The device is broken: no step is waited for any more.
    lost: bool,
    /// For the tables of kernels and for checksums.
    tables: Ring,
    staging: Ring,
    /// For the checksum kernel, where there is one.
    scratch: Option<Scratch>,
    /// Where tables are copied to before kernels read them, at the places that they have in the ring.
    uploads: Option<Scratch>,
    /// Where pages lie in one piece on the device, on their way between their pieces and slots.
    gather: Option<DeviceRing>,
    /// By work that is enqueued: later pieces are still being prepared.
    used: Used,
    calls: Calls,
    steps: VecDeque<Step>,
    /// Checksums of the job whose steps are passing.
    sums: Vec<u64>,
    /// When something last passed, or was begun.
    moved: Instant,
}

impl Lane {
    /// A lane with all that it needs, before its thread begins.
    pub(crate) fn new(
        core: Arc<DeviceCore>,
        (priority, gives_up): (Priority, bool),
        tables_bytes: usize,
        staging_bytes: usize,
    ) -> Result<(Self, Arc<Queue>), DeviceError> {
        let driver = &core.driver;
        let tables = Ring::new(Arc::clone(driver), tables_bytes)?;
        let staging = Ring::new(Arc::clone(driver), staging_bytes)?;
        let means = core.means;
        let sums = core.checksums && means.kernels;
        let scratch =
            sums.then(|| Scratch::new(driver, CHECKSUM_PIECES_MAX * size_of::<u64>())).transpose()?;
        let uploaded = means.kernels && means.speeds.upload_tables;
        let uploads = uploaded.then(|| Scratch::new(driver, tables.len())).transpose()?;
        let gather = means.gathers().then(|| DeviceRing::new(driver, GATHER_BYTES));
        let gather = match gather.transpose() {
            Err(error) if error.kind == DeviceErrorKind::NoMemory => None, // pieces go one by one
            taken => taken?,
        };
        let (stream, sums_stream) = (driver.new_stream(priority)?, driver.new_stream(priority)?);
        let within_stream = driver.new_stream(priority)?;
        let queue = Arc::new(Queue::default());
        let lane = Self {
            core,
            queue: Arc::clone(&queue),
            stream,
            sums_stream,
            within_stream,
            means,
            gives_up,
            lost: false,
            tables,
            staging,
            scratch,
            uploads,
            gather,
            used: Used::default(),
            calls: Calls::default(),
            steps: VecDeque::new(),
            sums: Vec::new(),
            moved: Instant::now(),
        };
        Ok((lane, queue))
    }

    /// The life of the thread.
    pub(crate) fn run(mut self) {
        // Pauses of some microseconds are what they say, and not fifty more, as a system makes of them to wake less often. One that
        // refuses has the end of copies seen a little later.
        rustix::thread::set_current_timer_slack(NonZeroU64::new(POLL_SLACK.as_nanos() as u64))
            .unwrap_or_default();
        loop {
            self.poll();
            let job = {
                let mut waiting = self.queue.state.lock();
                let job = waiting.jobs.pop_front();
                let under_way = !self.steps.is_empty() || !waiting.gates.is_empty();
                if job.is_none() && under_way {
                    self.queue.changed.wait_for(&mut waiting, pause_after(self.moved));
                } else if job.is_none() && waiting.closed {
                    return;
                } else if job.is_none() {
                    self.queue.changed.wait(&mut waiting);
                }
                job
            };
            if let Some(job) = job {
                self.moved = Instant::now();
                self.begin(job);
            }
        }
    }

    fn poll(&mut self) -> bool {
        let moved = self.poll_gates() | self.poll_steps();
        if moved {
            self.moved = Instant::now();
        }
        moved
    }

    /// Enqueues a job, and the step that ends it.
    fn begin(&mut self, job: Job) {
        if !job.flight.begin() {
            return self.core.stats.flights.sub(1);
        }
        if let Some(error) = self.core.broken() {
            self.core.stats.flights.sub(1);
            return job.flight.set_done(Err(error));
        }
        let mut on_cpu = Vec::new();
        let result = self.enqueue(&job, &mut on_cpu);
        if let Err(error) = &result {
            job.flight.set_enqueued(Err(error.clone()), Vec::new());
            if error.kind == DeviceErrorKind::Broken {
                self.core.fail(error.clone());
            }
        }
        // What a refused call had been prepared in is not in use, and free again with the rest.
        self.used = self.taken();
        on_cpu.sort_unstable();
        on_cpu.dedup(); // a page that comes in layers may have been left more than once
        self.step(Act::Finish { job: Box::new(job), on_cpu, result });
    }

    /// Records an event behind the copies that were enqueued so far.
    fn step(&mut self, act: Act) {
        self.step_in(self.stream, act);
    }

    /// Records an event behind what was enqueued in a stream so far.
    fn step_in(&mut self, stream: Stream, act: Act) {
        if self.lost {
            return self.lose(act);
        }
        let event = self.record(stream).map_err(|error| self.core.fail(error)).ok();
        self.calls.stepped = self.calls.given;
        self.steps.push_back(Step {
            event,
            stream,
            since: Instant::now(),
            used: self.used,
            calls_end: self.calls.given,
            act,
        });
    }

    /// Up to where the rings are taken.
    fn taken(&self) -> Used {
        let gather = self.gather.as_ref().map_or(0, DeviceRing::end);
        Used { tables: self.tables.end(), staging: self.staging.end(), gather }
    }

    fn free(&mut self, used: Used) {
        self.tables.free_to(used.tables);
        self.staging.free_to(used.staging);
        if let Some(gather) = &mut self.gather {
            gather.free_to(used.gather);
        }
    }

    fn record(&self, stream: Stream) -> Result<OwnedEvent, DeviceError> {
        let event = OwnedEvent::new(&self.core.driver)?;
        event.record(stream)?;
        Ok(event)
    }

    /// Waits for the oldest step, so that what it used becomes free.
    fn wait_step(&mut self, flight: &FlightBoard) -> Result<(), DeviceError> {
        let before = self.steps.len();
        loop {
            if let Some(error) = self.core.broken() {
                return Err(error);
            }
            if flight.is_cancelled() {
                return Err(cancelled());
            }
            if self.steps.is_empty() || self.steps.len() != before {
                return Ok(());
            }
            if !self.poll() {
                std::thread::sleep(pause_after(self.moved));
            }
        }
    }

    fn poll_gates(&mut self) -> bool {
        let mut passed = Vec::new();
        self.queue.state.lock().gates.retain(|(mark, flight)| match mark.passed() {
            // Whoever waited for it may be gone: nobody else has the flight, and nothing is to be done then.
            Ok(false) => Arc::strong_count(flight) > 1 || flight.is_awaited(),
            result => {
                passed.push((Arc::clone(flight), result.map(|_| ())));
                false
            }
        });
        let moved = !passed.is_empty();
        for (flight, result) in passed {
            if let Err(error) = &result {
                self.core.fail(error.clone());
            }
            flight.set_done(result.map(|()| Landed { checksums: Vec::new(), at: Instant::now() }));
        }
        moved
    }

    /// Acts on all steps that passed. Whether there were any.
    fn poll_steps(&mut self) -> bool {
        let mut moved = false;
        while let Some(first) = self.steps.front() {
            let hangs = first.since.elapsed() >= self.core.stuck_after;
            let passed = match &first.event {
                Some(event) => event.passed(),
                None => self.record_first(),
            };
            match passed {
                Ok(true) => {}
                Ok(false) if !hangs => return moved,
                Ok(false) => {
                    let text = format!("copies have not ended within {:?}", self.core.stuck_after);
                    self.core.fail(DeviceError::new(DeviceErrorKind::Broken, text));
                    if self.gives_up {
                        self.lose_all();
                    }
                    return moved;
                }
                Err(error) => {
                    self.core.fail(error);
                    self.lose_all();
                    return true;
                }
            }
            let Some(step) = self.steps.pop_front() else { return moved };
            self.act(step.act);
            self.free(step.used);
            self.calls.done = step.calls_end;
            moved = true;
        }
        moved
    }

    /// Records the event that the first step lacks. It comes behind all that was enqueued since, which is
    /// late, but not wrong.
    fn record_first(&mut self) -> Result<bool, DeviceError> {
        let Some(stream) = self.steps.front().map(|first| first.stream) else { return Ok(false) };
        match self.record(stream) {
            Ok(event) => {
                if let Some(first) = self.steps.front_mut() {
                    first.event = Some(event);
                }
                Ok(false)
            }
            Err(error) if error.kind == DeviceErrorKind::Broken => Err(error),
            Err(_) => Ok(false),
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Nothing => {}
            Act::ToSlot { staged, filling, offset } => {
                // SAFETY: the copy into the piece is done, and it becomes free only after this.
                let bytes = unsafe { staged.bytes_mut() };
                filling.put(offset, bytes);
            }
            Act::Sums { output, first, appended } => self.read_sums(output, first, &appended),
            Act::Finish { job, on_cpu, result } => self.finish(*job, &on_cpu, result),
        }
    }

    fn finish(&mut self, job: Job, on_cpu: &[usize], result: Result<(), DeviceError>) {
        let mut checksums = std::mem::take(&mut self.sums);
        let result = result.map(|()| {
            if job.checksums {
                checksums.resize(job.pages.len(), 0);
            }
            for &page in on_cpu {
                if let Some(slot) = job.pages[page].other.slot() {
                    checksums[page] = slot.page().checksum();
                }
            }
            Landed { checksums, at: Instant::now() }
        });
        let flight = Arc::clone(&job.flight);
        drop(job);
        self.core.stats.flights.sub(1);
        flight.set_done(result);
        self.core.registry.sweep_soon();
    }

    /// The device is broken: nothing that it was given is ever touched or given back again.
    fn lose_all(&mut self) {
        self.lost = true;
        self.tables.lose();
        self.staging.lose();
        self.core.stats.quarantined_bytes.add((self.tables.len() + self.staging.len()) as u64);
        self.scratch.iter_mut().chain(&mut self.uploads).for_each(Scratch::lose);
        self.gather.iter_mut().for_each(DeviceRing::lose);
        for step in std::mem::take(&mut self.steps) {
            self.lose(step.act);
        }
    }

    fn lose(&mut self, act: Act) {
        let error = self.core.broken();
        let error =
            error.unwrap_or_else(|| DeviceError::new(DeviceErrorKind::Broken, "the device is broken"));
        match act {
            Act::Nothing | Act::Sums { .. } => {}
            Act::ToSlot { filling, .. } => std::mem::forget(filling),
            Act::Finish { job, .. } => {
                let Job { pages, flight, bytes, .. } = *job;
                self.core.stats.quarantined_bytes.add(bytes as u64);
                self.core.stats.flights.sub(1);
                std::mem::forget(pages);
                flight.set_lost(error);
            }
        }
    }
}

/// How long to wait before the next look: a small part of the wait so far, so that what took long is seen
/// only a little later, and what takes longer costs few looks.
fn pause_after(moved: Instant) -> Duration {
    (moved.elapsed() / POLL_PART).clamp(POLL_PAUSE_MIN, POLL_PAUSE_MAX)
}

impl Drop for Lane {
    fn drop(&mut self) {
        for stream in [self.stream, self.sums_stream, self.within_stream] {
            // SAFETY: the stream is ours, and nobody uses it after this.
            unsafe { self.core.driver.end_stream(stream) };
        }
    }
}
