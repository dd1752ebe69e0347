//! The history of an episode: all events in order. The checks judge it, and two runs of one seed have the same history to the
//! last byte.

mod words;

pub use words::Seconds;

use std::fmt::Write;
use std::hash::Hash;

use xxhash_rust::xxh3::Xxh3;

use crate::recipes::ReleaseOutcome;
use crate::torture::sim::replica::damage::Rot;

/// Number of an acquisition: one client's use of one lock, from the request to the release.
pub type Op = u32;

/// When a server did something. All stamps of a history have different orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    /// Position among all actions of servers.
    pub order: u64,
    /// True time since the beginning, in microseconds.
    pub at_us: u64,
}

/// What servers did for one call of an algorithm, as far as the client learned of it. Empty if nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Trace {
    /// When the first command arrived.
    pub first: Option<Stamp>,
    /// When the last reply was sent.
    pub last: Option<Stamp>,
    /// When a blocking command was last served.
    pub served: Option<Stamp>,
    /// Whether a command was resent after its connection broke.
    pub resent: bool,
    /// True time in microseconds at which the last command without a reply was given up or resent. The command may have been
    /// carried out, and may still be.
    pub lost_us: Option<u64>,
}

named! {
    /// The outcome of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Outcome {
        /// It was carried out.
        Yes = "ok",
        /// It was refused.
        No = "refused",
        /// The reply was lost: it may have been carried out.
        Unknown = "unknown",
    }
}

/// A kind of event.
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum EventKind {
    /// A client begins to acquire a lock.
    Acquire {
        /// Number of the acquisition.
        op: Op,
        /// Number of the lock.
        lock: u32,
        /// The requested lease.
        lease_us: u64,
        /// Maximum time to wait.
        wait_us: u64,
        /// Number of the job among the client's jobs.
        job: u32,
    },
    /// The lock was granted.
    Granted {
        /// Number of the acquisition.
        op: Op,
        /// The fencing token.
        token: Option<u64>,
        /// Until when the holder counts on the lock, in true time.
        valid_until_us: Option<u64>,
        /// Whether a watchdog renews the lease.
        watched: bool,
        /// What servers did.
        trace: Trace,
    },
    /// The lock was not granted in time.
    NotGranted {
        /// Number of the acquisition.
        op: Op,
        /// What servers did.
        trace: Trace,
    },
    /// The attempt to acquire the lock failed.
    Failed {
        /// Number of the acquisition.
        op: Op,
        /// Whether it may have been granted.
        maybe: bool,
        /// What servers did.
        trace: Trace,
    },
    /// The holder enters its critical section.
    Enter {
        /// Number of the acquisition.
        op: Op,
    },
    /// The holder leaves its critical section.
    Exit {
        /// Number of the acquisition.
        op: Op,
    },
    /// The holder sends a write to the guarded resource.
    Write {
        /// Number of the acquisition.
        op: Op,
    },
    /// The write ended.
    Written {
        /// Number of the acquisition.
        op: Op,
        /// Whether the resource accepted it.
        outcome: Outcome,
    },
    /// The holder begins to renew its lease.
    Renew {
        /// Number of the acquisition.
        op: Op,
    },
    /// A renewal ended.
    Renewed {
        /// Number of the acquisition.
        op: Op,
        /// Whether the lease was renewed.
        outcome: Outcome,
        /// Until when the holder now counts on the lock, in true time.
        valid_until_us: Option<u64>,
        /// What servers did.
        trace: Trace,
    },
    /// The holder begins to release the lock.
    Release {
        /// Number of the acquisition.
        op: Op,
    },
    /// The release ended.
    Released {
        /// Number of the acquisition.
        op: Op,
        /// The result. `None` if the release failed and may have been carried out.
        outcome: Option<ReleaseOutcome>,
        /// Number of attempts.
        tries: u32,
        /// What servers did for the last attempt.
        trace: Trace,
    },
    /// The client starts, for the first time or again.
    Start,
    /// The client has finished all of its jobs.
    Done,
    /// The client crashes.
    Crash {
        /// Whether its machine crashes too, so that servers are not told.
        machine: bool,
    },
    /// The client pauses.
    Pause {
        /// Length of the pause.
        for_us: u64,
    },
    /// The client's wall clock is set.
    Jump {
        /// The change, in milliseconds.
        by_ms: i64,
    },
    /// The client's clocks run fast or slow.
    Drift {
        /// The rate in parts per million. Positive is fast.
        ppm: i64,
    },
    /// A server ends and loses data.
    Down {
        /// Number of the server.
        server: u32,
        /// Number of its last writes that are lost. `None` stands for all data.
        lost: Option<u64>,
    },
    /// A server is up again.
    Up {
        /// Number of the server.
        server: u32,
    },
    /// The machine of a durable server loses its power.
    PowerLoss {
        /// Number of the server.
        server: u32,
        /// How the wall clock is set at the next boot, in milliseconds.
        wall_step_ms: i64,
    },
    /// A durable server has refused its files, and started without them.
    Refused {
        /// Number of the server.
        server: u32,
    },
    /// Messages between the client and a server are late from now on.
    Delay {
        /// Number of the server.
        server: u32,
        /// How long the fault lasts.
        for_us: u64,
    },
    /// Packets between the client and a server are lost from now on: TCP sends them again, or the connection breaks.
    Loss {
        /// Number of the server.
        server: u32,
        /// How long the fault lasts.
        for_us: u64,
    },
    /// A reply is lost with its connection, and the client library resends the command.
    Resend {
        /// Number of the server.
        server: u32,
    },
    /// Nodes are cut off from others from now on.
    Partition {
        /// The nodes, and from whom they are cut off: a bit for each.
        apart: (u32, u32),
        /// Whether they cannot send, and whether they cannot receive.
        ways: (bool, bool),
        /// How long the fault lasts.
        for_us: u64,
    },
    /// What nodes send to each other is late or lost from now on, and connections break.
    Disorder {
        /// How long the fault lasts.
        for_us: u64,
    },
    /// A node stops.
    Stall {
        /// Number of the server.
        server: u32,
        /// How long it stops.
        for_us: u64,
    },
    /// A node loses its disk.
    Wipe {
        /// Number of the server.
        server: u32,
    },
    /// The disk of a node is full or fails.
    BadDisk {
        /// Number of the server.
        server: u32,
        /// Whether it is full.
        full: bool,
        /// How long the fault lasts.
        for_us: u64,
    },
    /// The disk of a node answers nothing.
    HungDisk {
        /// Number of the server.
        server: u32,
        /// How long the fault lasts.
        for_us: u64,
    },
    /// A node leads though its disk has not answered for so long that it must have stepped down: the server, and how long.
    #[allow(missing_docs, reason = "the line above has them")]
    HungLeader { server: u32, for_us: u64 },
    /// A node ends, and its files are damaged.
    BitRot {
        /// Number of the server.
        server: u32,
        /// What the damage is.
        rot: Rot,
    },
    /// From now on, nodes are removed from the members.
    Members {
        /// The nodes: a bit for each.
        away: u32,
        /// For how long at least. Then they are added again.
        for_us: u64,
    },
    /// All nodes are members again.
    AllMembers,
    /// A node ends, and one of another cluster runs at its address for a time.
    Foreign {
        /// Number of the server.
        server: u32,
        /// How long it does.
        for_us: u64,
    },
    /// A node has refused files that are damaged. Its operator deletes them.
    Replaced {
        /// Number of the server.
        server: u32,
    },
    /// The clocks of a server run fast or slow.
    DriftOfNode {
        /// Number of the server.
        server: u32,
        /// The rate in parts per million. Positive is fast.
        ppm: i64,
    },
    /// The wall clock of a server is set.
    StepOfNode {
        /// Number of the server.
        server: u32,
        /// The change, in milliseconds.
        by_ms: i64,
    },
    /// A leader sees that a connection of the client has ended, and ends the grants that are bound to it.
    Hangup {
        /// Number of the server.
        server: u32,
    },
    /// The client waits at a server that does not lead, long after another one has begun to lead.
    LeftWaiting {
        /// Number of the server.
        server: u32,
    },
    /// No node leads that reaches a majority.
    Leaderless,
    /// A node leads and reaches a majority.
    Leads {
        /// Number of the server.
        server: u32,
    },
    /// The writes that the guarded resource of a lock has accepted, read at the end.
    Stored {
        /// Number of the lock.
        lock: u32,
        /// The acquisition of each write, in the order of the resource.
        ops: Vec<Op>,
    },
}

