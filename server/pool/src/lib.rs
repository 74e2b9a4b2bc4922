//! TurnKV's decisions: index, sessions, leases, policy. Pure: takes `now`, returns actions; no I/O, no clock,
//! no chance.
//!
//! - [`Pool`] (`pool`): the facade, with the list of its verbs
//! - wings: `index` (pages), `memory` (slots and leases), `eviction`, `nvme`, `namespaces`, `sizing`;
//!   `store` composes those that a page's removal changes together; `sessions`
//! - `verbs`: what callers ask, one file a subject; they compose the wings
//! - `call`: how much one call does before others get their turn
//! - `config`, `limits`, `error`, `ids`: what an operator sets, the bounds, refusals, handles
//! - `numbers`: what is learned, as bytes for the next process
//! - `effects`: what follows from decisions; `stats`, `check` (with `ensure`): what is in use, and that it adds up

#![forbid(unsafe_code)]

mod call;
mod check;
mod config;
mod effects;
mod ensure;
mod error;
mod eviction;
mod ids;
mod index;
pub mod limits;
mod memory;
mod namespaces;
mod numbers;
mod nvme;
mod pool;
mod sessions;
mod sizing;
mod stats;
mod store;
mod verbs;

pub use config::{Admit, ConfigError, Limits, PolicyKind, PoolConfig};
pub use effects::Effects;
pub use error::{LeaseShare, PoolError};
pub use ids::{
    ClientId, LeaseId, MissCause, NamespaceIndex, Now, NvmePlace, PageKey, PlaceNote, SlotKey, SlotPlace,
    UserId,
};
pub use index::sweep::Sweep;
pub use namespaces::table::NamespaceDesc;
pub use nvme::adoption::Adoption;
pub use nvme::found::{FoundSlab, FoundSlot};
pub use nvme::space::kept_percent;
pub use nvme::strangers::Stranger;
pub use pool::Pool;
pub use sessions::info::SessionInfo;
pub use sizing::curve::{CurveTuning, MissRatioCurve};
pub use stats::{PoolStats, TierGauges};
pub use store::durable::Durable;
pub use store::pass::{LiveExtent, Pass, PassNext, PassStep, emptying_gain};
pub use store::presence::{PageChange, PageTier};
pub use store::promote::Promotion;
pub use store::reclaim::{Reclaim, Rewrite};
pub use store::records::{MappedChange, SlabChange, SlotChange, SlotRecord, SlotUse};
pub use store::shrink::Shrink;
pub use store::writeback::WriteBehind;
pub use verbs::commit::Committed;
pub use verbs::describe::{Describing, Listing, Naming, SessionDetail, SessionWorth};
pub use verbs::lookup::Found;
pub use verbs::mapped::{CommitReservedAsk, Renewed, ReserveAsk, Reserved, ReservedCommit};
pub use verbs::namespaces::TenantNamespaces;
pub use verbs::offload::{OffloadAsk, OffloadPlan, Offloading, Outcome};
pub use verbs::outline::{Outlining, PageOutline};
pub use verbs::pins::{Pinned, Pinning};
pub use verbs::prefetch::{Expecting, Prefetching};
pub use verbs::record::{LIST_CHUNK_PAGES, ListChunk, ListStart, PinRecord, SessionRecord};
pub use verbs::reload::{ReloadAsk, ReloadPlan, ReloadStep};
pub use verbs::resting::{RestingSession, RestingWalk};
pub use verbs::retain::Retaining;
pub use verbs::session::{EndTurn, FromElsewhere};
pub use verbs::sizing::NamespaceRoom;
pub use verbs::slabs::SlabAction;
pub use verbs::take_over::{MappedSlot, TakeOverAsk, TakenOver};
pub use verbs::turn_begin::{TurnBegin, TurnBegun};
pub use verbs::turn_end::TurnEnd;
