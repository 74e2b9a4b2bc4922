//! Namespaces and pages of the world: a fixed tree, and contents told by their checksums. Must not know: the pool, who asks for them.

use super::Content;
use turnkv_pool::NamespaceDesc;
use turnkv_proto::{BlockHash, NamespaceId, Shards};

/// The namespaces of the world.
pub fn descs() -> [NamespaceDesc; 3] {
    [desc(1, "a", 8 << 10, 1), desc(2, "b", 12 << 10, 2), desc(3, "a", 9_000, 4)]
}

pub fn desc(at: u8, tenant: &str, shard_bytes: u64, shards: u16) -> NamespaceDesc {
    NamespaceDesc { id: NamespaceId([at; 32]), tenant: tenant.into(), shard_bytes, page_tokens: 16, shards }
}

/// The parent of a node of the fixed tree: node 0 is a root, mostly chains with a fork now and then.
pub fn parent(node: usize) -> Option<usize> {
    match node {
        0 | 20 => None,
        node if node % 5 == 0 => Some(node / 2),
        node => Some(node - 1),
    }
}

pub fn hash(node: usize) -> BlockHash {
    let mut bytes = [7; 32];
    bytes[0] = node as u8;
    BlockHash(bytes)
}

pub fn path(node: usize) -> Vec<usize> {
    let mut path = vec![node];
    while let Some(up) = parent(path[path.len() - 1]) {
        path.push(up);
    }
    path.reverse();
    path
}

pub fn checksum(content: Content) -> u64 {
    u64::from(content.0) << 32 | (content.1 as u64) << 16 | u64::from(content.2)
}

/// Neighbouring shards of a page of so many, as random numbers choose them.
pub fn some_shards((first, count): (u16, u16), shards: u16) -> Shards {
    let first = first % shards;
    Shards::new(first.into(), (1 + count % (shards - first)).into()).unwrap()
}
