//! What the one-sided fabrics have in common. Owns: at the server the thread that drives all rails of a NIC,
//! operations under way, its own registrations; at the client what is lent. Must not know: either library.
//!
//! - `bell`: waking the thread
//! - `driver`: the thread: gives out work, takes landings in, ends pairs
//! - `flights`: operations under way, cut into work requests
//! - `loans`: what a client's domain lends, and its rails
//! - `locals`: slabs that a NIC knows
//! - `pair`: what a library's side is to all of these
//! - `rail`: the server's end of one rail, as the contract has it
//!
//! A library's side is a `Nic` and its `Pair`s. Everything that must hold for both, that an operation
//! ends once and that no slot is let go while a NIC may touch it, is here, and is tested with a pair that
//! fails when told to.
//!
//! ```text
//! post -> backlog -> cut into parts -> given to the pair -> landed -> completed
//!             \                \               \-- pair destroyed --> failed
//!              \----------------\-- rail ended ------------------> failed
//! ```

mod bell;
mod driver;
mod flights;
mod loans;
mod locals;
mod pair;
mod rail;

pub(super) use driver::NicDriver;
pub(super) use loans::{LentRail, Loans, RailEnd};
pub(super) use pair::{Broken, LandedPart, Nic, Pair, Part};
