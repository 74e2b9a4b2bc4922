//! Reading the log back at start. Owns: which extents of a device count. Must not know: engines, threads of a running tier.
//!
//! A segment with a valid footer is known by it. One without (the open one of a process that was killed) is read whole:
//! every block that verifies as a header of this segment, and whose payload verifies too, is an extent; anything else is
//! stepped over, one block at a time. Of several extents of one shard the highest sequence counts. A footer is written
//! after its extents were synced, so their payloads are verified only when they are read.

use super::buffer::AlignedBuffer;
use super::config::{OpenReport, Recovered};
use super::device::{Device, SegmentFile};
use super::format::{Nonce, Record, SegmentHeader, decode_entries, decode_extent, decode_trailer};
use super::log::{Found, Log};
use crate::limits::{BLOCK, RECOVERY_THREADS, RECOVERY_WINDOW};
use crate::tier::Location;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_transfer::Checksum;

/// One segment as it was found.
struct Read {
    segment: u32,
    file: SegmentFile,
    found: Found,
    /// The highest sequence seen in it.
    highest: u64,
    scanned: bool,
}

/// Reads every segment and makes the books; gives the extents that count.
pub(crate) fn recover(device: &Device, report: &mut OpenReport) -> io::Result<(Log, Vec<Recovered>)> {
    let mut reads = read_segments(device)?;
    reads.sort_by_key(|read| read.segment);
    let mut log = Log::new(device.segments, device.segment_blocks());
    let extents = newest(&reads, report);
    let youngest = resume_youngest(&mut reads, &log)?;
    for read in reads {
        if log.is_surplus(read.segment) && matches!(read.found, Found::Vacant | Found::Blank) {
            device.delete(read.segment)?;
            continue;
        }
        report.scanned += u32::from(read.scanned);
        report.footers += u32::from(!read.scanned && !matches!(read.found, Found::Vacant));
        log.restore_sequence(read.highest);
        log.restore(read.segment, read.file, read.found);
    }
    if let Some(youngest) = youngest {
        log.resume(youngest);
    }
    for extent in &extents {
        log.restore_live(extent.at, extent.meta.payload_bytes);
    }
    log.release_empty();
    report.extents = extents.len() as u64;
    if log.surplus_segments() > 0 {
        report.warnings.push(format!(
            "{} segments are beyond the capacity of {}: their pages move, or leave by the policy's order, and they are given \
             back one by one",
            log.surplus_segments(),
            device.segments
        ));
    }
    Ok((log, extents))
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
    let Some(file) = device.existing(segment)? else {
        if segment >= device.segments {
            device.delete(segment)?; // it never had its space, and will not
        }
        return Ok(None);
    };
    let mut block = AlignedBuffer::new(BLOCK);
    file.read(0, &mut block)?;
    let header = block.first_chunk().and_then(|block| SegmentHeader::decode(block, &device.id, segment));
    let Some(header) = header else {
        return Ok(Some(Read { segment, file, found: Found::Vacant, highest: 0, scanned: false }));
    };
    let blocks = device.segment_blocks();
    let footer = read_footer(&file, segment, &header.nonce, blocks)?;
    let scanned = footer.is_none();
    let records = match footer {
        Some(records) => records,
        None => scan(&file, segment, &header.nonce, blocks)?,
    };
    let highest = records.iter().map(|record| record.sequence).max().unwrap_or(0).max(header.epoch);
    let found = match (records.is_empty(), scanned) {
        (true, true) => Found::Vacant,
        (true, false) => Found::Blank,
        (false, _) => Found::Extents { nonce: header.nonce, records, sealed: !scanned },
    };
    Ok(Some(Read { segment, file, found, highest, scanned }))
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

/// Every extent of a segment whose header and payload verify, in order of their blocks.
fn scan(file: &SegmentFile, segment: u32, nonce: &Nonce, segment_blocks: u32) -> io::Result<Vec<Record>> {
    let mut window = Window::new(file, segment_blocks);
    let mut records = Vec::new();
    let mut block = 1;
    while block < segment_blocks {
        let record = decode_extent(window.block(block)?, segment, block, nonce);
        block += match record {
            Some(record) if window.payload_verifies(&record)? => {
                let blocks = record.blocks();
                records.push(record);
                blocks
            }
            _ => 1,
        };
    }
    Ok(records)
}

/// A moving view of a segment, so that the disk sees large reads.
struct Window<'a> {
    file: &'a SegmentFile,
    segment_blocks: u32,
    buffer: AlignedBuffer,
    /// The blocks in the buffer.
    first: u32,
    end: u32,
}

