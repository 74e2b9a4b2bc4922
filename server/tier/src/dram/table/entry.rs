//! What a slot table speaks of: the layout of slabs, what a slot holds, who writes it, and why a table is of no use. Owns: these
//! words. Must not know: bytes, memory.

use crate::limits::{BLOCK_BYTES, SLABS_MAX};
use turnkv_proto::{BlockHash, NamespaceId};

/// The version of the table's layout. Another one is never guessed at.
pub const VERSION: u32 = 2 + cfg!(feature = "next-table") as u32;

/// How the slabs are laid out, as far as a table must agree with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of one slab.
    pub slab_bytes: u64,
    /// Slabs that the table can speak of, whether they have memory or not.
    pub slab_count: u32,
    /// Entries of one slab: as many as its smallest slots.
    pub stride: u32,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotEntry {
    /// Whose page.
    pub namespace: NamespaceId,
    /// The page.
    pub hash: BlockHash,
    /// The page before it; none: it is a first one.
    pub parent: Option<BlockHash>,
    /// Which shard of it.
    pub shard: u16,
    /// Of so many.
    pub shards: u16,
    /// Above 0: a partial tail of so many tokens.
    pub tail_tokens: u32,
    /// Bytes of the shard.
    pub bytes: u32,
    /// CRC-64/NVME of these.
    pub checksum: u64,
    /// Which memory of the slab they are in.
    pub generation: u32,
}

/// Who may be writing a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holder {
    /// A process of this host: its number, and when it began as far as 32 bits of the kernel's ticks say.
    Process {
        /// Its number.
        pid: u32,
        /// When it began.
        began: u32,
        /// Which copy of a client library in it; 0: any.
        library: u64,
    },
    /// Somebody whom nobody can tell to be gone.
    Unknown,
}

/// Why a table is not of use here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// It is shorter than its slabs need.
    #[error("the slot table is cut short")]
    Short,
    /// It is something else.
    #[error("what was kept as slot table is none")]
    NoTable,
    /// It has another layout.
    #[error("the slot table has format {version}, this server speaks {}", VERSION)]
    Version {
        /// Which.
        version: u32,
    },
    /// Its header does not verify.
    #[error("the slot table's header is damaged")]
    Damaged,
    /// The slabs have another size now.
    #[error("the kept memory is in slabs of {slab_bytes} bytes, configured is something else")]
    Geometry {
        /// Bytes of one of its slabs.
        slab_bytes: u64,
    },
    /// The machine has booted since.
    #[error("the kept memory is of another boot of this machine")]
    Boot,
    /// Another user's server wrote it.
    #[error("the kept memory is of user {user}")]
    User {
        /// Whose.
        user: u32,
    },
    /// It cannot be mapped or read.
    #[error("the slot table cannot be used: {0}")]
    Io(String),
}

impl Geometry {
    /// The layout of so many slabs.
    #[must_use]
    pub fn new(slab_bytes: u64, slab_count: u32) -> Geometry {
        Geometry { slab_bytes, slab_count, stride: (slab_bytes / BLOCK_BYTES) as u32 }
    }

    /// The layout of as many slabs of a size as there can be: a slot's number has 32 bits, with the slab in it. It does not
    /// depend on how many there are, so that these may become more and fewer.
    #[must_use]
    pub fn widest(slab_bytes: u64) -> Geometry {
        let fit = (u64::from(u32::MAX) - 1) / (slab_bytes / BLOCK_BYTES).max(1);
        Geometry::new(slab_bytes, fit.min(u64::from(SLABS_MAX)) as u32)
    }
}

impl Holder {
    /// As they stand in an entry: the process, and its library.
    pub(super) fn words(self) -> (u64, u64) {
        match self {
            Holder::Process { pid, began, library } => (u64::from(pid) << 32 | u64::from(began), library),
            Holder::Unknown => (u64::MAX, 0),
        }
    }

    /// Whom an entry's words name.
    pub(super) fn of_words(word: u64, library: u64) -> Holder {
        match word {
            u64::MAX => Holder::Unknown,
            word => Holder::Process { pid: (word >> 32) as u32, began: word as u32, library },
        }
    }
}
