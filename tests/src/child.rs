//! A process that a test starts. Owns: that it is gone when the test is, also one that failed: what is left over keeps the pipe of
//! whoever reads the tests' output open, and he waits for ever. Must not know: what it runs.

use std::ops::{Deref, DerefMut};
use std::process::{Child, Command};

/// A running process. Dropped, it is killed.
pub struct Running(Child);

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// There is no such program.
    pub fn start(command: &mut Command) -> std::io::Result<Running> {
        command.spawn().map(Running)
    }
}

impl Deref for Running {
    type Target = Child;
    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.kill().and_then(|()| self.0.wait()).is_err() {
            // It had ended already.
        }
    }
}
