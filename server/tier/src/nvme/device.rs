//! The place where segments lie: a directory with one file a segment, or one device with segments at fixed offsets.
//!
//! Owns: opening, the lock that keeps a second process out, making segment files, what else lies beside them, whole reads
//! and writes for the control plane. Must not know: what a segment holds, which are in use.

use super::buffer::AlignedBuffer;
use super::config::{NvmeConfig, OpenError};
use super::format::DeviceId;
use super::storage::{File, Folder, Open};
use super::superblock;
use super::time::Clock;
use crate::limits::{BLOCK_BYTES, LOCK_RETRY, LOCK_WAIT, SPARE_FDS, STRAYS_NAMED_MAX};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Where segments begin on a block device: the superblock's copies have the space before.
pub(super) const DEVICE_BASE: u64 = 1 << 20;
const LOCK: &str = "LOCK";
/// What the server keeps beside the segments begins so.
const NEIGHBOUR: &str = "catalog.redb";

/// Where one segment lies. An operation in flight owns it, and so its descriptor.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    storage: Arc<File>,
    base: u64,
    /// Number of the file among all of this device's files.
    pub(crate) file: u32,
}

impl SegmentFile {
    /// A file that is never read or written.
    #[cfg(test)]
    pub(crate) fn fake() -> SegmentFile {
        let fd = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        SegmentFile { storage: Arc::new(File::Descriptor(fd.expect("/dev/null opens"))), base: 0, file: 0 }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.storage.fd()
    }

    /// What it is in.
    pub(crate) fn storage(&self) -> &File {
        &self.storage
    }

    /// Where a block of the segment is in the file.
    pub(crate) fn offset(&self, block: u32) -> u64 {
        self.base + u64::from(block) * BLOCK_BYTES
    }

    /// Reads whole blocks into memory that begins on a block.
    pub(crate) fn read(&self, block: u32, target: &mut [u8]) -> io::Result<()> {
        self.storage.read_all(target, self.offset(block))
    }

    /// Writes whole blocks.
    pub(crate) fn write(&self, block: u32, source: &[u8]) -> io::Result<()> {
        self.storage.write_all(&AlignedBuffer::copy_of(source), self.offset(block))
    }

    /// Everything written is on stable storage.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(self.storage.sync()?)
    }

    /// Do the two share a descriptor, so that one sync covers both?
    pub(crate) fn same_file(&self, other: &SegmentFile) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }
}

/// What is in a segment's place.
#[derive(Debug)]
pub(crate) enum Existing {
    /// Nothing, or a file whose creation was cut off: it is made when it is needed.
    Absent,
    /// The segment at its full size.
    File(SegmentFile),
    /// Something that is no segment's file, or may not be opened: it is left alone.
    Stray(Errno),
}

#[derive(Debug)]
enum Place {
    /// `lock`: none where no other process can come.
    Directory {
        folder: Folder,
        lock: Option<OwnedFd>,
    },
    Device {
        file: Arc<File>,
    },
}

/// The opened, locked place.
#[derive(Debug)]
pub(crate) struct Device {
    path: PathBuf,
    place: Place,
    /// The time and the random numbers that go with the place.
    pub(crate) clock: Clock,
    direct: bool,
    pub(crate) id: DeviceId,
    pub(crate) segment_bytes: u64,
    pub(crate) segments: u32,
}

