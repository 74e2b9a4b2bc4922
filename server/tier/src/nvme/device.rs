//! The place where segments lie: a directory with one file a segment, or one device with segments at fixed
//! offsets.
//!
//! Owns: opening, the lock that keeps a second process out, making segment files, what else lies beside them
//! (`strays`), whole reads and writes for the control plane. Must not know: what a segment holds, which are
//! in use.

mod strays;

use super::config::{NvmeConfig, OpenError, failed};
use super::descriptors;
use super::format::{DEVICE_BASE, DeviceId};
use super::lock;
use super::open_mode::OpenMode;
use super::segment_file::{SegmentFile, name, number};
use super::storage::{File, Folder, patiently};
use super::superblock;
use super::time::Clock;
use crate::errno::ErrnoClass;
use crate::limits::{BLOCK_BYTES, SEGMENTS_MAX};
use parking_lot::Mutex;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

/// What is in a segment's place.
#[derive(Debug)]
pub(crate) enum Existing {
    /// Nothing, or a file whose creation was cut off: it is made when it is needed.
    Absent,
    /// The segment at its full size.
    File(SegmentFile),
    /// A file of another size: its creation was cut off, or somebody cut it or added to it.
    Resized(SegmentFile),
    /// Something that is no segment's file, or may not be opened: it is left alone.
    Stray,
}

/// A segment's file while the tier is open.
#[derive(Clone, Debug, Default)]
enum FileState {
    /// It has no name yet.
    #[default]
    Closed,
    /// Open; of a segment without space yet an empty file, so that its descriptor is there when it grows.
    Open(Arc<File>),
    /// Something else has its name.
    Stray,
}

/// The file of each segment.
type Files = Mutex<Vec<FileState>>;

#[derive(Debug)]
enum Place {
    /// `lock`: none where no other process can come.
    Directory {
        folder: Folder,
        lock: Option<OwnedFd>,
        files: Files,
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
    /// It was empty, and made the tier's by this opening.
    pub(crate) is_new: bool,
    pub(crate) segment_bytes: u64,
    /// Segments that the capacity allows.
    pub(crate) segments: u32,
    /// Numbers below which a segment may be found: more, after the capacity was lowered.
    pub(crate) numbers: u32,
    /// Files that are open for segments, or may be.
    files: u32,
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
        disk: &super::simulated_disk::SimulatedDisk,
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
        let lock = lock::directory(&fd, path)?;
        Device::open_folder(config, Folder::Directory(fd), Some(lock), warnings)
    }

