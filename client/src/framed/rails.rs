//! Data rails to one server process. Owns: which are opened when: over NICs where there are any, framed ones beside them for when
//! they fail, more of these when transfers are large and nothing is faster; and comparing with the server what each end has. Must not
//! know: what is moved over them.

use super::nics::{Nic, Nics, Peer};
use super::open_rail::{Asking, FramedRail};
use super::pause::Pause;
use super::staging::Reach;
use crate::config::FabricConfig;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::limits::{
    RAIL_LOOK_PAUSE, RAIL_PAUSE_MAX, RAIL_PAUSE_MIN, RAIL_STEPS_MAX, RAILS_MAX, STRIPED_BYTES_MIN,
};
use crate::local::{Lent, Port, Server};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use turnkv_transfer::fabric::framed::FramedDomain;
use turnkv_transfer::fabric::{Engine, Target};

/// The rails to one server process, and what it may reach over them.
#[derive(Debug)]
pub(super) struct Rails {
    server: Server,
    config: FabricConfig,
    /// The number of the framed domain.
    number: u32,
    domain: Arc<FramedDomain>,
    nics: Arc<Nics>,
    state: Mutex<State>,
    /// Held while one is opened: calls that begin together need not open one each.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    framed: Vec<FramedRail>,
    pause: Pause,
    /// When the rails were compared with the server's.
    looked: Instant,
    /// One ended, or a call came back otherwise than it should: they are compared before the next one.
    doubted: bool,
}

/// What is to be done before a call goes.
enum Step {
    /// Open a rail over one of these.
    Nics(Vec<Arc<Nic>>),
    /// Open a framed rail.
    Framed,
    /// Compare what there is.
    Look,
}

impl Rails {
    /// To this process; opens nothing yet.
    pub(super) fn new(server: Server, config: FabricConfig, peer: Peer, numbers: &Arc<AtomicU32>) -> Rails {
        let nics = Nics::new(&config, peer, numbers);
        Rails {
            server,
            config,
            number: numbers.fetch_add(1, Ordering::Relaxed),
            domain: FramedDomain::new(),
            nics,
            state: Mutex::new(State {
                framed: Vec::new(),
                pause: Pause::within(RAIL_PAUSE_MIN, RAIL_PAUSE_MAX),
                looked: Instant::now(),
                doubted: false,
            }),
            opening: tokio::sync::Mutex::default(),
        }
    }

    /// Whose they are.
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// How many are open.
    pub(super) fn count(&self) -> usize {
        self.state.lock().count() + self.nics.with_rails().len()
    }

    /// The fastest fabric that there is a rail of.
    pub(super) fn fastest(&self) -> Option<Engine> {
        let nic = self.nics.with_rails().first().map(|nic| nic.engine);
        nic.or_else(|| (self.state.lock().count() > 0).then_some(Engine::Framed))
    }

    /// Why no NIC is used, where one could be.
    pub(super) fn why_no_nic(&self) -> String {
        self.nics.why_none()
    }

    /// Domains whose rails are open: what memory is to be registered with.
    pub(super) fn reaches(&self) -> Vec<Reach> {
        let nics = self.nics.with_rails();
        let mut reaches: Vec<Reach> = nics.iter().map(|nic| Reach::nic(nic.number, &nic.domain)).collect();
        if self.state.lock().count() > 0 {
            reaches.push(Reach::framed(self.number, &self.domain));
        }
        reaches
    }

    /// The framed domain and its number, if all rails that are open are framed.
    pub(super) fn only_framed(&self) -> Option<(u32, &Arc<FramedDomain>)> {
        let only = self.nics.with_rails().is_empty() && self.state.lock().count() > 0;
        only.then_some((self.number, &self.domain))
    }

    /// Ends the rails over the NIC with this domain: memory that was taken back stays with it as long as they are open.
    pub(super) fn renew(&self, domain: u32) {
        for nic in self.nics.with_rails().iter().filter(|nic| nic.number == domain) {
            nic.renew();
        }
    }

    /// The next call compares what each end has.
    pub(super) fn doubt(&self) {
        self.state.lock().doubted = true;
    }

