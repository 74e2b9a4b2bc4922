//! One thing happens: a client begins or goes on, the tier or reclaim takes a step, time passes, something ends.
//! Owns: the choice, and what a step does. Must not know: what must hold after it.

use super::{End, SLABS_MAX, TICK, World};
use crate::clients::{act, vanish};
use std::rc::Rc;
use std::time::Duration;
use turnkv::simulation::{Server, Step};

/// Ticks between two flushes of the catalog.
const FLUSH_TICKS: u64 = 5;
/// Steps that tier and reclaim may take before they rest.
const WORK_MAX: u32 = 20_000;

impl World {
    /// One thing happens.
    pub(super) fn step(&mut self) {
        self.forgive_given_up();
        if self.plan.cuts {
            self.before = self.held(End::Power);
        }
        let evicted = self.context.server().books().evicted;
        if self.plan.breathes {
            self.breathe();
        }
        match self.below(100) {
            0..22 => self.begin_action(),
            22..50 => self.go_on(),
            50..80 => self.step_tier(),
            80..86 => {
                self.context.server().step_reclaim();
            }
            _ => self.pass(Duration::from_millis([0, 1, 3, 10, 40, 100][self.below(6) as usize])),
        }
        if self.pages.is_off() || self.catalog.is_off() {
            let mut held = std::mem::take(&mut self.before);
            if self.context.server().books().evicted != evicted {
                held.clear(); // something made way in the very step in which the power went
            }
            return self.end(End::Power, Some(held));
        }
        self.tick_if_due();
        for (end, rate) in [End::Kill, End::Power, End::Clean].into_iter().zip(self.plan.ends) {
            if self.is_well() && self.happens(rate) {
                return self.end(end, None);
            }
        }
        if self.happens(4_000) {
            self.lose_client();
        }
        if let Some(late) = self.context.overdue() {
            self.context.broken(late);
        }
    }

    /// What NVMe has given up by the policy's order is durable no longer, whatever becomes of it later.
    pub(super) fn forgive_given_up(&mut self) {
        let (server, mut model) = (self.context.server(), self.context.model.borrow_mut());
        let durable: Vec<(usize, u32)> = model.durable().collect();
        for (space, page) in durable {
            let held = server.held(&model.id(space), &model.hash(space, page));
            if held.is_none_or(|held| !held.on_nvme) && server.poisoned().is_none() {
                model.forgive(space, page);
            }
        }
    }

    /// Page memory is to have another size now and then, and is on its way there.
    fn breathe(&mut self) {
        let server = self.context.server();
        match self.breaths.below(64) {
            0 => {
                server.resize(1 + self.breaths.below(SLABS_MAX) as u32);
                self.totals.breaths += 1;
            }
            1..24 => drop(server.step_resize()),
            _ => {}
        }
    }

    fn begin_action(&mut self) {
        let idle: Vec<usize> = (0..self.clients.len()).filter(|at| self.clients[*at].1.is_none()).collect();
        if idle.is_empty() {
            return self.go_on();
        }
        let at = idle[self.below(idle.len() as u64) as usize];
        let action = act(Rc::clone(&self.context), Rc::clone(&self.clients[at].0));
        let id = self.tasks.spawn(action);
        self.clients[at].1 = Some(id);
        self.poll(id);
    }

    fn go_on(&mut self) {
        let ready = self.tasks.ready();
        if !ready.is_empty() {
            let id = ready[self.below(ready.len() as u64) as usize];
            self.poll(id);
        }
    }

    pub(super) fn poll(&mut self, id: u64) {
        if self.tasks.poll(id) {
            self.clients.iter_mut().filter(|client| client.1 == Some(id)).for_each(|client| client.1 = None);
        }
    }

    fn step_tier(&mut self) {
        let server = self.context.server();
        let step = Step::ALL[self.below(Step::ALL.len() as u64) as usize];
        if !server.step_tier(step) {
            step_any(&server); // whatever else there is to do
        }
    }

    /// The threads of tier and reclaim have all the time they want, while none passes.
    pub(super) fn work(&self, server: &Server) {
        for _ in 0..WORK_MAX {
            let (at_tier, at_reclaim) = (step_any(server), server.step_reclaim());
            if !at_tier && !at_reclaim {
                return;
            }
        }
        self.context.broken(format!("tier and reclaim go on for ever: {:?}", server.books()));
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.context.time.advance(time);
        self.pages.advance(time);
        self.catalog.advance(time);
    }

    pub(super) fn tick_if_due(&mut self) {
        if self.context.time.now() < self.next_tick || self.below(4) == 0 {
            return;
        }
        let server = self.context.server();
        server.tick();
        self.ticks += 1;
        if self.ticks.is_multiple_of(FLUSH_TICKS) {
            server.flush_catalog();
        }
        self.next_tick = self.context.time.now() + TICK;
    }

    /// A client's process ends, and another one begins.
    fn lose_client(&mut self) {
        let at = self.below(self.clients.len() as u64) as usize;
        let (client, task) = self.clients[at].clone();
        self.context.say(|| format!("CLIENT {} is gone", client.id));
        if let Some(task) = task {
            self.tasks.cancel(task);
        }
        vanish(&client);
        self.clients[at] = (self.new_client(), None);
    }
}

fn step_any(server: &Server) -> bool {
    Step::ALL.into_iter().any(|step| server.step_tier(step))
}
