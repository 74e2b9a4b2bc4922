//! How long threads waited for a processor, as the kernel counts it. Owns: reading /proc's schedstat. Must not know: what the
//! threads do.
//!
//! Where more threads want to run than there are processors, a call's tail is mostly the wait of its own two threads for one;
//! no service can shorten that, so it is told apart from what the service took.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::threads::Threads;

/// Threads of a server that answer this process, and the thread that asks.
#[derive(Debug)]
pub struct Queued {
    asker: File,
    answerers: Vec<File>,
}

/// Nanoseconds waited so far.
#[derive(Debug, Clone, Copy)]
pub struct Waited {
    asker: u64,
    answerers: u64,
}

impl Queued {
    /// Watches the calling thread, and those that answer it.
    pub fn watch(answerers: &Threads) -> Result<Queued> {
        let answerers = answerers.folders().map(|task| open(&task)).collect::<Result<_>>()?;
        Ok(Queued { asker: open(Path::new("/proc/thread-self"))?, answerers })
    }

    /// The counts now.
    pub fn waited(&self) -> Result<Waited> {
        let mut waited = Waited { asker: count(&self.asker)?, answerers: 0 };
        for thread in &self.answerers {
            waited.answerers += count(thread)?;
        }
        Ok(waited)
    }
}

impl Waited {
    /// Microseconds of a call between `before` and this that were surely spent waiting: where both sides waited, some of it
    /// may have been at once, so only the longer one counts.
    pub fn since(&self, before: &Waited) -> f64 {
        let asker = self.asker.saturating_sub(before.asker);
        asker.max(self.answerers.saturating_sub(before.answerers)) as f64 / 1e3
    }
}

fn open(task: &Path) -> Result<File> {
    let path = task.join("schedstat");
    File::open(&path).with_context(|| format!("{}: this kernel does not count waits", path.display()))
}

/// The second number of a thread's schedstat.
fn count(schedstat: &File) -> Result<u64> {
    let mut text = [0; 96];
    let bytes = schedstat.read_at(&mut text, 0).context("reading a thread's schedstat")?;
    let text = std::str::from_utf8(&text[..bytes])?;
    let waited = text.split_whitespace().nth(1).context("a schedstat has three numbers")?;
    Ok(waited.parse()?)
}

#[cfg(test)]
mod tests {
    use super::{Queued, Waited};
    use crate::threads::Threads;

    #[test]
    fn of_two_waits_the_longer_counts() {
        let waited = |asker, answerers| Waited { asker, answerers };
        assert_eq!(waited(5_000, 9_000).since(&waited(1_000, 2_000)), 7.0);
        assert_eq!(waited(9_000, 9_000).since(&waited(1_000, 8_000)), 8.0);
    }

    #[test]
    fn waits_of_this_process_are_counted() {
        let queued = Queued::watch(&Threads::this()).expect("this thread");
        let before = queued.waited().expect("a count");
        std::thread::yield_now();
        assert!(queued.waited().expect("a count").since(&before) >= 0.0);
    }
}
