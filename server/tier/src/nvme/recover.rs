//! Reading the log back at start. Owns: which extents of a device count. Must not know: engines, threads of a
//! running tier.
//!
//! A segment with a valid footer is known by it. One without (the open one of a process that was killed) is
//! read whole: every block that verifies as a header of this segment, and whose payload verifies too, is an
//! extent; anything else is stepped over, one block at a time, also what cannot be read. Of several extents
//! of one shard the highest sequence counts. A footer is written after its extents were synced, so their
//! payloads are verified only when they are read.

use super::buffer::AlignedBuffer;
use super::config::{OpenReport, Recovered};
use super::device::{Device, Existing};
use super::format::{Nonce, Record, SegmentHeader, decode_entries, decode_extent, decode_trailer};
use super::log::{Found, Log};
use super::segment::first_use;
use super::segment_file::SegmentFile;
use crate::limits::{BLOCK, RECOVERY_THREADS, RECOVERY_WINDOW, UNREADABLE_BLOCKS_MAX, UNREADABLE_SEQUENCES};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use turnkv_codec::{Decoder, Path};
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_transfer::Checksum;

/// One segment as it was found.
struct Read {
    segment: u32,
    file: Option<SegmentFile>,
    found: Found,
    /// The highest sequence seen in it.
    highest: u64,
    scanned: bool,
    /// A part of it cannot be read.
    unreadable: bool,
    /// It is not to be written again.
    worn: bool,
    /// Its header or its length is not as it was written.
    damaged: bool,
}

/// Reads every segment and makes the books; gives the extents that count.
pub(crate) fn recover(device: &Device, report: &mut OpenReport) -> io::Result<(Log, Vec<Recovered>)> {
    let mut reads = read_segments(device)?;
    reads.sort_by_key(|read| read.segment);
    let mut log = Log::new(device.segments, device.segment_blocks());
    let extents = newest(&reads, report);
    let youngest = resume_youngest(&mut reads, &log, report);
    if reads.iter().any(|read| read.unreadable) {
        // What cannot be read now may be the next time: it is older than whatever is written from here on.
        let highest = reads.iter().map(|read| read.highest).max().unwrap_or(0);
        log.restore_sequence(highest.saturating_add(UNREADABLE_SEQUENCES));
    }
    for read in reads {
        if log.is_surplus(read.segment) && matches!(read.found, Found::Vacant | Found::Blank) {
            device.delete(read.segment)?;
            continue;
        }
        let known = matches!(read.found, Found::Blank | Found::Extents { .. });
        report.scanned += u32::from(read.scanned);
        report.footers += u32::from(!read.scanned && known);
        report.unreadable += u32::from(read.unreadable);
        report.damaged += u32::from(read.damaged);
        log.restore_sequence(read.highest);
        log.restore(read.segment, read.file, read.found);
        if read.worn {
            log.wear(read.segment);
        }
    }
    if let Some(youngest) = youngest {
        log.resume(youngest);
    }
    for extent in &extents {
        log.restore_live(extent.at, extent.meta.payload_bytes);
    }
    log.release_empty();
    report.extents = extents.len() as u64;
    report.retired = log.worn_segments() as u32;
    if log.surplus_segments() > 0 {
        report.warnings.push(format!(
            "{} segments are beyond the capacity of {}: their pages move, or leave by the policy's order, and they are given \
             back one by one",
            log.surplus_segments(),
            device.segments
        ));
    }
    warn_of_damage(report);
    Ok((log, extents))
}

fn warn_of_damage(report: &mut OpenReport) {
    let OpenReport { unreadable, retired, damaged, .. } = *report;
    if damaged > 0 {
        report.warnings.push(format!(
            "{damaged} segments are not as they were written, in their headers or lengths: what did not verify is gone; see who \
             writes to this place"
        ));
    }
    if unreadable > 0 {
        report.warnings.push(format!(
            "{unreadable} segments cannot be read in part: what they held there is gone; look at the device (smartctl, dmesg)"
        ));
    }
    if retired > 0 {
        report
            .warnings
            .push(format!("{retired} segments are not written again: the tier is smaller by these"));
    }
}

