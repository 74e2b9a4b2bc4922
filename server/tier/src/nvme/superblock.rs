//! The superblock: which tier's storage this is. Owns: its two copies, and what is done when one or both are
//! bad. Must not know: segments' extents, which segments are in use.
//!
//! A copy that is good repairs one that is not. When neither is, the segments say themselves whose they are;
//! where they agree the superblock is made again from them. Nothing is written over what may be somebody
//! else's data.

use super::buffer::AlignedBuffer;
use super::config::{NvmeConfig, OpenError, Peeked, TierId, failed};
use super::format::{DEVICE_BASE, SegmentHeader, Superblock, Version};
use super::open_mode::OpenMode;
use super::segment_file::{name, number};
use super::storage::{File, Folder, patiently};
use super::time::Clock;
use crate::errno::ErrnoClass;
use crate::limits::{BLOCK, BLOCK_BYTES, SEGMENTS_MAX, SUPERBLOCK_ROT_BYTES_MAX};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::path::Path;

/// The files of a directory: both copies, and each while it is written.
pub(super) const NAMES: [&str; 4] = ["superblock", "superblock.2", "superblock.new", "superblock.2.new"];
/// Where the copies are on a block device: the first and the last block before the segments.
const OFFSETS: [u64; 2] = [0, DEVICE_BASE - BLOCK_BYTES];

/// One copy as it was found.
enum Copy {
    Good(Superblock),
    /// Nothing was ever written there.
    Blank,
    /// It is whole, and of another version.
    Other,
    /// It does not verify.
    Bad(AlignedBuffer),
    /// It cannot be read.
    Unreadable,
}

impl Copy {
    fn of(block: AlignedBuffer) -> Copy {
        match block.first_chunk().map(Superblock::decode) {
            Some(Version::Current(superblock)) if is_possible(superblock.segment_bytes) => {
                Copy::Good(superblock)
            }
            Some(Version::Other) => Copy::Other,
            _ if block.iter().all(|byte| *byte == 0) => Copy::Blank,
            _ => Copy::Bad(block),
        }
    }

    fn is(&self, superblock: &Superblock) -> bool {
        matches!(self, Copy::Good(good) if good == superblock)
    }

    /// May the superblock be written over it? Not where the bytes look like somebody else's.
    fn is_ours(&self, superblock: &Superblock) -> bool {
        let Copy::Bad(block) = self else { return true };
        let good = superblock.encode();
        let differing = block.iter().zip(good.iter()).filter(|(is, was)| is != was).count();
        Superblock::has_magic(block) || differing <= SUPERBLOCK_ROT_BYTES_MAX
    }
}

fn is_possible(segment_bytes: u64) -> bool {
    NvmeConfig { segment_bytes, ..NvmeConfig::new("", 0) }.check().is_ok()
}

/// What both copies say together: the superblock, or that there is none.
fn agreed(copies: &[Copy; 2], path: &Path) -> Result<Option<Superblock>, OpenError> {
    if copies.iter().any(|copy| matches!(copy, Copy::Other)) {
        return Err(OpenError::Superblock { path: path.to_owned() });
    }
    let good = |copy: &Copy| match copy {
        Copy::Good(superblock) => Some(*superblock),
        _ => None,
    };
    Ok(copies.iter().find_map(good))
}

/// A superblock, and how it came about.
pub(super) struct Opened {
    pub(super) superblock: Superblock,
    /// There was none: the place was empty.
    pub(super) is_new: bool,
}

/// What a place holds, where that can be read; nothing is repaired, locked or made.
pub(super) fn peek(path: &Path) -> Option<Peeked> {
    let read = |path: &Path, offset: u64| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        match read_block(&File::Descriptor(file), offset) {
            Copy::Good(Superblock { segment_bytes, device }) => {
                Some(Peeked { id: TierId(device), segment_bytes })
            }
            _ => None,
        }
    };
    match path.is_dir() {
        true => NAMES[..2].iter().find_map(|name| read(&path.join(name), 0)),
        false => OFFSETS.iter().find_map(|offset| read(path, *offset)),
    }
}