impl Device {
    /// Opens the place and makes sure that nobody else has it. Warnings go to `warnings`.
    pub(crate) fn open(config: &NvmeConfig, warnings: &mut Vec<String>) -> Result<Device, OpenError> {
        config.check()?;
        let path = &config.path;
        let kind = match rustix::fs::stat(path) {
            Ok(stat) => FileType::from_raw_mode(stat.st_mode),
            Err(Errno::NOENT) => {
                std::fs::create_dir_all(path).map_err(|source| failed("cannot create", path, source))?;
                FileType::Directory
            }
            Err(errno) => return Err(failed("cannot look at", path, errno.into())),
        };
        let device = match kind {
            FileType::Directory => Device::open_directory(config, warnings)?,
            FileType::BlockDevice | FileType::RegularFile => Device::open_device(config, kind, warnings)?,
            _ => {
                return Err(OpenError::Config(format!(
                    "{} is neither directory nor block device",
                    path.display()
                )));
            }
        };
        if !device.direct {
            let path = path.display();
            warnings.push(format!("{path}: its file system has no O_DIRECT; pages also fill the page cache"));
        }
        device.warn_of_size(config, warnings);
        Ok(device)
    }

    /// Opens a simulated disk, which nobody else can have.
    #[cfg(feature = "simulation")]
    pub(crate) fn open_simulated(
        config: &NvmeConfig,
        disk: &super::simulation::SimulatedDisk,
        warnings: &mut Vec<String>,
    ) -> Result<Device, OpenError> {
        config.check()?;
        let device = Device::open_folder(config, Folder::Simulated(disk.clone()), None, warnings)?;
        device.warn_of_size(config, warnings);
        Ok(device)
    }

    fn warn_of_size(&self, config: &NvmeConfig, warnings: &mut Vec<String>) {
        if self.segment_bytes != config.segment_bytes {
            let (kept, asked) = (self.segment_bytes, config.segment_bytes);
            warnings
                .push(format!("segments stay {kept} bytes long as they were made; {asked} was asked for"));
        }
    }

