//! An extent's place, in the pool's words and in the tier's, which do not know one another. Owns: the two translations.
//! Must not know: anything else of either.

use turnkv_pool::NvmePlace;
use turnkv_pool::limits::NVME_BLOCK_BITS;
use turnkv_tier::Location;
use turnkv_tier::limits::{BLOCK_BYTES, SEGMENT_BYTES_MAX};

const _: () = assert!(
    SEGMENT_BYTES_MAX / BLOCK_BYTES <= 1 << NVME_BLOCK_BITS,
    "the pool numbers every block of a segment"
);

/// Where the tier has what the pool remembers.
pub(super) fn location(place: NvmePlace) -> Location {
    Location { segment: place.segment, generation: place.generation, block: place.block }
}

/// What the pool is to remember of where the tier has something.
pub(super) fn place(at: Location) -> NvmePlace {
    NvmePlace { segment: at.segment, generation: at.generation, block: at.block }
}
