//! What a run did to its nodes, and what came of it.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::torture::fault::Fault;

/// A fault that has struck.
#[derive(Clone, Copy, Debug)]
pub struct Strike {
    /// Its kind.
    pub fault: Fault,
    /// When, in microseconds since the beginning.
    pub at_us: u64,
    /// Whether it kept the leader from its work.
    pub of_leader: bool,
}

/// The faults of one kind.
#[derive(Clone, Debug)]
pub struct Struck {
    /// The kind.
    pub fault: Fault,
    /// How often it has struck.
    pub times: u64,
    /// For each that struck the leader: how long no command succeeded afterwards, sorted, in microseconds.
    pub gaps_us: Vec<u64>,
}

/// All faults of the nodes.
#[derive(Clone, Debug, Default)]
pub struct Toll {
    /// By kind.
    pub struck: Vec<Struck>,
    /// Number of counts and reads that were checked.
    pub checked: u64,
    /// Writes that were acknowledged and lost, in words.
    pub lost: Vec<String>,
    /// Nodes that ended by themselves, in words.
    pub ended: Vec<String>,
}

/// The value of a sorted list below which this share of its values is, in percent.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    sorted.get((sorted.len().saturating_sub(1) * percent).div_ceil(100)).copied().unwrap_or(0)
}

impl Toll {
    /// The toll of these strikes. `gap_us`: how long no command succeeded after a time.
    pub fn of(strikes: &[Strike], gap_us: impl Fn(u64) -> Option<u64>) -> Toll {
        let mut kinds: Vec<Fault> = strikes.iter().map(|strike| strike.fault).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let struck = |fault: Fault| {
            let of_kind = || strikes.iter().filter(move |strike| strike.fault == fault);
            let mut gaps_us: Vec<u64> =
                of_kind().filter(|strike| strike.of_leader).filter_map(|strike| gap_us(strike.at_us)).collect();
            gaps_us.sort_unstable();
            Struck { fault, times: of_kind().count() as u64, gaps_us }
        };
        Toll { struck: kinds.into_iter().map(struck).collect(), ..Toll::default() }
    }

    /// Whether something must not have happened.
    pub fn failed(&self) -> bool {
        !self.lost.is_empty() || !self.ended.is_empty()
    }

    /// Writes it for people.
    pub fn write(&self, out: &mut String) {
        for Struck { fault, times, gaps_us } in &self.struck {
            let _ = write!(out, "  {:<10} {times} times", fault.name());
            let of_leader = match gaps_us.len() {
                0 => String::new(),
                count => format!(
                    ", {count} of the leader: no command succeeded for {} ms (median), {} ms (p99)",
                    percentile(gaps_us, 50) / 1000,
                    percentile(gaps_us, 99) / 1000
                ),
            };
            let _ = writeln!(out, "{of_leader}");
        }
    }

    /// The toll as JSON.
    pub fn json(&self) -> Value {
        let mut says = String::new();
        self.write(&mut says);
        self.write_verdict(&mut says);
        let ms = |gaps: &[u64], percent| percentile(gaps, percent) as f64 / 1000.0;
        let struck = self.struck.iter().map(|Struck { fault, times, gaps_us }| {
            json!({
                "fault": fault.name(),
                "times": times,
                "of_leader": gaps_us.len(),
                "silent_ms_p50": ms(gaps_us, 50),
                "silent_ms_p99": ms(gaps_us, 99),
            })
        });
        json!({
            "struck": struck.collect::<Vec<_>>(),
            "kept_checked": self.checked,
            "lost": self.lost,
            "ended": self.ended,
            "says": says,
        })
    }

    /// Writes what was found besides the properties of the locks.
    pub fn write_verdict(&self, out: &mut String) {
        let _ = match self.lost.first() {
            None => writeln!(out, "  {:<10} holds in {} checks", "kept", self.checked),
            Some(first) => writeln!(
                out,
                "  {:<10} VIOLATED {} times in {} checks: an acknowledged write is lost, or a read is stale: {first}",
                "kept",
                self.lost.len(),
                self.checked
            ),
        };
        for ended in &self.ended {
            let _ = writeln!(out, "  {ended}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_those_after_a_leader_was_struck() {
        let strike = |at_us, of_leader| Strike { fault: Fault::Restart, at_us, of_leader };
        let strikes = [strike(10, true), strike(20, false), strike(30, true), strike(40, true)];
        let toll = Toll::of(&strikes, |at_us| (at_us < 40).then_some(at_us * 1000));
        let mut text = String::new();
        toll.write(&mut text);
        assert_eq!(text, "  restart    4 times, 2 of the leader: no command succeeded for 30 ms (median), 30 ms (p99)\n");
        assert!(!toll.failed());
    }
}
