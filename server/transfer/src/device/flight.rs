//! Copies under way. Owns: what their starter sees of them, and what happens when nobody looks any more. Must
//! not know: drivers' calls, which memory is copied.
//!
//! ```text
//!   queued --the lane begins--> begun --enqueued on the stream--> enqueued --its events passed--> done
//!      \--taken back: done         \--taken back: no more is enqueued--/                           |
//!                                   \----------- the driver says that the device is broken -------/
//! ```
//! A flight that is done uses its memory no more, whether it failed or not; only where a driver says that the
//! device is broken can nobody know that any more. Time alone ends no flight that writes to an engine's
//! memory.
//!
//! Everything that the copies use is owned by the lane that runs them until they are done, so a flight may be
//! dropped at any moment. Who must do something only then, like ending a lease, leaves it with
//! [`Flight::abandon`].

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use crate::device::driver::{DeviceError, DeviceErrorKind, Driver, Event, Stream};

/// What is called when the copies are done (`true`), or when nobody can say any more whether the device still
/// uses their memory (`false`).
pub type Afterwards = Box<dyn FnOnce(bool) + Send>;

/// Copies that are done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landed {
    /// Of each page, in slot order; empty if none were asked for.
    pub checksums: Vec<u64>,
    /// When it was seen that the last of them was done: not before it was.
    pub at: Instant,
}

/// An event that ends with its owner.
#[derive(Debug)]
pub(crate) struct OwnedEvent {
    driver: Arc<dyn Driver>,
    event: Event,
}

impl OwnedEvent {
    pub(crate) fn new(driver: &Arc<dyn Driver>) -> Result<Self, DeviceError> {
        Ok(Self { driver: Arc::clone(driver), event: driver.new_event()? })
    }

    pub(crate) fn record(&self, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: the event is ours and lives; a `Stream` is made by this driver, or was vouched for by who
        // named it.
        unsafe { self.driver.record(self.event, stream) }
    }

    pub(crate) fn hold_up(&self, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: as in `record`.
        unsafe { self.driver.wait(stream, self.event) }
    }

    pub(crate) fn passed(&self) -> Result<bool, DeviceError> {
        self.driver.passed(self.event)
    }

    /// Refuses an engine's stream that is being captured into a graph. An event recorded there would be part
    /// of the graph, and asking for it an error that breaks the device; one waited for there would void the
    /// capture.
    pub(crate) fn check_capture(&self, stream: Stream) -> Result<(), DeviceError> {
        if !self.driver.is_capturing(stream)? {
            return Ok(());
        }
        let text = "the stream is being captured into a graph: offload and reload outside of captures";
        Err(DeviceError::new(DeviceErrorKind::Invalid, text))
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        // SAFETY: the event is ours, and not used again. Streams that wait for it go on doing so.
        unsafe { self.driver.end_event(self.event) };
    }
}

/// A point in a stream's work: what came before it is done when the mark has passed. Clones are the same
/// mark.
#[derive(Clone, Debug)]
pub struct Mark(pub(crate) Arc<OwnedEvent>);

impl Mark {
    /// Whether all that the stream was given before the mark is done. Does not wait.
    ///
    /// # Errors
    /// The device is broken.
    pub fn passed(&self) -> Result<bool, DeviceError> {
        self.0.passed()
    }

    /// Holds what `stream` is given from here on up until the mark has passed. Never waits itself.
    ///
    /// # Errors
    /// `Invalid`: the stream is being captured into a graph. The device is broken.
    pub fn hold_up(&self, stream: Stream) -> Result<(), DeviceError> {
        self.0.check_capture(stream)?;
        self.0.hold_up(stream)
    }
}

/// Copies under way. Dropping it changes nothing: they go on, and what they use is kept until they are done.
#[derive(Debug)]
pub struct Flight {
    pub(crate) shared: Arc<FlightBoard>,
}

impl Flight {
    /// Waits until all copies are enqueued, each layer with its event.
    ///
    /// # Errors
    /// The device refused some: those before them may still be under way, [`Flight::landed`] says when they
    /// are not.
    pub async fn enqueued(&self) -> Result<(), DeviceError> {
        poll_fn(|context| self.shared.poll(context, |state| state.enqueued.clone())).await
    }

    /// Waits until all copies are done.
    ///
    /// # Errors
    /// `Broken`: the driver says that nothing on this device can be known any more, and their memory is lost;
    /// or the device was broken before they began. Otherwise some were refused or taken back, and none is
    /// going on.
    pub async fn landed(&self) -> Result<Landed, DeviceError> {
        poll_fn(|context| {
            self.shared.poll(context, |state| state.done.as_ref().map(|done| done.result.clone()))
        })
        .await
    }

    /// Takes the copies back: those that have not begun never will, and of those that were begun no more is
    /// enqueued. [`Flight::landed`] says when none is going on: at once if none had begun.
    pub fn cancel(&self) {
        self.shared.cancel();
    }

