//! The signals that ask a server to leave. Owns: when they are heard, and what is said of why a server leaves. Must not know: what a
//! server does then.

use crate::report::misused;
use crate::supervise::Endings;
use rustix::process::Signal as Number;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use turnkv_transfer::inherited::default_signal;

/// The signals that ask the server to leave.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// A terminal that closes is no reason to lose what is not written. None: it has the configuration read again instead.
    pub(super) hangup: Option<Signal>,
}

/// How long a signal that came last may take to be heard.
const HEARD: Duration = Duration::from_millis(2);

impl Signals {
    /// From now on they do not end the process by themselves.
    pub(super) fn listen() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: Some(signal(SignalKind::hangup())?),
        })
    }

    /// Whether one that ends the server for good has come and was not heard yet.
    pub(super) async fn has_ended(&mut self) -> bool {
        let ended = async {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
        };
        tokio::time::timeout(HEARD, ended).await.is_ok()
    }

    /// From now on they end the process by themselves: nobody is left to hear them. Says whether one came before.
    pub(super) async fn stop_listening(mut self) -> bool {
        [Number::TERM, Number::INT].into_iter().for_each(default_signal);
        self.has_ended().await
    }

    /// Waits for a reason to leave.
    pub(super) async fn end(
        &mut self,
        nobody: impl Future<Output = ()>,
        endings: &mut Endings,
    ) -> anyhow::Result<&'static str> {
        Ok(tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            () = hung_up(&mut self.hangup) => "SIGHUP",
            () = nobody => "the last client is gone",
            ending = endings.next() => {
                tracing::error!(%ending, "the server cannot go on");
                let todo = "start it again: it serves what is stored; report what its log says of this";
                return Err(misused(format!("{ending}: the server cannot go on"), todo));
            }
        })
    }
}

/// The signal, where it ends the server.
async fn hung_up(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::Signals;
    use crate::report::lines;
    use crate::supervise::Supervisor;
    use std::time::Duration;

    #[tokio::test]
    async fn a_panic_of_a_vital_thread_ends_the_server_with_an_error() {
        let (supervisor, mut endings) = Supervisor::new();
        supervisor.thread("a-test-ticks", || panic!("as the test wants it")).unwrap();
        let mut signals = Signals::listen().unwrap();
        let ended = signals.end(std::future::pending(), &mut endings);
        let ended = tokio::time::timeout(Duration::from_secs(10), ended).await.unwrap();
        let (what, todo) = lines(&ended.unwrap_err());
        assert!(what.contains("a-test-ticks panicked") && todo.contains("start it again"), "{what}: {todo}");
    }

    #[tokio::test]
    async fn a_private_server_without_clients_leaves_in_peace() {
        let (_supervisor, mut endings) = Supervisor::new();
        let left = Signals::listen().unwrap().end(async {}, &mut endings).await;
        assert_eq!(left.unwrap(), "the last client is gone");
    }
}
