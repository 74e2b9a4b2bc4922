//! The end of a run: nothing new goes wrong, everybody leaves, everything comes to rest, and restarts find the same pages.
//! Owns: that order. Must not know: faults.

use super::{End, TICK, World};
use crate::clients::{read_all, vanish};
use crate::context::CALL_MAX;
use crate::plan::AMPLE_BYTES;
use std::rc::Rc;
use std::time::Duration;
use turnkv::simulation::FaultPlan;

impl World {
    /// The end: nothing new goes wrong, everybody leaves, and everything comes to rest.
    pub(super) fn finish(&mut self) {
        self.pages.set_plan(FaultPlan::calm(0));
        self.catalog.set_plan(FaultPlan::calm(0));
        self.settle();
        self.check();
        if self.is_well() {
            self.check_rest();
        }
        if self.is_well() && self.plan.shape.nvme_bytes > 0 {
            self.check_two_restarts();
        }
        self.count_moves();
        if let Some(server) = self.context.server.borrow_mut().take() {
            self.pages.kill();
            self.catalog.kill();
            server.bury();
        }
    }

    /// Lets everything go on until nobody waits for anything.
    fn settle(&mut self) {
        let server = self.context.server();
        let give_up = self.context.time.now() + CALL_MAX + Duration::from_secs(60);
        while !self.tasks.ids().is_empty() && self.context.time.now() < give_up {
            while let [id, ..] = self.tasks.ready()[..] {
                self.poll(id);
            }
            self.work(&server);
            self.forgive_given_up();
            self.pass(Duration::from_millis(50));
            self.tick_if_due();
            if let Some(late) = self.context.overdue() {
                return self.context.broken(late);
            }
        }
        for (client, _) in std::mem::take(&mut self.clients) {
            vanish(&client);
        }
        for _ in 0..50 {
            self.pass(TICK);
            self.tick_if_due();
            self.work(&server);
        }
    }

    /// Two restarts one after another find the same pages.
    fn check_two_restarts(&mut self) {
        (self.plan.cuts, self.plan.resizes) = (false, false);
        (self.plan.pages, self.plan.catalog) = (FaultPlan::calm(0), FaultPlan::calm(0));
        if self.plan.disk_bytes < AMPLE_BYTES {
            self.pages.set_capacity(AMPLE_BYTES);
        }
        self.end(End::Kill, None);
        if !self.is_well() {
            return;
        }
        let first = self.contents();
        self.end(End::Kill, None);
        if !self.is_well() {
            return;
        }
        let second = self.contents();
        if first != second {
            self.context.broken(format!("two restarts find different pages: {first:?} and {second:?}"));
        }
        self.read_everything();
    }

    fn contents(&self) -> Vec<(usize, u32)> {
        let (server, model) = (self.context.server(), self.context.model.borrow());
        let there = |(space, page): &(usize, u32)| {
            server.held(&model.id(*space), &model.hash(*space, *page)).is_some()
        };
        model.known().filter(there).collect()
    }

    /// Every page that is there is read, and is right.
    fn read_everything(&mut self) {
        let client = Rc::clone(&self.clients[0].0);
        let context = Rc::clone(&self.context);
        let pages = self.contents();
        let id = self.tasks.spawn(read_all(context, client, pages));
        self.clients[0].1 = Some(id);
        self.settle();
    }
}
