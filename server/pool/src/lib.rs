//! TurnKV's decisions: index, sessions, leases, policy. Pure: takes `now`, returns actions; no I/O, no clock, no chance.
//!
//! - [`Pool`] (`pool`): the state; one file a verb around it
//! - state: `entry`, `arena`, `table` (the index), `slots` (slabs and slots), `lease` (and `share`: how much of it), `sessions`,
//!   `namespaces`
//! - `slice`: how much one call does before others get their turn
//! - pages: `lookup`, `offload` and `commit`, `reload`, `hold` (slots that a process has mapped), `promote`, `prefetch`, `writeback`, `admission`, `reclaim`
//! - `unfinished`: pages of which some shards never come
//! - namespaces: `retire` (those that nobody uses), `strangers` (what NVMe has of those that are not open), `thin` (when that is too much), `adopt`
//! - `durable`: pages that somebody waits for until they are on NVMe
//! - `spare`: pages that go last; `outrank`: pages that are not taken; `leaving`: those that leave NVMe first
//! - sessions: `session` (the verbs), `turn_begin`, `turn_end`, `branch` (a session's list of pages), `left` (pages it had), `walk` (over its pages),
//!   `tips` (where lists end), `record` (across restarts), `continued` (under another name), `describe`,
//!   `pin` (shared prefixes), `retain` (sessions that matter), `protection` (what gives way last, within a budget)
//! - `curve`: the live miss-ratio curve of each namespace
//! - rules: `residency` (where a page is), `condemn` (what goes bit by bit), `evict` and `policy` (who makes room), `expire` (time), `config`, `limits`
//! - `prefill`: how fast engines recompute
//! - `sweep`: walks through the whole index
//! - `stats`, `check`: what is in use, and that it adds up

#![forbid(unsafe_code)]

mod admission;
mod adopt;
mod arena;
mod branch;
mod check;
mod commit;
mod condemn;
mod config;
mod continued;
mod curve;
mod describe;
mod durable;
mod entry;
mod error;
mod evict;
mod expire;
mod hold;
mod ids;
mod lease;
mod leaving;
mod left;
pub mod limits;
mod lookup;
mod namespaces;
mod offload;
mod outrank;
mod pin;
mod policy;
mod pool;
mod prefetch;
mod prefill;
mod promote;
mod protection;
mod reclaim;
mod record;
mod reload;
mod residency;
mod retain;
mod retire;
mod session;
mod sessions;
mod share;
mod slice;
mod slots;
mod spare;
mod stats;
mod strangers;
mod sweep;
mod table;
mod thin;
mod tips;
mod turn_begin;
mod turn_end;
mod unfinished;
mod walk;
mod writeback;

pub use adopt::Adoption;
pub use commit::Committed;
pub use config::{Admit, ConfigError, Limits, PolicyKind, PoolConfig};
pub use curve::{CurveTuning, MissRatioCurve, NamespaceRoom};
pub use describe::{Describing, Listing, Naming, SessionDetail, SessionInfo};
pub use durable::Durable;
pub use error::{LeaseShare, PoolError};
pub use hold::{CommitReservedAsk, Renewed, ReserveAsk, Reserved, ReservedCommit};
pub use ids::{
    ClientId, LeaseId, MissCause, NamespaceIndex, Now, NvmePlace, PageKey, SlotKey, SlotPlace, UserId,
};
pub use leaving::kept_percent;
pub use lookup::Found;
pub use namespaces::NamespaceDesc;
pub use offload::{OffloadAsk, OffloadPlan, Offloading, Outcome};
pub use pin::{Pinned, Pinning};
pub use pool::Pool;
pub use prefetch::{Expecting, Prefetching};
pub use promote::Promotion;
pub use reclaim::{PlaceNote, Reclaim, Rewrite};
pub use record::{LIST_CHUNK_PAGES, ListChunk, ListStart, PinRecord, SessionRecord};
pub use reload::{ReloadAsk, ReloadPlan, ReloadStep};
pub use retain::Retaining;
pub use session::EndTurn;
pub use slots::SlabAction;
pub use stats::{PoolStats, TierGauges};
pub use strangers::Stranger;
pub use sweep::Sweep;
pub use turn_begin::{TurnBegin, TurnBegun};
pub use turn_end::TurnEnd;
pub use writeback::WriteBehind;