/// A directory's superblock; makes one where there are no segments either.
pub(super) fn of_folder(
    folder: &Folder,
    path: &Path,
    segment_bytes: u64,
    warnings: &mut Vec<String>,
) -> Result<Opened, OpenError> {
    let copies = [read_file(folder, path, NAMES[0])?, read_file(folder, path, NAMES[1])?];
    let create = |which: usize, superblock: &Superblock| write_file(folder, which, superblock);
    if let Some(superblock) = agreed(&copies, path)? {
        repair(&copies, &superblock, path, warnings, |_| true, create);
        return Ok(Opened { superblock, is_new: false });
    }
    let segments = segments_of_folder(folder, path)?;
    let is_new = segments.is_empty() && are_blank(&copies);
    let superblock = if is_new {
        new_superblock(segment_bytes, &folder.clock()).map_err(|errno| cannot_write(path, errno.into()))?
    } else {
        let damaged = || OpenError::Superblock { path: path.join(NAMES[0]) };
        let superblock = rebuild(&segments, 1).ok_or_else(damaged)?;
        warnings.push(rebuilt(path));
        superblock
    };
    for which in [0, 1] {
        create(which, &superblock).map_err(|source| cannot_write(path, source))?;
    }
    Ok(Opened { superblock, is_new })
}

/// A block device's superblock; makes one where the space before the segments is blank.
pub(super) fn of_device(
    file: &File,
    path: &Path,
    segment_bytes: u64,
    bytes: u64,
    warnings: &mut Vec<String>,
) -> Result<Opened, OpenError> {
    if bytes < DEVICE_BASE {
        return Err(OpenError::Config(format!("{} is smaller than 1 MiB", path.display())));
    }
    let copies = OFFSETS.map(|offset| read_block(file, offset));
    let create = |which: usize, superblock: &Superblock| write_block(file, which, superblock);
    let foreign = || OpenError::Foreign { path: path.to_owned() };
    let ours = |superblock: &Superblock| {
        is_blank_between(file) && copies.iter().all(|copy| copy.is_ours(superblock))
    };
    if let Some(superblock) = agreed(&copies, path)? {
        // The first block of a device is what others write first: the copy alone does not say that it is
        // still ours.
        if copies[0].is(&superblock) || ours(&superblock) {
            repair(&copies, &superblock, path, warnings, |copy| copy.is_ours(&superblock), create);
            return Ok(Opened { superblock, is_new: false });
        }
        return Err(foreign());
    }
    let is_new = are_blank(&copies) && is_blank_between(file);
    let superblock = if is_new {
        new_superblock(segment_bytes, &Clock::System).map_err(|errno| cannot_write(path, errno.into()))?
    } else {
        let superblock = rebuild(&segments_of_device(file, segment_bytes, bytes), 2);
        let superblock = superblock.filter(ours).ok_or_else(foreign)?;
        warnings.push(rebuilt(path));
        superblock
    };
    for which in [0, 1] {
        create(which, &superblock).map_err(|source| cannot_write(path, source))?;
    }
    Ok(Opened { superblock, is_new })
}

/// Writes the copies that are not as they should be. That one cannot be written is no reason not to start.
fn repair(
    copies: &[Copy; 2],
    superblock: &Superblock,
    path: &Path,
    warnings: &mut Vec<String>,
    may: impl Fn(&Copy) -> bool,
    create: impl Fn(usize, &Superblock) -> io::Result<()>,
) {
    let path = path.display();
    for (which, copy) in copies.iter().enumerate().filter(|(_, copy)| !copy.is(superblock)) {
        if !may(copy) {
            warnings.push(format!("a superblock of {path} is damaged beyond recognition, and left so"));
            continue;
        }
        match create(which, superblock) {
            Err(error) => {
                warnings.push(format!("a damaged superblock of {path} cannot be written: {error}"));
            }
            // A place of before there were two copies has no second one: that is nothing to hear of.
            Ok(()) if matches!(copy, Copy::Blank) && which == 1 => {}
            Ok(()) => {
                warnings.push(format!("a superblock of {path} was damaged: it is repaired from its copy"));
            }
        }
    }
}

fn are_blank(copies: &[Copy; 2]) -> bool {
    copies.iter().all(|copy| matches!(copy, Copy::Blank))
}

fn rebuilt(path: &Path) -> String {
    format!(
        "both superblocks of {} were lost: they are made again from what the segments say",
        path.display()
    )
}

fn cannot_write(path: &Path, source: io::Error) -> OpenError {
    failed("cannot write the superblock of", path, source)
}

fn new_superblock(segment_bytes: u64, clock: &Clock) -> Result<Superblock, Errno> {
    Ok(Superblock { segment_bytes, device: clock.random()? })
}

