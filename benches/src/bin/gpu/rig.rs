//! A device's driver without the client: memory, streams and kernels, bounds-checked. Owns: every unsafe call of a driver.
//! Must not know: what is measured.
//!
//! What is enqueued holds the memory it works on, and a lane lets go of it only when an event behind it has passed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use turnkv_transfer::device::{
    CopyRequest, DeviceError, DeviceErrorKind, Driver, Event, Kernel, PagePieces, Piece, Priority, Stream,
};
use turnkv_transfer::{HugePages, Region, RegionOptions};

use crate::report::Report;

/// Work did not end in time, or failed on the device: what it uses may be in use for ever, and calls that wait for the device may
/// wait for ever.
static LOST: AtomicBool = AtomicBool::new(false);
/// How long work may take, in seconds.
static PATIENCE_SECONDS: AtomicU64 = AtomicU64::new(20);

/// What a part ends with on a lost device; its cause is told already.
const LOST_DEVICE: &str = "the device is lost";

/// Slabs are of whole huge pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Who copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    /// Copy engines, a call a piece.
    Engine,
    /// Copy engines, a call for all.
    Batch,
    /// Our kernel with so many thread blocks.
    Kernel(u32),
}

/// Memory that the device can use.
#[derive(Debug)]
pub(crate) struct Memory {
    driver: Arc<dyn Driver>,
    address: u64,
    bytes: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Device,
    Pinned,
    Registered(Arc<Region>),
}

impl Memory {
    /// Memory of the device.
    pub(crate) fn device(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Arc<Memory>> {
        let address = driver.allocate(bytes)?;
        Ok(Arc::new(Memory { driver: Arc::clone(driver), address, bytes, kind: Kind::Device }))
    }

    /// Pinned memory as the driver hands it out.
    pub(crate) fn pinned(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Arc<Memory>> {
        let address = driver.allocate_pinned(bytes)?.expose_provenance() as u64;
        Ok(Arc::new(Memory { driver: Arc::clone(driver), address, bytes, kind: Kind::Pinned }))
    }

    /// A slab as the pool makes them, then registered. Also says how long the registration took, and whether the slab lies on
    /// huge pages.
    pub(crate) fn slab(
        driver: &Arc<dyn Driver>,
        bytes: usize,
        huge_pages: HugePages,
    ) -> Result<(Arc<Memory>, f64, bool)> {
        let options = RegionOptions {
            bytes: bytes.next_multiple_of(HUGE_PAGE_BYTES),
            huge_pages,
            touch: true,
            lock: false,
            name: "turnkv-bench".to_owned(),
        };
        let (region, report) = Region::create(&options).context("making a slab")?;
        let started = Instant::now();
        // SAFETY: the region is mapped, whole pages, and owned by what is returned, which ends the registration first.
        unsafe { driver.register(region.as_ptr(), region.len()) }?;
        let seconds = started.elapsed().as_secs_f64();
        let address = region.as_ptr().expose_provenance() as u64;
        let kind = Kind::Registered(region);
        let memory = Memory { driver: Arc::clone(driver), address, bytes, kind };
        Ok((Arc::new(memory), seconds, report.huge.is_yes()))
    }

    /// Slots to copy from and to: a slab where the system lets it be registered, else pinned memory. Also says which.
    pub(crate) fn slots(driver: &Arc<dyn Driver>, bytes: usize) -> Result<(Arc<Memory>, &'static str)> {
        match Self::slab(driver, bytes, HugePages::Auto) {
            Ok((memory, ..)) => Ok((memory, "a registered slab")),
            Err(_) => Ok((Self::pinned(driver, bytes)?, "pinned memory (no slab can be registered)")),
        }
    }

    /// Its bytes, if the CPU may read them. To be looked at after a lane has finished.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        let from = self.host()?;
        let mut bytes = vec![0; self.bytes];
        // SAFETY: host memory of that length that lives as long as this. This bench reads it when no lane works on it; bytes
        // that a lane did write meanwhile would only be wrong, and the comparison fails.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), self.bytes) };
        Ok(bytes)
    }

    /// Sets its bytes, if the CPU may, when no lane works on it.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<()> {
        ensure!(bytes.len() == self.bytes, "{} bytes for {}", bytes.len(), self.bytes);
        // SAFETY: as for `read`; no reference to this memory exists anywhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.host()?, self.bytes) };
        Ok(())
    }

