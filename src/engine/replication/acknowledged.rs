//! `WAIT` and `WAITAOF` of a replicated server: how many followers have a change.
//!
//! A change is settled when a majority has it durably. So as soon as all changes before a `WAIT` are settled, a majority but the
//! leader has them, whatever the positions of single followers say. `WAIT` for more followers than that waits until the driver sets
//! the state again: the leader's position is then behind these changes, and followers that have reached it have them too.

use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::context::Context;
use crate::engine::replication::Replication;
use crate::keyspace::waits::{Acknowledgement, TimeOut};

impl Replication {
    /// Number of followers that are certain to have what is settled: a majority but the leader.
    fn certain(&self) -> u64 {
        if self.leads() { self.majority() as u64 - 1 } else { 0 }
    }

    /// Number of followers that have reached a position.
    fn reached(&self, position: u64) -> u64 {
        self.others().filter(|node| node.link_up && node.position >= position).count() as u64
    }
}

impl Context<'_> {
    /// Replies to `WAIT` or `WAITAOF`, or blocks the session until so many followers (`wanted`) have all changes so far, or until a
    /// deadline (monotonic milliseconds). `aof`: replies as `WAITAOF`; `local`: the changes must be settled, too.
    pub fn wait_for_followers(&mut self, args: &[&[u8]], wanted: u64, aof: bool, local: bool, deadline: Option<u64>) {
        let recorded = self.engine.persistence.position().map_or(0, |position| position.recorded);
        let asked = Acknowledgement { recorded, wanted, reached: None, aof, local };
        if !self.engine.is_acknowledged(asked) && self.may_block() {
            return self.block_for_followers(args, asked, deadline);
        }
        let (settled, followers) = (self.engine.settled(), self.engine.acknowledged(asked));
        TimeOut::Followers(asked).write(self.reply, || settled, followers);
    }
}

impl Engine {
    /// The position in the driver's log up to which all is settled.
    pub(in crate::engine) fn settled(&self) -> u64 {
        self.persistence.position().map_or(u64::MAX, |position| position.durable)
    }

    /// Number of followers that are known to have what a `WAIT` waits for.
    pub(in crate::engine) fn acknowledged(&self, asked: Acknowledgement) -> u64 {
        if !self.replication.leads() {
            return 0;
        }
        let certain = if self.settled() >= asked.recorded { self.replication.certain() } else { 0 };
        certain.max(asked.reached.map_or(0, |position| self.replication.reached(position)))
    }

    /// Whether a `WAIT` has what it waits for.
    fn is_acknowledged(&self, asked: Acknowledgement) -> bool {
        self.acknowledged(asked) >= asked.wanted && (!asked.local || self.settled() >= asked.recorded)
    }

    /// Whether a `WAIT` ends as soon as its changes are settled.
    pub(in crate::engine) fn ends_with_settling(&self, asked: Acknowledgement) -> bool {
        asked.wanted <= self.replication.certain()
    }

    /// Ends the waits for followers that have become enough.
    pub(super) fn end_replica_waits(&mut self, now: Now) {
        if self.keyspace.changes.waits.for_followers.is_empty() {
            return;
        }
        let position = self.replication.me().map_or(0, |node| node.position);
        let numbers: Vec<u32> = self.keyspace.changes.waits.for_followers.iter().copied().collect();
        for number in numbers {
            let Some(asked) = self.keyspace.changes.waits.sample(number, position) else { continue };
            if self.is_acknowledged(asked) {
                self.end_wait(now, number, None);
            }
        }
    }
}
