//! How pieces are copied: by copy engine, as a batch, or by a kernel. Owns: merging, the choice, cutting a kernel's work into
//! bounded launches. Must not know: drivers, streams, how speeds are measured. Pure.
//!
//! Copy engines take nothing of the processors that the engine computes with, but microseconds for each piece. So pages in small
//! pieces are put together on the device first (`lane/gather`), and what is chosen here is how the rest goes: batches are the rule
//! over the link, and kernels copy what is so small that they are clearly faster, where someone waits for it. Within the device they
//! copy all.

use crate::device::driver::CopyRequest;
use crate::limits::{
    BATCH_COPIES_A_CALL, COPY_PIECES_MAX, KERNEL_PIECE_BYTES_USUAL, KERNEL_PIECES_MIN, LAYERED_LAUNCHES_MAX,
    STREAM_CALLS_MAX,
};

/// Who copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyChoice {
    /// By the way, the size and the number of the pieces, and what was measured when the device was opened.
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
    pub(crate) speeds: Speeds,
}

/// Which way pieces go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the device to the host: offloads.
    ToSlots,
    /// From the host to the device: reloads.
    ToDevice,
    /// From the device to itself.
    Within,
}

/// What a kernel copies faster than the copy engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Speeds {
    /// Pieces up to so many bytes, from the host to the device; 0: none.
    pub(crate) to_device_bytes_max: usize,
    /// Whether a kernel's table is copied to the device first: all blocks read all of it, else over the link.
    pub(crate) upload_tables: bool,
}

impl Default for Speeds {
    /// Where nothing was measured.
    fn default() -> Self {
        Self { to_device_bytes_max: KERNEL_PIECE_BYTES_USUAL, upload_tables: true }
    }
}

impl Means {
    /// For pages in so many layers, pieces and bytes. An engine begins with the first layer when all of them are enqueued: more
    /// pieces than a stream is given at once would have it wait for the last ones, so they go by kernel, which few launches move,
    /// each so much that all of them are few.
    pub(crate) fn of_job(self, layers: usize, pieces: usize, bytes: usize) -> Means {
        if layers <= 1 {
            return self;
        }
        let at_once = STREAM_CALLS_MAX * if self.batch { BATCH_COPIES_A_CALL } else { 1 };
        let all_by_kernel = self.choice == CopyChoice::Auto && pieces > at_once;
        let choice = if all_by_kernel { CopyChoice::Kernel } else { self.choice };
        let chunk_bytes = self.chunk_bytes.max(bytes.div_ceil(LAYERED_LAUNCHES_MAX));
        Means { choice, chunk_bytes, ..self }
    }

    /// Whether pages in small pieces are put together on the device.
    pub(crate) fn gathers(&self) -> bool {
        self.kernels && self.choice == CopyChoice::Auto
    }

    /// Pieces up to so many bytes go to a kernel.
    fn kernel_bytes_max(&self, way: Way) -> usize {
        match (self.choice, way) {
            _ if !self.kernels => 0,
            (CopyChoice::Kernel, _) => usize::MAX,
            (CopyChoice::Engine | CopyChoice::Batch, _) => 0,
            // Nobody waits for an offload, and the engine computes beside it.
            (CopyChoice::Auto, Way::ToSlots) if self.batch => 0,
            (CopyChoice::Auto, Way::ToSlots | Way::ToDevice) => self.speeds.to_device_bytes_max,
            // On an H200 copy engines take microseconds a piece within the device, too.
            (CopyChoice::Auto, Way::Within) => usize::MAX,
        }
    }
}

/// Work for one or a few calls of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// One call each.
    Engine(Vec<CopyRequest>),
    /// One call for all.
    Batch(Vec<CopyRequest>),
    /// One launch.
    Kernel(Vec<CopyRequest>),
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
pub(crate) fn choose(pieces: Vec<CopyRequest>, way: Way, means: Means) -> Vec<Work> {
    let bytes_max = means.kernel_bytes_max(way);
    let is_small = |piece: &CopyRequest| piece.bytes <= bytes_max;
    let few = pieces.iter().filter(|piece| is_small(piece)).count() < KERNEL_PIECES_MIN;
    let mut work = Vec::new();
    if few && means.choice == CopyChoice::Auto {
        by_engine(pieces, means, &mut work);
        return work;
    }
    let (small, large) = pieces.into_iter().partition(is_small);
    by_engine(large, means, &mut work);
    launches(small, means.chunk_bytes, &mut work);
    work
}

/// All pieces to the copy engines.
pub(crate) fn by_engine(pieces: Vec<CopyRequest>, means: Means, work: &mut Vec<Work>) {
    match pieces.len() {
        0 => {}
        2.. if means.batch && means.choice != CopyChoice::Engine => work.push(Work::Batch(pieces)),
        _ => work.push(Work::Engine(pieces)),
    }
}

/// Cuts a kernel's work into launches that move at most `chunk_bytes` each, and name at most [`COPY_PIECES_MAX`] pieces.
pub(crate) fn launches(pieces: Vec<CopyRequest>, chunk_bytes: usize, work: &mut Vec<Work>) {
    let bytes: usize = pieces.iter().map(|piece| piece.bytes).sum();
    if pieces.len() <= COPY_PIECES_MAX && bytes <= chunk_bytes {
        return work.extend((!pieces.is_empty()).then_some(Work::Kernel(pieces)));
    }
    let (mut launch, mut room) = (Vec::new(), chunk_bytes);
    for piece in pieces {
        let mut done = 0;
        while done < piece.bytes {
            if room == 0 || launch.len() == COPY_PIECES_MAX {
                work.push(Work::Kernel(std::mem::take(&mut launch)));
                room = chunk_bytes;
            }
            let bytes = (piece.bytes - done).min(room);
            let (target, source) = (piece.target + done as u64, piece.source + done as u64);
            launch.push(CopyRequest { target, source, bytes });
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
