//! The server's end of a framed rail. Owns: the handle that callers have. Must not know: how bytes move.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::initiating::Initiating;
use super::pending::Pending;
use super::stream::FramedStream;
use crate::fabric::completion::CompletionQueue;
use crate::fabric::contract::Initiator;
use crate::fabric::operation::{Cause, Operation, Unposted};

/// A rail over a data connection. Dropped, it is closed.
#[derive(Debug)]
pub struct FramedInitiator {
    pending: Arc<Pending>,
}

impl FramedInitiator {
    /// Starts the thread that serves a joined connection. `stall`: how long it goes without a byte while one is
    /// due, [`crate::limits::FRAMED_STALL`] but for tests.
    ///
    /// # Errors
    /// The process or the system is out of descriptors or threads.
    pub fn open(
        stream: FramedStream,
        completions: &Arc<CompletionQueue>,
        stall: Duration,
    ) -> io::Result<Self> {
        let (rail, unstarted) = Self::unstarted(stream, completions, stall)?;
        unstarted.start()?;
        Ok(rail)
    }

    /// A rail that takes operations and begins none before it is started: whoever hears of it next may find it in use.
    ///
    /// # Errors
    /// The process or the system is out of descriptors.
    pub fn unstarted(
        stream: FramedStream,
        completions: &Arc<CompletionQueue>,
        stall: Duration,
    ) -> io::Result<(Self, UnstartedRail)> {
        let pending = Arc::new(Pending::new(completions)?);
        let initiating = Initiating::new(stream, Arc::clone(&pending), stall);
        Ok((Self { pending }, UnstartedRail(initiating)))
    }
}

/// The connection of a rail that has not begun. Dropped, the rail ends, with all that was posted on it.
#[derive(Debug)]
pub struct UnstartedRail(Initiating);

impl UnstartedRail {
    /// Tells the peer something before anything that the rail says.
    ///
    /// # Errors
    /// As [`FramedStream::write_all_by`].
    pub fn say(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        self.0.say(bytes, deadline)
    }

    /// Starts the thread that serves the connection.
    ///
    /// # Errors
    /// The process or the system is out of threads.
    pub fn start(self) -> io::Result<()> {
        std::thread::Builder::new().name("turnkv-rail".to_owned()).spawn(move || self.0.run()).map(drop)
    }
}

impl Initiator for FramedInitiator {
    fn post(&self, operation: Operation) -> Result<(), Unposted> {
        self.pending.post(operation)
    }

    fn queued_bytes(&self) -> u64 {
        self.pending.queued_bytes()
    }

    fn close(&self) {
        self.pending.close();
    }

    fn death(&self) -> Option<Cause> {
        self.pending.death()
    }
}

impl Drop for FramedInitiator {
    fn drop(&mut self) {
        self.pending.close();
    }
}
