//! The binary form of events, from which the digest of a history is made.

use crate::torture::history::{Event, EventKind, Trace};

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
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
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
}
