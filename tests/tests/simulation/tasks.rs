//! Who runs next: an executor whose order its caller chooses. Owns: the tasks that wait and those that could go on.
//! Must not know: what a task does.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// Tasks of one thread.
#[derive(Default)]
pub(crate) struct Tasks {
    tasks: BTreeMap<u64, Task>,
    next: u64,
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Flag>,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Tasks {
    /// Adds a task; it can go on at once.
    pub(crate) fn spawn(&mut self, future: impl Future<Output = ()> + 'static) -> u64 {
        self.next += 1;
        let woken = Arc::new(Flag(AtomicBool::new(true)));
        self.tasks.insert(self.next, Task { future: Box::pin(future), woken });
        self.next
    }

    /// Those that can go on, in order.
    pub(crate) fn ready(&self) -> Vec<u64> {
        let ready = |(id, task): (&u64, &Task)| task.woken.0.load(Ordering::Relaxed).then_some(*id);
        self.tasks.iter().filter_map(ready).collect()
    }

    /// Lets one go on until it waits; true: it has ended.
    pub(crate) fn poll(&mut self, id: u64) -> bool {
        let Some(task) = self.tasks.get_mut(&id) else { return true };
        task.woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&task.woken));
        match task.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => false,
            Poll::Ready(()) => {
                self.tasks.remove(&id);
                true
            }
        }
    }

    /// Ends a task where it waits.
    pub(crate) fn cancel(&mut self, id: u64) {
        self.tasks.remove(&id);
    }

    /// Those that have not ended.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.tasks.keys().copied().collect()
    }
}

/// Lets others go on first.
pub(crate) async fn pause() {
    let paused = Rc::new(Cell::new(false));
    std::future::poll_fn(|context| {
        if paused.replace(true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
