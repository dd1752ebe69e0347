//! Adds the turns that the driver reports to the statistics.

use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::observe::notices::SLOW_NS;
use crate::engine::observe::turns::{LONG_NS, Longest, Task};

impl Engine {
    /// Reports the end of a turn and its duration. `cpu_ns` is the processor time of its thread, which matters only if the turn
    /// took more than [`LONG_NS`]; `None` if unknown.
    #[inline]
    pub fn note_turn(&mut self, now: Now, task: Task, ns: u64, cpu_ns: Option<u64>) {
        self.diagnosis.turns.histogram.record(ns, 1);
        self.diagnosis.turns.ns += ns;
        if ns > LONG_NS {
            self.diagnosis.turns.long += 1;
            self.diagnosis.turns.off_cpu_ns += ns.saturating_sub(cpu_ns.unwrap_or(ns));
            if ns >= SLOW_NS {
                self.notice_turn(now, task, ns, cpu_ns.map_or(ns, |cpu_ns| cpu_ns.min(ns)));
            }
        }
        if self.diagnosis.turns.longest.as_ref().is_none_or(|longest| ns > longest.ns) {
            self.note_longest(now, task, ns, cpu_ns);
        }
    }

    #[cold]
    fn note_longest(&mut self, now: Now, task: Task, ns: u64, cpu_ns: Option<u64>) {
        let command = match task {
            Task::Client(id) => self.clients.sessions.get(id).and_then(|session| self.last_command(session)),
            _ => None,
        };
        let command = command.map(|command| self.commands.full_name(command));
        let cpu_ns = cpu_ns.map_or(ns, |cpu_ns| cpu_ns.min(ns));
        self.diagnosis.turns.longest = Some(Longest { ns, cpu_ns, unix_ms: now.unix_ms(), task: task.name(), command });
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
        let turns = &h.engine.diagnosis.turns;
        assert_eq!((turns.histogram.total(), turns.long, turns.ns), (6, 2, 7_944_000));
        assert!(turns.longest.as_ref().is_some_and(|longest| longest.ns == 5_000_000 && longest.task == "client"));
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
        assert_eq!(h.engine.diagnosis.turns.histogram.total(), 0);
    }
}