    fn host(&self) -> Result<*mut u8> {
        match self.kind {
            Kind::Device => bail!("the CPU cannot reach the device's memory"),
            Kind::Pinned | Kind::Registered(_) => {
                Ok(std::ptr::with_exposed_provenance_mut(self.address as usize))
            }
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if is_lost() {
            if let Kind::Registered(region) = &self.kind {
                std::mem::forget(Arc::clone(region));
            }
            return;
        }
        let base = std::ptr::with_exposed_provenance_mut(self.address as usize);
        // SAFETY: taken or registered once by this driver; all that is enqueued on it holds it, so nothing is.
        let ended = unsafe {
            match &self.kind {
                Kind::Device => self.driver.free(self.address),
                Kind::Pinned => self.driver.free_pinned(base),
                Kind::Registered(_) => self.driver.unregister(base),
            }
        };
        if let (Err(_), Kind::Registered(region)) = (ended, &self.kind) {
            std::mem::forget(Arc::clone(region)); // a broken device may still use it
        }
    }
}

/// A table in pinned memory that kernels read.
fn table<T: Copy>(driver: &Arc<dyn Driver>, entries: &[T]) -> Result<Arc<Memory>> {
    let bytes = size_of_val(entries).max(1);
    let memory = Memory::pinned(driver, bytes)?;
    // SAFETY: pinned memory of just that many bytes, page aligned; entries are plain numbers.
    unsafe { std::ptr::copy_nonoverlapping(entries.as_ptr(), memory.host()?.cast(), entries.len()) };
    Ok(memory)
}

/// Copies between two memories, checked to lie in both.
#[derive(Debug)]
pub(crate) struct Moves {
    requests: Vec<CopyRequest>,
    pieces: Arc<Memory>,
    /// First piece and number of pieces of every launch.
    launches: Vec<(usize, u32)>,
    bytes: usize,
    _memory: [Arc<Memory>; 2],
}

impl Moves {
    /// Copies `(target offset, source offset, bytes)`; a launch of a kernel moves at most `chunk_bytes`.
    pub(crate) fn new(
        target: &Arc<Memory>,
        source: &Arc<Memory>,
        list: &[(usize, usize, usize)],
        chunk_bytes: usize,
    ) -> Result<Arc<Moves>> {
        let (mut requests, mut pieces, mut launches) = (Vec::new(), Vec::new(), vec![(0, 0)]);
        let (mut room, mut all) = (chunk_bytes, 0);
        for &(to, from, bytes) in list {
            let inside = |offset: usize, memory: &Memory| offset + bytes <= memory.bytes;
            ensure!(bytes > 0 && inside(to, target) && inside(from, source), "a copy leaves its memory");
            let (to, from) = (target.address + to as u64, source.address + from as u64);
            requests.push(CopyRequest { target: to, source: from, bytes });
            all += bytes;
            let mut done = 0;
            while done < bytes {
                if room == 0 {
                    launches.push((pieces.len(), 0));
                    room = chunk_bytes;
                }
                let part = (bytes - done).min(room);
                pieces.push(Piece {
                    target: to + done as u64,
                    source: from + done as u64,
                    bytes: part as u64,
                });
                if let Some((_, count)) = launches.last_mut() {
                    *count += 1;
                }
                done += part;
                room -= part;
            }
        }
        let pieces = table(&target.driver, &pieces)?;
        let _memory = [Arc::clone(target), Arc::clone(source)];
        Ok(Arc::new(Moves { requests, pieces, launches, bytes: all, _memory }))
    }