    /// Sees to it that there is a rail, and as many as a call that moves so many bytes has use for, opening one at a time.
    pub(super) async fn prepare(
        &self,
        port: &Port,
        lent: &mut Lent,
        bytes: usize,
        deadline: Deadline,
    ) -> Result<()> {
        self.nics.wake();
        if !self.config.choice.allows(Engine::Framed) {
            self.nics.opened(deadline).await?;
        }
        if self.next_step(bytes).is_none() && self.count() > 0 {
            return Ok(());
        }
        let _turn = deadline.bound(self.opening.lock()).await?;
        let mut failed = None;
        for _ in 0..RAIL_STEPS_MAX {
            let Some(step) = self.next_step(bytes) else { break };
            let taken = self.take(step, port, lent, deadline).await;
            if let Err(error) = taken {
                // After a request that was not answered nothing else can be asked on that connection.
                if lent.is_waiting() {
                    return Err(error);
                }
                tracing::debug!(%error, "a data rail was not opened");
                failed = Some(error);
            }
            if self.count() > 0 {
                return Ok(());
            }
            // Where frames are not spoken, NICs that are being opened are all there is.
            self.nics.opened(deadline).await?;
        }
        if self.count() > 0 {
            return Ok(());
        }
        let none =
            || Error::invalid(format!("no data rail can be opened from here: {}", self.nics.why_none()));
        Err(failed.unwrap_or_else(none))
    }

    /// What is to be done next, if anything.
    fn next_step(&self, bytes: usize) -> Option<Step> {
        let lacking = self.nics.lacking();
        if !lacking.is_empty() {
            return Some(Step::Nics(lacking));
        }
        let nics = self.nics.with_rails().len();
        let mut state = self.state.lock();
        let have = state.look();
        let wanted = if nics > 0 { 1 } else { (bytes / STRIPED_BYTES_MIN).clamp(1, RAILS_MAX) };
        // Without any a call is worth a try at once.
        let may = (have == 0 && nics == 0) || !state.pause.goes_on();
        if self.config.choice.allows(Engine::Framed) && have < wanted && may {
            return Some(Step::Framed);
        }
        // Of framed rails the ends see one another leave, if late.
        let due = nics > 0 && state.looked.elapsed() >= RAIL_LOOK_PAUSE;
        (nics + have > 0 && (state.doubted || due)).then_some(Step::Look)
    }

    async fn take(&self, step: Step, port: &Port, lent: &mut Lent, deadline: Deadline) -> Result<()> {
        let asking = Asking { lent, deadline, held: self.held() };
        let lost = match step {
            Step::Look => asking.compare().await?,
            Step::Framed => match asking.framed(port, self.number, &self.domain).await {
                Ok((rail, lost)) => {
                    self.state.lock().framed.push(rail);
                    lost
                }
                Err(error) => {
                    self.state.lock().pause.begin();
                    return Err(error);
                }
            },
            Step::Nics(nics) => {
                let (mut unfit, offered) = (Vec::new(), nics.clone());
                let opened = asking.over_nics(nics, &mut unfit).await;
                for one in unfit {
                    self.nics.close(&one.nic, one.why);
                }
                match opened {
                    Ok(opened) => {
                        opened.nic.has(opened.rail);
                        opened.passed.iter().for_each(|nic| nic.lose());
                        opened.lost
                    }
                    Err(error) => {
                        offered.iter().for_each(|nic| nic.lose());
                        return Err(error);
                    }
                }
            }
        };
        self.note_compared(&lost);
        Ok(())
    }

    /// The server's numbers of the rails that are open.
    fn held(&self) -> Vec<u64> {
        let nics = self.nics.with_rails();
        let framed = self.state.lock().numbers();
        nics.iter().filter_map(|nic| nic.held()).chain(framed).collect()
    }

    fn note_compared(&self, lost: &[u64]) {
        let is_lost = |nic: &&Arc<Nic>| nic.held().is_some_and(|number| lost.contains(&number));
        for nic in self.nics.with_rails().iter().filter(is_lost) {
            tracing::debug!(fabric = %nic.engine, nic = nic.domain.name(), "the server lost a rail over a NIC");
            nic.lose();
        }
        let mut state = self.state.lock();
        state.lose(lost);
        (state.looked, state.doubted) = (Instant::now(), false);
    }
}

impl State {
    fn count(&self) -> usize {
        self.framed.iter().filter(|rail| rail.is_open()).count()
    }

    fn numbers(&self) -> Vec<u64> {
        self.framed.iter().filter(|rail| rail.is_open()).filter_map(|rail| rail.number).collect()
    }

    /// Lets go of framed rails that the server has not.
    fn lose(&mut self, lost: &[u64]) {
        self.framed.retain(|rail| rail.number.is_none_or(|number| !lost.contains(&number)));
    }

    /// Lets go of framed rails that died; gives how many there are.
    fn look(&mut self) -> usize {
        let before = self.framed.len();
        self.framed.retain(FramedRail::is_open);
        if self.framed.len() < before {
            self.doubted = true;
            self.pause.begin();
        }
        self.framed.len()
    }
}

impl FramedRail {
    fn is_open(&self) -> bool {
        self.target.death().is_none()
    }
}

#[cfg(test)]
mod tests;
