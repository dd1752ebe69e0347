//! How a durable server stores: it carries what the driver asks for to the disk, and tells the driver what became of it.

use crate::client::Command;
use crate::driver::connections::turn::Next;
use crate::driver::file::Reported;
use crate::driver::{Demands, Driver, Present};
use crate::torture::sim::durable::{Durable, Made};
use crate::torture::sim::net::{Event, Net};
use crate::torture::sim::server::{Open, SCRIPT_STEPS_MAX, Server, connect, take_turn};
use crate::torture::sim::world::{Shared, lock};

/// Interval at which an operator looks whether a server is up.
const OPERATE_EVERY_US: u64 = 1_000_000;

/// Carries out what a driver asks for. Returns why the server must end, if it must.
pub(super) fn carry_out(driver: &mut Driver, durable: Option<&mut Durable>, at: Present, at_us: u64) -> Option<String> {
    let Demands { copy, file, opens_file, failed, .. } = driver.take_demands();
    let Some(durable) = durable else { return failed };
    for order in copy {
        if let Err(reason) = durable.order_copy(at_us, order) {
            driver.copy_failed(at, &reason);
        }
    }
    file.into_iter().for_each(|order| durable.order(order));
    if opens_file {
        match durable.open_file() {
            Ok(()) => durable.begin(driver.file_opened(at, durable.boot_clock(at_us))),
            Err(reason) => driver.file_not_begun(at, &reason),
        }
    }
    failed
}

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

    /// Carries out what the driver asks for. Returns why the server must end, if it must.
    pub(in crate::torture::sim) fn meet_demands(&mut self, at_us: u64) -> Option<String> {
        let at = self.present(at_us);
        carry_out(&mut self.driver, self.durable.as_mut(), at, at_us)
    }

    /// The disk has done what a process of this number waited for.
    pub fn synced(&mut self, net: &Shared, process: u64) {
        let (mut net, up) = (lock(net), self.up);
        let Some(durable) = self.durable.as_mut().filter(|durable| up && durable.process == process) else { return };
        durable.go_on(net.now_us);
        self.take_reports(net.now_us);
        self.serve(&mut net);
    }

    /// Loads a slice of the files, if one is due. If they are refused, the server starts anew, without any.
    pub(super) fn load_some(&mut self, net: &mut Net) {
        let at = self.present(net.now_us);
        let Server { driver, durable: Some(durable), .. } = self else { return };
        if let Err(reason) = durable.load_some(driver, at, net.now_us) {
            tracing::warn!(reason, "files are refused");
            durable.delete_files(self.seed);
            self.drop_sessions(net, true);
            self.start_process(net.now_us);
        }
    }

    /// Copies some keys, if a copy is in progress.
    pub(super) fn copy_some(&mut self, now_us: u64) {
        let at = self.present(now_us);
        let Server { driver, durable: Some(durable), .. } = self else { return };
        if driver.copies() {
            durable.copy_some(driver, at, now_us);
        }
    }

    /// Tells the driver what was made of files and copies.
    pub(super) fn take_made(&mut self, now_us: u64) {
        let at = self.present(now_us);
        let Server { driver, durable: Some(durable), .. } = self else { return };
        match durable.take_made(at.now, now_us) {
            Some(Made::Base(number, made)) => driver.base_made(at, number, made),
            Some(Made::Snapshot(number, made)) => driver.snapshot_made(at, number, made.map(|()| 0)),
            Some(Made::File(Ok(()))) => driver.file_begun(at),
            Some(Made::File(Err(reason))) => driver.file_not_begun(at, &reason),
            None => {}
        }
    }

    /// The operator of a durable server changes how it stores, now and then.
    pub fn operate(&mut self, net: &Shared) {
        let mut net = lock(net);
        let Server { driver, durable: Some(durable), up: true, .. } = self else {
            let at_us = net.now_us + OPERATE_EVERY_US;
            return net.at(at_us, Event::OperateServer(self.number));
        };
        let (commands, next_us) = durable.operate(driver);
        let (at, boot) = (self.present(net.now_us), self.boot_clock(net.now_us));
        self.advance(at);
        let Server { driver, durable, .. } = self;
        let id = connect(driver, at.now);
        let (mut input, mut failed) = (commands.iter().flat_map(Command::wire).copied().collect(), None);
        loop {
            let next = take_turn(driver, (at, boot), id, &mut Open(&mut input, false), |driver| {
                failed = failed.take().or(carry_out(driver, durable.as_mut(), at, net.now_us));
            });
            if !matches!(next, Next::Soon | Next::Later) {
                break;
            }
        }
        driver.remove_connection(at.now, id);
        if let Some(reason) = failed {
            self.fail(&mut net, &reason);
        }
        self.serve(&mut net);
        let at_us = net.now_us + next_us;
        net.at(at_us, Event::OperateServer(self.number));
    }

    /// Lets the disk work.
    pub(super) fn write_log(&mut self, net: &mut Net) {
        while let Some(durable) = &mut self.durable {
            if let Some(wait_us) = durable.work(net.now_us) {
                let at_us = net.now_us + wait_us;
                net.at(at_us, Event::Synced(self.number, durable.process));
            }
            if !self.take_reports(net.now_us) {
                return;
            }
        }
    }

    /// Tells the driver what the writer of the log has reported. Returns whether there was anything.
    pub(super) fn take_reports(&mut self, now_us: u64) -> bool {
        let at = self.present(now_us);
        let Server { driver, durable: Some(durable), .. } = self else { return false };
        let reports = durable.take_reports();
        let any = !reports.is_empty();
        for report in reports {
            match driver.take_report(at, report) {
                Some(Reported::MakeBase(number, files)) => durable.make_base(now_us, number, files),
                Some(Reported::Closed) => {
                    durable.close_file();
                    driver.file_closed(at);
                }
                None => {}
            }
        }
        any
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
