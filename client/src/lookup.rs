//! How many leading pages of a prompt are in the pool. Owns: the search over the prefix-closed index, which needs few of the
//! hashes and few rounds. Must not know: how a round is asked.
//!
//! The index is prefix-closed: if a page is present, so are all before it. So one round asks for a spread sample and learns
//! between which two of its members the answer lies: two rounds of 96 settle 8,900 hashes.

use crate::backoff::Attempts;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::grpc;
use crate::limits::LOOKUP_SAMPLE_MAX;
use crate::namespace::Namespace;
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
        while !search.is_settled() {
            let sample = search.sample();
            let asked: Vec<BlockHash> = sample.iter().map(|count| hashes[count - 1]).collect();
            match self.ask(&asked, deadline).await {
                Ok(present) => search.narrow(&sample, present)?,
                Err(error) if self.again(&error, &mut attempts, deadline).await? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(search.known)
    }

    /// How many leading hashes of a sample are present.
    async fn ask(&self, sample: &[BlockHash], deadline: Deadline) -> Result<usize> {
        let request = wire::LookupRequest {
            namespace: self.wire_id(),
            hashes: pack_hashes(sample).into(),
            session: String::new(),
        };
        let reply: wire::LookupReply = match self.link.lend(deadline).await? {
            Some(mut lent) => lent.call(Verb::Lookup, &request, deadline).await?,
            None => {
                let ask = |channel| {
                    let request = request.clone();
                    async move { grpc::pool(channel).lookup(request).await }
                };
                self.link.rpc(deadline, ask).await?
            }
        };
        Ok(reply.present as usize)
    }
}

/// A search for the number of leading pages present: at least `known`, at most `possible`.
#[derive(Debug)]
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
