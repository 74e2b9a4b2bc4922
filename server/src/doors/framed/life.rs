//! What one connection of the door is by now. Owns: ending it from any thread. Must not know: what is spoken on it.
//!
//! ```text
//! fresh --its first bytes--> control connection
//!                       \--> data rail
//! ```

use crate::connections::Cause;
use crate::doors::frames::farewell::{say, why};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Instant;
use turnkv_proto::wire::Verb;
use turnkv_transfer::LocalSocket;
use turnkv_transfer::fabric::Initiator;

/// What one connection is by now.
pub(super) struct Life(Mutex<Stage>);

/// Its stages; each is owned by the connection's thread, or its rail's.
pub(super) enum Stage {
    /// Nothing came yet: its thread looks now and then whether it is to end.
    Fresh,
    /// Verbs in frames.
    Control(Weak<LocalSocket>),
    /// What the server moves.
    Rail(Weak<dyn Initiator>),
    /// It was told to end.
    Ended,
}

impl Life {
    /// A connection that was taken just now.
    pub(super) fn fresh() -> Arc<Life> {
        Arc::new(Life(Mutex::new(Stage::Fresh)))
    }

    /// Whether it was told to end.
    pub(super) fn has_ended(&self) -> bool {
        matches!(*self.0.lock(), Stage::Ended)
    }

    /// It is something else from now on. False: it was told to end meanwhile.
    pub(super) fn become_stage(&self, stage: Stage) -> bool {
        let mut now = self.0.lock();
        let goes_on = !matches!(*now, Stage::Ended);
        if goes_on {
            *now = stage;
        }
        goes_on
    }

    /// Whether it is a control connection.
    pub(super) fn is_control(&self) -> bool {
        matches!(*self.0.lock(), Stage::Control(_))
    }

    /// A control connection ends once the call under way on it is answered.
    pub(super) fn finish(&self) {
        if let Stage::Control(socket) = &*self.0.lock()
            && let Some(socket) = socket.upgrade()
        {
            socket.finish();
        }
    }

    /// Makes it end soon. `cause`: what its peer is told, where it can be told.
    pub(super) fn end(&self, cause: Option<Cause>) {
        let stage = std::mem::replace(&mut *self.0.lock(), Stage::Ended);
        match stage {
            Stage::Control(socket) => {
                if let Some(socket) = socket.upgrade() {
                    if let Some(cause) = cause {
                        say(&socket, Verb::Unspecified, &why(cause), Instant::now());
                    }
                    socket.shutdown();
                }
            }
            Stage::Rail(rail) => {
                if let Some(rail) = rail.upgrade() {
                    rail.close();
                }
            }
            Stage::Fresh | Stage::Ended => {}
        }
    }
}
