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

/// A kind of event. `op` is the number of the acquisition, `lock` and `server` are numbers, too; `trace` is what servers did,
/// and `for_us` how long the fault lasts. `by_ms` is the change of a clock in milliseconds; `ppm` is its rate in parts per
/// million, and positive is fast.
#[allow(missing_docs, reason = "the documentation of the enum and of its variants has them")]
#[derive(Clone, Debug, PartialEq, Hash)]
pub enum EventKind {
    /// A client begins to acquire a lock with a lease. It waits for at most `wait_us`; `job` is the number of the job among
    /// the client's.
    Acquire { op: Op, lock: u32, lease_us: u64, wait_us: u64, job: u32 },
    /// The lock was granted, with a fencing token. Until `valid_until_us`, in true time, the holder counts on the lock;
    /// `watched`: a watchdog renews the lease.
    Granted { op: Op, token: Option<u64>, valid_until_us: Option<u64>, watched: bool, trace: Trace },
    /// The lock was not granted in time.
    NotGranted { op: Op, trace: Trace },
    /// The attempt to acquire the lock failed; `maybe`: it may have been granted.
    Failed { op: Op, maybe: bool, trace: Trace },
    /// The holder enters its critical section.
    Enter { op: Op },
    /// The holder leaves its critical section.
    Exit { op: Op },
    /// The holder sends a write to the guarded resource.
    Write { op: Op },
    /// The write ended; the outcome is whether the resource accepted it.
    Written { op: Op, outcome: Outcome },
    /// The holder begins to renew its lease.
    Renew { op: Op },
    /// A renewal ended; the outcome is whether the lease was renewed. Until `valid_until_us`, in true time, the holder now
    /// counts on the lock.
    Renewed { op: Op, outcome: Outcome, valid_until_us: Option<u64>, trace: Trace },
    /// The holder begins to release the lock.
    Release { op: Op },
    /// The release ended after a number of tries; the trace is that of the last one. The outcome is `None` if the release
    /// failed and may have been carried out.
    Released { op: Op, outcome: Option<ReleaseOutcome>, tries: u32, trace: Trace },
    /// The client starts, for the first time or again.
    Start,
    /// The client has finished all of its jobs.
    Done,
    /// The client crashes; with its machine, servers are not told.
    Crash { machine: bool },
    /// The client pauses.
    Pause { for_us: u64 },
    /// The client's wall clock is set.
    Jump { by_ms: i64 },
    /// The client's clocks run fast or slow.
    Drift { ppm: i64 },
    /// A server ends and loses a number of its last writes. `None` stands for all data.
    Down { server: u32, lost: Option<u64> },
    /// A server is up again.
    Up { server: u32 },
    /// The machine of a durable server loses its power. At the next boot, its wall clock is set by `wall_step_ms`
    /// milliseconds.
    PowerLoss { server: u32, wall_step_ms: i64 },
    /// A durable server has refused its files, and started without them.
    Refused { server: u32 },
    /// Messages between the client and a server are late from now on.
    Delay { server: u32, for_us: u64 },
    /// Packets between the client and a server are lost from now on: TCP sends them again, or the connection breaks.
    Loss { server: u32, for_us: u64 },
    /// A reply is lost with its connection, and the client library resends the command.
    Resend { server: u32 },
    /// Nodes are cut off from others from now on. `apart`: the nodes, and from whom they are cut off, a bit for each. `ways`:
    /// whether they cannot send, and whether they cannot receive.
    Partition { apart: (u32, u32), ways: (bool, bool), for_us: u64 },
    /// What nodes send to each other is late or lost from now on, and connections break.
    Disorder { for_us: u64 },
    /// A node stops.
    Stall { server: u32, for_us: u64 },
    /// A node loses its disk.
    Wipe { server: u32 },
    /// The disk of a node is full or fails.
    BadDisk { server: u32, full: bool, for_us: u64 },
    /// The disk of a node answers nothing.
    HungDisk { server: u32, for_us: u64 },
    /// A node leads though its disk has not answered for so long that it must have stepped down.
    HungLeader { server: u32, for_us: u64 },
    /// A node ends, and its files are damaged in this way.
    BitRot { server: u32, rot: Rot },
    /// From now on, the nodes `away`, a bit for each, are removed from the members, for at least as long. Then they are added
    /// again.
    Members { away: u32, for_us: u64 },
    /// All nodes are members again.
    AllMembers,
    /// A node ends, and one of another cluster runs at its address for a time.
    Foreign { server: u32, for_us: u64 },
    /// A node has refused files that are damaged. Its operator deletes them.
    Replaced { server: u32 },
    /// The clocks of a server run fast or slow.
    DriftOfNode { server: u32, ppm: i64 },
    /// The wall clock of a server is set.
    StepOfNode { server: u32, by_ms: i64 },
    /// A leader sees that a connection of the client has ended, and ends the grants that are bound to it.
    Hangup { server: u32 },
    /// The client waits at a server that does not lead, long after another one has begun to lead.
    LeftWaiting { server: u32 },
    /// No node leads that reaches a majority.
    Leaderless,
    /// A node leads and reaches a majority.
    Leads { server: u32 },
    /// The writes that the guarded resource of a lock has accepted, read at the end: the acquisition of each, in the order of
    /// the resource.
    Stored { lock: u32, ops: Vec<Op> },
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
