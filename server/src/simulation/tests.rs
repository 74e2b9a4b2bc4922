//! The engine's orchestration over a tier that fails: whatever becomes of a read, a write or a flush, every caller is answered,
//! nothing stays in flight, and what is in DRAM is served. The tier takes its steps when a test says so.
//!
//! - `world`: the server, its disk, its lives
//! - `writes`, `reads`, `prefetches`, `passes`, `starts`, `drains`, `waits`: what the engine does, each over every fault that it can
//!   meet

mod drains;
mod passes;
mod prefetches;
mod reads;
mod starts;
mod waits;
mod world;
mod writes;
