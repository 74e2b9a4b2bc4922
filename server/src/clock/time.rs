//! Simulated time: stands still until the simulator moves it. Owns: who waits for which moment. Must not know: what they wait for.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// A clock that only [`Time::advance`] moves. Clones of its `Arc` tell the same time.
#[derive(Debug, Default)]
pub struct Time(Mutex<TimeState>);

#[derive(Debug, Default)]
struct TimeState {
    now: Duration,
    /// Those who wait, by their moment and the order in which they came.
    waiting: BTreeMap<(Duration, u64), Waker>,
    next: u64,
}

impl Time {
    /// A clock at zero.
    pub fn new() -> Arc<Time> {
        Arc::default()
    }

    /// Time since the simulation began.
    pub fn now(&self) -> Duration {
        self.0.lock().now
    }

    /// Lets time pass and wakes those whose moment has come, the earliest first.
    pub fn advance(&self, by: Duration) {
        let mut state = self.0.lock();
        state.now += by;
        let now = state.now;
        let later = state.waiting.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut state.waiting, later);
        drop(state);
        due.into_values().for_each(Waker::wake);
    }

    /// The next moment that somebody waits for.
    pub fn next(&self) -> Option<Duration> {
        self.0.lock().waiting.keys().next().map(|(moment, _)| *moment)
    }

    /// Waits for so long.
    pub async fn sleep(&self, time: Duration) {
        self.until(self.now() + time, std::future::pending::<()>()).await;
    }

    /// Waits for a future, at most until a moment.
    pub(crate) async fn until<F: Future>(&self, deadline: Duration, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut place = TimeWait { time: self, at: None };
        std::future::poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            if self.now() >= deadline {
                return Poll::Ready(None);
            }
            place.wait(deadline, context.waker());
            Poll::Pending
        })
        .await
    }
}

/// A place among those who wait; left when dropped.
struct TimeWait<'a> {
    time: &'a Time,
    at: Option<(Duration, u64)>,
}

impl TimeWait<'_> {
    fn wait(&mut self, deadline: Duration, waker: &Waker) {
        let mut state = self.time.0.lock();
        let at = *self.at.get_or_insert_with(|| {
            state.next += 1;
            (deadline, state.next)
        });
        state.waiting.insert(at, waker.clone());
    }
}

impl Drop for TimeWait<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            self.time.0.lock().waiting.remove(&at);
        }
    }
}
