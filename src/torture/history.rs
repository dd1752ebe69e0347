//! What happened, in the order in which it did: what the checkers judge, and what two runs of one seed have in common to the last byte.

use std::fmt::{self, Write};

use xxhash_rust::xxh3::Xxh3;

use crate::recipes::ReleaseOutcome;

/// Names one acquisition of one lock by one client, from the wish to the release.
pub type Op = u32;

/// When a server did something. No two things that servers did have the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// The how-manieth thing that a server did.
    pub order: u64,
    /// True time, in microseconds since the beginning.
    pub at_us: u64,
}

/// What servers did for one call of an algorithm, as far as the client has heard of it. Empty where that cannot be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// When the first command arrived.
    pub first: Option<Stamp>,
    /// When the last reply was given.
    pub last: Option<Stamp>,
    /// When a command that waits on the server got what it waited for, the last time.
    pub served: Option<Stamp>,
    /// Whether a command was sent again, after its connection broke.
    pub resent: bool,
    /// True time, in microseconds, at which the last command without a reply was given up or sent again: it may have been carried out, and
    /// may still be.
    pub lost_us: Option<u64>,
}

/// What became of something that the client asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Yes,
    /// It was refused.
    No,
    /// The reply was lost: it may have been done.
    Unknown,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A client begins to acquire a lock.
    Acquire {
        /// Which acquisition.
        op: Op,
        /// Number of the lock.
        lock: u32,
        /// The lease it asks for.
        lease_us: u64,
        /// How long it will wait.
        wait_us: u64,
        /// Which of the client's wishes that is.
        wish: u32,
    },
    /// It was granted.
    Granted {
        /// Which acquisition.
        op: Op,
        /// The fencing token.
        token: Option<u64>,
        /// Until when the holder thinks that it has it, in true time.
        valid_until_us: Option<u64>,
        /// Whether a watchdog renews it from now on.
        watched: bool,
        /// What servers did.
        trace: Trace,
    },
    /// It was not to be had.
    NotGranted {
        /// Which acquisition.
        op: Op,
        /// What servers did.
        trace: Trace,
    },
    /// To acquire it failed.
    Failed {
        /// Which acquisition.
        op: Op,
        /// Whether it may have been granted.
        maybe: bool,
        /// What servers did.
        trace: Trace,
    },
    /// The holder begins its work.
    Enter {
        /// Which acquisition.
        op: Op,
    },
    /// It ends its work.
    Exit {
        /// Which acquisition.
        op: Op,
    },
    /// It sends a write to the guarded resource.
    Write {
        /// Which acquisition.
        op: Op,
    },
    /// The reply to it.
    Written {
        /// Which acquisition.
        op: Op,
        /// Whether it was accepted.
        outcome: Outcome,
    },
    /// The holder begins to renew its lease.
    Renew {
        /// Which acquisition.
        op: Op,
    },
    /// A renewal ended.
    Renewed {
        /// Which acquisition.
        op: Op,
        /// Whether the lease begins anew.
        outcome: Outcome,
        /// Until when the holder now thinks that it has it.
        valid_until_us: Option<u64>,
        /// What servers did.
        trace: Trace,
    },
    /// The holder begins to release it.
    Release {
        /// Which acquisition.
        op: Op,
    },
    /// The release ended.
    Released {
        /// Which acquisition.
        op: Op,
        /// How; `None` where it failed, and may have been done.
        given: Option<ReleaseOutcome>,
        /// How often it was tried.
        tries: u32,
        /// What servers did, the last time.
        trace: Trace,
    },
    /// The client starts, for the first time or again.
    Start,
    /// The client has done all that it was to do.
    Done,
    /// The client crashes.
    Crash {
        /// Whether its machine does, so that nobody tells the servers.
        machine: bool,
    },
    /// Nothing of the client runs for so long.
    Pause {
        /// How long.
        for_us: u64,
    },
    /// The client's wall clock is set.
    Jump {
        /// By so many milliseconds.
        by_ms: i64,
    },
    /// The client's clocks run fast, or slow where it is negative, by so many millionths.
    Drift {
        /// By how much.
        ppm: i64,
    },
    /// A server ends, and has lost something when it is there again.
    Down {
        /// Which.
        server: u32,
        /// So many of its last writes are lost; all of them where it is `None`.
        lost: Option<u64>,
    },
    /// It is there again.
    Up {
        /// Which.
        server: u32,
    },
    /// What is sent between the client and the server is late, for a time.
    Delay {
        /// Which server.
        server: u32,
        /// How long that lasts.
        for_us: u64,
    },
    /// What is sent between the client and the server gets lost, and is sent again by TCP, or the connection breaks.
    Loss {
        /// Which server.
        server: u32,
        /// How long that lasts.
        for_us: u64,
    },
    /// A reply is lost with its connection, and the client's library sends the command again.
    Resend {
        /// Which server.
        server: u32,
    },
    /// What the guarded resource of a lock has accepted, in its order, as it is found at the end.
    Stored {
        /// Number of the lock.
        lock: u32,
        /// Whose writes.
        ops: Vec<Op>,
    },
}

