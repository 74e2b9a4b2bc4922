//! Lives of a server. Owns: how one begins on what the last one left, with which sizes and faults, and how it ends.
//! Must not know: what happens in between.

use super::{End, TICK, World};
use crate::clients::open;
use crate::context::Client;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use turnkv::simulation::{Books, Fault, FaultPlan, Held, Server, SimulatedDisk};

impl World {
    /// Starts a server on what the last one left; `held`: what must be there.
    pub(super) fn start(&mut self, held: Option<Vec<(usize, u32, Held)>>) {
        self.lives += 1;
        if self.lives > 1 && self.plan.resizes && self.sizes.below(3) == 0 {
            self.plan.resize(&mut self.sizes);
            self.totals.resizes += 1;
        }
        if self.lives == 1 {
            self.context.say(|| format!("PLAN {:?}", self.plan));
        }
        self.totals.starts += 1;
        // What reading and opening can suffer may happen while a server starts: it must start even so.
        let loose = self.below(4) == 0;
        self.pages.set_plan(self.starting(&self.plan.pages, loose));
        self.catalog.set_plan(self.starting(&self.plan.catalog, loose));
        let disks = (self.plan.shape.nvme_bytes > 0).then_some((&self.pages, &self.catalog));
        let started = Server::start(&self.plan.shape, &self.context.time, disks, self.lives);
        self.context.say(|| format!("START {} loose {loose} {:?}", self.lives, started.as_ref().err()));
        match started {
            Ok(server) => *self.context.server.borrow_mut() = Some(server),
            Err(error) => return self.context.broken(format!("the server does not start: {error:#}")),
        }
        self.context.model.borrow_mut().new_life();
        self.seen.clear();
        self.lost = 0;
        for _ in 0..self.plan.clients {
            let client = self.new_client();
            self.clients.push((client, None));
        }
        self.next_tick = self.context.time.now() + TICK;
        self.open_all();
        if let Some(held) = held {
            self.check_survivors(held, self.may_misread(loose));
        }
        self.pages.set_plan(self.arm(self.plan.pages.clone(), &self.pages.clone()));
        self.catalog.set_plan(self.arm(self.plan.catalog.clone(), &self.catalog.clone()));
    }

    /// Can a start with these faults lose what it reads?
    fn may_misread(&self, loose: bool) -> bool {
        loose && (self.plan.reads_fail_for_good() || self.plan.pages.rates.contains_key(&Fault::FlippedRead))
    }

    fn starting(&self, plan: &FaultPlan, loose: bool) -> FaultPlan {
        let mut plan = plan.clone();
        let reads = [
            Fault::ReadError,
            Fault::Latent,
            Fault::FlippedRead,
            Fault::Short,
            Fault::Interrupted,
            Fault::Slow,
            Fault::NoDescriptor,
        ];
        plan.rates.retain(|fault, _| loose && reads.contains(fault));
        plan
    }

    /// Has the power cut in the middle of an operation, some time.
    fn arm(&self, mut plan: FaultPlan, disk: &SimulatedDisk) -> FaultPlan {
        if self.plan.cuts && self.below(2) == 0 {
            plan.at.push((disk.operations() + 1 + self.below(600), Fault::PowerCut));
        }
        plan
    }

    pub(super) fn new_client(&mut self) -> Rc<Client> {
        self.next_client += 1;
        let client = Client { id: self.next_client, alive: Arc::new(AtomicBool::new(true)) };
        self.context.server().join(client.id, Arc::clone(&client.alive));
        Rc::new(client)
    }

    /// Every engine opens its namespace when it finds the server again.
    fn open_all(&mut self) {
        for space in 0..self.plan.specs.len() {
            let context = Rc::clone(&self.context);
            let id = self.tasks.spawn(async move { open(&context, space).await });
            assert!(self.tasks.poll(id), "opening a namespace does not wait");
        }
    }

    /// The life of this server ends, and the next one begins.
    pub(super) fn end(&mut self, end: End, held: Option<Vec<(usize, u32, Held)>>) {
        self.context.say(|| format!("END {end:?}"));
        if end == End::Clean {
            self.drain();
            if self.pages.is_off() || self.catalog.is_off() {
                return self.end(End::Power, Some(Vec::new()));
            }
        }
        if end == End::Clean {
            self.context.server().seal(); // what was on its way ends before that
            self.totals.clean_ends += 1;
        }
        let held = held.unwrap_or_else(|| self.held(end));
        for id in self.tasks.ids() {
            self.tasks.cancel(id);
        }
        self.clients.clear();
        self.count_moves();
        match end {
            End::Power => (self.pages.crash(), self.catalog.crash()).0,
            End::Kill | End::Clean => (self.pages.kill(), self.catalog.kill()).0,
        }
        self.context.server().bury();
        *self.context.server.borrow_mut() = None;
        self.start(Some(held));
    }

    fn drain(&mut self) {
        let until = self.context.time.now() + Duration::from_secs(5);
        let server = self.context.server();
        while server.drain() && self.context.time.now() < until {
            self.work(&server);
            self.forgive_given_up();
            self.pass(Duration::from_millis(10));
            self.tick_if_due();
        }
    }

    pub(super) fn count_moves(&mut self) {
        if let Some(server) = &*self.context.server.borrow() {
            let Books { moved: [demoted, promoted, emptied], evicted, dropped, .. } = server.books();
            let moved = [demoted, promoted, emptied, evicted, dropped];
            self.totals.moved.iter_mut().zip(moved).for_each(|(sum, moved)| *sum += moved);
        }
    }
}
