//! The server's part in replication: starts the node's threads, and carries what they ask to the driver
//! ([`crate::driver::replicated`]).

mod application;
pub mod content;
mod members;
mod peers;
mod start;

pub(crate) use start::{FOLDER, start};

use crate::base::time::Now;
use crate::driver::Driver;
use crate::driver::replicated::asked::NodeAdapter;
use crate::driver::replicated::follower::Follower;
use crate::quorum::types::SnapshotFile;
use crate::server::shell::Shell;

/// Interval at which a leader has its time committed if nothing else is, in milliseconds: a lease is late by up to this after a
/// change of leaders, besides the time without a leader.
pub(crate) const TICK_MS: u64 = 100;

impl NodeAdapter for Shell {
    fn driver_and_clock(&mut self) -> (&mut Driver, impl FnMut(u64) -> Now) {
        let Shell { driver, clock, .. } = self;
        let set = |us| {
            clock.set_us(us);
            clock.now()
        };
        (driver, set)
    }

    fn load(&self, follower: Follower, snapshot: &SnapshotFile) -> Result<Follower, String> {
        content::load(follower, snapshot)
    }

    fn clock_was_set(&mut self) {
        self.forget_marks();
    }
}
