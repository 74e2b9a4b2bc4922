//! Conversations: paths in trees of pages that only grow. Owns: which pages a client speaks of, and their names on the wire.
//! Must not know: verbs.

use crate::context::Context;
use turnkv_proto::pack_hashes;

/// Longest conversation, in pages.
const PATH_MAX: usize = 12;
/// Conversations of a namespace.
const TIPS_MAX: u64 = 10;

/// The pages of a conversation, the root first; often a new page or two, sometimes a branch.
pub(super) fn path(context: &Context, space: usize, grow: bool) -> Vec<u32> {
    let (mut tips, mut model) = (context.tips.borrow_mut(), context.model.borrow_mut());
    let tips = &mut tips[space];
    if tips.is_empty() || (tips.len() as u64) < TIPS_MAX && grow && context.percent(15) {
        let root = model.grow(space, None);
        tips.push(root);
    }
    let at = context.below(tips.len() as u64) as usize;
    if grow {
        let from = model.path(space, tips[at]);
        let branch = context.percent(10);
        let parent = if branch { from[context.below(from.len() as u64) as usize] } else { tips[at] };
        if model.path(space, parent).len() < PATH_MAX && context.percent(60) {
            let mut tip = parent;
            for _ in 0..1 + context.below(3) {
                tip = model.grow(space, Some(tip));
            }
            match branch && (tips.len() as u64) < TIPS_MAX {
                true => tips.push(tip),
                false => tips[at] = tip,
            }
            return model.path(space, tip);
        }
    }
    model.path(space, tips[at])
}

/// The names of pages, as the wire packs them.
pub(super) fn hashes(context: &Context, space: usize, pages: &[u32]) -> Vec<u8> {
    let model = context.model.borrow();
    pack_hashes(&pages.iter().map(|page| model.hash(space, *page)).collect::<Vec<_>>())
}

/// The name of the page before a position; empty at the root.
pub(super) fn parent(context: &Context, space: usize, path: &[u32], from: usize) -> Vec<u8> {
    let model = context.model.borrow();
    from.checked_sub(1).map_or(Vec::new(), |at| model.hash(space, path[at]).0.to_vec())
}

/// A session's name; often none.
pub(super) fn session(context: &Context, space: usize, path: &[u32]) -> String {
    if context.percent(30) { String::new() } else { format!("s{space}-{}", path[0]) }
}

/// How long a call may wait.
pub(super) fn wait_ms(context: &Context) -> u32 {
    [0, 0, 20, 200, 2_000][context.below(5) as usize]
}