/// One thing that happened, when, and to whom.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// True time, in microseconds since the beginning.
    pub at_us: u64,
    /// Number of the client; [`NOBODY`] where it happened to a server.
    pub client: u32,
    /// What.
    pub what: What,
}

/// The client of what happens to servers.
pub const NOBODY: u32 = u32::MAX;

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// In the order in which it happened.
    pub events: Vec<Event>,
    /// Commands that clients have sent to servers; 0 where they were not counted.
    pub commands: u64,
}

impl History {
    /// Adds what happens now.
    pub fn push(&mut self, at_us: u64, client: u32, what: What) {
        self.events.push(Event { at_us, client, what });
    }

    /// Calls of `acquire`, `renew` and `release` in it.
    pub fn operations(&self) -> u64 {
        let is = |event: &&Event| matches!(event.what, What::Acquire { .. } | What::Renewed { .. } | What::Release { .. });
        self.events.iter().filter(is).count() as u64
    }

    /// What happened to these acquisitions, and what went wrong from the first of it to the last.
    pub fn concerning(&self, ops: &[Op]) -> History {
        let of_ops = |event: &&Event| event.what.op().is_some_and(|op| ops.contains(&op));
        let (first, last) =
            (self.events.iter().position(|event| of_ops(&event)), self.events.iter().rposition(|event| of_ops(&event)));
        let (Some(first), Some(last)) = (first, last) else { return History::default() };
        // A crash of one ends what is told of it.
        let within = self.events[first..=(last + 1).min(self.events.len() - 1)].iter();
        let events = within.filter(|event| of_ops(event) || event.what.op().is_none()).cloned().collect();
        History { events, commands: 0 }
    }

    /// Adds it, byte for byte, to a digest.
    pub fn digest(&self, digest: &mut Xxh3) {
        let mut bytes = Vec::with_capacity(self.events.len() * 48);
        for event in &self.events {
            event.encode(&mut bytes);
        }
        digest.update(&bytes);
    }

    /// As text, a line an event.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for event in &self.events {
            let _ = writeln!(text, "{event}");
        }
        text
    }
}

/// Puts numbers one behind the other.
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
    /// As bytes: every part of it, in a fixed form.
    fn encode(&self, into: &mut Vec<u8>) {
        let mut out = Bytes(into);
        out.number(self.at_us).number(u64::from(self.client) << 8 | u64::from(self.what.kind()));
        match &self.what {
            What::Acquire { op, lock, lease_us, wait_us, wish } => {
                out.number(u64::from(*op) << 32 | u64::from(*lock)).number(*lease_us).number(*wait_us).number(u64::from(*wish))
            }
            What::Granted { op, token, valid_until_us, watched, trace } => {
                out.number(u64::from(*op) << 1 | u64::from(*watched)).maybe(*token).maybe(*valid_until_us).trace(trace)
            }
            What::NotGranted { op, trace } => out.number(u64::from(*op)).trace(trace),
            What::Failed { op, maybe, trace } => out.number(u64::from(*op) << 1 | u64::from(*maybe)).trace(trace),
            What::Enter { op } | What::Exit { op } | What::Write { op } | What::Renew { op } | What::Release { op } => {
                out.number(u64::from(*op))
            }
            What::Written { op, outcome } => out.number(u64::from(*op) << 2 | *outcome as u64),
            What::Renewed { op, outcome, valid_until_us, trace } => {
                out.number(u64::from(*op) << 2 | *outcome as u64).maybe(*valid_until_us).trace(trace)
            }
            What::Released { op, given, tries, trace } => {
                out.number(u64::from(*op) << 8 | u64::from(*tries)).maybe(given.map(|given| given as u64)).trace(trace)
            }
            What::Start | What::Done => &mut out,
            What::Crash { machine } => out.number(u64::from(*machine)),
            What::Pause { for_us } => out.number(*for_us),
            What::Jump { by_ms } => out.number(*by_ms as u64),
            What::Drift { ppm } => out.number(*ppm as u64),
            What::Down { server, lost } => out.number(u64::from(*server)).maybe(*lost),
            What::Up { server } | What::Resend { server } => out.number(u64::from(*server)),
            What::Delay { server, for_us } | What::Loss { server, for_us } => out.number(u64::from(*server)).number(*for_us),
            What::Stored { lock, ops } => {
                out.number(u64::from(*lock)).number(ops.len() as u64);
                for op in ops {
                    out.number(u64::from(*op));
                }
                &mut out
            }
        };
    }
}

impl What {
    /// A number for each kind.
    fn kind(&self) -> u8 {
        match self {
            What::Acquire { .. } => 1,
            What::Granted { .. } => 2,
            What::NotGranted { .. } => 3,
            What::Failed { .. } => 4,
            What::Enter { .. } => 5,
            What::Exit { .. } => 6,
            What::Write { .. } => 7,
            What::Written { .. } => 8,
            What::Renewed { .. } => 9,
            What::Release { .. } => 10,
            What::Released { .. } => 11,
            What::Start => 12,
            What::Done => 13,
            What::Crash { .. } => 14,
            What::Pause { .. } => 15,
            What::Jump { .. } => 16,
            What::Drift { .. } => 17,
            What::Down { .. } => 18,
            What::Up { .. } => 19,
            What::Delay { .. } => 20,
            What::Loss { .. } => 21,
            What::Resend { .. } => 22,
            What::Stored { .. } => 23,
            What::Renew { .. } => 24,
        }
    }