/// An event: what happened, when, and to which client.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Event {
    /// True time since the beginning, in microseconds.
    pub at_us: u64,
    /// Number of the client; [`NO_CLIENT`] for an event of a server.
    pub client: u32,
    /// What happened.
    pub kind: EventKind,
}

/// Stands for the client in an event of a server.
pub const NO_CLIENT: u32 = u32::MAX;

/// All events of an episode.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The events in order.
    pub events: Vec<Event>,
    /// Number of commands that clients sent to servers; 0 if they were not counted.
    pub commands: u64,
}

impl History {
    /// Appends an event.
    pub fn push(&mut self, at_us: u64, client: u32, kind: EventKind) {
        self.events.push(Event { at_us, client, kind });
    }

    /// Number of calls of `acquire`, `renew` and `release`.
    pub fn operations(&self) -> u64 {
        let is = |event: &&Event| {
            matches!(event.kind, EventKind::Acquire { .. } | EventKind::Renewed { .. } | EventKind::Release { .. })
        };
        self.events.iter().filter(is).count() as u64
    }

    /// The events of these acquisitions, with all faults between the first and the last of them.
    pub fn concerning(&self, ops: &[Op]) -> History {
        let of_ops = |event: &&Event| event.kind.op().is_some_and(|op| ops.contains(&op));
        let (first, last) =
            (self.events.iter().position(|event| of_ops(&event)), self.events.iter().rposition(|event| of_ops(&event)));
        let (Some(first), Some(last)) = (first, last) else { return History::default() };
        // One event more, because a crash of the client may end the last acquisition.
        let within = self.events[first..=(last + 1).min(self.events.len() - 1)].iter();
        let events = within.filter(|event| of_ops(event) || event.kind.op().is_none()).cloned().collect();
        History { events, commands: 0 }
    }

    /// Adds all parts of all events to a digest.
    pub fn digest(&self, digest: &mut Xxh3) {
        self.events.hash(digest);
    }

    /// The history as text, with one line for each event.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for event in &self.events {
            let _ = writeln!(text, "{event}");
        }
        text
    }
}

impl EventKind {
    /// The acquisition that the event belongs to, if it belongs to one.
    pub fn op(&self) -> Option<Op> {
        match self {
            EventKind::Acquire { op, .. }
            | EventKind::Granted { op, .. }
            | EventKind::NotGranted { op, .. }
            | EventKind::Failed { op, .. }
            | EventKind::Enter { op }
            | EventKind::Exit { op }
            | EventKind::Write { op }
            | EventKind::Written { op, .. }
            | EventKind::Renew { op }
            | EventKind::Renewed { op, .. }
            | EventKind::Release { op }
            | EventKind::Released { op, .. } => Some(*op),
            _ => None,
        }
    }
}
