//! The history of an episode: all events in order. The checks judge it, and two runs of one seed have the same history to the
//! last byte.

use std::fmt::{self, Write};

use xxhash_rust::xxh3::Xxh3;

use crate::recipes::ReleaseOutcome;
use crate::torture::sim::replica::damage::Rot;

/// Number of an acquisition: one client's use of one lock, from the request to the release.
pub type Op = u32;

/// When a server did something. All stamps of a history have different orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Position among all actions of servers.
    pub order: u64,
    /// True time since the beginning, in microseconds.
    pub at_us: u64,
}

/// What servers did for one call of an algorithm, as far as the client learned of it. Empty if nothing is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out.
    Yes,
    /// It was refused.
    No,
    /// The reply was lost: it may have been carried out.
    Unknown,
}

/// A kind of event.
#[derive(Clone, Debug, PartialEq)]
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
    /// Messages between nodes are late, overtake each other, are lost, or arrive twice from now on.
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
#[derive(Clone, Debug, PartialEq)]
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

    /// Adds the encoded history to a digest.
    pub fn digest(&self, digest: &mut Xxh3) {
        let mut bytes = Vec::with_capacity(self.events.len() * 48);
        for event in &self.events {
            event.encode(&mut bytes);
        }
        digest.update(&bytes);
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

/// Appends numbers to a buffer.
struct Bytes<'a>(&'a mut Vec<u8>);

impl Bytes<'_> {
    fn number(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn maybe(&mut self, number: Option<u64>) -> &mut Self {
        self.0.push(number.is_some() as u8);
        self.number(number.unwrap_or(0))
    }

    fn trace(&mut self, trace: &Trace) -> &mut Self {
        for stamp in [trace.first, trace.last, trace.served] {
            self.maybe(stamp.map(|stamp| stamp.order)).maybe(stamp.map(|stamp| stamp.at_us));
        }
        self.0.push(trace.resent as u8);
        self.maybe(trace.lost_us)
    }
}

