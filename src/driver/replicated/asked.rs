//! What the node asks of the executor, carried out.

use crate::base::time::Now;
use crate::driver::Driver;
use crate::driver::replicated::follower::Follower;
use crate::driver::round::Driving;
use crate::quorum::node::Asked;
use crate::quorum::types::SnapshotFile;

/// What the driver of a node runs on.
pub trait NodeAdapter: Driving {
    /// The driver, and what lets the engine's monotonic clock show so many microseconds: the wall clock does not change. It returns what
    /// they show then.
    fn driver_and_clock(&mut self) -> (&mut Driver, impl FnMut(u64) -> Now);

    /// Loads a snapshot into a follower.
    ///
    /// # Errors
    /// In words: the file cannot be read, or is damaged.
    fn load(&self, follower: Follower, snapshot: &SnapshotFile) -> Result<Follower, String>;

    /// Carries out what the node asks for.
    fn carry_out(&mut self, asked: Asked) {
        match asked {
            Asked::Committed(entries, done) => {
                let clock = self.monotonic_ns();
                self.drive(|driver, at| driver.take_committed(at, entries, done, clock));
            }
            Asked::Install(snapshot, done) => {
                let _ = done.send(self.install(snapshot.as_ref()));
            }
            Asked::Message(message) => self.drive(|driver, _| driver.deliver_message(&message)),
            Asked::WaitReached => self.drive(|driver, at| driver.look_at_followers(at)),
            Asked::Changed(status) => {
                let at = self.present();
                let mut is_set = false;
                let (driver, mut set_clock) = self.driver_and_clock();
                driver.cluster_changed(at, status, |us| {
                    is_set = true;
                    set_clock(us)
                });
                drop(set_clock);
                if is_set {
                    self.driver().reset_timer();
                    self.clock_was_set();
                }
                self.meet_demands();
            }
            Asked::HandOver(to) => self.drive(|driver, at| driver.hand_over_own(at, to)),
            Asked::MembersChanged(id, result) => self.drive(|driver, at| driver.members_changed(at, id, result)),
            Asked::Failed(reason) => self.drive(|driver, _| driver.node_failed(&reason)),
        }
        self.after_closure();
    }

    /// The clock shows another time: nothing that was noted by it holds any more.
    fn clock_was_set(&mut self) {}

    /// Replaces the state of a follower by a snapshot, or by the empty state.
    ///
    /// # Errors
    /// In words: the snapshot cannot be loaded.
    fn install(&mut self, snapshot: Option<&SnapshotFile>) -> Result<(), String> {
        let mut follower = self.driver().new_follower();
        if let Some(snapshot) = snapshot {
            follower = self.load(follower, snapshot)?;
        }
        self.drive(|driver, at| driver.install(at, follower));
        Ok(())
    }
}
