//! The client's end of a framed rail. Owns: the handle that the client has. Must not know: how bytes move.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::domain::FramedDomain;
use super::life::TargetLife;
use super::serving::Serving;
use super::stream::FramedStream;
use crate::fabric::contract::Target;
use crate::fabric::operation::Cause;

/// A rail over a data connection. Dropped, it is closed.
#[derive(Debug)]
pub struct FramedTarget {
    life: Arc<TargetLife>,
}

impl FramedTarget {
    /// Starts the thread that serves a joined connection with the memory of this domain. `stall` as for
    /// [`super::FramedInitiator::open`].
    ///
    /// # Errors
    /// The process or the system is out of descriptors or threads.
    pub fn open(stream: FramedStream, domain: &Arc<FramedDomain>, stall: Duration) -> io::Result<Self> {
        let life = Arc::new(TargetLife::new()?);
        domain.has(&life);
        let serving = Serving::new(stream, Arc::clone(domain), Arc::clone(&life), stall);
        std::thread::Builder::new().name("turnkv-rail".to_owned()).spawn(move || serving.run())?;
        Ok(Self { life })
    }
}

impl Target for FramedTarget {
    fn close(&self) {
        self.life.close();
    }

    fn death(&self) -> Option<Cause> {
        self.life.death()
    }
}

impl Drop for FramedTarget {
    fn drop(&mut self) {
        self.life.close();
    }
}
