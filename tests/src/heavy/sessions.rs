//! The largest requests of sessions: on the longest one, and on many. Owns: the requests. Must not know: the clock.

use super::{Heavy, LONG};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use turnkv_proto::limits::HASHES_PER_CALL_MAX;
use turnkv_proto::{BlockHash, pack_hashes, wire};
use wire::Verb;

impl Heavy {
    fn session(&self, session: &str) -> (Bytes, String) {
        (self.local.ns.clone(), session.to_owned())
    }

    fn begin_turn(&self, session: &str) -> Result<wire::BeginTurnReply> {
        let (namespace, session) = self.session(session);
        let ask = wire::BeginTurnRequest { namespace, session, engine: "e".into(), ..Default::default() };
        let mut client = self.sessions_client();
        Ok(self.runtime.block_on(client.begin_turn(ask))?.into_inner())
    }

    fn end_turn(&self, keep: usize, hashes: &[BlockHash], expected_return_ms: u64) -> Result<()> {
        let (namespace, session) = self.session(LONG);
        let ask = wire::EndTurnRequest {
            namespace,
            session,
            keep: keep as u32,
            hashes: pack_hashes(hashes).into(),
            priority: 1,
            expected_return_ms,
            ..Default::default()
        };
        let mut client = self.sessions_client();
        self.runtime.block_on(client.end_turn(ask))?;
        Ok(())
    }

    /// A turn of the longest session, which names all its pages.
    fn turn_for(&self, expected_return_ms: u64) -> Result<()> {
        self.begin_turn(LONG)?;
        let mut keep = 0;
        for part in self.chain.chunks(HASHES_PER_CALL_MAX) {
            self.end_turn(keep, part, expected_return_ms)?;
            keep += part.len();
        }
        Ok(())
    }

    pub(super) fn turn(&mut self) -> Result<()> {
        self.turn_for(0)
    }

    /// The longest session, if it has not all its pages.
    fn have_long(&self) -> Result<()> {
        let there = self.describe_long().is_ok_and(|info| info.pages as usize == self.chain.len());
        if there { Ok(()) } else { self.turn_for(0) }
    }

    pub(super) fn turn_expected(&mut self) -> Result<()> {
        self.turn_for(600_000)?;
        let begun = self.begin_turn(LONG)?;
        ensure!(begun.dram as usize == self.chain.len(), "{begun:?}");
        self.end_turn(self.chain.len(), &[], 0)
    }

    pub(super) fn turn_that_leaves(&mut self) -> Result<()> {
        self.have_long()?;
        self.begin_turn(LONG)?;
        self.end_turn(1, &[], 0)?;
        self.turn_for(0)
    }

    fn describe_long(&self) -> Result<wire::SessionInfo> {
        let (namespace, session) = self.session(LONG);
        let mut client = self.sessions_client();
        let reply = self.runtime.block_on(client.describe(wire::DescribeRequest { namespace, session }))?;
        reply.into_inner().info.context("a session has an info")
    }

    pub(super) fn describe(&mut self) -> Result<()> {
        self.have_long()
    }

    pub(super) fn lookup_session(&mut self) -> Result<()> {
        self.have_long()?;
        let (namespace, session) = self.session(LONG);
        let ask = wire::LookupRequest { namespace, session, ..Default::default() };
        let found: wire::LookupReply = self.local.ask(Verb::Lookup, &ask)?;
        ensure!(found.present as usize == self.chain.len(), "{found:?}");
        Ok(())
    }

    pub(super) fn expect(&mut self) -> Result<()> {
        self.have_long()?;
        let (namespace, session) = self.session(LONG);
        let ask = wire::PrefetchRequest { namespace, session, in_ms: 600_000, ..Default::default() };
        let mut client = self.sessions_client();
        self.runtime.block_on(client.prefetch(ask))?;
        Ok(())
    }

    /// A fork that leaves nearly all that it shares.
    pub(super) fn fork_supersede(&mut self) -> Result<()> {
        self.have_long()?;
        let (namespace, session) = self.session(LONG);
        let fork = "fork".to_owned();
        let ask = wire::ForkRequest { namespace: namespace.clone(), session, fork: fork.clone(), pages: 0 };
        let mut client = self.sessions_client();
        self.runtime.block_on(client.fork(ask))?;
        let ask = wire::SupersedeRequest { namespace, session: fork, keep: 1 };
        self.runtime.block_on(client.supersede(ask))?;
        Ok(())
    }

    /// The longest session goes: its pages go first.
    pub(super) fn close(&mut self) -> Result<()> {
        self.have_long()?;
        let (namespace, session) = self.session(LONG);
        let mut client = self.sessions_client();
        self.runtime.block_on(client.close(wire::CloseRequest { namespace, session, archive: false }))?;
        Ok(())
    }

    pub(super) fn list(&mut self) -> Result<()> {
        while self.begun < self.sessions {
            self.begin_turn(&format!("session {}", self.begun))?;
            self.begun += 1;
        }
        let mut client = self.sessions_client();
        let list = self.runtime.block_on(client.list(wire::ListRequest::default()))?.into_inner();
        ensure!(list.sessions.len() >= self.sessions, "{} of {}", list.sessions.len(), list.total);
        Ok(())
    }
}
