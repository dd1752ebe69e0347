//! A server as one of several nodes that replicate.
//!
//! ```text
//!   leader:   requests ─▶ engine ─▶ AppendLog ─▶ lead: batches ─▶ quorum::node ─▶ committed ─▶ the commit gate opens
//!   follower: quorum::node ─ committed batches ─▶ follower: a second engine; the first one refuses what needs keys
//!
//!   follower ── lead: the load is finished, the clock goes on from the last committed time ──▶ leader
//!   leader ── depose: connections are closed, the state is dropped ──▶ nothing ── snapshot and log ──▶ follower
//! ```
//!
//! A follower is a server that is always loading, and a new leader one that has finished: what a restart promises of locks, sessions
//! and tokens, a change of leaders promises, too. The gate is that of the append-only file ([`crate::server::durable`]).
//!
//! The cluster's clock is the monotonic clock of the leader's engine. Each batch has a time of it, and a follower's engine lives at the
//! time of the last batch, so all nodes have the same deadlines. A new leader sets its clock to the last committed time: no lease ends
//! early, and each is late by the time without a leader.

mod backlog;
pub mod content;
pub mod follower;
mod followers;
mod hand_over;
mod lead;
pub mod leadership;
mod machine;
mod members;
mod messages;
mod peers;
mod relay;
mod start;
mod status;

pub(in crate::server) use start::check_requests;
pub(crate) use start::{FOLDER, start};

use std::sync::Arc;

use crate::base::time::Now;
use crate::persist::natives::clock::{BootClock, Moment};
use crate::quorum::net::ClientAddress;
use crate::quorum::node::{Node, Status};
use crate::quorum::types::{ClusterTime, NodeId};
use crate::server::durable::folder::Hang;
use crate::server::replicated::backlog::Backlog;
use crate::server::replicated::leadership::Part;
use crate::server::replicated::messages::Messages;

/// The clock of the cluster, as native records know clocks: one boot that never ends.
const CLOCK: [u8; 16] = *b"portcullis-clock";
/// Interval at which a leader has its time committed if nothing else is, in milliseconds: a lease is late by up to this after a
/// change of leaders, besides the time without a leader.
const TICK_MS: u64 = 100;

/// The moment of a batch.
pub(in crate::server) fn moment(time: ClusterTime) -> Moment {
    moment_of(Now::new(time.us, time.wall_offset_ms))
}

/// The moment of a leader's engine.
pub(crate) fn moment_of(now: Now) -> Moment {
    Moment { now, boot: boot_clock(now) }
}

/// The cluster's clock at a time of a leader's engine.
pub(crate) fn boot_clock(now: Now) -> BootClock {
    BootClock { id: CLOCK, now_ms: now.mono_ms() }
}

/// A hand-over of the leadership in progress.
struct HandOver {
    to: NodeId,
    /// When it is given up, in monotonic milliseconds.
    until_ms: u64,
    /// Whether the node has been told.
    ordered: bool,
    why: Why,
}

/// Why the leadership is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// Somebody has asked for it.
    Asked,
    /// The server ends afterwards.
    Ends,
    /// The disk of this node does not answer.
    Disk,
}

/// The replication of a server.
pub struct Replicated {
    node: Node,
    /// The number of this node.
    id: NodeId,
    cluster: u64,
    part: Part,
    /// What a follower has yet to apply.
    backlog: Backlog,
    status: Status,
    /// When to look at the lease and to commit the time, in monotonic milliseconds; `u64::MAX` unless this node leads.
    tick_ms: u64,
    handing_over: Option<HandOver>,
    /// Whether it has led, reached no majority, and known no leader since.
    was_alone: bool,
    /// Where clients reach this node.
    client: ClientAddress,
    /// Messages for the subscribers of other nodes.
    messages: Messages,
    /// Lets the disk of this node hang, for tests.
    hang: Arc<Hang>,
}

impl Replicated {
    /// Lets the disk hang for so many milliseconds, for tests.
    pub fn hang(&self, for_ms: u64) {
        self.hang.hang(for_ms);
    }

    /// Whether this node leads.
    pub fn leads(&self) -> bool {
        matches!(self.part, Part::Leads(_))
    }

    /// Whether this node leads no more because of its disk, though it does not know who leads instead.
    pub fn is_out(&self) -> bool {
        matches!(&self.part, Part::Leads(leadership) if leadership.out())
    }

    /// When it needs a turn, in monotonic milliseconds.
    pub fn due_ms(&self) -> u64 {
        self.handing_over.as_ref().map_or(self.tick_ms, |handing_over| handing_over.until_ms.min(self.tick_ms))
    }
}