    fn open_folder(
        config: &NvmeConfig,
        folder: Folder,
        lock: Option<OwnedFd>,
        warnings: &mut Vec<String>,
    ) -> Result<Device, OpenError> {
        let path = &config.path;
        let opened = superblock::of_folder(&folder, path, config.segment_bytes, warnings)?;
        let (superblock, is_new) = (opened.superblock, opened.is_new);
        let segments = config.segments(superblock.segment_bytes, is_new)?;
        let surplus =
            surplus_numbers(&folder, segments).map_err(|errno| failed("cannot list", path, errno.into()))?;
        let numbers = surplus.last().map_or(segments, |last| last + 1);
        let count = segments + surplus.len() as u32;
        if lock.is_some() {
            descriptors::raise_limit(count, warnings)?;
        }
        // ext4, xfs and others take O_DIRECT; some file systems refuse it when a file is opened.
        let direct = patiently(|| folder.open(superblock::NAMES[0], OpenMode::Read, true)).is_ok();
        let clock = folder.clock();
        let place =
            Place::Directory { folder, lock, files: Mutex::new(vec![FileState::Closed; numbers as usize]) };
        let (id, segment_bytes) = (superblock.device, superblock.segment_bytes);
        let path = path.clone();
        let device =
            Device { path, place, clock, direct, id, is_new, segment_bytes, segments, numbers, files: count };
        device.open_files(&surplus, warnings)?;
        device.part_links()?;
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
            Err(Errno::BUSY) => {
                return Err(lock::in_use(path, " (it is mounted, or part of a volume)".to_owned()));
            }
            Err(errno) => return Err(failed("cannot open", path, errno.into())),
        };
        lock::take(&fd, path, String::new)?;
        let bytes = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0))
            .map_err(|errno| failed("cannot size", path, errno.into()))?;
        let file = Arc::new(File::Descriptor(fd));
        let opened = superblock::of_device(&file, path, config.segment_bytes, bytes, warnings)?;
        let (superblock, is_new) = (opened.superblock, opened.is_new);
        let segment_bytes = superblock.segment_bytes;
        let room = bytes.saturating_sub(DEVICE_BASE);
        if room < config.capacity_bytes {
            warnings.push(format!(
                "{} holds {room} bytes of segments, less than asked for; if it was larger before, the pages behind its \
                 end cannot be read any more",
                path.display()
            ));
        }
        let capped = NvmeConfig { capacity_bytes: config.capacity_bytes.min(room), ..config.clone() };
        let segments = capped.segments(segment_bytes, is_new)?;
        let numbers = (room / segment_bytes).min(SEGMENTS_MAX) as u32;
        let (place, clock, id) = (Place::Device { file }, Clock::System, superblock.device);
        let path = path.clone();
        Ok(Device { path, place, clock, direct, id, is_new, segment_bytes, segments, numbers, files: 1 })
    }

    /// Whether the page cache is bypassed.
    pub(crate) fn direct(&self) -> bool {
        self.direct
    }

    /// Blocks of a segment.
    pub(crate) fn segment_blocks(&self) -> u32 {
        (self.segment_bytes / BLOCK_BYTES) as u32
    }

    /// Numbers of its files: one more than the highest.
    pub(crate) fn files(&self) -> u32 {
        match self.place {
            Place::Directory { .. } => self.numbers,
            Place::Device { .. } => 1,
        }
    }

    /// Descriptors that the tier holds on this place while it is open.
    pub(crate) fn descriptors(&self) -> u64 {
        descriptors::needed(self.files)
    }

    /// Why the next start will not find what is in these files; `None`: it will. Somebody may have removed or
    /// renamed them, or the directory, while they are open.
    pub(crate) fn missing(&self, synced: &[Arc<SegmentFile>]) -> Option<String> {
        let Place::Directory { folder: Folder::Directory(folder), .. } = &self.place else { return None };
        let place = |stat: rustix::fs::Stat| (stat.st_dev, stat.st_ino);
        let here = rustix::fs::stat(&self.path).map(place).ok();
        if here.is_none() || here != rustix::fs::fstat(folder).map(place).ok() {
            return Some(format!("{} was removed or renamed while in use", self.path.display()));
        }
        let removed =
            |file: &Arc<SegmentFile>| rustix::fs::fstat(file.fd()).is_ok_and(|stat| stat.st_nlink == 0);
        let gone = synced.iter().find(|file| removed(file))?;
        Some(format!("{} was removed from {} while in use", name(gone.file), self.path.display()))
    }

    /// What is in the segment's place.
    pub(crate) fn existing(&self, segment: u32) -> io::Result<Existing> {
        let files = match &self.place {
            Place::Device { file } => return Ok(Existing::File(self.on_device(file, segment))),
            Place::Directory { files, .. } => files,
        };
        match file_state(files, segment) {
            FileState::Closed => Ok(Existing::Absent),
            FileState::Stray => Ok(Existing::Stray),
            FileState::Open(file) => {
                let bytes = file.len()?;
                let file = SegmentFile { storage: file, base: 0, file: segment };
                Ok(match bytes {
                    0 => Existing::Absent,
                    _ if bytes == self.segment_bytes => Existing::File(file),
                    _ => Existing::Resized(file),
                })
            }
        }
    }

    /// Gives a segment's file that was cut off its space again; what is behind its end is never looked at.
    pub(crate) fn restore_length(&self, file: &SegmentFile) -> io::Result<()> {
        if file.storage.len()? < self.segment_bytes {
            patiently(|| file.storage.allocate(self.segment_bytes))?;
        }
        Ok(())
    }

    /// Gives the segment's file all its space, durably. Where there is none, the file stays empty.
    pub(crate) fn create(&self, segment: u32) -> io::Result<SegmentFile> {
        let (folder, files) = match &self.place {
            Place::Device { file } => return Ok(self.on_device(file, segment)),
            Place::Directory { folder, files, .. } => (folder, files),
        };
        let file = match file_state(files, segment) {
            FileState::Open(file) => file,
            // The directory had no room for its name at start.
            FileState::Closed | FileState::Stray => self.open_file(folder, files, segment)?,
        };
        patiently(|| file.clear())?;
        if let Err(errno) = patiently(|| file.allocate(self.segment_bytes)) {
            patiently(|| file.clear())?;
            return Err(errno.into());
        }
        patiently(|| file.sync())?;
        patiently(|| folder.sync())?;
        Ok(SegmentFile { storage: file, base: 0, file: segment })
    }

    /// A segment's file is not needed any more: its space is free at once, whoever still has it open. A
    /// segment of a device stays where it is.
    pub(crate) fn delete(&self, segment: u32) -> io::Result<()> {
        let Place::Directory { folder, files, .. } = &self.place else { return Ok(()) };
        if let FileState::Open(file) = file_state(files, segment) {
            patiently(|| file.clear())?;
        }
        patiently(|| match folder.remove(&name(segment)) {
            Err(Errno::NOENT) => Ok(()),
            result => result,
        })?;
        set_file_state(files, segment, FileState::Closed);
        Ok(patiently(|| folder.sync())?)
    }

    /// Opens the file of every segment, and makes those that are missing, empty. A directory without room for
    /// more names is not an error: the segments that it has are served, the others are tried again when they
    /// are needed.
    fn open_files(&self, surplus: &[u32], warnings: &mut Vec<String>) -> Result<(), OpenError> {
        let Place::Directory { folder, files, .. } = &self.place else { return Ok(()) };
        for segment in surplus.iter().copied().chain(0..self.segments) {
            let Err(error) = self.open_file(folder, files, segment) else { continue };
            if says_stray(&error) {
                set_file_state(files, segment, FileState::Stray);
                continue;
            }
            if ErrnoClass::of_error(&error) != ErrnoClass::Full {
                return Err(failed("cannot open the segments of", &self.path, error));
            }
            let (path, left) = (self.path.display(), self.segments.saturating_sub(segment));
            warnings.push(format!("{path}: no room for the names of {left} segments ({error})"));
            return Ok(());
        }
        Ok(())
    }

    fn open_file(&self, folder: &Folder, files: &Files, segment: u32) -> io::Result<Arc<File>> {
        let file = Arc::new(patiently(|| folder.open(&name(segment), OpenMode::Keep, self.direct))?);
        set_file_state(files, segment, FileState::Open(Arc::clone(&file)));
        Ok(file)
    }

    fn on_device(&self, file: &Arc<File>, segment: u32) -> SegmentFile {
        let base = DEVICE_BASE + u64::from(segment) * self.segment_bytes;
        SegmentFile { storage: Arc::clone(file), base, file: 0 }
    }
}