impl<'a> Window<'a> {
    fn new(file: &'a SegmentFile, segment_blocks: u32) -> Window<'a> {
        let bytes = RECOVERY_WINDOW.min(segment_blocks as usize * BLOCK);
        Window { file, segment_blocks, buffer: AlignedBuffer::new(bytes), first: 0, end: 0 }
    }

    /// The bytes from a block of the segment to the end of the view.
    fn from(&mut self, block: u32) -> io::Result<&[u8]> {
        if block < self.first || block >= self.end {
            // The last view begins earlier, so that it ends with the segment.
            let blocks = (self.buffer.len() / BLOCK) as u32;
            let first = block.min(self.segment_blocks - blocks);
            self.end = first; // empty, in case the read fails
            self.file.read(first, &mut self.buffer)?;
            (self.first, self.end) = (first, first + blocks);
        }
        Ok(&self.buffer[(block - self.first) as usize * BLOCK..])
    }

    fn block(&mut self, block: u32) -> io::Result<&[u8]> {
        Ok(&self.from(block)?[..BLOCK])
    }

    fn payload_verifies(&mut self, record: &Record) -> io::Result<bool> {
        let end = u64::from(record.block) + u64::from(record.blocks());
        if end > u64::from(self.segment_blocks) {
            return Ok(false);
        }
        let mut checksum = Checksum::new();
        let mut left = record.meta.payload_bytes as usize;
        let mut block = record.block + 1;
        while left > 0 {
            let bytes = self.from(block)?;
            let piece = &bytes[..bytes.len().min(left)];
            checksum.update(piece);
            left -= piece.len();
            block += piece.len().div_ceil(BLOCK) as u32;
        }
        Ok(checksum.finish() == record.meta.checksum)
    }
}

/// The newest extent of every shard.
fn newest(reads: &[Read], report: &mut OpenReport) -> Vec<Recovered> {
    let mut places: HashMap<(NamespaceId, BlockHash, u16), usize> = HashMap::new();
    let mut extents: Vec<Recovered> = Vec::new();
    for read in reads {
        let Found::Extents { records, .. } = &read.found else { continue };
        for record in records {
            let Record { meta, block, sequence } = record.clone();
            let key = (meta.namespace, meta.hash, meta.shard);
            let found = Recovered { meta, at: Location { segment: read.segment, block }, sequence };
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

/// Goes on filling the segment that was written last, if that is worth it: else every restart would cost a segment. Its
/// footer, if it has one, is destroyed first, because it will not list what comes.
fn resume_youngest(reads: &mut [Read], log: &Log) -> io::Result<Option<u32>> {
    let last = |found: &Found| match found {
        Found::Extents { records, .. } => records.iter().map(|record| record.sequence).max(),
        Found::Vacant | Found::Blank => None,
    };
    let usable = reads.iter_mut().filter(|read| !log.is_surplus(read.segment));
    let youngest = usable.max_by_key(|read| last(&read.found));
    let Some(Read { segment, file, found: Found::Extents { records, sealed, .. }, .. }) = youngest else {
        return Ok(None);
    };
    if !log.worth_resuming(records) {
        return Ok(None);
    }
    if *sealed {
        file.write(log.segment_blocks() - 1, &[0; BLOCK])?;
        file.sync()?;
        *sealed = false;
    }
    Ok(Some(*segment))
}

#[cfg(test)]
mod tests;
