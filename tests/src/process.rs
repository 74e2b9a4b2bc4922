//! What the kernel says of a process. Owns: reading /proc. Must not know: whose process it is.

use anyhow::{Context, Result};
use std::time::Duration;

/// What a process has now.
#[derive(Debug, Clone, Copy)]
pub struct Holdings {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Processor time since it began.
    pub cpu: Duration,
    /// Resident memory that is its own, bytes.
    pub own_bytes: u64,
}

impl Holdings {
    /// Of a process.
    ///
    /// # Errors
    /// It is gone.
    pub fn of(pid: u32) -> Result<Holdings> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let number = |key: &str| -> Result<u64> {
            let line = status.lines().find(|line| line.starts_with(key)).context("no such line")?;
            Ok(line.split_whitespace().nth(1).context("no number")?.parse()?)
        };
        Ok(Holdings {
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            threads: usize::try_from(number("Threads:")?)?,
            cpu: cpu(pid)?,
            own_bytes: number("RssAnon:")? << 10,
        })
    }
}

/// User and system time of a process.
fn cpu(pid: u32) -> Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name may hold spaces; the fields after it do not.
    let (_, fields) = stat.rsplit_once(") ").context("no name")?;
    let mut times = fields.split(' ').skip(11).map(str::parse::<u64>);
    let ticks = times.next().context("no utime")?? + times.next().context("no stime")??;
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_millis(ticks * 1000 / per_second.max(1)))
}

/// Bytes of slabs that a process has mapped and that are in memory.
///
/// # Errors
/// It is gone.
pub fn slab_bytes(pid: u32) -> Result<u64> {
    let (mut bytes, mut of_slab) = (0, false);
    for line in std::fs::read_to_string(format!("/proc/{pid}/smaps"))?.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if first.contains('-') {
            of_slab = line.contains("/memfd:turnkv-slab");
        } else if of_slab && first == "Rss:" {
            let kib: u64 = words.next().context("no number")?.parse()?;
            bytes += kib << 10;
        }
    }
    Ok(bytes)
}
