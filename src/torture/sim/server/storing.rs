//! How a durable server stores: it carries what the driver asks for to the disk, and tells the driver what became of it.

use crate::client::Command;
use crate::driver::round::{Driving, Rounds};
use crate::torture::sim::durable::Durable;
use crate::torture::sim::net::Event;
use crate::torture::sim::server::serving::Serving;
use crate::torture::sim::server::{SCRIPT_STEPS_MAX, Server};
use crate::torture::sim::world::{Shared, lock};

/// Interval at which an operator looks whether a server is up.
const OPERATE_EVERY_US: u64 = 1_000_000;

impl Server {
    /// Starts the durable server from its files. If they are refused, its operator deletes them. Returns whether they were not.
    pub(super) fn start_process(&mut self, at_us: u64) -> bool {
        let Some(durable) = &mut self.durable else { return true };
        self.seed = self.seed.wrapping_add(1);
        let (driver, clock, kept) = durable.start(at_us, self.seed, &mut self.threads.random);
        (self.driver, self.clock) = (driver, clock);
        self.driver.limit(self.limits);
        self.driver.engine.bound_scripts(Some(SCRIPT_STEPS_MAX));
        kept
    }

    /// The disk has done what a process of this number waited for.
    pub fn synced(&mut self, net: &Shared, process: u64) {
        let (mut net, up) = (lock(net), self.up);
        if !up || self.durable.as_ref().is_none_or(|durable| durable.process != process) {
            return;
        }
        self.threads.synced(net.now_us);
        let mut serving = self.on(&mut net);
        serving.look_at_lease();
        serving.work();
        serving.serve();
    }

    /// The operator of a durable server changes how it stores, now and then.
    pub fn operate(&mut self, net: &Shared) {
        let mut net = lock(net);
        let next_us = match &mut self.durable {
            Some(durable) if self.up => {
                let (commands, next_us) = durable.operate(&self.driver, &mut self.threads.random);
                let mut serving = self.on(&mut net);
                serving.look_at_lease();
                let id = serving.accept(None);
                serving.execute_all(id, commands.iter().flat_map(Command::wire).copied().collect());
                serving.close_session(id);
                serving.serve();
                next_us
            }
            _ => OPERATE_EVERY_US,
        };
        let at_us = net.now_us + next_us;
        net.at(at_us, Event::OperateServer(self.number));
    }

    /// As [`Server::down`], with the machine. Its wall clock is set by `wall_step_ms` when it boots.
    pub fn lose_power(&mut self, net: &Shared, wall_step_ms: i64) -> bool {
        let went = self.down(net, None, true);
        if let Some(durable) = self.durable.as_mut().filter(|_| went) {
            durable.machine.lose_power(lock(net).now_us, wall_step_ms);
        }
        went
    }
}

impl Serving<'_> {
    /// The files are refused: the server starts anew, without any.
    pub(super) fn start_anew(&mut self, reason: &str) {
        tracing::warn!(reason, "files are refused");
        let at_us = self.net.now_us;
        self.server.drop_sessions(self.net, true);
        let seed = self.server.seed;
        self.server.durable.iter_mut().for_each(|durable| durable.delete_files(seed));
        self.server.start_process(at_us);
        self.meet_demands();
    }

    /// Lets the disk work.
    pub(super) fn work(&mut self) {
        let Serving { server, net } = self;
        let Some(durable) = &mut server.durable else { return };
        if let Some(wait_us) = server.threads.work(net.now_us, durable.machine.disk.planted) {
            let at_us = net.now_us + wait_us;
            net.at(at_us, Event::Synced(server.number, durable.process));
        }
    }

    /// Whether the writer of the log has reported something.
    pub(super) fn has_reports(&self) -> bool {
        self.server.threads.has_reports()
    }

    /// The process ends as it was told to.
    pub(super) fn end(&mut self) {
        self.end_in_order();
        self.server.durable.iter_mut().for_each(Durable::end_process);
        self.server.ended = true;
    }
}
