//! `WAIT` and `WAITAOF` of a replicated server: how many followers have a change.
//!
//! ```text
//!   WAIT ─▶ the changes are settled ─▶ a majority has them: enough? ─ yes ─▶ reply
//!                                                 └─ no: their index in the nodes' log ─▶ followers reach it ─▶ reply
//! ```
//!
//! A change is settled when a majority has it durably. So as soon as all changes before a `WAIT` are settled, a majority but the
//! leader has them, whatever the positions of single followers say. For more followers than that, their positions count: the index of
//! the last settled entry is at or behind the changes. The driver reads the positions when such a wait begins
//! ([`Action::LookAtFollowers`](crate::engine::Action::LookAtFollowers)), when changes are settled, and when a follower reaches what
//! [`Engine::awaited_of_followers`] names. While nobody waits for more than a majority, nothing here runs.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::context::Context;
use crate::engine::replication::{Node, NodeId, Replication};
use crate::keyspace::waits::{Acknowledgement, TimeOut};

/// Followers that a `WAIT` waits for: this many must have the nodes' log up to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// Number of followers.
    pub followers: u64,
    /// Index in the nodes' log.
    pub index: u64,
}

impl Replication {
    /// Number of followers that are certain to have what is settled: a majority but the leader.
    fn certain(&self) -> u64 {
        if self.leads() { self.majority() as u64 - 1 } else { 0 }
    }

    /// The other nodes that answer. What another one has is not known.
    fn answering(&self) -> impl Iterator<Item = &Node> {
        self.others().filter(|node| node.link_up)
    }

    /// Number of followers that have the nodes' log up to an index.
    fn reached(&self, index: u64) -> u64 {
        self.answering().filter(|node| node.position >= index).count() as u64
    }
}

impl Context<'_> {
    /// Replies to `WAIT` or `WAITAOF`, or blocks the session until so many followers (`wanted`) have all changes so far, or until a
    /// deadline (monotonic milliseconds). `aof`: replies as `WAITAOF`; `local`: the changes must be settled, too.
    pub fn wait_for_followers(&mut self, args: &[&[u8]], wanted: u64, aof: bool, local: bool, deadline: Option<u64>) {
        let recorded = self.engine.persistence.position().map_or(0, |position| position.recorded);
        let reached = (self.engine.settled() >= recorded).then_some(self.engine.replication.settled_index);
        let asked = Acknowledgement { recorded, wanted, reached, aof, local };
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
        certain.max(asked.reached.map_or(0, |index| self.replication.reached(index)))
    }

    /// Whether a `WAIT` has what it waits for.
    fn is_acknowledged(&self, asked: Acknowledgement) -> bool {
        self.acknowledged(asked) >= asked.wanted && (!asked.local || self.settled() >= asked.recorded)
    }

    /// Whether a waiter whose changes have just been settled waits for more followers than a majority.
    pub(in crate::engine) fn goes_on_for_followers(&self, number: u32) -> bool {
        let asked = self.keyspace.changes.waits.acknowledgement(number);
        asked.is_some_and(|asked| !self.is_acknowledged(asked))
    }

    /// Whether anybody waits for more followers than a majority.
    pub fn awaits_followers(&self) -> bool {
        !self.keyspace.changes.waits.for_followers.is_empty()
    }

    /// Sets the indexes of the nodes' log up to which the other nodes have it, and ends the waits for followers that have become
    /// enough.
    pub fn set_follower_positions(&mut self, now: Now, positions: &BTreeMap<NodeId, u64>) {
        let me = self.replication.state.node;
        for node in self.replication.state.nodes.iter_mut().filter(|node| node.id != me) {
            node.position = positions.get(&node.id).copied().unwrap_or(0);
        }
        self.end_replica_waits(now);
    }

    /// What is waited for: for each number of followers that there are, the lowest index. The driver looks at the followers again when
    /// any of these has come true.
    pub fn awaited_of_followers(&self) -> Vec<Awaited> {
        let (waits, nodes) = (&self.keyspace.changes.waits.for_followers, self.replication.others().count() as u64);
        let mut all = Vec::new();
        let mut next = 0;
        while let Some(&(followers, index, _)) = waits.range((next, 0, 0)..).next().filter(|first| first.0 <= nodes) {
            all.push(Awaited { followers, index });
            next = followers + 1;
        }
        all
    }

    /// Ends the waits for followers that have become enough.
    pub(super) fn end_replica_waits(&mut self, now: Now) {
        if !self.awaits_followers() || !self.replication.leads() {
            return;
        }
        let mut positions: SmallVec<[u64; 8]> = self.replication.answering().map(|node| node.position).collect();
        positions.sort_unstable_by(|a, b| b.cmp(a));
        let certain = self.replication.certain();
        // The index that so many followers have; `None` if there are not so many.
        let reached = |followers: u64| match usize::try_from(followers) {
            _ if followers <= certain => Some(u64::MAX),
            Ok(count) => positions.get(count - 1).copied(),
            Err(_) => None,
        };
        let mut next = 0;
        loop {
            let first = self.keyspace.changes.waits.for_followers.range((next, 0, 0)..).next();
            let Some(&(followers, index, number)) = first else { return };
            match reached(followers) {
                None => return,
                Some(reached) if index <= reached => _ = self.end_wait(now, number, None),
                Some(_) => next = followers + 1,
            }
        }
    }
}