    fn open_directory(config: &NvmeConfig, warnings: &mut Vec<String>) -> Result<Device, OpenError> {
        let path = &config.path;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| failed("cannot open", path, errno.into()))?;
        let lock = lock_directory(&fd, path)?;
        Device::open_folder(config, Folder::Directory(fd), Some(lock), warnings)
    }

    fn open_folder(
        config: &NvmeConfig,
        folder: Folder,
        lock: Option<OwnedFd>,
        warnings: &mut Vec<String>,
    ) -> Result<Device, OpenError> {
        let path = &config.path;
        let superblock = superblock::of_folder(&folder, path, config.segment_bytes, warnings)?;
        let segments = config.segments(superblock.segment_bytes)?;
        if lock.is_some() {
            raise_fd_limit(segments, warnings)?;
        }
        // ext4, xfs and others take O_DIRECT; some file systems refuse it when a file is opened.
        let direct = folder.open(superblock::NAMES[0], Open::Read, true).is_ok();
        let clock = folder.clock();
        let place = Place::Directory { folder, lock };
        let (id, segment_bytes) = (superblock.device, superblock.segment_bytes);
        let device = Device { path: path.clone(), place, clock, direct, id, segment_bytes, segments };
        device.drop_surplus(warnings)?;
        device.name_strays(warnings)?;
        Ok(device)
    }

    fn open_device(
        config: &NvmeConfig,
        kind: FileType,
        warnings: &mut Vec<String>,
    ) -> Result<Device, OpenError> {
        let path = &config.path;
        let mut flags = OFlags::RDWR | OFlags::CLOEXEC;
        if kind == FileType::BlockDevice {
            flags |= OFlags::EXCL; // refused while it is mounted or part of a volume
        }
        let (fd, direct) = match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(fd) => (fd, true),
            Err(Errno::INVAL) => {
                let fd = rustix::fs::open(path, flags, Mode::empty());
                (fd.map_err(|errno| failed("cannot open", path, errno.into()))?, false)
            }
            Err(Errno::BUSY) => return Err(in_use(path, " (it is mounted, or part of a volume)".to_owned())),
            Err(errno) => return Err(failed("cannot open", path, errno.into())),
        };
        lock(&fd, path, String::new)?;
        let bytes = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0))
            .map_err(|errno| failed("cannot size", path, errno.into()))?;
        let file = Arc::new(File::Descriptor(fd));
        let superblock = superblock::of_device(&file, path, config.segment_bytes, bytes, warnings)?;
        let segment_bytes = superblock.segment_bytes;
        let room = bytes.saturating_sub(DEVICE_BASE);
        if room < config.capacity_bytes {
            warnings.push(format!("{} holds {room} bytes of segments, less than asked for", path.display()));
        }
        let capped = NvmeConfig { capacity_bytes: config.capacity_bytes.min(room), ..config.clone() };
        let segments = capped.segments(segment_bytes)?;
        let (place, clock) = (Place::Device { file }, Clock::System);
        Ok(Device {
            path: path.clone(),
            place,
            clock,
            direct,
            id: superblock.device,
            segment_bytes,
            segments,
        })
    }

    /// Whether the page cache is bypassed.
    pub(crate) fn direct(&self) -> bool {
        self.direct
    }

    /// Blocks of a segment.
    pub(crate) fn segment_blocks(&self) -> u32 {
        (self.segment_bytes / BLOCK_BYTES) as u32
    }

    /// How many files its segments are in.
    pub(crate) fn files(&self) -> u32 {
        match self.place {
            Place::Directory { .. } => self.segments,
            Place::Device { .. } => 1,
        }
    }

    /// What is in the segment's place. An error is the system's refusal to open anything more.
    pub(crate) fn existing(&self, segment: u32) -> io::Result<Existing> {
        let folder = match &self.place {
            Place::Device { file } => return Ok(Existing::File(self.on_device(file, segment))),
            Place::Directory { folder, .. } => folder,
        };
        let file = match folder.open(&name(segment), Open::Update, self.direct) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(Existing::Absent),
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => return Err(errno.into()),
            Err(errno) => return Ok(Existing::Stray(errno)),
        };
        if file.len()? != self.segment_bytes {
            return Ok(Existing::Absent);
        }
        Ok(Existing::File(SegmentFile { storage: Arc::new(file), base: 0, file: segment }))
    }

    /// Makes the segment's file with all its space, durably. ENOSPC leaves no file behind.
    pub(crate) fn create(&self, segment: u32) -> io::Result<SegmentFile> {
        let folder = match &self.place {
            Place::Device { file } => return Ok(self.on_device(file, segment)),
            Place::Directory { folder, .. } => folder,
        };
        let file = folder.open(&name(segment), Open::Create, self.direct)?;
        if let Err(errno) = file.allocate(self.segment_bytes) {
            folder.remove(&name(segment))?;
            return Err(errno.into());
        }
        file.sync()?;
        folder.sync()?;
        Ok(SegmentFile { storage: Arc::new(file), base: 0, file: segment })
    }

    fn on_device(&self, file: &Arc<File>, segment: u32) -> SegmentFile {
        let base = DEVICE_BASE + u64::from(segment) * self.segment_bytes;
        SegmentFile { storage: Arc::clone(file), base, file: 0 }
    }

    /// Deletes segments beyond a capacity that was lowered.
    fn drop_surplus(&self, warnings: &mut Vec<String>) -> Result<(), OpenError> {
        let Place::Directory { folder, .. } = &self.place else { return Ok(()) };
        let mut dropped = 0;
        let names = folder.names().map_err(|errno| failed("cannot list", &self.path, errno.into()))?;
        for name in names {
            if number(&name).is_some_and(|number| number >= self.segments) {
                match folder.remove(&name) {
                    Ok(()) => dropped += 1,
                    Err(errno) => warnings.push(format!("{} cannot be deleted: {errno}", self.path.join(&name).display())),
                }
            }
        }
        if dropped > 0 {
            warnings.push(format!("{dropped} segments beyond the lowered capacity were deleted"));
        }
        Ok(())
    }

    /// Names what lies in the directory and is not the tier's: it may take space that segments are to have.
    fn name_strays(&self, warnings: &mut Vec<String>) -> Result<(), OpenError> {
        let Place::Directory { folder, .. } = &self.place else { return Ok(()) };
        let names = folder.names().map_err(|errno| failed("cannot list", &self.path, errno.into()))?;
        let mut strays: Vec<String> = names.into_iter().filter(|name| !is_ours(name)).collect();
        if strays.is_empty() {
            return Ok(());
        }
        strays.sort_unstable();
        let (count, path) = (strays.len(), self.path.display());
        strays.truncate(STRAYS_NAMED_MAX);
        let names = strays.join(", ");
        warnings.push(format!("{path}: {count} of its entries are not the tier's and left alone: {names}"));
        Ok(())
    }
}

