//! Pages that a test can recognise. Owns: hashes and bytes made from a seed. Must not know: servers.

use turnkv_client::{BlockHash, NamespaceSpec};

/// Tokens of a test page.
pub const PAGE_TOKENS: u32 = 16;

/// A namespace whose pages have `shard_bytes` bytes.
#[must_use]
pub fn namespace(model: &str, shard_bytes: u64) -> NamespaceSpec {
    NamespaceSpec::opaque(model, PAGE_TOKENS, shard_bytes)
}

/// A chain of hashes, as a conversation's pages have; the same seed always gives the same chain.
#[must_use]
pub fn chain(seed: u64, pages: usize) -> Vec<BlockHash> {
    let mut hashes: Vec<BlockHash> = Vec::with_capacity(pages);
    for page in 0..pages as u64 {
        let tokens = [seed as u32, (seed >> 32) as u32, page as u32];
        hashes.push(BlockHash::chain(hashes.last(), &tokens));
    }
    hashes
}

/// The bytes of the page with this hash: no two pages agree in any 8 bytes at the same place.
#[must_use]
pub fn bytes(hash: &BlockHash, len: usize) -> Vec<u8> {
    let (words, _) = hash.0.as_chunks::<8>();
    let mut state = words.iter().fold(0u64, |all, word| all.rotate_left(7) ^ u64::from_le_bytes(*word));
    let mut page = Vec::with_capacity(len + 8);
    while page.len() < len {
        // splitmix64: cheap, and every word depends on the hash.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        page.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    page.truncate(len);
    page
}
