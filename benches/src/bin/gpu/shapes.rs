//! Pages as engines keep them. Owns: how many pieces of which size a page of each model has, and where they lie. Must not know:
//! who copies them.

use std::sync::Arc;

use anyhow::Result;
use turnkv_benches::sampling::Random;
use turnkv_client::DevicePlan;
use turnkv_transfer::device::DeviceBuffer;

/// A model's page of 16 tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// For people.
    pub(crate) name: &'static str,
    /// Pieces of one page: K and V of every layer.
    pub(crate) fragments: usize,
    /// Bytes of a piece.
    pub(crate) fragment_bytes: usize,
}

/// One piece of 2 MiB: what an engine that keeps all layers of a page together has.
pub(crate) const CONTIGUOUS: Shape =
    Shape { name: "contiguous 2 MiB", fragments: 1, fragment_bytes: 2 << 20 };

/// bf16, 16 tokens a page. K and V apart; MLA has one latent of 576 numbers a token.
pub(crate) const FRAGMENTED: [Shape; 4] = [
    Shape { name: "Llama-8B, 64 x 32 KiB", fragments: 64, fragment_bytes: 8 * 128 * 2 * 16 },
    Shape { name: "Qwen3-8B, 72 x 32 KiB", fragments: 72, fragment_bytes: 8 * 128 * 2 * 16 },
    Shape { name: "Llama-70B/TP8, 160 x 4 KiB", fragments: 160, fragment_bytes: 128 * 2 * 16 },
    Shape { name: "DeepSeek MLA, 61 x 18 KiB", fragments: 61, fragment_bytes: 576 * 2 * 16 },
];

/// Pages of one shape: in slots side by side, and in tensors of one layer each, at blocks in an order that engines' allocators
/// leave: none.
#[derive(Debug)]
pub(crate) struct Spread {
    shape: Shape,
    block_of: Vec<usize>,
}

impl Spread {
    /// As many pages as `bytes` hold, at least one.
    pub(crate) fn new(shape: Shape, bytes: usize) -> Spread {
        let pages = (bytes / shape.page_bytes()).max(1);
        Spread { shape, block_of: Random::new(pages as u64).order(pages) }
    }

    /// What all pages take.
    pub(crate) fn bytes(&self) -> usize {
        self.block_of.len() * self.shape.page_bytes()
    }

    /// How many there are.
    pub(crate) fn pages(&self) -> usize {
        self.block_of.len()
    }

    /// The pieces of a page in slot order: `(offset in the tensors, offset in the slots, bytes)`.
    pub(crate) fn page(&self, page: usize) -> impl Iterator<Item = (usize, usize, usize)> + '_ {
        let Shape { fragments, fragment_bytes, .. } = self.shape;
        let (blocks, block) = (self.block_of.len(), self.block_of[page]);
        (0..fragments).map(move |layer| {
            let tensor = (layer * blocks + block) * fragment_bytes;
            (tensor, (page * fragments + layer) * fragment_bytes, fragment_bytes)
        })
    }

    /// Plans of all pages, in memory that holds the tensors.
    pub(crate) fn plans(&self, tensors: &Arc<DeviceBuffer>) -> Result<Vec<DevicePlan>> {
        let plan = |page: usize| {
            let pieces: Vec<_> = self.page(page).map(|(tensor, _, bytes)| (tensor, bytes)).collect();
            Ok(tensors.plan(&pieces)?)
        };
        (0..self.pages()).map(plan).collect()
    }

    /// The pieces of all pages.
    pub(crate) fn all(&self) -> Vec<(usize, usize, usize)> {
        (0..self.pages()).flat_map(|page| self.page(page)).collect()
    }

    /// What the tensors hold when the slots hold `slots`.
    pub(crate) fn in_tensors(&self, slots: &[u8]) -> Vec<u8> {
        let mut tensors = vec![0; slots.len()];
        for (tensor, slot, bytes) in self.all() {
            tensors[tensor..tensor + bytes].copy_from_slice(&slots[slot..slot + bytes]);
        }
        tensors
    }
}

impl Shape {
    /// Bytes of a page.
    pub(crate) fn page_bytes(&self) -> usize {
        self.fragments * self.fragment_bytes
    }

    /// Its model's layers: each has a piece for K and one for V, or one for both.
    pub(crate) fn layers(&self) -> usize {
        if self.fragments.is_multiple_of(2) { self.fragments / 2 } else { self.fragments }
    }
}

#[cfg(test)]
mod tests {
    use super::{CONTIGUOUS, FRAGMENTED, Spread};

    #[test]
    fn the_pieces_cover_slots_and_tensors_once() {
        for shape in FRAGMENTED.into_iter().chain([CONTIGUOUS]) {
            let spread = Spread::new(shape, 9 << 20);
            let mut pieces = spread.all();
            assert_eq!(pieces.iter().map(|(_, _, bytes)| bytes).sum::<usize>(), spread.bytes());
            for offset in [|piece: &(usize, usize, usize)| piece.0, |piece: &(usize, usize, usize)| piece.1] {
                pieces.sort_by_key(offset);
                let apart = pieces.windows(2).all(|pair| offset(&pair[0]) + pair[0].2 == offset(&pair[1]));
                assert!(apart && offset(&pieces[0]) == 0, "{}", shape.name);
            }
        }
    }

    #[test]
    fn pages_have_the_sizes_of_their_models() {
        let sizes = FRAGMENTED.map(|shape| shape.page_bytes() >> 10);
        assert_eq!(sizes, [2048, 2304, 640, 1098]);
    }
}