impl Drop for Device {
    /// Unlocks by name: a ring that registered the descriptor gives it back only some time after it was
    /// closed.
    fn drop(&mut self) {
        let locks = match &self.place {
            Place::Directory { folder: Folder::Directory(folder), lock: Some(lock), .. } => {
                vec![lock.as_fd(), folder.as_fd()]
            }
            Place::Directory { .. } => return,
            Place::Device { file } => vec![file.fd()],
        };
        for lock in locks {
            if let Err(errno) = rustix::fs::flock(lock, FlockOperation::Unlock) {
                tracing::debug!(%errno, "the lock goes with its descriptor");
            }
        }
    }
}

fn file_state(files: &Files, segment: u32) -> FileState {
    files.lock().get(segment as usize).cloned().unwrap_or_default()
}

fn set_file_state(files: &Files, segment: u32, state: FileState) {
    if let Some(place) = files.lock().get_mut(segment as usize) {
        *place = state;
    }
}

/// Segments that were made when the capacity was larger, ascending.
fn surplus_numbers(folder: &Folder, segments: u32) -> Result<Vec<u32>, Errno> {
    let beyond = |number: &u32| (u64::from(segments)..SEGMENTS_MAX).contains(&u64::from(*number));
    let names = folder.names()?;
    let mut surplus: Vec<u32> = names.iter().filter_map(|name| number(name)).filter(beyond).collect();
    surplus.sort_unstable();
    surplus.dedup();
    Ok(surplus)
}

/// Says an error that one name is no file of ours, or not for us, while the directory is well?
fn says_stray(error: &io::Error) -> bool {
    let strays =
        [Errno::ISDIR, Errno::NXIO, Errno::LOOP, Errno::ACCESS, Errno::PERM, Errno::IO, Errno::TXTBSY];
    Errno::from_io_error(error).is_some_and(|errno| strays.contains(&errno))
}
