//! How a durable server stores: it carries what the driver asks for to the disk, and tells the driver what became of it.

use crate::client::Command;
use crate::driver::round::{Adapter, Rounds};
use crate::torture::sim::durable::{Durable, Made};
use crate::torture::sim::net::Event;
use crate::torture::sim::server::serving::Serving;
use crate::torture::sim::server::{SCRIPT_STEPS_MAX, Server, connect};
use crate::torture::sim::world::{Shared, lock};

/// Interval at which an operator looks whether a server is up.
const OPERATE_EVERY_US: u64 = 1_000_000;

impl Server {
    /// Starts the durable server from its files. If they are refused, its operator deletes them. Returns whether they were not.
    pub(super) fn start_process(&mut self, at_us: u64) -> bool {
        let Some(durable) = &mut self.durable else { return true };
        self.seed = self.seed.wrapping_add(1);
        let (driver, clock, kept) = durable.start(at_us, self.seed);
        (self.driver, self.clock) = (driver, clock);
        if let Some(limits) = self.limits {
            self.driver.limit(limits);
        }
        self.driver.engine.bound_scripts(Some(SCRIPT_STEPS_MAX));
        kept
    }

    /// The disk has done what a process of this number waited for.
    pub fn synced(&mut self, net: &Shared, process: u64) {
        let (mut net, up) = (lock(net), self.up);
        let Some(durable) = self.durable.as_mut().filter(|durable| up && durable.process == process) else { return };
        durable.go_on(net.now_us);
        let mut serving = self.on(&mut net);
        serving.woke();
        serving.serve();
    }

    /// The operator of a durable server changes how it stores, now and then.
    pub fn operate(&mut self, net: &Shared) {
        let mut net = lock(net);
        let next_us = match &mut self.durable {
            Some(durable) if self.up => {
                let (commands, next_us) = durable.operate(&self.driver);
                let id = connect(&mut self.driver, self.clock.now(net.now_us));
                let mut serving = self.on(&mut net);
                serving.woke();
                serving.execute_all(id, commands.iter().flat_map(Command::wire).copied().collect());
                let now = serving.now();
                serving.driver().remove_connection(now, id);
                serving.finish_batch(now, None);
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
            durable.lose_power(lock(net).now_us, wall_step_ms);
        }
        went
    }
}

impl Serving<'_> {
    /// Loads a slice of the files, if one is due. If they are refused, the server starts anew, without any.
    pub(super) fn load_some(&mut self) {
        let (at, at_us) = (self.present(), self.net.now_us);
        let Server { driver, durable: Some(durable), seed, .. } = &mut *self.server else { return };
        match durable.load_some(driver, at, at_us) {
            Ok(true) => {
                self.drive(|driver, at| driver.log_as_configured(at));
                self.after_closure();
            }
            Ok(false) => {}
            Err(reason) => {
                tracing::warn!(reason, "files are refused");
                durable.delete_files(*seed);
                self.server.drop_sessions(self.net, true);
                self.server.start_process(at_us);
            }
        }
    }

    /// Takes what is told of files and copies. Returns whether there was anything.
    pub(super) fn take_made(&mut self) -> bool {
        let now = self.now();
        let Some(made) = self.server.durable.as_mut().and_then(|durable| durable.take_made(now, self.net.now_us)) else {
            return false;
        };
        match made {
            Made::Base(number, made) => self.drive(|driver, at| driver.base_made(at, number, made)),
            Made::Snapshot(number, made) => self.drive(|driver, at| driver.snapshot_made(at, number, made.map(|()| 0))),
            Made::File(Ok(())) => self.drive(|driver, at| driver.file_begun(at)),
            Made::File(Err(reason)) => self.drive(|driver, at| driver.file_not_begun(at, &reason)),
        }
        self.after_closure();
        true
    }

    /// Lets the disk work, and takes what the writer of the log has reported. Returns whether there was anything.
    pub(super) fn take_reports(&mut self) -> bool {
        let Serving { server, net } = self;
        let Some(durable) = &mut server.durable else { return false };
        if let Some(wait_us) = durable.work(net.now_us) {
            let at_us = net.now_us + wait_us;
            net.at(at_us, Event::Synced(server.number, durable.process));
        }
        let reports = durable.take_reports();
        let any = !reports.is_empty();
        for report in reports {
            self.take_report(report);
            self.after_closure();
        }
        any
    }

    /// The process ends as it was told to: what waits is written, and then the connections are closed.
    pub(super) fn end_in_order(&mut self) {
        self.run_last_turns();
        self.hand_on_all();
        if let Some(durable) = &mut self.server.durable {
            durable.close(self.net.now_us);
        }
        self.take_reports();
        self.run_last_turns();
        self.server.go_down(self.net, false);
        self.server.durable.iter_mut().for_each(Durable::end_process);
        self.server.ended = true;
    }
}
