//! The rails of one client. Owns: which of them a transfer goes over. Must not know: what is transferred, how a rail came to be.
//!
//! A rail that has ended leaves at once; the client opens others, with pauses that grow, so one that keeps failing does not
//! come back at every try. A transfer goes over the fastest fabric that reaches its memory, there over the rail with the fewest bytes
//! queued; a slower one is for when the faster is gone, not for when it is busy.

use super::lent::{Domain, Transfer};
use parking_lot::Mutex;
use std::any::Any;
use std::sync::Arc;
use turnkv_proto::limits::{NIC_RAILS_MAX, RAILS_MAX};
use turnkv_transfer::fabric::{Engine, Initiator, WhyUnposted};

/// The rails that are open.
#[derive(Default)]
pub(super) struct Rails {
    state: Mutex<OpenRails>,
}

/// What is given back when a rail has ended: its connection's place.
pub(crate) type RailGoods = Box<dyn Any + Send + Sync>;

/// One rail, and whose it is.
#[derive(Clone)]
pub(super) struct Rail {
    pub(super) initiator: Arc<dyn Initiator>,
    pub(super) engine: Engine,
    pub(super) domain: Domain,
    /// The place of the NIC that it is over; framed rails are over none.
    pub(super) nic: Option<usize>,
    /// Names it to its client.
    pub(super) number: u64,
}

struct KeptRail {
    rail: Rail,
    _with: RailGoods,
}

#[derive(Default)]
struct OpenRails {
    rails: Vec<KeptRail>,
    /// The client has left: no more are taken.
    closed: bool,
}

impl Rails {
    /// One more. False: there are as many as may be, or the client has left.
    pub(super) fn add(&self, rail: Rail, with: RailGoods) -> bool {
        let mut state = self.state.lock();
        let ended = state.take_ended();
        let taken = state.has_room(rail.engine);
        if taken {
            state.rails.push(KeptRail { rail, _with: with });
        }
        drop(state);
        drop(ended);
        taken
    }

    /// Lets go of those that have ended.
    pub(super) fn sweep(&self) {
        let ended = self.state.lock().take_ended();
        drop(ended); // without the lock: a place is given back under another one
    }

    /// Whether there is room for one more of this engine.
    pub(super) fn has_room(&self, engine: Engine) -> bool {
        self.state.lock().has_room(engine)
    }

    /// Of these rails the client says that it has them: gives those that it has in vain, and ends those that it does not name. Over
    /// NICs neither end sees that the other one left; over a connection it may be seen late, behind what a slow network still carries.
    /// `names_framed`: clients of earlier builds name no framed ones, whatever they have.
    pub(super) fn compare(&self, held: &[u64], names_framed: bool) -> Vec<u64> {
        let mut state = self.state.lock();
        let ended = state.take_ended();
        let named = |rail: &Rail| names_framed || rail.engine != Engine::Framed;
        let unknown = |kept: &mut KeptRail| named(&kept.rail) && !held.contains(&kept.rail.number);
        let unheld: Vec<KeptRail> = state.rails.extract_if(.., unknown).collect();
        let has = |number: &u64| state.rails.iter().any(|kept| kept.rail.number == *number);
        let lost = held.iter().copied().filter(|number| !has(number)).collect();
        drop(state);
        for kept in &unheld {
            kept.rail.initiator.close();
        }
        drop((ended, unheld));
        lost
    }

    /// Posts on the best rail: of the fastest engine that reaches the memory, the one with the fewest bytes queued. `shunned`: a rail
    /// of this domain has failed the same transfer, another one is tried first. Gives the engine and the domain.
    pub(super) fn post(
        &self,
        transfer: &Transfer<'_>,
        shunned: Option<Domain>,
    ) -> Result<(Engine, Domain), WhyUnposted> {
        let mut rails: Vec<Rail> = {
            let state = self.state.lock();
            state.rails.iter().filter(|kept| kept.is_open()).map(|kept| kept.rail.clone()).collect()
        };
        let speed = |engine: Engine| Engine::ALL.iter().position(|known| *known == engine);
        rails.sort_by_key(|rail| {
            (Some(rail.domain) == shunned, speed(rail.engine), rail.initiator.queued_bytes())
        });
        let mut full = None;
        for rail in &rails {
            if full.is_some_and(|engine| engine != rail.engine) {
                break;
            }
            let Some(operation) = transfer.over(rail.domain) else { continue };
            match rail.initiator.post(operation) {
                Ok(()) => return Ok((rail.engine, rail.domain)),
                // Where one is only full, its client is not without rails.
                Err(unposted) if unposted.why == WhyUnposted::Full => full = Some(rail.engine),
                Err(_) => {}
            }
        }
        Err(if full.is_some() { WhyUnposted::Full } else { WhyUnposted::Dead })
    }

    /// Ends all of them, and takes no more.
    pub(super) fn close(&self) {
        let rails = {
            let mut state = self.state.lock();
            state.closed = true;
            std::mem::take(&mut state.rails)
        };
        for kept in rails {
            kept.rail.initiator.close();
        }
    }

    /// How many are open over the NIC of this place.
    pub(super) fn count_over(&self, nic: usize) -> usize {
        let state = self.state.lock();
        state.rails.iter().filter(|kept| kept.rail.nic == Some(nic) && kept.is_open()).count()
    }

    /// Whether pages go in frames only.
    pub(super) fn are_framed(&self) -> bool {
        self.state.lock().rails.iter().all(|kept| kept.rail.engine == Engine::Framed)
    }

    /// How many of an engine are open.
    pub(super) fn count(&self, engine: Engine) -> usize {
        self.state.lock().count(engine)
    }
}

impl OpenRails {
    fn take_ended(&mut self) -> Vec<KeptRail> {
        self.rails.extract_if(.., |kept| !kept.is_open()).collect()
    }

    fn count(&self, engine: Engine) -> usize {
        self.rails.iter().filter(|kept| kept.rail.engine == engine && kept.is_open()).count()
    }

    fn has_room(&self, engine: Engine) -> bool {
        let nics = || self.count(Engine::Libfabric) + self.count(Engine::Verbs) < NIC_RAILS_MAX;
        let room = if engine == Engine::Framed { self.count(engine) < RAILS_MAX } else { nics() };
        !self.closed && room
    }
}

impl KeptRail {
    fn is_open(&self) -> bool {
        self.rail.initiator.death().is_none()
    }
}
