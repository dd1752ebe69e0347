//! `LATENCY`: pauses of at least `latency-monitor-threshold` milliseconds, by event.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;

use crate::base::time::Now;

/// Maximum number of samples of an event; there is one for each second in which it occurred.
const SAMPLES_MAX: usize = 160;
/// Number of columns of a graph.
const COLUMNS: usize = 80;

/// One second in which an event occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Unix time, in seconds.
    pub unix_s: i64,
    /// The longest pause of that second, in milliseconds.
    pub ms: u64,
}

/// The samples of one event.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Samples, the oldest first.
    pub samples: VecDeque<Sample>,
    /// The longest pause ever, in milliseconds.
    pub max_ms: u64,
}

/// The events.
#[derive(Clone, Debug, Default)]
pub struct Latency {
    events: BTreeMap<&'static str, Series>,
}

impl Latency {
    /// Records a pause in milliseconds.
    pub fn add(&mut self, event: &'static str, now: Now, ms: u64) {
        let series = self.events.entry(event).or_default();
        let unix_s = now.unix_ms().div_euclid(1000);
        series.max_ms = series.max_ms.max(ms);
        match series.samples.back_mut() {
            Some(last) if last.unix_s == unix_s => last.ms = last.ms.max(ms),
            _ => {
                if series.samples.len() == SAMPLES_MAX {
                    series.samples.pop_front();
                }
                series.samples.push_back(Sample { unix_s, ms });
            }
        }
    }

    /// All events by name.
    pub fn events(&self) -> impl ExactSizeIterator<Item = (&'static str, &Series)> {
        self.events.iter().map(|(name, series)| (*name, series))
    }

    /// One event.
    pub fn get(&self, name: &[u8]) -> Option<(&'static str, &Series)> {
        self.events().find(|(known, _)| known.as_bytes() == name)
    }

    /// Removes an event. Returns whether it existed.
    pub fn forget(&mut self, name: &[u8]) -> bool {
        let known = self.get(name).map(|(known, _)| known);
        known.is_some_and(|known| self.events.remove(known).is_some())
    }

    /// Removes all events. Returns their number.
    pub fn reset(&mut self) -> usize {
        std::mem::take(&mut self.events).len()
    }
}

impl Series {
    /// The mean, and the mean deviation from it, in milliseconds.
    fn spread(&self) -> (u64, u64) {
        let count = self.samples.len().max(1) as u64;
        let mean = self.samples.iter().map(|sample| sample.ms).sum::<u64>() / count;
        (mean, self.samples.iter().map(|sample| sample.ms.abs_diff(mean)).sum::<u64>() / count)
    }

    /// A graph of the samples: four rows high, with the age of each sample below its column.
    pub fn graph(&self, name: &str, now: Now) -> String {
        let (low, high) = self.samples.iter().fold((u64::MAX, 0), |(low, high), s| (low.min(s.ms), high.max(s.ms)));
        let low = low.min(high);
        let mut text =
            format!("{name} - high {high} ms, low {low} ms (all time high {} ms)\n{}\n", self.max_ms, "-".repeat(COLUMNS));
        let now_s = now.unix_ms().div_euclid(1000);
        let columns: Vec<(usize, String)> = self
            .samples
            .iter()
            .map(|sample| {
                // Twelve steps: three marks in each of the four rows.
                let step = if high == low { 11 } else { (sample.ms - low) * 11 / (high - low) };
                (step as usize, ago(now_s - sample.unix_s))
            })
            .collect();
        for part in columns.chunks(COLUMNS) {
            for row in (0..4).rev() {
                let mark = |step: usize| match step / 3 {
                    at if at > row => '|',
                    at if at < row => ' ',
                    _ => ['_', 'o', '#'][step % 3],
                };
                let line: String = part.iter().map(|(step, _)| mark(*step)).collect();
                let _ = writeln!(text, "{}", line.trim_end());
            }
            text.push('\n');
            let tall = part.iter().map(|(_, label)| label.len()).max().unwrap_or(0);
            for at in 0..tall {
                let line: String = part.iter().map(|(_, label)| label.chars().nth(at).unwrap_or(' ')).collect();
                let _ = writeln!(text, "{}", line.trim_end());
            }
        }
        text
    }
}

fn ago(seconds: i64) -> String {
    match seconds.max(0) {
        s @ ..60 => format!("{s}s"),
        s @ ..3600 => format!("{}m", s / 60),
        s @ ..86_400 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

impl Latency {
    /// A report on the events, in words.
    pub fn report(&self, now: Now, threshold_ms: u64, slowlog_us: i64) -> String {
        if self.events.is_empty() {
            return match threshold_ms {
                0 => {
                    "Latency monitoring is off. \"CONFIG SET latency-monitor-threshold <milliseconds>\" switches it on.\n".into()
                }
                ms => format!("No pause of {ms} ms or more was seen.\n"),
            };
        }
        let mut text = String::from("There were pauses:\n\n");
        let now_s = now.unix_ms().div_euclid(1000);
        for (number, (name, series)) in self.events().enumerate() {
            let (mean, deviation) = series.spread();
            let count = series.samples.len();
            let span = series.samples.front().map_or(0, |first| now_s - first.unix_s);
            let _ = writeln!(
                text,
                "{}. {name}: {count} latency spikes (average {mean}ms, mean deviation {deviation}ms, period {:.2} sec). Worst all time \
                 event {}ms.",
                number + 1,
                span as f64 / count.max(1) as f64,
                series.max_ms
            );
        }
        text.push('\n');
        if self.events.contains_key("command") {
            let log = match slowlog_us {
                ..0 => "The slow log is off: \"CONFIG SET slowlog-log-slower-than 1000\" switches it on.",
                us if us as u64 / 1000 > threshold_ms => {
                    "SLOWLOG GET shows slow commands, but only from slowlog-log-slower-than on, which is above the threshold of these pauses."
                }
                _ => "SLOWLOG GET shows which commands were slow.",
            };
            let _ = writeln!(
                text,
                "- {log}\n- Commands over whole collections (KEYS, SMEMBERS, SORT, …) and scripts delay all clients."
            );
        }
        let has = |prefix| self.events.keys().any(|name| name.starts_with(prefix));
        if has("aof-") {
            text.push_str(
                "- The disk was slow. The thread of the append-only file waited for it, not the one that executes requests.\n",
            );
        }
        if has("aof-fsync") {
            text.push_str("- With appendfsync always, replies to writes waited as long.\n");
        }
        if self.events.contains_key("fast-command") {
            text.push_str("- Commands that cannot be slow were: the machine was busy with something else, or swapped.\n");
        }
        text
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_one_sample_and_the_oldest_give_way() {
        let at = |s: u64| Now::new(s * 1_000_000, 0);
        let mut latency = Latency::default();
        latency.add("command", at(1), 5);
        latency.add("command", at(1), 3);
        for s in 2..=200 {
            latency.add("command", at(s), s);
        }
        let (_, series) = latency.get(b"command").unwrap();
        assert_eq!(series.samples.len(), SAMPLES_MAX);
        assert_eq!(series.samples.front().copied(), Some(Sample { unix_s: 41, ms: 41 }));
        assert_eq!(series.max_ms, 200);
        let graph = series.graph("command", at(200));
        assert!(graph.starts_with("command - high 200 ms, low 41 ms (all time high 200 ms)\n------"), "{graph}");
        assert_eq!(latency.events().len(), 1);
        assert!(!latency.forget(b"other") && latency.forget(b"command"));
        assert_eq!(latency.reset(), 0);
    }
}