fn read_segments(device: &Device) -> io::Result<Vec<Read>> {
    let next = AtomicU32::new(0);
    let reads = Mutex::new(Vec::new());
    let failure = Mutex::new(None);
    let work = || {
        loop {
            let segment = next.fetch_add(1, Ordering::Relaxed);
            if segment >= device.numbers || failure.lock().is_some() {
                return;
            }
            match read_segment(device, segment) {
                Ok(Some(read)) => reads.lock().push(read),
                Ok(None) => {}
                Err(error) => *failure.lock() = Some(error),
            }
        }
    };
    std::thread::scope(|scope| {
        // This thread is one of them; a simulation has no other.
        for _ in 1..device.clock.threads(RECOVERY_THREADS) {
            scope.spawn(work);
        }
        work();
    });
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(reads.into_inner()),
    }
}

fn read_segment(device: &Device, segment: u32) -> io::Result<Option<Read>> {
    let (file, resized) = match device.existing(segment)? {
        Existing::File(file) => (file, false),
        Existing::Resized(file) => (file, true),
        Existing::Absent if segment >= device.segments => {
            device.delete(segment)?; // it never had its space, and will not
            return Ok(None);
        }
        Existing::Stray if segment < device.segments => return Ok(Some(Read::lost(segment, false))),
        Existing::Absent | Existing::Stray => return Ok(None),
    };
    let mut block = AlignedBuffer::new(BLOCK);
    if let Err(error) = file.read(0, &mut block) {
        tracing::warn!(segment, %error, "a segment's header cannot be read: nothing in it can be verified");
        return Ok(Some(Read::lost(segment, true)));
    }
    let header = block.first_chunk().and_then(|block| SegmentHeader::decode(block, &device.id, segment));
    let Some(header) = header else {
        // Fresh space is all zeros; a header that was written and does not verify cost all that was in the
        // segment.
        let damaged = block.iter().any(|byte| *byte != 0);
        if damaged {
            tracing::warn!(
                segment,
                "a segment's header is damaged, or another pool's: nothing in it can be verified"
            );
        }
        if resized && segment >= device.segments {
            device.delete(segment)?; // it never had its space, and will not
        }
        return Ok(match resized {
            true => None,
            false => Some(Read { damaged, ..Read::of(segment, Some(file), Found::Vacant) }),
        });
    };
    if resized {
        tracing::warn!(
            segment,
            "a segment's file has not the size that it was made with: what is whole in it counts"
        );
        if let Err(error) = device.restore_length(&file) {
            tracing::warn!(segment, %error, "it cannot be given its space again: what is in it is out of reach until the next start");
            return Ok(Some(Read { damaged: true, ..Read::lost(segment, false) }));
        }
    }
    let (records, scanned, unreadable) = read_extents(&file, segment, &header.nonce, device.segment_blocks());
    // What could not be read may be well the next time: nothing is written over it, no footer leaves it out.
    let mut worn = unreadable > 0;
    if scanned
        && !records.is_empty()
        && let Err(error) = void_footer(&file, device.segment_blocks())
    {
        tracing::warn!(segment, %error, "what is in a footer's place cannot be made void");
        worn = true;
    }
    let highest = records.iter().map(|record| record.sequence).max().unwrap_or(0).max(header.epoch);
    let found = match (records.is_empty(), scanned) {
        (true, _) if worn => Found::Lost,
        (true, true) => Found::Vacant,
        (true, false) => Found::Blank,
        (false, _) => Found::Extents { nonce: header.nonce, records, sealed: !scanned },
    };
    let (unreadable, damaged) = (unreadable > 0, resized);
    let read = Read::of(segment, Some(file), found);
    Ok(Some(Read { highest, scanned, unreadable, worn, damaged, ..read }))
}

/// A segment's extents: by its footer, or, where that does not verify, by their own headers (the second value
/// says so). And how many of its blocks could not be read.
fn read_extents(file: &SegmentFile, segment: u32, nonce: &Nonce, blocks: u32) -> (Vec<Record>, bool, u32) {
    let unreadable = match read_footer(file, segment, nonce, blocks) {
        Ok(Some(records)) => return (records, false, 0),
        Ok(None) => 0,
        Err(error) => {
            tracing::warn!(segment, %error, "a footer cannot be read: the segment's headers are read instead");
            1
        }
    };
    let (records, skipped) = scan(file, segment, nonce, blocks);
    (records, true, unreadable + skipped)
}

