//! Threads and tasks that a server cannot do without. Owns: noticing that one ended, and every panic's line in the log. Must
//! not know: what they do.
//!
//! None is restarted: a panic may have left the pool's books half written, and a start from what is stored is what this
//! server is best at. Whoever waits in [`Endings::next`] ends the process, with a failure that its service manager sees.

use crate::limits::ENDINGS_MAX;
use metrics::{Counter, counter, describe_counter};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::PanicHookInfo;
use tokio::sync::mpsc;

/// Names of threads in the tiers and of those that drive NICs begin so; they are as vital as those started here. What a NIC was
/// told to do goes on without its thread, so nothing of it may be used again in this process.
const VITAL_ELSEWHERE: [&str; 2] = ["nvme-", "fabric-"];

/// Starts vital threads and tasks.
#[derive(Clone)]
pub(crate) struct Supervisor {
    tell: mpsc::Sender<Ending>,
}

/// What vital threads and tasks tell at their end.
pub(crate) struct Endings {
    told: mpsc::Receiver<Ending>,
}

/// One that ended, though nobody asked it to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} {how}")]
pub(crate) struct Ending {
    name: String,
    how: &'static str,
}

/// Tells when it is dropped, by a return or by a panic.
struct Vital {
    name: &'static str,
    tell: mpsc::Sender<Ending>,
}

impl Supervisor {
    /// A supervisor, and where its endings are told.
    pub(crate) fn new() -> (Supervisor, Endings) {
        let (tell, told) = mpsc::channel(ENDINGS_MAX);
        (Supervisor { tell }, Endings { told })
    }

    /// Starts a vital thread.
    pub(crate) fn thread(
        &self,
        name: &'static str,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        let vital = self.vital(name);
        let run = move || {
            let _vital = vital;
            work();
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
    }

    /// Starts a vital task. An error is logged and ends it like a return.
    pub(crate) fn task<E: std::fmt::Display>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<(), E>> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        let vital = self.vital(name);
        tokio::spawn(async move {
            let _vital = vital;
            if let Err(error) = work.await {
                tracing::error!(task = name, %error, "a task failed");
            }
        })
    }

    /// From now on every panic is one line of the log and one of a counter, and one in a tier's thread is told.
    pub(crate) fn watch_panics(&self) {
        describe_counter!(
            "turnkv_server_panics_total",
            "Panics: faults of the server, each with its place in the log"
        );
        let (panics, tell) = (counter!("turnkv_server_panics_total"), self.tell.clone());
        std::panic::set_hook(Box::new(move |panic| said(panic, &panics, &tell)));
    }

    fn vital(&self, name: &'static str) -> Vital {
        Vital { name, tell: self.tell.clone() }
    }
}

impl Endings {
    /// Waits until something vital has ended.
    pub(crate) async fn next(&mut self) -> Ending {
        match self.told.recv().await {
            Some(ending) => ending,
            // Every supervisor is gone, and with it all that it started.
            None => Ending { name: "everything".to_owned(), how: "ended" },
        }
    }
}

impl Drop for Vital {
    fn drop(&mut self) {
        let how = if std::thread::panicking() { "panicked" } else { "ended" };
        tell(&self.tell, Ending { name: self.name.to_owned(), how });
    }
}

/// One ending is enough to end the process: those beyond the queue, or after its end, change nothing.
fn tell(to: &mpsc::Sender<Ending>, ending: Ending) {
    if let Err(error) = to.try_send(ending) {
        tracing::debug!(%error, "nobody waits for this ending");
    }
}

fn said(panic: &PanicHookInfo<'_>, panics: &Counter, to: &mpsc::Sender<Ending>) {
    panics.increment(1);
    let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
    let place = panic.location().map_or_else(String::new, ToString::to_string);
    let text = panic.payload_as_str().unwrap_or("without a text");
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        tracing::error!(thread, place, text, %trace, "panic: a fault of the server, please report it");
    } else {
        tracing::error!(thread, place, text, "panic: a fault of the server, please report it");
    }
    if VITAL_ELSEWHERE.iter().any(|name| thread.starts_with(name)) {
        tell(to, Ending { name: thread, how: "panicked" });
    }
}

#[cfg(test)]
mod tests {
    use super::Supervisor;
    use std::time::Duration;

    async fn next(endings: &mut super::Endings) -> String {
        tokio::time::timeout(Duration::from_secs(10), endings.next()).await.unwrap().to_string()
    }

    #[tokio::test]
    async fn a_thread_that_panics_or_returns_is_told() {
        let (supervisor, mut endings) = Supervisor::new();
        supervisor.thread("a-test-ticks", || panic!("as the test wants it")).unwrap();
        assert_eq!(next(&mut endings).await, "a-test-ticks panicked");
        supervisor.thread("a-test-accepts", || {}).unwrap();
        assert_eq!(next(&mut endings).await, "a-test-accepts ended");
    }

    /// Nothing but the hook knows of them: they are started elsewhere.
    #[tokio::test]
    async fn a_panic_of_a_thread_that_drives_a_device_is_told() {
        let (supervisor, mut endings) = Supervisor::new();
        supervisor.watch_panics();
        for name in ["turnkv-rail", "nvme-reads", "fabric-mlx5_0"] {
            let thread = std::thread::Builder::new().name(name.to_owned());
            drop(thread.spawn(|| panic!("as the test wants it")).unwrap().join());
        }
        drop(std::panic::take_hook());
        assert_eq!(next(&mut endings).await, "nvme-reads panicked");
        assert_eq!(next(&mut endings).await, "fabric-mlx5_0 panicked");
    }

    #[tokio::test]
    async fn a_task_that_panics_fails_or_returns_is_told() {
        let (supervisor, mut endings) = Supervisor::new();
        supervisor.task::<String>("a-test-panics", async { panic!("as the test wants it") });
        assert_eq!(next(&mut endings).await, "a-test-panics panicked");
        supervisor.task("a-test-fails", async { Err("no listener") });
        assert_eq!(next(&mut endings).await, "a-test-fails ended");
        let running = supervisor.task::<String>("a-test-runs", std::future::pending());
        assert!(tokio::time::timeout(Duration::from_millis(50), endings.next()).await.is_err());
        running.abort();
    }

    #[test]
    fn many_endings_at_once_wait_for_nobody() {
        let (supervisor, endings) = Supervisor::new();
        drop(endings);
        drop(supervisor.vital("late"));
        let (supervisor, _endings) = Supervisor::new();
        for _ in 0..1_000 {
            drop(supervisor.vital("again"));
        }
    }
}
