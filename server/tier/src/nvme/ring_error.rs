//! Why there is no ring, or why it failed. Must not know: who asked for one.

use rustix::io::Errno;
use std::io;

/// Why io_uring does not carry this tier's operations: the tier opens with threads instead (engine `auto`),
/// says so in an error (engine `ring`), or is poisoned if it served already.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The kernel makes no ring.
    #[error("{0}")]
    Setup(io::Error),
    /// There is no memory for the headers of writes.
    #[error("staging memory: {0}")]
    Staging(io::Error),
    /// The thread's wake-up cannot be made or read.
    #[error("eventfd: {0}")]
    Eventfd(Errno),
    /// The thread cannot be started.
    #[error("its thread: {0}")]
    Thread(io::Error),
    /// The thread ended before it said how it went.
    #[error("its thread ended")]
    ThreadEnded,
    /// The kernel takes no submissions and gives no completions.
    #[error("{0}")]
    Enter(io::Error),
    /// The kernel never makes room in the submission queue.
    #[error("the submission queue stays full")]
    QueueFull,
    /// More writes are in flight than there are staging blocks.
    #[error("no staging block is free")]
    NoStaging,
    /// More operations are in flight than the schedule allows.
    #[error("more operations in flight than the schedule allows")]
    TooManyInFlight,
    /// The kernel completed something that nobody submitted.
    #[error("a completion names no operation ({0})")]
    UnknownCompletion(u64),
}
