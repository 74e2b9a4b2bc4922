//! A pool as far as the cluster sees it. Owns: sessions with their pages, which of them leaves first. Must not know: members.

use turnkv_proto::BlockHash;

/// A page and what its bytes say.
pub(crate) type Page = (BlockHash, u64);

/// Sessions, those that leave first in front.
#[derive(Clone, Default)]
pub(crate) struct PoolModel {
    sessions: Vec<(usize, u32, Vec<Page>)>,
}

/// What a page's bytes are: its name says it.
pub(crate) fn content(hash: &BlockHash) -> u64 {
    let (words, _) = hash.0.as_chunks::<8>();
    crate::random::mix(u64::from_le_bytes(words[0]) ^ u64::from_le_bytes(words[1]))
}

impl PoolModel {
    /// Keeps a session's pages. Returns the sessions that left for it.
    pub(crate) fn keep(
        &mut self,
        session: usize,
        turn: u32,
        pages: Vec<Page>,
        pages_max: usize,
    ) -> Vec<usize> {
        self.sessions.retain(|(other, _, _)| *other != session);
        self.sessions.push((session, turn, pages));
        let mut left = Vec::new();
        while self.pages() > pages_max && self.sessions.len() > 1 {
            left.push(self.sessions.remove(0).0);
        }
        left
    }

    pub(crate) fn get(&self, session: usize) -> Option<(u32, &[Page])> {
        let found = self.sessions.iter().find(|(other, _, _)| *other == session);
        found.map(|(_, turn, pages)| (*turn, pages.as_slice()))
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = (usize, u32, &[Page])> {
        self.sessions.iter().map(|(session, turn, pages)| (*session, *turn, pages.as_slice()))
    }

    /// The session leaves first from now on.
    pub(crate) fn demote(&mut self, session: usize) {
        if let Some(at) = self.sessions.iter().position(|(other, _, _)| *other == session) {
            let demoted = self.sessions.remove(at);
            self.sessions.insert(0, demoted);
        }
    }

    /// The leading pages of a prefix that are here.
    pub(crate) fn leading(&self, hashes: &[BlockHash]) -> Vec<Page> {
        let of =
            |pages: &[Page]| pages.iter().zip(hashes).take_while(|(page, hash)| page.0 == **hash).count();
        let best = self.sessions.iter().max_by_key(|(_, _, pages)| of(pages));
        best.map_or_else(Vec::new, |(_, _, pages)| pages[..of(pages)].to_vec())
    }

    /// Leading ones of a sample that are here.
    pub(crate) fn count(&self, sample: &[BlockHash]) -> usize {
        let here = |hash: &&BlockHash| {
            self.sessions.iter().any(|(_, _, pages)| pages.iter().any(|page| page.0 == **hash))
        };
        sample.iter().take_while(here).count()
    }

    fn pages(&self) -> usize {
        self.sessions.iter().map(|(_, _, pages)| pages.len()).sum()
    }
}
