//! What makes a server of a node: starts it, and carries what openraft asks to the driver, as the executor of a real server does.

use std::collections::BTreeSet;
use std::io::Cursor;

use crate::base::time::Now;
use crate::driver::Driver;
use crate::driver::replicated::asked::NodeAdapter;
use crate::driver::replicated::follower::Follower;
use crate::driver::round::Driving;
use crate::quorum::types::{NodeId, SnapshotFile};
use crate::server::replicated::content;
use crate::torture::history::{EventKind, NO_CLIENT};
use crate::torture::sim::machine::ProcessClock;
use crate::torture::sim::net::Net;
use crate::torture::sim::replica::disk::NodeDisk;
use crate::torture::sim::replica::node::{Process, Replica};
use crate::torture::sim::replica::runtime::Runtime;
use crate::torture::sim::server::serving::Serving;
use crate::torture::sim::server::{BEGIN_US, Server, config};

/// By how much the monotonic clocks of processes differ.
const CLOCKS_APART_US: u64 = 777_000_123;

impl Server {
    /// A node that does not run yet.
    pub fn replica(number: u32, seed: u64, replica: Replica) -> Server {
        let mut server = Server::new(number, seed, false);
        server.up = false;
        server.replica = Some(Box::new(replica));
        server
    }

    fn process(&mut self) -> Option<&mut Process> {
        self.replica.as_mut()?.process.as_mut()
    }

    /// Starts the process of a node. Returns false if its files are refused.
    pub fn start_node(&mut self, net: &mut Net, runtime: &mut Runtime) -> bool {
        let Some(replica) = &mut self.replica else { return false };
        if replica.hangs(net.now_us).is_some() {
            return false;
        }
        let origin_us = BEGIN_US + (replica.number * u64::from(replica.index + 3)) % 13 * CLOCKS_APART_US;
        let clock = ProcessClock::new(net.now_us, origin_us, replica.wall_ms).with_ppm(runtime.clock(replica.index).ppm);
        let flaw = replica.flaw.of_driver();
        let config = config(self.seed);
        self.on(net).begin_process(clock, config.clone(), flaw);
        let Some(replica) = &mut self.replica else { return false };
        let options = match replica.start(runtime, net.now_us, config) {
            Ok(options) => options,
            Err(reason) => {
                tracing::error!(reason, "a node refuses its files");
                return false;
            }
        };
        self.up = true;
        self.forget_timers();
        let mut serving = self.on(net);
        serving.drive(|driver, at| driver.begin_membership(at, options));
        serving.run();
        true
    }

    /// Has the server carry out what openraft has asked. Returns whether there was anything.
    pub fn serve_node(&mut self, net: &mut Net, runtime: &Runtime) -> bool {
        let any = self.up && self.has_asked();
        if any {
            runtime.enter(self.number, net.now_us);
            self.go_on(net);
        }
        any
    }

    /// Whether openraft has asked for anything.
    pub(in crate::torture::sim) fn has_asked(&self) -> bool {
        let process = self.replica.as_ref().and_then(|replica| replica.process.as_ref());
        process.is_some_and(|process| process.machine.has_asked())
    }

    /// What openraft has asked for waits with what else is to be done.
    pub(in crate::torture::sim) fn take_asked(&mut self) {
        while let Some(asked) = self.process().and_then(|process| process.machine.next()) {
            self.threads.inbox.send(|serving| serving.carry_out(asked));
        }
    }

    /// The driver cannot go on.
    pub(in crate::torture::sim) fn fail(&mut self, net: &mut Net, reason: &str) {
        tracing::error!(reason, "a node cannot go on");
        let damaged = self.replica.as_ref().is_some_and(|replica| replica.damaged);
        // Its disk may have failed it.
        if !damaged && !self.process().is_some_and(|process| process.had_bad_disk) {
            net.record(NO_CLIENT, EventKind::Refused { server: self.number });
        }
    }

    /// Goes on after the process stood still, before it reads anything that has come meanwhile.
    pub fn go_on(&mut self, net: &mut Net) {
        if self.up {
            self.on(net).wake(|_| ());
        }
    }

    /// The last index that the node knows to be committed.
    pub fn committed(&self) -> u64 {
        self.driver.member().map_or(0, |member| member.node().status().committed)
    }

    /// Whether the node has all that it was given. See [`Replica::has_all`].
    pub fn has_all(&self, now_us: u64, committed: u64) -> bool {
        let applied = self.driver.member().is_some_and(|member| member.node().status().applied >= committed);
        self.replica.as_ref().is_none_or(|replica| replica.has_all(now_us, applied))
    }

    /// If the node leads, as far as it knows: the sets of voters of each of which it needs a majority.
    pub fn serves(&self) -> Option<&[BTreeSet<NodeId>]> {
        let member = self.driver.member().filter(|member| self.up && member.serves())?;
        Some(&member.status().voters)
    }
}

impl NodeAdapter for Serving<'_> {
    fn driver_and_clock(&mut self) -> (&mut Driver, impl FnMut(u64) -> Now) {
        let now_us = self.net.now_us;
        let Server { driver, clock, .. } = &mut *self.server;
        let set = move |us| {
            clock.set_us(now_us, us);
            clock.now(now_us)
        };
        (driver, set)
    }

    fn load(&self, follower: Follower, snapshot: &SnapshotFile) -> Result<Follower, String> {
        let disk = self.server.replica.as_ref().map(|replica| replica.disk().clone());
        let disk = disk.ok_or_else(|| "this is no node".to_owned())?;
        content::load_from(follower, Cursor::new(NodeDisk::read(&disk, &snapshot.path)?), snapshot)
    }
}
