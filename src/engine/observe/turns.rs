//! Durations of the executor's turns: stretches of work during which no other session is served.
//!
//! A turn is one run of a connection (it receives, executes requests, writes), of the timer (deadlines and deferred freeing), of
//! the accepting sockets, and so on. The driver of the engine measures and reports it. Everything that delays a client, besides
//! the work of its own request, consists of turns, so the longest turn bounds the pauses that all other clients can see.
//!
//! Turns are measured in wall-clock time, because that is how they affect others. A long turn has two possible causes: its work,
//! or that the system gave the processor to another thread. So for a long turn the driver also reports the processor time of its
//! thread. The slow log and the times of commands are parts of turns, measured with the same clock.

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::Command;
use crate::engine::observe::command_stats::Histogram;

/// Turns longer than this many nanoseconds are too long.
pub const LONG_NS: u64 = 1_000_000;

/// The task that a turn belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// A client: its requests, its replies, or its end.
    Client(SessionId),
    /// The timer.
    Timer,
    /// The listening sockets, including TLS handshakes.
    Accept,
    /// The owner of the server: a signal, or a program that embeds it.
    Control,
}

impl Task {
    /// Its name in `LATENCY TURNS`.
    fn name(self) -> &'static str {
        match self {
            Task::Client(_) => "client",
            Task::Timer => "timer",
            Task::Accept => "accept",
            Task::Control => "control",
        }
    }
}

/// The longest turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Longest {
    /// Its duration.
    pub ns: u64,
    /// The processor time of its thread during the turn, in nanoseconds; the whole duration if unknown.
    pub cpu_ns: u64,
    /// Its end, as unix time in milliseconds.
    pub unix_ms: i64,
    /// Its task.
    pub task: &'static str,
    /// The last command that the client had sent by the end of the turn.
    pub command: Option<&'static Command>,
}

/// Statistics of all turns since the start or the last `CONFIG RESETSTAT`.
#[derive(Debug, Default)]
pub struct Turns {
    /// Histogram of durations.
    pub histogram: Histogram,
    /// Total duration, in nanoseconds.
    pub ns: u64,
    /// Number of turns longer than a millisecond.
    pub long: u64,
    /// Nanoseconds of those turns during which the thread did not have the processor.
    pub off_cpu_ns: u64,
    /// The longest turn; `None` before the first one.
    pub longest: Option<Longest>,
}

impl Engine {
    /// Reports the end of a turn and its duration. `cpu_ns` is the processor time of its thread, which matters only if the turn
    /// took more than [`LONG_NS`]; `None` if unknown.
    #[inline]
    pub fn note_turn(&mut self, now: Now, task: Task, ns: u64, cpu_ns: Option<u64>) {
        self.turns.histogram.record(ns, 1);
        self.turns.ns += ns;
        if ns > LONG_NS {
            self.turns.long += 1;
            self.turns.off_cpu_ns += ns.saturating_sub(cpu_ns.unwrap_or(ns));
        }
        if self.turns.longest.as_ref().is_none_or(|longest| ns > longest.ns) {
            self.note_longest(now, task, ns, cpu_ns);
        }
    }

    #[cold]
    fn note_longest(&mut self, now: Now, task: Task, ns: u64, cpu_ns: Option<u64>) {
        let command = match task {
            Task::Client(id) => self.sessions.get(id.0 as usize).and_then(|session| session.last_command),
            _ => None,
        };
        let cpu_ns = cpu_ns.map_or(ns, |cpu_ns| cpu_ns.min(ns));
        self.turns.longest = Some(Longest { ns, cpu_ns, unix_ms: now.unix_ms(), task: task.name(), command });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::harness::Harness;

    #[test]
    fn turns_are_counted_and_the_longest_is_known_by_what_it_did() {
        let mut h = Harness::new();
        h.run("LPUSH l a");
        let (now, client) = (h.now, Task::Client(h.session));
        for (task, us, cpu_us) in [
            (client, 3, None),
            (client, 900, None),
            (Task::Timer, 1000, None),
            (Task::Timer, 1001, Some(1100)),
            (client, 5000, Some(1200)),
            (Task::Accept, 40, None),
        ] {
            h.engine.note_turn(now, task, us * 1000, cpu_us.map(|us| us * 1000));
        }
        let turns = &h.engine.turns;
        assert_eq!((turns.histogram.total(), turns.long, turns.ns), (6, 2, 7_944_000));
        assert!(turns.longest.is_some_and(|longest| longest.ns == 5_000_000 && longest.task == "client"));
        let shown = "*20 $5 turns :6 $4 usec :7944 $18 over_1_millisecond :2 $22 without_processor_usec :3800 \
                     $12 longest_usec :5000 $22 longest_processor_usec :1200 $12 longest_time :1700001000 \
                     $12 longest_task $6 client $15 longest_command $5 lpush $14 histogram_usec *8 :4 :1 :66 :2 :1056 :5 :8454 :6";
        h.script(&[("LATENCY TURNS", shown)]);
        let info = h.run("INFO portcullis");
        for field in [
            "turns:6",
            "turns_usec:7944",
            "turns_over_1_millisecond:2",
            "turns_without_processor_usec:3800",
            "turn_longest_usec:5000",
            "turn_longest_processor_usec:1200",
            "turn_longest_task:client",
            "turn_longest_command:lpush",
            "turn_percentiles_usec:p50=",
            "turn_histogram_usec:4=1,66=2,1056=5,8454=6",
        ] {
            assert!(info.contains(field), "{field} is not in {info}");
        }
        h.run("CONFIG RESETSTAT");
        assert_eq!(h.engine.turns.histogram.total(), 0);
    }
}