impl Event {
    /// Appends the event in a fixed binary form that has all of its parts.
    fn encode(&self, into: &mut Vec<u8>) {
        let mut out = Bytes(into);
        out.number(self.at_us).number(u64::from(self.client) << 8 | u64::from(self.kind.kind()));
        match &self.kind {
            EventKind::Acquire { op, lock, lease_us, wait_us, job } => {
                out.number(u64::from(*op) << 32 | u64::from(*lock)).number(*lease_us).number(*wait_us).number(u64::from(*job))
            }
            EventKind::Granted { op, token, valid_until_us, watched, trace } => {
                out.number(u64::from(*op) << 1 | u64::from(*watched)).maybe(*token).maybe(*valid_until_us).trace(trace)
            }
            EventKind::NotGranted { op, trace } => out.number(u64::from(*op)).trace(trace),
            EventKind::Failed { op, maybe, trace } => out.number(u64::from(*op) << 1 | u64::from(*maybe)).trace(trace),
            EventKind::Enter { op }
            | EventKind::Exit { op }
            | EventKind::Write { op }
            | EventKind::Renew { op }
            | EventKind::Release { op } => out.number(u64::from(*op)),
            EventKind::Written { op, outcome } => out.number(u64::from(*op) << 2 | *outcome as u64),
            EventKind::Renewed { op, outcome, valid_until_us, trace } => {
                out.number(u64::from(*op) << 2 | *outcome as u64).maybe(*valid_until_us).trace(trace)
            }
            EventKind::Released { op, outcome, tries, trace } => {
                out.number(u64::from(*op) << 8 | u64::from(*tries)).maybe(outcome.map(|outcome| outcome as u64)).trace(trace)
            }
            EventKind::Start | EventKind::Done | EventKind::Leaderless | EventKind::AllMembers => &mut out,
            EventKind::Members { away, for_us } => out.number(u64::from(*away)).number(*for_us),
            EventKind::Foreign { server, for_us } => out.number(u64::from(*server)).number(*for_us),
            EventKind::Partition { apart, ways, for_us } => out
                .number(u64::from(apart.0) << 32 | u64::from(apart.1))
                .number(u64::from(ways.0) << 1 | u64::from(ways.1))
                .number(*for_us),
            EventKind::Disorder { for_us } => out.number(*for_us),
            EventKind::BadDisk { server, full, for_us } => out.number(u64::from(*server) << 1 | u64::from(*full)).number(*for_us),
            EventKind::HungDisk { server, for_us } | EventKind::HungLeader { server, for_us } => {
                out.number(u64::from(*server)).number(*for_us)
            }
            EventKind::DriftOfNode { server, ppm } => out.number(u64::from(*server)).number(*ppm as u64),
            EventKind::StepOfNode { server, by_ms } => out.number(u64::from(*server)).number(*by_ms as u64),
            EventKind::BitRot { server, rot } => out.number(u64::from(*server)).number(*rot as u64),
            EventKind::Wipe { server }
            | EventKind::Leads { server }
            | EventKind::Replaced { server }
            | EventKind::Hangup { server }
            | EventKind::LeftWaiting { server } => out.number(u64::from(*server)),
            EventKind::Crash { machine } => out.number(u64::from(*machine)),
            EventKind::Pause { for_us } => out.number(*for_us),
            EventKind::Jump { by_ms } => out.number(*by_ms as u64),
            EventKind::Drift { ppm } => out.number(*ppm as u64),
            EventKind::Down { server, lost } => out.number(u64::from(*server)).maybe(*lost),
            EventKind::Up { server } | EventKind::Resend { server } | EventKind::Refused { server } => {
                out.number(u64::from(*server))
            }
            EventKind::PowerLoss { server, wall_step_ms } => out.number(u64::from(*server)).number(*wall_step_ms as u64),
            EventKind::Delay { server, for_us } | EventKind::Loss { server, for_us } | EventKind::Stall { server, for_us } => {
                out.number(u64::from(*server)).number(*for_us)
            }
            EventKind::Stored { lock, ops } => {
                out.number(u64::from(*lock)).number(ops.len() as u64);
                for op in ops {
                    out.number(u64::from(*op));
                }
                &mut out
            }
        };
    }
}

impl EventKind {
    /// The code of the event's kind in the binary form.
    fn kind(&self) -> u8 {
        match self {
            EventKind::Acquire { .. } => 1,
            EventKind::Granted { .. } => 2,
            EventKind::NotGranted { .. } => 3,
            EventKind::Failed { .. } => 4,
            EventKind::Enter { .. } => 5,
            EventKind::Exit { .. } => 6,
            EventKind::Write { .. } => 7,
            EventKind::Written { .. } => 8,
            EventKind::Renewed { .. } => 9,
            EventKind::Release { .. } => 10,
            EventKind::Released { .. } => 11,
            EventKind::Start => 12,
            EventKind::Done => 13,
            EventKind::Crash { .. } => 14,
            EventKind::Pause { .. } => 15,
            EventKind::Jump { .. } => 16,
            EventKind::Drift { .. } => 17,
            EventKind::Down { .. } => 18,
            EventKind::Up { .. } => 19,
            EventKind::Delay { .. } => 20,
            EventKind::Loss { .. } => 21,
            EventKind::Resend { .. } => 22,
            EventKind::Stored { .. } => 23,
            EventKind::Renew { .. } => 24,
            EventKind::PowerLoss { .. } => 25,
            EventKind::Refused { .. } => 26,
            EventKind::Partition { .. } => 27,
            EventKind::Disorder { .. } => 28,
            EventKind::Stall { .. } => 29,
            EventKind::Wipe { .. } => 30,
            EventKind::DriftOfNode { .. } => 31,
            EventKind::StepOfNode { .. } => 32,
            EventKind::Leaderless => 33,
            EventKind::Leads { .. } => 34,
            EventKind::BadDisk { .. } => 35,
            EventKind::BitRot { .. } => 36,
            EventKind::Replaced { .. } => 37,
            EventKind::Members { .. } => 38,
            EventKind::AllMembers => 39,
            EventKind::Hangup { .. } => 40,
            EventKind::LeftWaiting { .. } => 41,
            EventKind::HungDisk { .. } => 42,
            EventKind::HungLeader { .. } => 43,
            EventKind::Foreign { .. } => 44,
        }
    }

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

/// The numbers of the servers in a set: a bit for each.
fn numbers(of: u32) -> String {
    let numbers = (0..u32::BITS).filter(|server| of >> server & 1 == 1).map(|server| server.to_string());
    numbers.collect::<Vec<_>>().join(", ")
}

/// Displays microseconds as seconds.
pub struct Seconds(pub u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>13} ", Seconds(self.at_us))?;
        match self.client {
            NO_CLIENT => f.write_str("-- ")?,
            client => write!(f, "c{client} ")?,
        }
        write!(f, "{}", self.kind)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Yes => "ok",
            Outcome::No => "refused",
            Outcome::Unknown => "unknown",
        })
    }
}