    /// All of one memory to the start of another.
    pub(crate) fn whole(target: &Arc<Memory>, source: &Arc<Memory>) -> Result<Arc<Moves>> {
        Self::new(target, source, &[(0, 0, source.bytes)], usize::MAX)
    }

    /// What they move in all.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Checksums or digests of pieces of one memory.
#[derive(Debug)]
pub(crate) struct Sums {
    pieces: Arc<Memory>,
    pages: Arc<Memory>,
    scratch: Arc<Memory>,
    output: Arc<Memory>,
    count: u32,
    page_count: u32,
    bytes: usize,
    _memory: Arc<Memory>,
}

impl Sums {
    /// Over pages, each of pieces `(offset, bytes)`.
    pub(crate) fn new(memory: &Arc<Memory>, pages: &[Vec<(usize, usize)>]) -> Result<Arc<Sums>> {
        let (mut pieces, mut table_of_pages, mut all) = (Vec::new(), Vec::new(), 0);
        for page in pages {
            table_of_pages.push(PagePieces { first: pieces.len() as u32, count: page.len() as u32 });
            for &(offset, bytes) in page {
                ensure!(bytes > 0 && offset + bytes <= memory.bytes, "a piece leaves its memory");
                pieces.push(Piece { target: 0, source: memory.address + offset as u64, bytes: bytes as u64 });
                all += bytes;
            }
        }
        let driver = &memory.driver;
        Ok(Arc::new(Sums {
            pieces: table(driver, &pieces)?,
            pages: table(driver, &table_of_pages)?,
            scratch: Memory::device(driver, pieces.len() * 8)?,
            output: Memory::pinned(driver, pieces.len() * 32)?,
            count: pieces.len() as u32,
            page_count: pages.len() as u32,
            bytes: all,
            _memory: Arc::clone(memory),
        }))
    }

    /// What they cover in all.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The checksum of each page, when a lane has finished them.
    pub(crate) fn checksums(&self) -> Result<Vec<u64>> {
        let bytes = self.output.read()?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().take(self.page_count as usize).map(|word| u64::from_ne_bytes(*word)).collect())
    }

    /// The digest of each piece, when a lane has finished them.
    pub(crate) fn digests(&self) -> Result<Vec<[u8; 32]>> {
        let bytes = self.output.read()?;
        let (digests, _) = bytes.as_chunks::<32>();
        Ok(digests.iter().take(self.count as usize).copied().collect())
    }
}

/// What a lane holds until it has finished.
#[derive(Debug)]
enum Held {
    Moves { _moves: Arc<Moves> },
    Sums { _sums: Arc<Sums> },
}

/// A stream and what is under way on it.
#[derive(Debug)]
pub(crate) struct Lane {
    driver: Arc<dyn Driver>,
    stream: Stream,
    event: Event,
    held: Vec<Held>,
}

impl Lane {
    /// A stream of that priority.
    pub(crate) fn new(driver: &Arc<dyn Driver>, priority: Priority) -> Result<Lane> {
        let (stream, event) = (driver.new_stream(priority)?, driver.new_event()?);
        Ok(Lane { driver: Arc::clone(driver), stream, event, held: Vec::new() })
    }

    /// Enqueues copies. None: the device cannot do it by those means.
    pub(crate) fn enqueue(&mut self, moves: &Arc<Moves>, means: Means) -> Result<Option<()>> {
        self.held.push(Held::Moves { _moves: Arc::clone(moves) });
        // SAFETY: the ranges were checked and are held until the lane has finished; of one bench's lanes no two work on the
        // same target, and the tables are as long as said.
        let begun = unsafe {
            match means {
                Means::Engine => {
                    moves.requests.iter().try_for_each(|request| self.driver.copy(*request, self.stream))
                }
                Means::Batch => self.driver.copy_batch(&moves.requests, self.stream),
                Means::Kernel(blocks) => moves.launches.iter().try_for_each(|&(first, count)| {
                    let pieces = moves.pieces.address + (first * size_of::<Piece>()) as u64;
                    self.driver.launch(Kernel::Copy { pieces, count, blocks }, self.stream)
                }),
            }
        };
        supported(begun)
    }

