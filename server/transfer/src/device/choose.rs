//! How pieces are copied: by copy engine, as a batch, or by a kernel. Owns: merging, the choice, cutting a kernel's work into
//! bounded launches. Must not know: drivers, streams. Pure.
//!
//! The numbers that decide are conservative guesses until a GPU has been measured; [`CopyChoice`] overrides them.

use crate::device::driver::{CopyRequest, Piece};
use crate::limits::{COPY_PIECES_MAX, ENGINE_COPIES_MAX, ENGINE_PIECE_BYTES_MIN};

/// Who copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyChoice {
    /// By the size and number of the pieces.
    #[default]
    Auto,
    /// The copy engines, one call a piece.
    Engine,
    /// The copy engines, one call for many pieces; one call each where the driver has no such call.
    Batch,
    /// A kernel; the copy engines where the device cannot run it.
    Kernel,
}

/// What a device can do, and what its owner wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Means {
    pub(crate) choice: CopyChoice,
    pub(crate) batch: bool,
    pub(crate) kernels: bool,
    /// A launch moves no more.
    pub(crate) chunk_bytes: usize,
}

/// Work for one or a few calls of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// One call each.
    Engine(Vec<CopyRequest>),
    /// One call for all.
    Batch(Vec<CopyRequest>),
    /// One launch.
    Kernel(Vec<Piece>),
}

/// Adds a piece, as part of the last one if it continues that on both sides.
pub(crate) fn push_merged(pieces: &mut Vec<CopyRequest>, next: CopyRequest) {
    if let Some(last) = pieces.last_mut()
        && last.target + last.bytes as u64 == next.target
        && last.source + last.bytes as u64 == next.source
    {
        last.bytes += next.bytes;
        return;
    }
    pieces.push(next);
}

/// Divides a call's merged pieces among those who copy.
pub(crate) fn choose(pieces: Vec<CopyRequest>, means: Means) -> Vec<Work> {
    let kernel = means.kernels && matches!(means.choice, CopyChoice::Auto | CopyChoice::Kernel);
    let batch = means.batch && means.choice != CopyChoice::Engine;
    let whole = |piece: &CopyRequest| match means.choice {
        CopyChoice::Engine | CopyChoice::Batch => true,
        CopyChoice::Kernel => !kernel,
        CopyChoice::Auto => piece.bytes >= ENGINE_PIECE_BYTES_MIN,
    };
    let (large, small): (Vec<_>, Vec<_>) = pieces.into_iter().partition(whole);
    let mut work = Vec::new();
    if !large.is_empty() {
        let batched = batch && large.len() > 1 && means.choice == CopyChoice::Batch;
        work.push(if batched { Work::Batch(large) } else { Work::Engine(large) });
    }
    if small.is_empty() {
        return work;
    }
    let few = small.len() <= ENGINE_COPIES_MAX && means.choice != CopyChoice::Kernel;
    match (few, kernel, batch) {
        (true, ..) | (false, false, false) => work.push(Work::Engine(small)),
        (false, true, _) => launches(small, means.chunk_bytes, &mut work),
        (false, false, true) => work.push(Work::Batch(small)),
    }
    work
}

/// Cuts a kernel's work into launches that move at most `chunk_bytes` each, and name at most [`COPY_PIECES_MAX`] pieces.
fn launches(pieces: Vec<CopyRequest>, chunk_bytes: usize, work: &mut Vec<Work>) {
    let mut launch = Vec::new();
    let mut room = chunk_bytes;
    for piece in pieces {
        let mut done = 0;
        while done < piece.bytes {
            if room == 0 || launch.len() == COPY_PIECES_MAX {
                work.push(Work::Kernel(std::mem::take(&mut launch)));
                room = chunk_bytes;
            }
            let bytes = (piece.bytes - done).min(room);
            let (target, source) = (piece.target + done as u64, piece.source + done as u64);
            launch.push(Piece { target, source, bytes: bytes as u64 });
            done += bytes;
            room -= bytes;
        }
    }
    if !launch.is_empty() {
        work.push(Work::Kernel(launch));
    }
}

#[cfg(test)]
mod tests;
