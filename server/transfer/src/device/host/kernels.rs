//! The kernels' work, done by a thread. Owns: reading their tables. Must not know: streams, who launches.

use sha2::{Digest, Sha256};

use super::memory::Extent;
use super::order::Touched;
use crate::checksum::Checksum;
use crate::device::driver::{CopyRequest, DeviceAddress, Kernel, PagePieces, Piece};
use crate::limits::CHECKSUM_WARP_PIECES_MIN;
use crate::shared;

const ZEROS: [u8; 4096] = [0; 4096];

/// The function that a GPU would load for a kernel when it is first launched.
pub(super) fn function(kernel: &Kernel) -> &'static str {
    match kernel {
        Kernel::Copy { .. } => "copy",
        Kernel::Checksum { count, .. } if *count >= CHECKSUM_WARP_PIECES_MIN => "checksum by warp",
        Kernel::Checksum { .. } => "checksum by block",
        Kernel::Sha256 { .. } => "sha256",
    }
}

/// What a kernel reads and writes, by its tables as they will be: `last` is the copy before it, which may
/// bring them.
///
/// # Safety
/// The tables are valid memory, and so is the source of that copy where it brings them.
pub(super) unsafe fn touched(kernel: &Kernel, last: Option<CopyRequest>) -> Touched {
    let now = |table: DeviceAddress| match last {
        Some(copy) if (copy.target..copy.target + copy.bytes as u64).contains(&table) => {
            copy.source + (table - copy.target)
        }
        _ => table,
    };
    // SAFETY: the caller's promise.
    unsafe {
        match *kernel {
            Kernel::Copy { pieces, count, .. } => {
                let table: &[Piece] = table(now(pieces), count);
                let mut reads = sources(table);
                reads.push(span_of::<Piece>(pieces, count));
                let writes = table.iter().map(|piece| Extent::new(piece.target, piece.bytes)).collect();
                Touched::new(reads, writes)
            }
            Kernel::Checksum { pieces, count, pages, page_count, scratch, output } => {
                let mut reads = sources(table(now(pieces), count));
                reads.push(span_of::<Piece>(pieces, count));
                reads.push(span_of::<PagePieces>(pages, page_count));
                Touched::new(reads, vec![span_of::<u64>(scratch, count), span_of::<u64>(output, page_count)])
            }
            Kernel::Sha256 { pieces, count, output } => {
                let mut reads = sources(table(now(pieces), count));
                reads.push(span_of::<Piece>(pieces, count));
                Touched::new(reads, vec![span_of::<[u8; 32]>(output, count)])
            }
        }
    }
}

/// Does a kernel's work.
///
/// # Safety
/// The tables and all that they name are valid memory that nobody else uses now.
pub(super) unsafe fn run(kernel: &Kernel) {
    // SAFETY: the caller's promise, for every range of the tables.
    unsafe {
        match *kernel {
            Kernel::Copy { pieces, count, .. } => {
                for piece in table::<Piece>(pieces, count) {
                    let (source, target) = (pointer(piece.source), pointer(piece.target));
                    shared::copy(source, target, piece.bytes as usize);
                }
            }
            Kernel::Checksum { pieces, count, pages, page_count, output, .. } => {
                let pieces: &[Piece] = table(pieces, count);
                for (position, page) in table::<PagePieces>(pages, page_count).iter().enumerate() {
                    let mut sum = Checksum::new();
                    for piece in &pieces[page.first as usize..(page.first + page.count) as usize] {
                        add(&mut sum, piece);
                    }
                    pointer(output).cast::<u64>().add(position).write_unaligned(sum.finish());
                }
            }
            Kernel::Sha256 { pieces, count, output } => {
                for (position, piece) in table::<Piece>(pieces, count).iter().enumerate() {
                    let bytes = std::slice::from_raw_parts(pointer(piece.source), piece.bytes as usize);
                    let digest: [u8; 32] = Sha256::digest(bytes).into();
                    pointer(output).cast::<[u8; 32]>().add(position).write(digest);
                }
            }
        }
    }
}

/// # Safety
/// The piece's source is 0 or readable.
unsafe fn add(sum: &mut Checksum, piece: &Piece) {
    let mut left = piece.bytes as usize;
    if piece.source != 0 {
        // SAFETY: the caller's promise.
        return sum.update(unsafe { std::slice::from_raw_parts(pointer(piece.source), left) });
    }
    while left > 0 {
        let zeros = left.min(ZEROS.len());
        sum.update(&ZEROS[..zeros]);
        left -= zeros;
    }
}

fn sources(pieces: &[Piece]) -> Vec<Extent> {
    let read = pieces.iter().filter(|piece| piece.source != 0);
    read.map(|piece| Extent::new(piece.source, piece.bytes)).collect()
}

fn span_of<T>(address: DeviceAddress, count: u32) -> Extent {
    Extent::new(address, u64::from(count) * size_of::<T>() as u64)
}

fn pointer(address: DeviceAddress) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// # Safety
/// `count` entries are readable at `address`, aligned, and not written while the slice is used.
unsafe fn table<'a, T>(address: DeviceAddress, count: u32) -> &'a [T] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(pointer(address).cast(), count as usize) }
}
