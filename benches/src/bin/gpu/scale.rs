//! How much is measured: enough for a GPU, or little, so that a machine without one runs every line. Must not know: what is
//! measured.

use std::time::{Duration, Instant};

/// Sizes and counts.
#[derive(Debug, Clone)]
pub(crate) struct Scale {
    /// Rounds; each measures the limit and everything held against it once.
    pub(crate) rounds: u32,
    /// Bytes copied in one measurement.
    pub(crate) copied_bytes: usize,
    /// Size of the slab whose registration is timed.
    pub(crate) registered_bytes: usize,
    /// Thread blocks of copy kernels.
    pub(crate) blocks: Vec<u32>,
    /// Bytes of one launch of a copy kernel.
    pub(crate) chunks: Vec<usize>,
    /// Pages of one call to the pool.
    pub(crate) batch: usize,
    /// Pages of a long conversation: 32,768 tokens.
    pub(crate) long: usize,
    /// Interference: rounds, and steps of a round.
    pub(crate) decode_rounds: u32,
    /// See `decode_rounds`.
    pub(crate) decode_steps: usize,
    /// Bytes that one layer of a decode step reads and writes, before it is fitted to `decode_seconds`.
    pub(crate) layer_bytes: usize,
    /// Layers of a decode step: a launch each.
    pub(crate) decode_layers: usize,
    /// How long a decode step should take.
    pub(crate) decode_seconds: f64,
    /// Thread blocks of a decode kernel: one a multiprocessor of an H100 or H200. They reach the memory's rate, and leave room
    /// beside them, as decode kernels do: the offload competes for bandwidth, and does not just wait for a place.
    pub(crate) decode_blocks: u32,
    /// Shapes that go through the pool.
    pub(crate) pool_shapes: usize,
    /// When to leave out the rest.
    pub(crate) until: Option<Instant>,
}

impl Scale {
    /// For a GPU.
    pub(crate) fn full(rounds: u32, copied_bytes: usize, bound: Option<Duration>) -> Scale {
        Scale {
            rounds,
            copied_bytes,
            registered_bytes: 1 << 30,
            blocks: vec![4, 8, 16, 32],
            chunks: vec![4 << 20, 16 << 20],
            batch: 128,
            long: 2048,
            decode_rounds: 3,
            decode_steps: 150,
            layer_bytes: 256 << 20,
            decode_layers: 32,
            decode_seconds: 5e-3,
            decode_blocks: 132,
            pool_shapes: usize::MAX,
            until: bound.map(|bound| Instant::now() + bound),
        }
    }

    /// For a device that is memory of this process: a few seconds of a small machine.
    pub(crate) fn tiny() -> Scale {
        Scale {
            rounds: 1,
            copied_bytes: 5 << 20,
            registered_bytes: 4 << 20,
            blocks: vec![4],
            chunks: vec![1 << 20],
            batch: 3,
            long: 40,
            decode_rounds: 1,
            decode_steps: 5,
            layer_bytes: 1 << 20,
            decode_layers: 2,
            decode_seconds: 1e-3,
            decode_blocks: 8,
            pool_shapes: 2,
            until: None,
        }
    }

    /// Whether what is not measured yet is left out.
    pub(crate) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() > until)
    }
}
