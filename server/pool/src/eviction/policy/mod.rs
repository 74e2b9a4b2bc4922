//! Who goes first. Owns: which policies there are. Must not know: what they are asked for.

mod arc;
mod chances;
mod class;
mod eviction_policy;
mod ghosts;
mod learned;
mod lru;
mod run;
mod s3fifo;
mod tinylfu;

use crate::config::PolicyKind;

use arc::ArcPolicy;
use learned::Learned;
use lru::Lru;
use s3fifo::S3Fifo;
use tinylfu::TinyLfu;

pub(crate) use eviction_policy::{EvictionPolicy, Newcomer, TurnFacts};

/// Builds the policy that was configured.
pub(crate) fn build(kind: PolicyKind) -> Box<dyn EvictionPolicy> {
    match kind {
        PolicyKind::Lru => Box::new(Lru::default()),
        PolicyKind::S3Fifo => Box::new(S3Fifo::default()),
        PolicyKind::TinyLfu => Box::new(TinyLfu::default()),
        PolicyKind::Arc => Box::new(ArcPolicy::default()),
        PolicyKind::Gittins => Box::new(Learned::new(false)),
        PolicyKind::Session => Box::new(Learned::new(true)),
    }
}