/// Is it the name of something that the tier, or the server beside it, makes here?
fn is_ours(name: &str) -> bool {
    let itself = name == "." || name == "..";
    let ours = name == LOCK || number(name).is_some() || superblock::NAMES.contains(&name);
    itself || ours || name.starts_with(NEIGHBOUR)
}

impl Drop for Device {
    /// Unlocks by name: a ring that registered the descriptor gives it back only some time after it was closed.
    fn drop(&mut self) {
        let lock = match &self.place {
            Place::Directory { lock: Some(lock), .. } => lock.as_fd(),
            Place::Directory { lock: None, .. } => return,
            Place::Device { file } => file.fd(),
        };
        if let Err(errno) = rustix::fs::flock(lock, FlockOperation::Unlock) {
            tracing::debug!(%errno, "the lock goes with its descriptor");
        }
    }
}

pub(super) fn name(segment: u32) -> String {
    format!("segment-{segment:06}.kv")
}

/// The segment that a file of this name is of: no other spelling of the number counts.
pub(super) fn number(text: &str) -> Option<u32> {
    let number = text.strip_prefix("segment-")?.strip_suffix(".kv")?.parse().ok()?;
    (name(number) == text).then_some(number)
}

pub(super) fn failed(what: &'static str, path: &Path, source: io::Error) -> OpenError {
    OpenError::Io { what, path: path.to_owned(), source }
}

fn in_use(path: &Path, holder: String) -> OpenError {
    OpenError::InUse { path: path.to_owned(), holder }
}

/// Takes the lock. The kernel may hold a killed process's descriptors for a moment, so it asks for a while.
fn lock(fd: &OwnedFd, path: &Path, holder: impl FnOnce() -> String) -> Result<(), OpenError> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY),
            Err(Errno::WOULDBLOCK) => return Err(in_use(path, holder())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("cannot lock", path, errno.into())),
        }
    }
}

/// Holds the directory until the returned descriptor is closed, by whatever end of the process.
fn lock_directory(dir: &OwnedFd, path: &Path) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, LOCK, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| failed("cannot open the lock file of", path, errno.into()))?;
    lock(&file, path, || {
        let text = std::fs::read_to_string(path.join(LOCK)).unwrap_or_default();
        text.trim().parse::<u32>().map_or_else(|_| String::new(), |pid| format!(" (process {pid})"))
    })?;
    let pid = format!("{}\n", std::process::id());
    let written = rustix::fs::ftruncate(&file, 0).and_then(|()| rustix::io::pwrite(&file, pid.as_bytes(), 0));
    written.map_err(|errno| failed("cannot write the lock file of", path, errno.into()))?;
    Ok(file)
}

/// One descriptor a segment: takes what the hard limit allows, and says what to do when it is too little.
fn raise_fd_limit(segments: u32, warnings: &mut Vec<String>) -> Result<(), OpenError> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = u64::from(segments) + SPARE_FDS;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < needed) {
        return Err(OpenError::Config(format!(
            "{segments} segments need {needed} open files and the limit is {}: raise it (LimitNOFILE= in the systemd \
             unit, ulimit -n) or raise segment_bytes",
            limit.maximum.unwrap_or(0)
        )));
    }
    if let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum })
    {
        warnings.push(format!("the limit of open files could not be raised to {needed}: {errno}"));
    }
    Ok(())
}
