//! DRAM: slots, and who may hold them for how long. Owns: slabs, slots, leases. Must not know: hashes,
//! sessions, NVMe.
//!
//! - `slots`: how slabs are cut, which slot is whose; `mapped_slots`: slots that are taken before their page
//!   is known; `found_slabs`: slabs that another process left, and what becomes of slots
//! - `leases`: who holds which slots until when; `left_leases`: those of the server before
//! - `shares`: how much one client, one user and all may hold

pub(crate) mod found_slabs;
pub(crate) mod leases;
pub(crate) mod left_leases;
mod mapped_slots;
pub(crate) mod shares;
pub(crate) mod slots;
