//! What lies in the tier's directory and is not the tier's. Owns: which entries these are, and saying so.
//! Must not know: what becomes of a segment whose name something else has.

use super::{Device, FileState, Place, file_state, set_file_state};
use crate::limits::{BLOCK, STRAYS_NAMED_MAX};
use crate::nvme::buffer::AlignedBuffer;
use crate::nvme::config::{OpenError, failed};
use crate::nvme::format::SegmentHeader;
use crate::nvme::segment_file::{SegmentFile, number};
use crate::nvme::storage::File;
use crate::nvme::{lock, superblock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the server keeps beside the segments begins so.
const NEIGHBOUR: &str = "catalog.redb";

impl Device {
    /// Two names may be one file, where somebody linked it: what is written under one would be lost under the
    /// other. The name that its header says has it, else the first; the others are strays.
    pub(super) fn part_links(&self) -> Result<(), OpenError> {
        let Place::Directory { files, .. } = &self.place else { return Ok(()) };
        let mut owners: BTreeMap<(u64, u64), (u32, Arc<File>)> = BTreeMap::new();
        for segment in 0..self.numbers {
            let FileState::Open(file) = file_state(files, segment) else { continue };
            let Some(inode) =
                linked(&file).map_err(|errno| failed("cannot look at", &self.path, errno.into()))?
            else {
                continue;
            };
            let stray = match owners.get(&inode) {
                Some((owner, file)) if self.is_of(file, segment) && !self.is_of(file, *owner) => Some(*owner),
                Some(_) => Some(segment),
                None => None,
            };
            if let Some(stray) = stray {
                set_file_state(files, stray, FileState::Stray);
            }
            if stray != Some(segment) {
                owners.insert(inode, (segment, file));
            }
        }
        Ok(())
    }

    /// Does a file's header say that it is a segment's?
    fn is_of(&self, file: &Arc<File>, segment: u32) -> bool {
        let file = SegmentFile { storage: Arc::clone(file), base: 0, file: segment };
        let mut block = AlignedBuffer::new(BLOCK);
        let read = file.read(0, &mut block).is_ok();
        let header = block.first_chunk().and_then(|block| SegmentHeader::decode(block, &self.id, segment));
        read && header.is_some()
    }

    /// Names what lies in the directory and is not the tier's: it may take space that segments are to have.
    pub(super) fn name_strays(&self, warnings: &mut Vec<String>) -> Result<(), OpenError> {
        let Place::Directory { folder, files, .. } = &self.place else { return Ok(()) };
        let names = folder.names().map_err(|errno| failed("cannot list", &self.path, errno.into()))?;
        let stray = |name: &String| match number(name) {
            Some(number) => matches!(file_state(files, number), FileState::Stray),
            None => !is_ours(name),
        };
        let mut strays: Vec<String> = names.into_iter().filter(stray).collect();
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

/// A file that has more than one name.
fn linked(file: &File) -> Result<Option<(u64, u64)>, Errno> {
    match file {
        File::Descriptor(fd) => {
            let stat = rustix::fs::fstat(fd)?;
            Ok((stat.st_nlink > 1).then_some((stat.st_dev, stat.st_ino)))
        }
        #[cfg(feature = "simulation")]
        File::Simulated(_) => Ok(None),
    }
}

/// Is it the name of something that the tier, or the server beside it, makes here?
fn is_ours(name: &str) -> bool {
    let itself = name == "." || name == "..";
    let ours = name == lock::NAME || superblock::NAMES.contains(&name);
    itself || ours || name.starts_with(NEIGHBOUR)
}