    /// Enqueues checksums of pages.
    pub(crate) fn checksums(&mut self, sums: &Arc<Sums>) -> Result<Option<()>> {
        let kernel = Kernel::Checksum {
            pieces: sums.pieces.address,
            count: sums.count,
            pages: sums.pages.address,
            page_count: sums.page_count,
            scratch: sums.scratch.address,
            output: sums.output.address,
        };
        self.launch(sums, kernel)
    }

    /// Enqueues digests of pieces.
    pub(crate) fn digests(&mut self, sums: &Arc<Sums>) -> Result<Option<()>> {
        let kernel =
            Kernel::Sha256 { pieces: sums.pieces.address, count: sums.count, output: sums.output.address };
        self.launch(sums, kernel)
    }

    fn launch(&mut self, sums: &Arc<Sums>, kernel: Kernel) -> Result<Option<()>> {
        self.held.push(Held::Sums { _sums: Arc::clone(sums) });
        // SAFETY: as for copies; outputs are of these sums alone.
        supported(unsafe { self.driver.launch(kernel, self.stream) })
    }

    /// Waits, spinning, until all is done; no longer than the patience.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let waited = self.wait();
        if waited.is_err() {
            LOST.store(true, Ordering::Relaxed);
        }
        waited.map(|()| self.held.clear())
    }

    fn wait(&self) -> Result<()> {
        ensure!(!is_lost(), LOST_DEVICE);
        // SAFETY: both are of this driver, and live.
        unsafe { self.driver.record(self.event, self.stream) }?;
        let (started, patience) = (Instant::now(), patience());
        while !self.driver.passed(self.event)? {
            ensure!(started.elapsed() < patience, "what was enqueued did not end within {patience:?}");
            std::hint::spin_loop();
        }
        Ok(())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if is_lost() || self.finish().is_err() {
            // The device may still use it, and ending a stream may wait for it.
            return std::mem::forget(std::mem::take(&mut self.held));
        }
        // SAFETY: nobody uses them again.
        unsafe {
            self.driver.end_event(self.event);
            self.driver.end_stream(self.stream);
        }
    }
}

/// How long work may take before the device counts as lost.
pub(crate) fn patience() -> Duration {
    Duration::from_secs(PATIENCE_SECONDS.load(Ordering::Relaxed))
}

/// Sets the patience.
pub(crate) fn set_patience(seconds: u64) {
    PATIENCE_SECONDS.store(seconds, Ordering::Relaxed);
}

/// Whether the device is lost: nothing more can be measured.
pub(crate) fn is_lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// Takes note of what failed. Only a device that is lost, or results that cannot be written, end the part.
pub(crate) fn attempted(report: &mut Report, what: &str, measured: Result<()>) -> Result<()> {
    let Err(error) = measured else { return Ok(()) };
    let broken = error.chain().filter_map(|cause| cause.downcast_ref::<DeviceError>());
    if broken.into_iter().any(|cause| cause.kind == DeviceErrorKind::Broken) {
        LOST.store(true, Ordering::Relaxed);
    }
    report.fail(what, &error)?;
    ensure!(!is_lost(), LOST_DEVICE);
    Ok(())
}

/// Ends the process without a word to the driver, which would wait for a lost device.
pub(crate) fn leave(status: i32) -> ! {
    // SAFETY: nothing of this process is needed any more, and its results are on disk.
    unsafe { libc::_exit(status) }
}

fn supported(begun: Result<(), DeviceError>) -> Result<Option<()>> {
    match begun {
        Ok(()) => Ok(Some(())),
        Err(error) if error.kind == DeviceErrorKind::Unsupported => Ok(None),
        Err(error) => Err(error.into()),
    }
}
