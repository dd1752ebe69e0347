//! The server's part in replication: starts the node's threads, and carries what they ask to the driver
//! ([`crate::driver::replicated`]).

mod application;
pub mod content;
mod members;
mod peers;
mod start;

pub(in crate::server) use start::check_requests;
pub(crate) use start::{FOLDER, start};

use crate::driver::round::Adapter;
use crate::quorum::node::Status;
use crate::quorum::types::SnapshotFile;
use crate::server::shell::Shell;

/// Interval at which a leader has its time committed if nothing else is, in milliseconds: a lease is late by up to this after a
/// change of leaders, besides the time without a leader.
const TICK_MS: u64 = 100;
impl Shell {
    /// Replaces the state of a follower by a snapshot, or by the empty state.
    fn install_state(&mut self, snapshot: Option<&SnapshotFile>) -> Result<(), String> {
        let mut follower = self.driver.new_follower();
        if let Some(snapshot) = snapshot {
            follower = content::load(follower, snapshot)?;
        }
        self.drive(|driver, at| driver.install(at, follower));
        Ok(())
    }

    /// Takes note of a change of the cluster.
    fn cluster_changed(&mut self, status: Status) {
        let at = self.present();
        let clock = &mut self.clock;
        let mut is_set = false;
        self.driver.cluster_changed(at, status, |us| {
            is_set = true;
            clock.set_us(us);
            clock.now()
        });
        if is_set {
            self.forget_marks();
        }
        self.drive(|_, _| ());
    }
}
