//! Where the tier's time and randomness come from. Owns: that choice. Must not know: what they are used for.

#[cfg(feature = "simulation")]
use super::simulated_disk::SimulatedDisk;
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// The time and the random numbers of one tier.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The host's.
    System,
    /// Those of a simulated disk: the same in every run with the same seed.
    #[cfg(feature = "simulation")]
    Simulated(SimulatedDisk),
}

impl Clock {
    /// Now.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        match self {
            Clock::System => Instant::now(),
            #[cfg(feature = "simulation")]
            Clock::Simulated(disk) => disk.now(),
        }
    }

    /// 16 bytes nobody can guess.
    pub(crate) fn random(&self) -> Result<[u8; 16], Errno> {
        #[cfg(feature = "simulation")]
        if let Clock::Simulated(disk) = self {
            return Ok(disk.random());
        }
        let mut bytes = [0; 16];
        loop {
            match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
                Ok(count) if count == bytes.len() => return Ok(bytes),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    /// How many threads do work that could use so many: a simulation's order is the seed's, so it has one.
    pub(crate) fn threads(&self, most: usize) -> usize {
        match self {
            Clock::System => most,
            #[cfg(feature = "simulation")]
            Clock::Simulated(_) => 1,
        }
    }

    /// Lets so much time pass.
    pub(crate) fn sleep(&self, wait: Duration) {
        match self {
            Clock::System => std::thread::sleep(wait),
            #[cfg(feature = "simulation")]
            Clock::Simulated(disk) => disk.advance(wait),
        }
    }
}