    /// Waits until nothing of it goes on, however it ended.
    pub async fn ended(&self) {
        poll_fn(|context| self.shared.poll(context, |state| state.done.as_ref().map(|_| ()))).await;
    }

    /// Whether all copies are done, or failed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.shared.state.lock().done.is_some()
    }

    /// Holds what `stream` is given from here on up until the copies of a layer are done. Never waits itself.
    ///
    /// # Errors
    /// The copies are not enqueued yet, there is no such layer, the stream is being captured into a graph, or
    /// the device is broken.
    pub fn wait_layer(&self, layer: usize, stream: Stream) -> Result<(), DeviceError> {
        let state = self.shared.state.lock();
        if let Some(Err(error)) = &state.enqueued {
            return Err(error.clone());
        }
        let invalid = |text| DeviceError::new(DeviceErrorKind::Invalid, text);
        if state.enqueued.is_none() {
            return Err(invalid("the copies are not enqueued yet: wait for that first".to_owned()));
        }
        let event = state.layers.get(layer).cloned();
        let event = event
            .ok_or_else(|| invalid(format!("layer {layer} of a copy in {} layers", state.layers.len())))?;
        drop(state); // a driver may be slow, and others look at the flight
        event.check_capture(stream)?;
        event.hold_up(stream)
    }

    /// Has something done when the copies are done, or now if they are. More than once: all of it.
    pub fn abandon(&self, afterwards: Afterwards) {
        let mut state = self.shared.state.lock();
        match &state.done {
            None => state.afterwards.push(afterwards),
            Some(done) => {
                let safe = !done.lost;
                drop(state);
                afterwards(safe);
            }
        }
    }
}

/// How a flight ended.
#[derive(Debug)]
struct Done {
    result: Result<Landed, DeviceError>,
    /// Nobody can say whether the device still uses its memory.
    lost: bool,
}

/// What a flight that was taken back ends with.
pub(crate) fn cancelled() -> DeviceError {
    DeviceError::new(DeviceErrorKind::Cancelled, "the copies were taken back before all of them had begun")
}

/// What a lane and the starter of a flight share.
#[derive(Default)]
pub(crate) struct FlightBoard {
    state: Mutex<FlightState>,
}

#[derive(Default)]
struct FlightState {
    /// A lane works on it: it ends with its last copy, and no earlier.
    begun: bool,
    cancelled: bool,
    enqueued: Option<Result<(), DeviceError>>,
    done: Option<Done>,
    layers: Vec<Arc<OwnedEvent>>,
    wakers: Vec<Waker>,
    afterwards: Vec<Afterwards>,
}

impl fmt::Debug for FlightBoard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        formatter
            .debug_struct("Flight")
            .field("enqueued", &state.enqueued)
            .field("done", &state.done)
            .finish()
    }
}

impl FlightBoard {
    fn poll<T>(&self, context: &mut Context<'_>, ready: impl Fn(&FlightState) -> Option<T>) -> Poll<T> {
        let mut state = self.state.lock();
        if let Some(value) = ready(&state) {
            return Poll::Ready(value);
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Whether something is to be done when it ends.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.state.lock().afterwards.is_empty()
    }

    /// Begins it. False: it has ended already.
    pub(crate) fn begin(&self) -> bool {
        let mut state = self.state.lock();
        state.begun = true;
        state.done.is_none()
    }

    /// Whether no more of it is to be enqueued.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.state.lock().cancelled
    }

    fn cancel(&self) {
        let mut state = self.state.lock();
        state.cancelled = true;
        if !state.begun {
            self.end(state, Done { result: Err(cancelled()), lost: false });
        }
    }

    /// All copies are enqueued, or will not be. What is said first stays.
    pub(crate) fn set_enqueued(&self, result: Result<(), DeviceError>, layers: Vec<Arc<OwnedEvent>>) {
        let mut state = self.state.lock();
        if state.enqueued.is_some() {
            return;
        }
        state.enqueued = Some(result);
        state.layers = layers;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// It ended: nothing of it goes on.
    pub(crate) fn set_done(&self, result: Result<Landed, DeviceError>) {
        self.end(self.state.lock(), Done { result, lost: false });
    }

    /// The device broke under it: nobody can say whether it goes on.
    pub(crate) fn set_lost(&self, error: DeviceError) {
        self.end(self.state.lock(), Done { result: Err(error), lost: true });
    }

    /// Ends it, unless it has ended already.
    fn end(&self, mut state: MutexGuard<'_, FlightState>, done: Done) {
        if state.done.is_some() {
            return;
        }
        let safe = !done.lost;
        if state.enqueued.is_none() {
            state.enqueued = Some(done.result.as_ref().map(|_| ()).map_err(Clone::clone));
        }
        state.done = Some(done);
        let (wakers, afterwards) = (std::mem::take(&mut state.wakers), std::mem::take(&mut state.afterwards));
        drop(state);
        for afterwards in afterwards {
            afterwards(safe);
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}
