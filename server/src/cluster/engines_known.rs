//! What is known of engines that a router names. Owns: what the knowledge of several pools comes to. Must not know: who is asked, how
//! engines are ranked.

use turnkv_proto::{BlockHash, NamespaceId, SessionId};
use turnkv_router::EngineView;

/// A turn that is to run at one of some engines.
#[derive(Debug)]
pub(crate) struct EnginesAsk<'a> {
    /// Its namespace.
    pub(crate) namespace: NamespaceId,
    /// Its session, where there is one.
    pub(crate) session: Option<&'a SessionId>,
    /// The pages of its prompt; none: those of the session's list.
    pub(crate) hashes: &'a [BlockHash],
    /// The engines' names.
    pub(crate) engines: Vec<String>,
}

/// What one pool, or several, know of these engines.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct EnginesKnown {
    /// In the order in which they were named.
    pub(crate) views: Vec<EngineView>,
    /// Turns of the session that are known of.
    pub(crate) turn: u32,
    /// Pages of the prompt.
    pub(crate) prompt_pages: u64,
    /// Leading ones of these that are there.
    pub(crate) pool_pages: u32,
}

impl EnginesKnown {
    /// Takes in what another pool knows. An engine tells its turns to the pool of its host, so of each the one knows more that knows of
    /// more; the session's last turn ran where most turns of it are known of.
    pub(crate) fn take_in(&mut self, other: &EnginesKnown) {
        // One that has not opened the namespace knows of none.
        if other.views.len() != self.views.len() {
            return;
        }
        let is_later = other.turn > self.turn;
        for (view, other) in self.views.iter_mut().zip(&other.views) {
            view.held_pages = view.held_pages.max(other.held_pages);
            view.load = view.load.max(other.load);
            view.is_home = if is_later { other.is_home } else { view.is_home };
        }
        self.turn = self.turn.max(other.turn);
        self.prompt_pages = self.prompt_pages.max(other.prompt_pages);
        self.pool_pages = self.pool_pages.max(other.pool_pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(turn: u32, home: usize, held: [u64; 2], load: [f64; 2]) -> EnginesKnown {
        let view = |at: usize| EngineView { held_pages: held[at], load: load[at], is_home: at == home };
        EnginesKnown { views: vec![view(0), view(1)], turn, prompt_pages: 10, pool_pages: turn }
    }

    #[test]
    fn of_each_engine_the_most_counts_and_the_latest_turn_says_whose_home_it_is() {
        let mut own = known(3, 0, [8, 0], [100.0, 0.0]);
        own.take_in(&known(5, 1, [0, 9], [0.0, 40.0]));
        assert_eq!(own, known(5, 1, [8, 9], [100.0, 40.0]));
        own.take_in(&known(5, 0, [0, 0], [0.0, 0.0]));
        assert_eq!(own, known(5, 1, [8, 9], [100.0, 40.0]));
        own.take_in(&EnginesKnown { turn: 99, ..EnginesKnown::default() });
        assert_eq!(own.turn, 5, "who knows of no engine says nothing");
    }
}
