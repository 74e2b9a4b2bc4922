//! The disk's limit: the same bytes, the same size and the same bytes in flight without a pool, O_DIRECT.
//! fio's io_uring engine measures it where fio is installed, else threads of this program do, one a request in flight.
//! Must not know: the pool.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::memory::{Buffer, without_huge_pages};
use crate::sampling::Random;

/// Requests in flight of the thread engine at the most.
const THREADS_MAX: usize = 64;

/// A file on the disk to measure.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
    bytes: usize,
    fio: bool,
}

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Random reads.
    Read,
    /// Sequential writes, flushed at the end.
    Write,
}

impl Disk {
    /// A file of `bytes` in `folder`, written once.
    pub fn new(folder: &Path, bytes: usize) -> Result<Disk> {
        let fio = without_huge_pages(Command::new("fio").arg("--version"))
            .output()
            .is_ok_and(|o| o.status.success());
        let disk = Disk { path: folder.join("limit.data"), bytes, fio };
        disk.by_threads(Direction::Write, 2 << 20, 4)?;
        Ok(disk)
    }

    /// What measures, for the table's title.
    pub fn engine(&self) -> &'static str {
        if self.fio { "fio, io_uring, O_DIRECT" } else { "preads of O_DIRECT threads (fio is not installed)" }
    }

    /// Moves `bytes` in requests of `request_bytes`, `inflight_bytes` of them at once; returns bytes a second.
    pub fn measure(
        &self,
        direction: Direction,
        bytes: usize,
        request_bytes: usize,
        inflight_bytes: usize,
    ) -> Result<f64> {
        let depth = (inflight_bytes / request_bytes).clamp(1, THREADS_MAX);
        ensure!(bytes <= self.bytes, "the limit's file has {} bytes, {bytes} were asked for", self.bytes);
        if self.fio {
            return self.by_fio(direction, bytes, request_bytes, depth);
        }
        let started = Instant::now();
        let moved = Disk { path: self.path.clone(), bytes, fio: false }.by_threads(
            direction,
            request_bytes,
            depth,
        )?;
        Ok(moved as f64 / started.elapsed().as_secs_f64())
    }

    fn by_fio(&self, direction: Direction, bytes: usize, request_bytes: usize, depth: usize) -> Result<f64> {
        let (kind, field) = match direction {
            Direction::Read => ("randread", "read"),
            Direction::Write => ("write", "write"),
        };
        let mut command = Command::new("fio");
        command.args(["--name=limit", "--direct=1", "--ioengine=io_uring", "--end_fsync=1", "--minimal"]);
        command.args(["--fixedbufs", "--norandommap", "--randrepeat=0", "--terse-version=3"]);
        command.arg(format!("--filename={}", self.path.display())).arg(format!("--rw={kind}"));
        command.arg(format!("--filesize={}", self.bytes)).arg(format!("--io_size={bytes}"));
        command.arg(format!("--bs={request_bytes}")).arg(format!("--iodepth={depth}"));
        let output = without_huge_pages(&mut command).output().context("running fio")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "fio failed: {}", String::from_utf8_lossy(&output.stderr));
        terse_rate(&text, field).with_context(|| format!("fio printed no {field} rate: {text}"))
    }

    /// Every request of the file once, by `depth` threads; returns the bytes moved.
    fn by_threads(&self, direction: Direction, request_bytes: usize, depth: usize) -> Result<usize> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT);
        if direction == Direction::Write {
            options.write(true).create(true).truncate(false);
        }
        let file =
            options.open(&self.path).with_context(|| format!("{} with O_DIRECT", self.path.display()))?;
        let requests = self.bytes / request_bytes;
        let order = if direction == Direction::Read {
            Random::new(3).order(requests)
        } else {
            (0..requests).collect()
        };
        let next = AtomicUsize::new(0);
        let work = || move_requests(&file, direction, request_bytes, &order, &next);
        std::thread::scope(|scope| -> Result<()> {
            let spawn = |at| std::thread::Builder::new().name(format!("disk-{at}")).spawn_scoped(scope, work);
            let threads = (0..depth).map(spawn).collect::<std::io::Result<Vec<_>>>()?;
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread died"))?)
        })?;
        if direction == Direction::Write {
            file.sync_data()?;
        }
        Ok(requests * request_bytes)
    }
}

fn move_requests(
    file: &File,
    direction: Direction,
    request_bytes: usize,
    order: &[usize],
    next: &AtomicUsize,
) -> Result<()> {
    let mut buffer = Buffer::new(request_bytes);
    while let Some(request) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
        let offset = (request * request_bytes) as u64;
        match direction {
            Direction::Read => file.read_exact_at(buffer.bytes_mut(), offset)?,
            Direction::Write => file.write_all_at(buffer.bytes(), offset)?,
        }
    }
    Ok(())
}

/// Bytes a second from fio's terse output, version 3: KiB/s is the 7th field for reads, the 48th for writes. The
/// flush at the end belongs to the time of a write, so that rate is taken from the run time in ms and the KiB moved.
fn terse_rate(text: &str, field: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("3;"))?;
    let fields: Vec<&str> = line.split(';').collect();
    let first = if field == "read" { 5 } else { 46 };
    let kib: f64 = fields.get(first)?.parse().ok()?;
    let run_ms: f64 = fields.get(first + 3)?.parse().ok()?;
    (run_ms > 0.0 && kib > 0.0).then(|| kib * 1024.0 / (run_ms / 1000.0))
}

#[cfg(test)]
mod tests {
    use super::{Direction, Disk, terse_rate};

    #[test]
    fn terse_output_is_read() {
        let mut fields = vec!["0"; 60];
        (fields[0], fields[5], fields[8]) = ("3", "2048", "1000");
        (fields[46], fields[49]) = ("4096", "500");
        let line = fields.join(";");
        assert_eq!(terse_rate(&line, "read"), Some(2.0 * 1024.0 * 1024.0));
        assert_eq!(terse_rate(&line, "write"), Some(8.0 * 1024.0 * 1024.0));
        assert_eq!(terse_rate("nothing", "read"), None);
    }

    #[test]
    fn threads_measure_where_there_is_no_fio() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // Some file systems that hold temporary files have no O_DIRECT.
        let Ok(disk) = Disk::new(folder.path(), 8 << 20) else { return };
        let disk = Disk { fio: false, ..disk };
        let rate = disk.measure(Direction::Read, 8 << 20, 1 << 20, 4 << 20).expect("the file can be read");
        assert!(rate > 0.0);
    }
}
