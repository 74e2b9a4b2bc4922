//! A file of a simulated disk. Owns: what each call does to it, and what a fault makes of the call.
//! Must not know: names, other files.

use super::disk::SimulatedDisk;
use super::faults::{Call, Fault};
use super::inode::{Inode, SECTOR};
use crate::nvme::open_mode::OpenMode;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// An open file of a [`SimulatedDisk`], in one life of it. The public part of it is what a database's storage
/// asks for.
#[derive(Clone, Debug)]
pub struct SimulatedFile {
    disk: SimulatedDisk,
    number: u64,
}

impl SimulatedDisk {
    /// Opens a file, for whatever keeps its bytes in one: it is made if it is not there.
    pub fn open_file(&self, name: &str) -> Result<SimulatedFile, Errno> {
        let here = self.join();
        here.open(name, OpenMode::Keep, false)
    }

    pub(crate) fn open(&self, name: &str, open: OpenMode, direct: bool) -> Result<SimulatedFile, Errno> {
        let mut state = self.begin(Call::Open, None)?.0;
        let known = state.names.get(name).copied();
        let number = match known {
            Some(number) => number,
            None if matches!(open, OpenMode::Keep | OpenMode::Create) => state.make(name),
            None => return Err(Errno::NOENT),
        };
        if let Some(inode) = state.inodes.get_mut(&number) {
            inode.direct = direct;
            if open == OpenMode::Create {
                inode.set_len(0);
            }
        }
        drop(state);
        Ok(SimulatedFile { disk: self.join(), number })
    }
}

impl SimulatedFile {
    /// Its length.
    pub fn len(&self) -> Result<u64, Errno> {
        let state = self.disk.lock();
        if self.disk.is_dead_in(&state) {
            return Err(Errno::IO);
        }
        state.inodes.get(&self.number).map(Inode::len).ok_or(Errno::IO)
    }

    /// Is it empty?
    pub fn is_empty(&self) -> Result<bool, Errno> {
        Ok(self.len()? == 0)
    }

    /// Fills `target` with the bytes at `offset`; a file that ends before that is an error.
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < target.len() {
            match self.read_at(&mut target[done..], offset + done as u64) {
                Ok(0) => return Err(Errno::INVAL),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Writes all of `source` at `offset`.
    pub fn write(&self, offset: u64, source: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < source.len() {
            match self.write_at([&source[done..], &[]], offset + done as u64) {
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Makes it so long; new bytes are zero, and need space.
    pub fn set_len(&self, bytes: u64) -> Result<(), Errno> {
        self.allocate(bytes)
    }

    /// Everything written is on stable storage.
    pub fn sync(&self) -> Result<(), Errno> {
        let (mut guard, fault) = self.disk.begin(Call::Sync, Some((self.number, 0)))?;
        let state = &mut *guard;
        let inode = state.inodes.get_mut(&self.number).ok_or(Errno::IO)?;
        if fault.is_some() {
            inode.sync_failed(&mut state.random);
            return Err(Errno::IO);
        }
        inode.sync();
        Ok(())
    }

    /// Stands where a descriptor is asked for; it reads as an empty file.
    pub(crate) fn no_descriptor(&self) -> BorrowedFd<'_> {
        self.disk.shared.null.as_fd()
    }

    /// Gives its space back: that needs none.
    pub(crate) fn clear(&self) -> Result<(), Errno> {
        let mut state = self.disk.begin(Call::Allocate, Some((self.number, 0)))?.0;
        state.inodes.get_mut(&self.number).ok_or(Errno::IO)?.set_len(0);
        Ok(())
    }

    pub(crate) fn allocate(&self, bytes: u64) -> Result<(), Errno> {
        let (mut guard, fault) = self.disk.begin(Call::Allocate, Some((self.number, 0)))?;
        let state = &mut *guard;
        let taken = state.inodes.get(&self.number).ok_or(Errno::IO)?.allocated();
        if fault.is_some() || !state.has_room(taken, bytes) {
            return Err(Errno::NOSPC);
        }
        state.note(bytes);
        state.inodes.get_mut(&self.number).ok_or(Errno::IO)?.set_len(bytes);
        Ok(())
    }

    pub(crate) fn read_at(&self, target: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let (mut guard, fault) = self.disk.begin(Call::Read, Some((self.number, offset)))?;
        let state = &mut *guard;
        let inode = state.inodes.get_mut(&self.number).ok_or(Errno::IO)?;
        let random = &mut state.random;
        if fault == Some(Fault::Latent) && !target.is_empty() {
            inode.make_unreadable(offset + random.below(target.len() as u64), 1);
        }
        if fault == Some(Fault::ReadError) || inode.is_unreadable(offset, target.len()) {
            return Err(Errno::IO);
        }
        let len = if fault == Some(Fault::Short) { part(random.draw(), target.len()) } else { target.len() };
        let source = inode.read(offset, len);
        let count = source.len();
        target[..count].copy_from_slice(source);
        if fault == Some(Fault::FlippedRead) && count > 0 {
            target[random.index(count)] ^= 1 << random.below(8);
        }
        state.note(offset ^ (count as u64) << 40);
        Ok(count)
    }

    pub(crate) fn write_at(&self, pieces: [&[u8]; 2], offset: u64) -> Result<usize, Errno> {
        let (mut guard, fault) = self.disk.begin(Call::Write, Some((self.number, offset)))?;
        let state = &mut *guard;
        let mut bytes = pieces.concat();
        let inode = state.inodes.get(&self.number).ok_or(Errno::IO)?;
        let (taken, len) = (inode.allocated(), inode.len());
        if fault == Some(Fault::NoSpace) || !state.has_room(taken, offset + bytes.len() as u64) {
            return Err(Errno::NOSPC);
        }
        let inode = state.inodes.get_mut(&self.number).ok_or(Errno::IO)?;
        let random = &mut state.random;
        let mut damaged = None;
        match fault {
            Some(Fault::Short) => bytes.truncate(part(random.draw(), bytes.len())),
            Some(Fault::WriteError) => bytes.truncate(random.index(bytes.len() + 1)),
            Some(Fault::FlippedWrite) if !bytes.is_empty() => {
                let at = random.index(bytes.len());
                bytes[at] ^= 1 << random.below(8);
                damaged = Some((offset + at as u64) / SECTOR);
            }
            _ => {}
        }
        let count = bytes.len();
        inode.write(offset, bytes, damaged);
        if fault == Some(Fault::Rot) {
            inode.flip(random.below(len.max(1)), random.below(8) as u8);
        }
        state.note(offset ^ (count as u64) << 40);
        match fault {
            Some(Fault::WriteError | Fault::PowerCut) => Err(Errno::IO),
            _ => Ok(count),
        }
    }
}

/// A part of so many bytes: one at least, and not all if there are several.
fn part(random: u64, len: usize) -> usize {
    match len {
        0 | 1 => len,
        _ => 1 + (random % (len as u64 - 1)) as usize,
    }
}