/// A footer that did not verify may do so the next time; then it would hide what counts from now on.
fn void_footer(file: &SegmentFile, segment_blocks: u32) -> io::Result<()> {
    file.write(segment_blocks - 1, &[0; BLOCK]).and_then(|()| file.sync())
}

impl Read {
    fn of(segment: u32, file: Option<SegmentFile>, found: Found) -> Read {
        let (highest, scanned, unreadable, worn, damaged) = (0, false, false, false, false);
        Read { segment, file, found, highest, scanned, unreadable, worn, damaged }
    }

    fn lost(segment: u32, unreadable: bool) -> Read {
        Read { unreadable, worn: true, ..Read::of(segment, None, Found::Lost) }
    }
}

/// The extents a segment's footer lists; `None` if it has no footer that verifies.
pub(crate) fn read_footer(
    file: &SegmentFile,
    segment: u32,
    nonce: &Nonce,
    segment_blocks: u32,
) -> io::Result<Option<Vec<Record>>> {
    let mut block = AlignedBuffer::new(BLOCK);
    file.read(segment_blocks - 1, &mut block)?;
    let Some(trailer) = decode_trailer(&block, segment, nonce, segment_blocks) else { return Ok(None) };
    if trailer.entries == 0 {
        return Ok(Some(Vec::new()));
    }
    let mut entries = AlignedBuffer::new(trailer.entry_blocks() as usize * BLOCK);
    file.read(trailer.first_block, &mut entries)?;
    Ok(decode_entries(&entries, &trailer))
}

/// Every extent of a segment whose header and payload verify, in order of their blocks; and how many blocks
/// could not be read and were stepped over. A segment that is mostly unreadable is left at some point: each
/// of its blocks takes time.
fn scan(file: &SegmentFile, segment: u32, nonce: &Nonce, segment_blocks: u32) -> (Vec<Record>, u32) {
    let mut window = Window::new(file, segment_blocks);
    let mut records = Vec::new();
    let (mut block, mut unreadable) = (1, 0);
    while block < segment_blocks && unreadable < UNREADABLE_BLOCKS_MAX {
        let record = match window.block(block) {
            Ok(bytes) => decode_extent(bytes, segment, block, nonce),
            Err(error) => {
                tracing::debug!(segment, block, %error, "a block cannot be read");
                unreadable += 1;
                None
            }
        };
        block += match record {
            Some(record) if window.payload_verifies(&record) => {
                let blocks = record.blocks();
                records.push(record);
                blocks
            }
            _ => 1,
        };
    }
    (records, unreadable)
}

/// A moving view of a segment, so that the disk sees large reads. Where one of these fails, blocks are read
/// one by one.
struct Window<'a> {
    file: &'a SegmentFile,
    segment_blocks: u32,
    buffer: AlignedBuffer,
    /// The blocks in the buffer.
    first: u32,
    end: u32,
    /// Before this block a large read failed.
    careful_until: u32,
}

