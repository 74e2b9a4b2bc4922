//! What the simulator's tests share. Owns: random walks, LRU said plainly, the public traces (not part of the repository:
//! `TURNKV_TRACES` names their folder, else `../shared/traces` beside the workspace is tried). Must not know: what is tested.
#![allow(clippy::expect_used, dead_code, missing_docs, unreachable_pub)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use turnkv_sim::grid::Workload;
use turnkv_sim::trace::{Builder, Draft, Stop, Trace};

/// A public trace, if it is here.
pub fn public(name: &str) -> Option<Workload> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let folder = std::env::var_os("TURNKV_TRACES").map_or(beside, PathBuf::from);
    let file = std::fs::File::open(folder.join(format!("{name}.jsonl.gz"))).ok()?;
    Some(Workload::new(Trace::read(file).expect("a trace of the reference"), 1))
}

/// Requests that walk random branches of a tree: node n's children are 3n+1 to 3n+3.
pub fn walks(paths: &[Vec<u8>]) -> Trace {
    let mut builder = Builder::new("walks", 16, "", "");
    for (at, path) in paths.iter().enumerate() {
        let step = |node: &mut u64, turn: &u8| {
            *node = *node * 3 + 1 + u64::from(*turn);
            Some(*node)
        };
        let blocks: Vec<u64> = path.iter().scan(0, step).collect();
        let draft = Draft {
            at_ms: at as u64 * 1000,
            session: None,
            parent: None,
            turn: 0,
            input_tokens: 16 * blocks.len() as u64,
            output_tokens: 0,
            blocks: &blocks,
            stop: Stop::Unknown,
        };
        builder.push(&draft).expect("a fine request");
    }
    builder.finish()
}

/// Tail-first LRU of one size, as plainly as it can be said.
pub fn plain_lru(trace: &Trace, capacity: u64) -> u64 {
    let (mut used, mut order, mut hits) = (BTreeMap::new(), BTreeMap::new(), 0);
    let mut moment = 0;
    for request in &trace.requests {
        let blocks = trace.blocks(request);
        hits += blocks.iter().take_while(|block| used.contains_key(*block)).count() as u64;
        for block in blocks.iter().rev() {
            moment += 1;
            if let Some(before) = used.insert(*block, moment) {
                order.remove(&before);
            }
            order.insert(moment, *block);
        }
        while used.len() as u64 > capacity {
            let (_, block) = order.pop_first().expect("as many moments as blocks");
            used.remove(&block);
        }
    }
    hits
}
