//! Events in words, as reports show them.

use std::fmt;

use crate::recipes::ReleaseOutcome;
use crate::torture::history::{Event, EventKind, NO_CLIENT, Trace};

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
        if let Some(at_us) = self.0 { write!(f, ", valid until {}", Seconds(at_us)) } else { f.write_str(", without an end") }
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
                write!(f, "what nodes send to each other is late or lost for {} s, and connections break", Seconds(*for_us))
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
