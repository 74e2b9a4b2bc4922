//! Pages from other pools of the cluster, for turns that begin here. Owns: bringing what the engine asks for, as those pools' client.
//! Must not know: who waits, where sessions are.
//!
//! ```text
//!   engine.afar --next--> puller --part after part--> reload at the home -> slots here -> commit --settled--> engine.afar
//! ```
//! - [`puller`]: which pulls go on beside one another; [`bring`]: one, part by part; [`part`]: how large the next part is; [`asked`]: how much is asked
//!   for at a time
//! - [`peers`]: the members that pages come from; [`counts`]: what is counted; [`fault`]: why pages did not come

mod asked;
mod bring;
mod counts;
mod fault;
mod part;
mod peers;
mod puller;

pub(crate) use puller::Puller;