impl<'a> Window<'a> {
    fn new(file: &'a SegmentFile, segment_blocks: u32) -> Window<'a> {
        let bytes = RECOVERY_WINDOW.min(segment_blocks as usize * BLOCK);
        let buffer = AlignedBuffer::new(bytes);
        Window { file, segment_blocks, buffer, first: 0, end: 0, careful_until: 0 }
    }

    /// The bytes from a block of the segment to the end of the view.
    fn from(&mut self, block: u32) -> io::Result<&[u8]> {
        let inside = (self.first..self.end).contains(&block);
        if !inside && (block < self.careful_until || self.look(block, self.buffer.len() / BLOCK).is_err()) {
            self.look(block, 1)?;
        }
        Ok(&self.buffer[(block - self.first) as usize * BLOCK..(self.end - self.first) as usize * BLOCK])
    }

    /// Moves the view to so many blocks.
    fn look(&mut self, block: u32, blocks: usize) -> io::Result<()> {
        // The last view begins earlier, so that it ends with the segment.
        let first = block.min(self.segment_blocks - blocks as u32);
        self.end = self.first; // empty, in case the read fails
        if let Err(error) = self.file.read(first, &mut self.buffer[..blocks * BLOCK]) {
            self.careful_until = self.careful_until.max(first + blocks as u32);
            return Err(error);
        }
        (self.first, self.end) = (first, first + blocks as u32);
        Ok(())
    }

    fn block(&mut self, block: u32) -> io::Result<&[u8]> {
        Ok(&self.from(block)?[..BLOCK])
    }

    /// Is the payload there, and the one that was written?
    fn payload_verifies(&mut self, record: &Record) -> bool {
        let end = u64::from(record.block) + u64::from(record.blocks());
        if end > u64::from(self.segment_blocks) {
            return false;
        }
        let mut checksum = Checksum::new();
        if !record.is_packed() {
            let read = self.payload(record, |piece| checksum.update(piece));
            return read.is_ok() && checksum.finish() == record.meta.checksum;
        }
        let mut stored = Vec::with_capacity(record.stored_bytes as usize);
        let read = self.payload(record, |piece| stored.extend_from_slice(piece));
        let copy = |at: usize, piece: &mut [u8]| piece.copy_from_slice(&stored[at..][..piece.len()]);
        let decoder = read.and_then(|()| Decoder::new(Path::best()));
        let decoded = decoder.map(|mut decoder| {
            decoder.decode(stored.len(), record.meta.payload_bytes, copy, |_, piece| checksum.update(piece))
        });
        matches!(decoded, Ok(Ok(()))) && checksum.finish() == record.meta.checksum
    }

    /// The payload as it is stored, piece by piece.
    fn payload(&mut self, record: &Record, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let mut left = record.stored_bytes as usize;
        let mut block = record.block + 1;
        while left > 0 {
            let bytes = self.from(block)?;
            let piece = &bytes[..bytes.len().min(left)];
            take(piece);
            left -= piece.len();
            block += piece.len().div_ceil(BLOCK) as u32;
        }
        Ok(())
    }
}

/// The newest extent of every shard.
fn newest(reads: &[Read], report: &mut OpenReport) -> Vec<Recovered> {
    let mut places: HashMap<(NamespaceId, BlockHash, u16), usize> = HashMap::new();
    let mut extents: Vec<Recovered> = Vec::new();
    for read in reads {
        let Found::Extents { records, .. } = &read.found else { continue };
        for record in records {
            let Record { meta, block, sequence, .. } = record.clone();
            let key = (meta.namespace, meta.hash, meta.shard);
            let found = Recovered { meta, at: first_use(read.segment, block), sequence, leaving: false };
            match places.get(&key) {
                None => {
                    places.insert(key, extents.len());
                    extents.push(found);
                }
                Some(place) => {
                    report.superseded += 1;
                    if extents[*place].sequence < found.sequence {
                        extents[*place] = found;
                    }
                }
            }
        }
    }
    extents
}

/// Goes on filling the segment that was written last, if that is worth it: else every restart would cost a
/// segment. Its footer, if it has one, is destroyed first, because it will not list what comes.
fn resume_youngest(reads: &mut [Read], log: &Log, report: &mut OpenReport) -> Option<u32> {
    let last = |found: &Found| match found {
        Found::Extents { records, .. } => records.iter().map(|record| record.sequence).max(),
        Found::Vacant | Found::Blank | Found::Lost => None,
    };
    let youngest = reads.iter_mut().max_by_key(|read| last(&read.found))?;
    let (Some(file), Found::Extents { records, sealed, .. }) = (&youngest.file, &mut youngest.found) else {
        return None;
    };
    if youngest.worn || !log.worth_resuming(records) {
        return None;
    }
    if *sealed {
        *sealed = false; // whether it has a footer is not known from here on
        if let Err(error) = void_footer(file, log.segment_blocks()) {
            report.warnings.push(format!("segment {} cannot be gone on with: {error}", youngest.segment));
            youngest.worn = true;
            return None;
        }
    }
    Some(youngest.segment)
}

#[cfg(test)]
mod tests;
