//! The server's certificate, key and client authorities while it runs. Owns: the set in force, and its change: the files are read
//! again and again, what is new and good is taken over, what is not leaves the old set as it is and is said. Must not know:
//! handshakes.
//!
//! Somebody who replaces a certificate and its key does not do so at once. So a set that cannot be used is called bad only when a
//! second look finds the same bytes.

use super::certified::{Certified, CertifiedConnections, CertifiedEnd, EndConnection, Shown};
use super::counters::TlsCounters;
use crate::limits::TLS_LOOK_MS;
use parking_lot::Mutex;
use rustls::Error;
use rustls::pki_types::{CertificateDer, UnixTime};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use turnkv_transfer::tls::{ServerFiles, ServerTls, TlsError};

/// The set in force.
pub(crate) struct Credentials {
    files: ServerFiles,
    /// What is spoken over TLS, as ALPN names it.
    protocols: &'static [&'static [u8]],
    state: Mutex<State>,
    connections: Arc<CertifiedConnections>,
    pub(super) counters: Arc<TlsCounters>,
}

struct State {
    set: Arc<ServerTls>,
    /// What the set was made of.
    digest: [u8; 32],
    /// What was found to be of no use.
    bad: Bad,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bad {
    No,
    /// At the last look: it may be half written.
    Seen([u8; 32]),
    /// Twice, and it was said.
    Said([u8; 32]),
}

impl Credentials {
    /// Reads and checks the files.
    pub(crate) fn open(
        files: ServerFiles,
        protocols: &'static [&'static [u8]],
        counters: Arc<TlsCounters>,
    ) -> Result<Arc<Credentials>, TlsError> {
        let bytes = files.read()?;
        let set = Arc::new(files.load(&bytes, protocols, UnixTime::now())?);
        let state = Mutex::new(State { set, digest: bytes.digest(), bad: Bad::No });
        let credentials = Credentials { files, protocols, state, connections: Arc::default(), counters };
        credentials.show(UnixTime::now());
        Ok(Arc::new(credentials))
    }

    /// The set in force.
    pub(super) fn set(&self) -> Arc<ServerTls> {
        Arc::clone(&self.state.lock().set)
    }

    /// A connection went through its handshake: from now on it ends when its certificate is not accepted any more. The set may
    /// have changed since the handshake began: the error says that the one in force does not accept it.
    pub(super) fn look_after(
        &self,
        of: &Arc<ServerTls>,
        chain: Vec<CertificateDer<'static>>,
        not_after_s: i64,
        end: EndConnection,
    ) -> Result<Certified, Error> {
        // In the list before the set is asked for: whoever takes a new one over then finds it there.
        let certified = self.connections.add(Shown {
            chain: chain.clone(),
            not_after_s,
            end: Mutex::new(CertifiedEnd::By(end)),
        });
        let set = self.set();
        if !Arc::ptr_eq(&set, of) {
            set.accepts(&chain, UnixTime::now())?;
        }
        Ok(certified)
    }

    /// Looks at the files for as long as the server runs.
    pub(crate) async fn watch(self: Arc<Self>) -> Result<(), Infallible> {
        loop {
            tokio::time::sleep(Duration::from_millis(TLS_LOOK_MS)).await;
            let looking = Arc::clone(&self);
            // Files may be slow, and many certificates take long to ask.
            if let Err(error) = tokio::task::spawn_blocking(move || looking.look(UnixTime::now())).await {
                tracing::error!(%error, "a look at the files of [tls] failed");
            }
        }
    }

    /// One look: takes changed files over, and ends the connections that must.
    fn look(&self, now: UnixTime) {
        let changed = self.changed(now);
        let ended = self.connections.go_over(changed.as_deref(), now);
        if ended > 0 {
            tracing::warn!(ended, "connections end: their certificates are not accepted any more");
        }
        self.show(now);
    }

    /// The set of changed files, if they did change and it was taken over.
    fn changed(&self, now: UnixTime) -> Option<Arc<ServerTls>> {
        // One that cannot be read is like one with other bytes, the same as long as it cannot be.
        let read = self.files.read();
        let digest = read.as_ref().map_or([0; 32], |bytes| bytes.digest());
        let (in_force, bad) = {
            let state = self.state.lock();
            (state.digest, state.bad)
        };
        if digest == in_force {
            self.state.lock().bad = Bad::No;
            return None;
        }
        if bad == Bad::Said(digest) {
            return None;
        }
        match read.and_then(|bytes| self.files.load(&bytes, self.protocols, now)) {
            Ok(set) => {
                let set = Arc::new(set);
                *self.state.lock() = State { set: Arc::clone(&set), digest, bad: Bad::No };
                self.counters.reloaded.increment(1);
                tracing::info!("the files of [tls] have changed: the new ones are in force");
                Some(set)
            }
            Err(error) => {
                let said = bad == Bad::Seen(digest);
                self.state.lock().bad = if said { Bad::Said(digest) } else { Bad::Seen(digest) };
                if said {
                    self.counters.kept.increment(1);
                    tracing::error!(%error, "the files of [tls] have changed and are of no use: the old ones stay in force");
                }
                None
            }
        }
    }

    fn show(&self, now: UnixTime) {
        let left = self.set().not_after_s.saturating_sub(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        self.counters.expires.set(left as f64);
    }
}

#[cfg(test)]
pub(super) mod tests;