/// What every segment says whose header verifies, if they agree and are enough; each is given with the bytes
/// it has.
fn rebuild(segments: &[(Option<SegmentHeader>, u64)], enough: usize) -> Option<Superblock> {
    let said = segments.iter().filter_map(|(header, bytes)| Some((header.as_ref()?.device, *bytes)));
    let said: Vec<_> = said.collect();
    let (device, segment_bytes) = *said.first()?;
    let agree = said.iter().all(|other| *other == (device, segment_bytes));
    let sound = agree && said.len() >= enough && is_possible(segment_bytes);
    sound.then_some(Superblock { segment_bytes, device })
}

/// Of every segment file: its header, if it verifies and is of the segment that its name says, and its size.
fn segments_of_folder(folder: &Folder, path: &Path) -> Result<Vec<(Option<SegmentHeader>, u64)>, OpenError> {
    let names = folder.names().map_err(|errno| failed("cannot list", path, errno.into()))?;
    let read = |segment: u32| {
        let file = match patiently(|| folder.open(&name(segment), OpenMode::Read, false)) {
            Ok(file) => file,
            Err(Errno::ISDIR | Errno::NXIO) => return None, // no file at all
            Err(_) => return Some((None, 0)),
        };
        Some((header_at(&file, 0, segment), file.len().unwrap_or(0)))
    };
    Ok(names.iter().filter_map(|name| number(name)).filter_map(read).collect())
}

/// The headers that verify where segments of the configured size would have them.
fn segments_of_device(file: &File, segment_bytes: u64, bytes: u64) -> Vec<(Option<SegmentHeader>, u64)> {
    let count = ((bytes - DEVICE_BASE) / segment_bytes).min(SEGMENTS_MAX) as u32;
    let read = |segment| header_at(file, DEVICE_BASE + u64::from(segment) * segment_bytes, segment);
    (0..count).map(|segment| (read(segment), segment_bytes)).collect()
}

fn header_at(file: &File, offset: u64, segment: u32) -> Option<SegmentHeader> {
    let mut block = AlignedBuffer::new(BLOCK);
    file.read_all(&mut block, offset).ok()?;
    SegmentHeader::decode_any(block.first_chunk()?).filter(|header| header.segment == segment)
}

/// An error where the system does not let this process look: that says nothing of what is there.
fn read_file(folder: &Folder, path: &Path, name: &str) -> Result<Copy, OpenError> {
    match patiently(|| folder.open(name, OpenMode::Read, false)) {
        Ok(file) => Ok(read_block(&file, 0)),
        Err(Errno::NOENT) => Ok(Copy::Blank),
        Err(errno)
            if matches!(errno, Errno::ACCESS | Errno::PERM) || ErrnoClass::of(errno) == ErrnoClass::Short =>
        {
            Err(failed("cannot open", &path.join(name), errno.into()))
        }
        Err(_) => Ok(Copy::Unreadable),
    }
}

/// Written beside, then renamed: it is there whole or not at all.
fn write_file(folder: &Folder, which: usize, superblock: &Superblock) -> io::Result<()> {
    let (name, beside) = (NAMES[which], NAMES[which + 2]);
    let file = patiently(|| folder.open(beside, OpenMode::Create, false))?;
    file.write_all(&superblock.encode()[..], 0)?;
    file.sync()?;
    folder.rename(beside, name)?;
    Ok(folder.sync()?)
}

fn read_block(file: &File, offset: u64) -> Copy {
    let mut block = AlignedBuffer::new(BLOCK);
    match file.read_all(&mut block, offset) {
        Ok(()) => Copy::of(block),
        Err(_) => Copy::Unreadable,
    }
}

fn write_block(file: &File, which: usize, superblock: &Superblock) -> io::Result<()> {
    file.write_all(&AlignedBuffer::copy_of(&superblock.encode()[..]), OFFSETS[which])?;
    Ok(file.sync()?)
}

/// Is there nothing between the two copies? A file system's traces would be there. Blocks that cannot be read
/// say nothing.
fn is_blank_between(file: &File) -> bool {
    let mut block = AlignedBuffer::new(BLOCK);
    (BLOCK_BYTES..OFFSETS[1])
        .step_by(BLOCK)
        .all(|offset| file.read_all(&mut block, offset).is_err() || block.iter().all(|byte| *byte == 0))
}
