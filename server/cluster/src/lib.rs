//! Which member of a cluster holds what. Pure: takes `now`, returns what is to be done; no I/O, no clock, no chance. Must not
//! know: pages' bytes, the pool, sockets, etcd.
//!
//! - [`ClusterMember`] (`member`): one member's part; every verb returns [`Effects`]
//! - names: `ids`; who is there: `view`, `guard` (what to believe of it), `health` (whether one is there oneself)
//! - where: `placement` (authorities of an id), `directory` (what an authority knows), `homes` (what one is home of)
//! - asking: `find` (where a session's last turn ended), `lookup` (who holds a prefix), `search` (the gallop)
//! - what a member does: `asking` (turns and lookups that begin here), `hearing` (what others tell it)
//! - `twice`: two servers of one member's name
//! - `message`: what members tell one another; `recent`: a map that forgets; `mix`: a hash
//! - [`limits`]

#![forbid(unsafe_code)]

mod asking;
mod directory;
mod effects;
mod find;
mod guard;
mod health;
mod hearing;
mod homes;
mod ids;
pub mod limits;
mod lookup;
mod member;
mod message;
mod mix;
mod placement;
mod recent;
mod search;
mod twice;
mod view;

pub use asking::PullError;
pub use directory::Directory;
pub use effects::{Decision, Effects, Held, Notice, Probe};
pub use guard::{Observation, ViewGuard, Viewed};
pub use health::Hysteresis;
pub use ids::{CallId, Incarnation, Life, MemberId, Now, PrefixKey, SessionKey, Tip};
pub use member::{ClusterConfig, ClusterMember, Kept, PrefixAsk, Whose};
pub use message::{Envelope, Message};
pub use placement::authorities;
pub use view::{Member, MemberState, View};