    /// Which acquisition it is about, if it is about one.
    pub fn op(&self) -> Option<Op> {
        match self {
            What::Acquire { op, .. }
            | What::Granted { op, .. }
            | What::NotGranted { op, .. }
            | What::Failed { op, .. }
            | What::Enter { op }
            | What::Exit { op }
            | What::Write { op }
            | What::Written { op, .. }
            | What::Renew { op }
            | What::Renewed { op, .. }
            | What::Release { op }
            | What::Released { op, .. } => Some(*op),
            _ => None,
        }
    }
}

/// Microseconds as seconds.
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
            NOBODY => f.write_str("-- ")?,
            client => write!(f, "c{client} ")?,
        }
        write!(f, "{}", self.what)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let served = |f: &mut fmt::Formatter<'_>, trace: &Trace| {
            if let (Some(first), Some(last)) = (trace.first, trace.last) {
                let (from, to) = (Seconds(first.at_us), Seconds(last.at_us));
                write!(f, " (servers: #{} at {from} to #{} at {to})", first.order, last.order)?;
            }
            match trace.lost_us {
                Some(_) if trace.resent => f.write_str(", sent twice"),
                Some(lost_us) => write!(f, ", a reply lost at {}", Seconds(lost_us)),
                None => Ok(()),
            }
        };
        let until = |f: &mut fmt::Formatter<'_>, at_us: &Option<u64>| match at_us {
            Some(at_us) => write!(f, ", valid until {}", Seconds(*at_us)),
            None => f.write_str(", without end"),
        };
        let outcome = |outcome: &Outcome| match outcome {
            Outcome::Yes => "ok",
            Outcome::No => "refused",
            Outcome::Unknown => "unknown",
        };
        match self {
            What::Acquire { op, lock, lease_us, wait_us, .. } => {
                write!(f, "acquire #{op} of lock {lock}, lease {} s, wait {} s", Seconds(*lease_us), Seconds(*wait_us))
            }
            What::Granted { op, token, valid_until_us, trace, .. } => {
                write!(f, "granted #{op}")?;
                if let Some(token) = token {
                    write!(f, ", token {token}")?;
                }
                until(f, valid_until_us)?;
                served(f, trace)
            }
            What::NotGranted { op, trace } => write!(f, "not granted #{op}").and_then(|()| served(f, trace)),
            What::Failed { op, maybe, trace } => {
                write!(f, "acquire failed #{op}{}", if *maybe { ", may have been granted" } else { "" })?;
                served(f, trace)
            }
            What::Enter { op } => write!(f, "enter #{op}"),
            What::Exit { op } => write!(f, "exit #{op}"),
            What::Write { op } => write!(f, "write #{op}"),
            What::Written { op, outcome: which } => write!(f, "written #{op}: {}", outcome(which)),
            What::Renew { op } => write!(f, "renew #{op}"),
            What::Renewed { op, outcome: which, valid_until_us, trace } => {
                write!(f, "renewed #{op}: {}", outcome(which))?;
                until(f, valid_until_us)?;
                served(f, trace)
            }
            What::Release { op } => write!(f, "release #{op}"),
            What::Released { op, given, trace, .. } => {
                let given = match given {
                    Some(ReleaseOutcome::Released) => "given back",
                    Some(ReleaseOutcome::NotHeld) => "not held",
                    Some(ReleaseOutcome::Unchecked) => "deleted unchecked",
                    None => "unknown",
                };
                write!(f, "released #{op}: {given}")?;
                served(f, trace)
            }
            What::Start => f.write_str("starts"),
            What::Done => f.write_str("is done"),
            What::Crash { machine: false } => f.write_str("crashes"),
            What::Crash { machine: true } => f.write_str("crashes with its machine"),
            What::Pause { for_us } => write!(f, "pauses for {} s", Seconds(*for_us)),
            What::Jump { by_ms } => write!(f, "wall clock set by {by_ms} ms"),
            What::Drift { ppm } => write!(f, "clocks run {ppm} ppm fast"),
            What::Down { server, lost: None } => write!(f, "server {server} goes down and loses everything"),
            What::Down { server, lost: Some(writes) } => {
                write!(f, "server {server} goes down and loses its last {writes} writes")
            }
            What::Up { server } => write!(f, "server {server} is up again"),
            What::Delay { server, for_us } => {
                write!(f, "messages to and from server {server} are late for {} s", Seconds(*for_us))
            }
            What::Loss { server, for_us } => {
                write!(f, "messages to and from server {server} get lost for {} s", Seconds(*for_us))
            }
            What::Resend { server } => write!(f, "a reply of server {server} is lost, and the command sent again"),
            What::Stored { lock, ops } => write!(f, "the resource of lock {lock} has accepted {ops:?}"),
        }
    }
}