/// Displayed behind an event: when servers were involved, and whether a reply was lost.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(first), Some(last)) = (self.first, self.last) {
            let (from, to) = (Seconds(first.at_us), Seconds(last.at_us));
            write!(f, " (servers: #{} at {from} to #{} at {to})", first.order, last.order)?;
        }
        match self.lost_us {
            Some(_) if self.resent => f.write_str(", sent twice"),
            Some(lost_us) => write!(f, ", a reply lost at {}", Seconds(lost_us)),
            None => Ok(()),
        }
    }
}

/// Displays until when a grant is valid.
struct Validity(Option<u64>);

impl fmt::Display for Validity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at_us) => write!(f, ", valid until {}", Seconds(at_us)),
            None => f.write_str(", without an end"),
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventKind::Acquire { op, lock, lease_us, wait_us, .. } => {
                write!(f, "acquire #{op} of lock {lock}, lease {} s, wait {} s", Seconds(*lease_us), Seconds(*wait_us))
            }
            EventKind::Granted { op, token, valid_until_us, trace, .. } => {
                write!(f, "granted #{op}")?;
                if let Some(token) = token {
                    write!(f, ", token {token}")?;
                }
                write!(f, "{}{trace}", Validity(*valid_until_us))
            }
            EventKind::NotGranted { op, trace } => write!(f, "not granted #{op}{trace}"),
            EventKind::Failed { op, maybe, trace } => {
                write!(f, "acquire failed #{op}{}{trace}", if *maybe { ", may have been granted" } else { "" })
            }
            EventKind::Enter { op } => write!(f, "enter #{op}"),
            EventKind::Exit { op } => write!(f, "exit #{op}"),
            EventKind::Write { op } => write!(f, "write #{op}"),
            EventKind::Written { op, outcome } => write!(f, "written #{op}: {outcome}"),
            EventKind::Renew { op } => write!(f, "renew #{op}"),
            EventKind::Renewed { op, outcome, valid_until_us, trace } => {
                write!(f, "renewed #{op}: {outcome}{}{trace}", Validity(*valid_until_us))
            }
            EventKind::Release { op } => write!(f, "release #{op}"),
            EventKind::Released { op, outcome, trace, .. } => {
                let outcome = match outcome {
                    Some(ReleaseOutcome::Released) => "ok",
                    Some(ReleaseOutcome::NotHeld) => "not held",
                    Some(ReleaseOutcome::Unchecked) => "deleted without a check",
                    None => "unknown",
                };
                write!(f, "released #{op}: {outcome}{trace}")
            }
            EventKind::Start => f.write_str("starts"),
            EventKind::Done => f.write_str("is done"),
            EventKind::Crash { machine: false } => f.write_str("crashes"),
            EventKind::Crash { machine: true } => f.write_str("crashes with its machine"),
            EventKind::Pause { for_us } => write!(f, "pauses for {} s", Seconds(*for_us)),
            EventKind::Jump { by_ms } => write!(f, "wall clock set by {by_ms} ms"),
            EventKind::Drift { ppm } => write!(f, "clocks run {ppm} ppm fast"),
            EventKind::Down { server, lost: None } => write!(f, "server {server} goes down and loses all data"),
            EventKind::Down { server, lost: Some(0) } => write!(f, "server {server} goes down"),
            EventKind::PowerLoss { server, wall_step_ms } => {
                write!(f, "server {server} loses its power; its wall clock is set by {wall_step_ms} ms")
            }
            EventKind::Refused { server } => write!(f, "server {server} has refused its files, and started without them"),
            EventKind::Down { server, lost: Some(writes) } => {
                write!(f, "server {server} goes down and loses its last {writes} writes")
            }
            EventKind::Up { server } => write!(f, "server {server} is up again"),
            EventKind::Partition { apart, ways, for_us } => {
                let others = if apart.1.count_ones() == 1 { numbers(apart.1) } else { "the others".to_owned() };
                let what = match ways {
                    (true, false) => "send nothing to",
                    (false, true) => "receive nothing from",
                    _ => "are cut off from",
                };
                write!(f, "servers {} {what} {others} for {} s", numbers(apart.0), Seconds(*for_us))
            }
            EventKind::Disorder { for_us } => {
                write!(f, "messages between nodes are late, lost, doubled and out of order for {} s", Seconds(*for_us))
            }
            EventKind::Stall { server, for_us } => write!(f, "server {server} stops for {} s", Seconds(*for_us)),
            EventKind::Wipe { server } => write!(f, "server {server} goes down and loses its disk"),
            EventKind::BadDisk { server, full: true, for_us } => {
                write!(f, "the disk of server {server} is full for {} s", Seconds(*for_us))
            }
            EventKind::BadDisk { server, full: false, for_us } => {
                write!(f, "writes and syncs of server {server} fail for {} s", Seconds(*for_us))
            }
            EventKind::HungDisk { server, for_us } => write!(f, "the disk of server {server} hangs for {} s", Seconds(*for_us)),
            EventKind::HungLeader { server, for_us } => {
                write!(f, "server {server} leads, and its disk has not answered for {} s", Seconds(*for_us))
            }
            EventKind::BitRot { server, rot } => write!(f, "server {server} goes down, and {rot}"),
            EventKind::Members { away, for_us } => {
                write!(f, "servers {} are removed from the members for {} s", numbers(*away), Seconds(*for_us))
            }
            EventKind::AllMembers => f.write_str("all servers are members"),
            EventKind::Foreign { server, for_us } => {
                write!(f, "server {server} goes down; a node of another cluster is at its address for {} s", Seconds(*for_us))
            }
            EventKind::Replaced { server } => write!(f, "server {server} refuses its damaged files, which are deleted"),
            EventKind::DriftOfNode { server, ppm } => write!(f, "clocks of server {server} run {ppm} ppm fast"),
            EventKind::StepOfNode { server, by_ms } => write!(f, "wall clock of server {server} set by {by_ms} ms"),
            EventKind::Hangup { server } => write!(f, "server {server} sees that a connection has ended"),
            EventKind::LeftWaiting { server } => write!(f, "still waits at server {server}, which does not lead"),
            EventKind::Leaderless => f.write_str("no server leads"),
            EventKind::Leads { server } => write!(f, "server {server} leads"),
            EventKind::Delay { server, for_us } => {
                write!(f, "messages to and from server {server} are late for {} s", Seconds(*for_us))
            }
            EventKind::Loss { server, for_us } => {
                write!(f, "messages to and from server {server} are lost for {} s", Seconds(*for_us))
            }
            EventKind::Resend { server } => write!(f, "a reply of server {server} is lost, and the command is resent"),
            EventKind::Stored { lock, ops } => write!(f, "the resource of lock {lock} has accepted {ops:?}"),
        }
    }
}
