//! Content-addressed snapshots of KV pages in a directory or an object store. Must not know: sockets, leases, policy.
//!
//! A snapshot is a manifest: it names its pages' bytes by their SHA-256. The bytes are in packs, each blob once for all snapshots of
//! a tenant. A manifest is written last, under a name that nothing had: it is complete, or it is not there.
//!
//! ```text
//! pages -> capture -> blob (hash, encode) -> fill -> pack -> store -> directory | S3
//!                 \-> manifest -----------------------------^
//! ```
//!
//! - `archive`: a tenant's archive, opened; [`Archive`] has the verbs
//! - `capture`, `restore`, `verify`, `fork`, `collect`, `export`, `import`: one verb each; `list` has list, describe and delete
//! - `source`: an export that is to be taken in
//! - `directory`: which snapshots are of archived sessions
//! - `manifest`, `pack`, `intent`, `bookmark`: what is written; `split`, `blob`: what a page's bytes become
//! - `fill`: packs being written; `read`: blobs being read; `again`: what came damaged is read once more; `index`: where blobs are
//! - `store`: a directory or S3, asked with bounds; `workers`: threads that hash and encode; `term`: what the grace time allows
#![forbid(unsafe_code)]

mod again;
mod archive;
mod blob;
mod bookmark;
mod capture;
mod collect;
mod directory;
mod error;
mod export;
mod fill;
mod fork;
mod id;
mod import;
mod index;
mod intent;
pub mod limits;
mod list;
mod manifest;
mod moving;
mod pack;
mod read;
mod restore;
mod source;
mod split;
mod store;
mod term;
mod verify;
mod workers;

pub use archive::{Archive, ArchiveSettings};
pub use blob::Compression;
pub use bookmark::{Bookmark, PageMark};
pub use capture::{Capture, CaptureCounts, CapturedPage};
pub use collect::{CollectLimits, CollectReport};
pub use directory::{Directory, ListedBookmark};
pub use error::Error;
pub use export::ExportCounts;
pub use fork::Cut;
pub use id::{Digest, ObjectId, SessionName};
pub use list::Snapshot;
pub use manifest::{Header, Manifest, ManifestPage, Sequence, ShardDigests};
pub use restore::{Restore, RestoredPage};
pub use source::Export;
pub use split::{Part, Split};
pub use store::{Place, StoreSettings};
pub use turnkv_codec::Values;
pub use verify::{VerifyFault, VerifyProgress, VerifyReport};
