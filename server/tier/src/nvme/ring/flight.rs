//! Operations the kernel is working on. Owns: them, with their slots and files, until their last completion.
//! Must not know: the ring.

use super::super::operation::{Failure, Operation};
use crate::errno::{ErrnoClass, Rereads};
use crate::limits::{BLOCK, RETRIES_MAX};
use rustix::io::Errno;
use turnkv_transfer::PageMut;

/// The two parts of a write; a read has only the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Payload,
    Header,
}

/// How far one part is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) done: usize,
    pub(super) bytes: usize,
    tries: u32,
    rereads: Rereads,
}

/// What a completion means for its part.
#[derive(Debug)]
pub(super) enum PartOutcome {
    /// All of it went through.
    Over,
    /// Submit the rest.
    Again,
    /// Submit the same after a pause: the system is short of something.
    Later,
    /// It cannot be done.
    Failed(Failure),
}

impl Progress {
    pub(super) fn of(bytes: usize) -> Progress {
        Progress { bytes, ..Progress::default() }
    }

    /// Takes a completion's result. A short transfer goes on from the last whole block, because O_DIRECT
    /// cannot begin inside one: of 12,288 bytes 5,000 came, so the next submission begins at 4,096.
    pub(super) fn advance(&mut self, is_read: bool, result: i32) -> PartOutcome {
        if result >= 0 && self.done + result as usize >= self.bytes {
            return PartOutcome::Over;
        }
        self.tries += 1;
        if self.tries > RETRIES_MAX && result >= 0 {
            return PartOutcome::Failed(Failure::device(
                is_read,
                &format!("no progress after {RETRIES_MAX} tries"),
            ));
        }
        if result > 0 {
            self.done = (self.done + result as usize) / BLOCK * BLOCK;
            return PartOutcome::Again;
        }
        if result == 0 {
            return PartOutcome::Failed(Failure::device(is_read, "the file ends before the segment does"));
        }
        let errno = Errno::from_raw_os_error(-result);
        match ErrnoClass::of(errno) {
            ErrnoClass::Interrupted if self.tries <= RETRIES_MAX => PartOutcome::Again,
            ErrnoClass::Short if self.tries <= RETRIES_MAX => PartOutcome::Later,
            fault if self.tries <= RETRIES_MAX && self.rereads.again(is_read, fault) => PartOutcome::Again,
            _ => PartOutcome::Failed(Failure::of(is_read, errno)),
        }
    }
}

/// One operation in flight.
pub(super) struct Flight {
    pub(super) operation: Operation,
    pub(super) payload: Progress,
    pub(super) header: Progress,
    /// Completions still to come.
    pub(super) pending: u8,
    pub(super) failure: Option<Failure>,
    /// The staging block of a write's header.
    pub(super) staging: Option<PageMut>,
}

/// All of them, by number.
pub(super) struct Flights {
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
}

impl Flights {
    pub(super) fn new(count: usize) -> Flights {
        Flights { flights: (0..count).map(|_| None).collect(), free: (0..count).rev().collect() }
    }

    /// Takes a flight in; its number, unless there is no room.
    pub(super) fn add(&mut self, flight: Flight) -> Result<usize, Box<Flight>> {
        match self.free.pop() {
            Some(number) => {
                self.flights[number] = Some(flight);
                Ok(number)
            }
            None => Err(Box::new(flight)),
        }
    }

    pub(super) fn get(&mut self, number: usize) -> Option<&mut Flight> {
        self.flights.get_mut(number)?.as_mut()
    }

    /// The last completion came: gives the flight out.
    pub(super) fn remove(&mut self, number: usize) -> Option<Flight> {
        let flight = self.flights.get_mut(number)?.take()?;
        self.free.push(number);
        Some(flight)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.flights.len()
    }
}

impl Drop for Flights {
    /// Completion, never `Drop`, releases what the kernel may still be writing: whatever is left here (the
    /// thread panicked, or the kernel refused to go on) is leaked on purpose.
    fn drop(&mut self) {
        std::mem::take(&mut self.flights).into_iter().flatten().for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::REREADS_MAX;

    #[test]
    fn a_short_transfer_goes_on_from_a_whole_block() {
        let mut progress = Progress::of(12_288);
        assert!(matches!(progress.advance(true, 5000), PartOutcome::Again));
        assert_eq!(progress.done, 4096);
        assert!(matches!(progress.advance(true, -libc::EINTR), PartOutcome::Again));
        assert!(matches!(progress.advance(true, -libc::EAGAIN), PartOutcome::Later));
        assert_eq!(progress.done, 4096);
        assert!(matches!(progress.advance(true, 8192), PartOutcome::Over));
    }

    #[test]
    fn faults_end_it_and_so_does_no_progress() {
        let of = |result| Progress::of(4096).advance(false, result);
        assert!(matches!(of(-libc::EIO), PartOutcome::Failed(Failure::Io(_))));
        assert!(matches!(of(-libc::ENOSPC), PartOutcome::Failed(Failure::Full)));
        assert!(matches!(of(0), PartOutcome::Failed(Failure::Io(_))));
        let mut progress = Progress::of(4096);
        let tries = (0..).take_while(|_| matches!(progress.advance(false, 1), PartOutcome::Again)).count();
        assert_eq!(tries as u32, RETRIES_MAX);
    }

    #[test]
    fn a_read_that_the_device_failed_is_made_again_so_often() {
        let mut progress = Progress::of(4096);
        let tries =
            (0..).take_while(|_| matches!(progress.advance(true, -libc::EIO), PartOutcome::Again)).count();
        assert_eq!(tries as u32, REREADS_MAX);
        assert!(matches!(progress.advance(true, -libc::EIO), PartOutcome::Failed(Failure::Unreadable(_))));
        let mut progress = Progress::of(4096);
        assert!(matches!(progress.advance(true, -libc::EIO), PartOutcome::Again));
        assert!(matches!(progress.advance(true, 4096), PartOutcome::Over));
    }

    #[test]
    fn what_the_system_is_short_of_is_never_the_device_s_fault() {
        for errno in [libc::EAGAIN, libc::EBUSY, libc::ENOMEM, libc::ENOBUFS, libc::EMFILE, libc::ENFILE] {
            let mut progress = Progress::of(4096);
            let tries =
                (0..).take_while(|_| matches!(progress.advance(false, -errno), PartOutcome::Later)).count();
            assert_eq!(tries as u32, RETRIES_MAX);
            assert!(matches!(progress.advance(false, -errno), PartOutcome::Failed(Failure::Short(_))));
        }
    }
}
