//! The keeper: one thread that prepares segments before they are needed and seals them when they are full.
//!
//! Owns: blocking I/O of the control plane (headers, footers, new files), so that no write ever waits for it.
//! Must not know: extents' payloads.

use super::core::{Books, Core, PoisonOnPanic, Stop};
use super::device::Device;
use super::flush;
use super::format::{Nonce, SegmentHeader, encode_footer};
use super::log::{Chore, Log};
use super::placer::Placer;
use super::segment_file::SegmentFile;
use crate::errno::ErrnoClass;
use crate::limits::BLOCK;
use crate::tier::TierError;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What the keeper has to do now.
enum Next {
    Do(Chore),
    /// Nothing, until it is woken or this time has come.
    Wait(Option<Instant>),
    /// Nothing any more.
    End,
}

/// Why the device is out of service after a chore.
#[derive(Debug, thiserror::Error)]
enum ChoreError {
    /// The device failed in a chore of one segment.
    #[error("segment {segment} {what}: {error}")]
    Segment { segment: u32, what: &'static str, error: io::Error },
    /// What replaced the extents of released segments cannot be synced.
    #[error("released segments cannot be used again: {0}")]
    Sync(TierError),
}

/// Runs until it is told to stop or the device is poisoned.
pub(crate) fn run(placer: &Placer) {
    let _guard = PoisonOnPanic::new(&placer.core, "the keeper");
    while let Some(chore) = await_chore(&placer.core) {
        carry_out(placer, chore);
    }
    placer.place_waiting();
}

/// Does one chore without waiting for it; `false` if there is none.
#[cfg(feature = "simulation")]
pub(crate) fn step(placer: &Placer) -> bool {
    let next = next(&placer.core, &mut placer.core.books.lock());
    match next {
        Next::Do(chore) => carry_out(placer, chore),
        Next::Wait(_) => return false,
        Next::End => {
            placer.place_waiting();
            return false;
        }
    }
    true
}

fn carry_out(placer: &Placer, chore: Chore) {
    if let Err(why) = perform(placer, chore) {
        placer.core.poison(&why.to_string());
    }
    placer.place_waiting();
}

fn await_chore(core: &Core) -> Option<Chore> {
    let mut books = core.books.lock();
    loop {
        match next(core, &mut books) {
            Next::Do(chore) => return Some(chore),
            Next::Wait(Some(at)) => drop(core.chore.wait_until(&mut books, at)),
            Next::Wait(None) => core.chore.wait(&mut books),
            Next::End => return None,
        }
    }
}

fn next(core: &Core, books: &mut Books) -> Next {
    if core.poisoned().is_some() || books.stop == Some(Stop::Now) {
        return Next::End;
    }
    if books.stop == Some(Stop::Seal) {
        books.log.fill_open();
        return books.log.closing_chore(core.now()).map_or(Next::End, Next::Do);
    }
    let chore = books.log.next_chore(core.now());
    chore.map_or_else(|| Next::Wait(books.log.next_look()), Next::Do)
}

/// Does a chore and enters it in the books. An error of the device poisons it; a chore that the system had
/// not enough for is put back.
fn perform(placer: &Placer, chore: Chore) -> Result<(), ChoreError> {
    let core = &placer.core;
    match chore {
        Chore::Make { segment, file, epoch } => match make(core, segment, file, epoch) {
            Ok((file, nonce)) => core.books.lock().log.made(segment, file, nonce),
            Err(error) => {
                return put_back(core, segment, "cannot be prepared", error, Log::make_failed);
            }
        },
        Chore::Blank { segment, file, epoch } => match blank(core, segment, &file, epoch) {
            Ok(()) => core.books.lock().log.blanked(segment),
            Err(error) => return put_back(core, segment, "cannot be blanked", error, Log::blank_failed),
        },
        Chore::Sync => {
            core.counters.release_syncs.fetch_add(1, Ordering::Relaxed);
            flush::sync(core).map_err(ChoreError::Sync)?;
        }
        Chore::GiveBack { segment, file, epoch } => {
            // Blanked first: a device has nothing to delete, and a directory may forget the deletion.
            let given_back = blank(core, segment, &file, epoch).and_then(|()| core.device.delete(segment));
            match given_back {
                Ok(()) => core.books.lock().log.given_back(segment),
                Err(error) => {
                    return put_back(core, segment, "cannot be given back", error, Log::give_back_failed);
                }
            }
        }
        Chore::Seal { segment, file, nonce, records } => {
            let footer = encode_footer(&records, segment, &nonce, core.device.segment_blocks());
            if let Err(error) = seal(core, &file, &footer) {
                return put_back(core, segment, "cannot be sealed", error, Log::seal_failed);
            }
            core.counters.device_written_bytes.fetch_add(footer.1.len() as u64, Ordering::Relaxed);
            core.books.lock().log.sealed(segment);
        }
    }
    core.went_well();
    Ok(())
}

/// A chore was not done: it is the device's failure, or it is tried again.
fn put_back(
    core: &Core,
    segment: u32,
    what: &'static str,
    error: io::Error,
    undo: impl FnOnce(&mut Log, u32, ErrnoClass, Instant),
) -> Result<(), ChoreError> {
    let fault = ErrnoClass::of_error(&error);
    let log = &mut core.books.lock().log;
    match fault {
        ErrnoClass::Device => return Err(ChoreError::Segment { segment, what, error }),
        ErrnoClass::Full if log.disk_full() => {}
        ErrnoClass::Full => {
            tracing::warn!(segment, %error, "no space for another segment: the NVMe tier is smaller than configured");
        }
        ErrnoClass::Interrupted | ErrnoClass::Short => {
            core.ran_short(&format!("segment {segment} {what}: {error}"))
        }
    }
    undo(log, segment, fault, core.now());
    Ok(())
}

/// A new nonce in the header: nothing written before counts from here on.
fn make(
    core: &Core,
    segment: u32,
    file: Option<Arc<SegmentFile>>,
    epoch: u64,
) -> io::Result<(Arc<SegmentFile>, Nonce)> {
    let file = match file {
        Some(file) => file,
        None => Arc::new(core.device.create(segment)?),
    };
    let nonce = write_header(&core.device, segment, &file, epoch)?;
    core.sync_file(&file)?;
    Ok((file, nonce))
}

fn blank(core: &Core, segment: u32, file: &SegmentFile, epoch: u64) -> io::Result<()> {
    let nonce = write_header(&core.device, segment, file, epoch)?;
    let (first, bytes) = encode_footer(&[], segment, &nonce, core.device.segment_blocks());
    file.write(first, &bytes)?;
    core.sync_file(file)
}

fn write_header(device: &Device, segment: u32, file: &SegmentFile, epoch: u64) -> io::Result<Nonce> {
    let nonce = Nonce(device.clock.random()?);
    let header = SegmentHeader { segment, epoch, nonce, device: device.id };
    file.write(0, &header.encode()[..])?;
    Ok(nonce)
}

/// The extents are on stable storage before the footer that vouches for them is written.
fn seal(core: &Core, file: &SegmentFile, (first, bytes): &(u32, Vec<u8>)) -> io::Result<()> {
    debug_assert!(bytes.len().is_multiple_of(BLOCK));
    core.sync_file(file)?;
    file.write(*first, bytes)
}
