//! How many leading pages of a prompt are in the pool. Owns: the search over the prefix-closed index, which needs few of the
//! hashes and few rounds. Must not know: how a round is asked.
//!
//! The index is prefix-closed: if a page is present, so are all before it. So one round asks for a spread sample and learns
//! between which two of its members the answer lies: two rounds of 96 settle 8,900 hashes. A pool of a large cluster wants to be told
//! the signposts of what is not there: one more round, and it has begun to pull the rest from whoever has it.

use crate::backoff::Attempts;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::grpc;
use crate::limits::LOOKUP_SAMPLE_MAX;
use crate::namespace::Namespace;
use turnkv_proto::limits::SIGNPOST_EVERY;
use turnkv_proto::wire::{self, Verb};
use turnkv_proto::{BlockHash, SessionId, pack_hashes};

#[cfg(test)]
mod tests;

impl Namespace {
    /// How many leading pages of this prefix chain are in the pool.
    pub async fn lookup(&self, hashes: &[BlockHash]) -> Result<usize> {
        self.lookup_near(None, hashes).await
    }

    /// [`Namespace::lookup`] for a turn of this session: of several members the one is asked at which the turn began.
    pub async fn lookup_of(&self, session: &str, hashes: &[BlockHash]) -> Result<usize> {
        SessionId::parse(session)?;
        self.lookup_near(Some(session), hashes).await
    }

    async fn lookup_near(&self, session: Option<&str>, hashes: &[BlockHash]) -> Result<usize> {
        let deadline = self.link.deadline(None);
        let mut tries = self.tries(session);
        loop {
            match tries.at().lookup_there(hashes, tries.share(deadline)).await {
                Err(error) if tries.go_on(&error, deadline) => {}
                found => return found,
            }
        }
    }

    async fn lookup_there(&self, hashes: &[BlockHash], deadline: Deadline) -> Result<usize> {
        let call = self.link.admit()?;
        call.end(self.search(hashes, deadline).await)
    }

    async fn search(&self, hashes: &[BlockHash], deadline: Deadline) -> Result<usize> {
        let mut search = Search::new(hashes.len());
        let mut attempts = Attempts::default();
        let (mut only_posts, mut may_tell) = (false, true);
        while !search.is_settled() {
            let sample = if only_posts { search.posts() } else { search.sample() };
            let asked: Vec<BlockHash> = sample.iter().map(|count| hashes[count - 1]).collect();
            match self.ask(&asked, only_posts, deadline).await {
                Ok(reply) => {
                    let mut next = search;
                    next.narrow(&sample, reply.present as usize)?;
                    // What is not here may be elsewhere.
                    let open = Search { possible: search.possible, ..next };
                    only_posts = reply.wants_posts && may_tell && !open.posts().is_empty();
                    may_tell &= !only_posts;
                    search = if only_posts { open } else { next };
                }
                Err(error) if self.again(&error, &mut attempts, deadline).await? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(search.known)
    }

    /// How many leading hashes of a sample are present; `only_posts`: it is of signposts.
    async fn ask(
        &self,
        sample: &[BlockHash],
        only_posts: bool,
        deadline: Deadline,
    ) -> Result<wire::LookupReply> {
        let request = wire::LookupRequest {
            namespace: self.wire_id(),
            hashes: pack_hashes(sample).into(),
            only_posts,
            ..Default::default()
        };
        match self.link.lend(deadline).await? {
            Some(mut lent) => lent.call(Verb::Lookup, &request, deadline).await,
            None => {
                let ask = |channel| {
                    let request = request.clone();
                    async move { grpc::pool(channel).lookup(request).await }
                };
                self.link.rpc(deadline, ask).await
            }
        }
    }
}

/// A search for the number of leading pages present: at least `known`, at most `possible`.
#[derive(Debug, Clone, Copy)]
struct Search {
    known: usize,
    possible: usize,
}

impl Search {
    fn new(total: usize) -> Search {
        Search { known: 0, possible: total }
    }

    fn is_settled(&self) -> bool {
        self.known == self.possible
    }

    /// Ascending counts to ask about: is the `count`-th page there?
    fn sample(&self) -> Vec<usize> {
        let open = self.possible - self.known;
        let size = open.min(LOOKUP_SAMPLE_MAX);
        // Member i of 1..=size; with one member left over at the end, all gaps are as even as can be.
        let gaps = if open <= LOOKUP_SAMPLE_MAX { size } else { size + 1 };
        (1..=size).map(|member| self.known + open * member / gaps).collect()
    }

    /// Likewise, of pages that may be signposts: every 64th one of the prompt, every 128th and so on where these are too many.
    fn posts(&self) -> Vec<usize> {
        let count = self.possible / SIGNPOST_EVERY - self.known / SIGNPOST_EVERY;
        let stride = SIGNPOST_EVERY * count.div_ceil(LOOKUP_SAMPLE_MAX).max(1);
        let first = (self.known / stride + 1) * stride;
        (first..=self.possible).step_by(stride).collect()
    }

    fn narrow(&mut self, sample: &[usize], present: usize) -> Result<()> {
        if present > sample.len() {
            return Err(Error::protocol("more pages present than were asked for"));
        }
        if let Some(absent) = sample.get(present) {
            self.possible = absent - 1;
        }
        if present > 0 {
            self.known = sample[present - 1];
        }
        Ok(())
    }
}
