//! How a durable server starts from its files, and what its operator does.

use crate::driver::Driver;
use crate::driver::flaw::Flaw;
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::server::durable::start::Starts;
use crate::torture::history::{EventKind, NO_CLIENT};
use crate::torture::sim::disk::Planted;
use crate::torture::sim::durable::Durable;
use crate::torture::sim::machine::ProcessClock;
use crate::torture::sim::net::Event;
use crate::torture::sim::server::local::Local;
use crate::torture::sim::server::serving::Serving;
use crate::torture::sim::server::{Ended, SCRIPT_STEPS_MAX, Server, config, hello};
use crate::torture::sim::world::{Shared, lock};

/// Time after which a server that has ended by itself is started again.
const AGAIN_US: u64 = 1_000_000;
/// Interval at which an operator looks whether a server is up.
const OPERATE_EVERY_US: u64 = 1_000_000;

impl Server {
    /// The operator of a durable server that does not run deletes its files.
    pub fn delete_files(&mut self) {
        let seed = self.seed;
        self.durable.iter_mut().for_each(|durable| durable.delete_files(seed));
    }

    /// The operator of a durable server that has ended by itself starts it again. Files that were refused are deleted first.
    pub fn start_later(&mut self, net: &Shared, how: Ended) {
        let mut net = lock(net);
        if how == Ended::Refused {
            net.record(NO_CLIENT, EventKind::Refused { server: self.number });
            self.delete_files();
        }
        let at_us = net.now_us + AGAIN_US;
        net.at(at_us, Event::Up(self.number));
    }

    /// The operator of a durable server changes how it stores, now and then.
    pub fn operate(&mut self, net: &Shared) {
        let mut net = lock(net);
        let next_us = match &mut self.durable {
            Some(durable) if self.up => {
                let (commands, next_us) = durable.operate(&self.driver, &mut self.threads.random);
                let input = [hello()].iter().chain(&commands).flat_map(|command| command.wire()).copied().collect();
                let operator = self.open_local(Local::new(input));
                self.act_on_local(operator, |operator| operator.ended = true);
                self.on(&mut net).wake(|_| ());
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
    /// Starts a process that is no node, which loads its files.
    ///
    /// # Errors
    /// The files are refused, in words.
    pub(super) fn start_process(&mut self) -> Result<(), String> {
        let Serving { server: Server { durable, threads, clock, seed, .. }, net } = self;
        let (clock, config) = match durable {
            Some(durable) => (durable.machine.begin_process(net.now_us), durable.config_to_start(&mut threads.random)),
            None => (*clock, config(*seed)),
        };
        let flaw = if let Planted::OfDriver(flaw) = threads.disk.planted { flaw } else { Flaw::Nothing };
        self.begin_process(clock, config, flaw);
        self.begin_to_load()
    }

    /// A process begins, with these clocks.
    pub(in crate::torture::sim) fn begin_process(&mut self, clock: ProcessClock, config: Config, flaw: Flaw) {
        let Serving { server, net } = self;
        server.seed = server.seed.wrapping_add(1);
        server.clock = clock;
        let mut engine = Engine::new(config, server.seed, clock.now(net.now_us), crate::commands::table());
        engine.bound_scripts(Some(SCRIPT_STEPS_MAX));
        server.driver = Driver::new(engine);
        server.driver.limit(server.limits);
        server.driver.plant(flaw);
    }

    /// The process ends by itself.
    pub(super) fn end(&mut self, how: Ended) {
        self.server.go_down(self.net, false);
        // For what was refused on a full disk, there is room by the next start.
        self.server.ended = Some(if self.server.has_room() { how } else { Ended::InOrder });
        self.server.durable.iter_mut().for_each(Durable::end_process);
    }
}
