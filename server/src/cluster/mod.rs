//! Several pools that share what they have: who they are, and where each session is. Owns: what carries out the decisions of
//! `turnkv_cluster`, which are not made again here. Must not know: the engine, pages' bytes, how a pull goes.
//!
//! Without `[cluster]` nothing of this is there.
//!
//! - [`runtime`]: [`Cluster`], the verbs; [`rounds`]: what happens once a second, and a life's begin; [`pulling`]: what
//!   pulls ask; [`routing`], [`engines_known`]: what routers are told; [`moving`], [`takeover`]: sessions that go to another member; [`holding`], [`hold`]: prefixes that have a second copy; [`nowhere`]: pages that
//!   nobody had a moment ago; [`report`]: how it stands
//! - [`membership`]: who knows the members: [`listed`], [`etcd`]; [`seen`]: what a round sees of them; [`card`]: what one says of itself
//! - [`peers`], [`peer`]: the others, and the queue to each; [`link`]: a connection to one, and messages as they travel;
//!   [`place`]: where that is
//! - [`counts`]: what is counted

mod card;
mod counts;
mod engines_known;
mod etcd;
mod hold;
mod holding;
pub(crate) mod link;
mod listed;
mod membership;
mod moving;
mod nowhere;
mod peer;
mod peers;
mod place;
mod pulling;
mod report;
mod rounds;
mod routing;
mod runtime;
mod seen;
mod takeover;

pub(crate) use card::MemberCard;
pub(crate) use engines_known::{EnginesAsk, EnginesKnown};
pub(crate) use hold::PrefixHold;
pub(crate) use link::NameAsk;
pub(crate) use report::{ClusterReport, PeerAt};
pub(crate) use runtime::{Cluster, HoldsPages, MemberList, Where};
pub(crate) use takeover::Takeover;
