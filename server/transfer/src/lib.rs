//! TurnKV's byte movement: where page bytes live, how they are copied and checked, how two processes talk
//! about them.
//!
//! Knows nothing of hashes, sessions, tiers or gRPC: a slot is an offset and a length, a frame is a verb and
//! a body.
//!
//! - [`region`]: shared memory regions (sealed memfds); [`slot`]: places in them; [`page`]: access to their bytes
//! - `shared`: copies of bytes that others may be writing; `claims`: who in this process writes which of them
//! - [`memory`]: a page in memory of its caller's own, which may be lent as it is
//! - [`span`]: pieces of scattered slots mapped side by side
//! - [`plan`]: copy plans between a page slot and strided tensors: pure offset arithmetic
//! - `strided`: running those plans
//! - [`mod@checksum`]: CRC-64/NVME, the end-to-end checksum of a page
//! - [`device`]: memory of a GPU, and moving pages between it and slots
//! - [`fabric`]: moving bytes between hosts: one contract, several engines
//! - `copy`: streaming copies fused with the checksum
//! - [`frame`]: the header of a frame of the local socket
//! - `huge`: mapping on huge pages, reserved or not
//! - [`inherited`]: what one program leaves to the next in the same process
//! - `inbound`: putting received pieces together to frames
//! - `library`: loading shared libraries at run time
//! - [`large`]: memory for frames that are larger than a read buffer
//! - [`local`]: the local socket: frames and descriptors over a Unix socket
//! - [`listener`]: binding a Unix socket path, accepting local sockets
//! - `peer`: who is at the other end of a socket
//! - [`pieces`]: copies of parts of pages for a socket, in memory that is used again
//! - `ring`: frames through memory that both sides have mapped
//! - [`process`]: is the process at the other end still there?
//! - [`tls`]: TLS for what crosses a network
//! - [`limits`]: the named bounds of all of them

pub mod checksum;
mod claims;
mod copy;
pub mod device;
pub mod fabric;
pub mod frame;
mod huge;
mod inbound;
pub mod inherited;
pub mod large;
mod library;
pub mod limits;
pub mod listener;
pub mod local;
pub mod memory;
pub mod page;
mod peer;
pub mod pieces;
pub mod plan;
pub mod process;
pub mod region;
mod ring;
mod shared;
mod signals;
pub mod slot;
mod socket_option;
pub mod span;
mod strided;
pub mod tls;

pub use checksum::{Checksum, checksum};
pub use copy::{copy_kernels, copy_streaming, copy_streaming_by};
pub use frame::{DamagedFrame, FLAG_FAILURE, FLAG_MORE, Frame, FrameHeader, frame_check};
pub use large::LargeFrames;
pub use limits::{FRAME_BYTES_MAX, FRAME_CHECK_BYTES};
pub use listener::{
    Listens, LocalListener, ServingLock, SocketFile, bind_unix, in_use, listen_by, remove_abandoned,
    who_listens,
};
pub use local::LocalSocket;
pub use memory::PageMemory;
pub use page::{Claimed, Page, PageMut};
pub use peer::{Peer, peer_groups};
pub use pieces::{PieceBuffers, free_heap_bytes, keep_heap, share_heaps, trim_heap};
pub use plan::{CopyPlan, PageLayout, PlanError, Run, TensorShape, TensorView};
pub use process::{Process, began, open_pidfd};
pub use region::{Granted, HugePages, Region, RegionOptions, RegionReport};
pub use slot::Slot;
pub use span::Span;
