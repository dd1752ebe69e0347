//! The metrics of what Redis does not have: native locks, the turns of the executor, timers, and the log.

use crate::client::{Command, Value};
use crate::http::figures::field;
use crate::http::json;
use crate::http::metrics::text::Kind::{Counter, Gauge, Histogram, Summary};
use crate::http::metrics::text::{Kind, Metrics};

/// Fields of `INFO`, with the metrics behind `portcullis_`, how many of the units of the field make one of the metric, and their help.
const OF_INFO: &[(&str, &str, Kind, f64, &str)] = &[
    ("timers", "timers", Gauge, 1.0, "Keys, leases and waits with an end."),
    ("expiry_lateness_milliseconds_max", "expiry_lateness_max_seconds", Gauge, 1e3, "How late a key has expired at most."),
    ("timer_turns", "timer_turns_total", Counter, 1.0, "Turns of the timer."),
    ("timer_turns_at_budget", "timer_turns_at_budget_total", Counter, 1.0, "Turns of the timer that left work for the next one."),
    ("turns_over_1_millisecond", "turns_over_1_millisecond_total", Counter, 1.0, "Turns that took more than a millisecond."),
    (
        "turns_without_processor_usec",
        "turns_without_processor_seconds_total",
        Counter,
        1e6,
        "Time in turns during which the system let another thread run.",
    ),
    ("turn_longest_usec", "turn_longest_seconds", Gauge, 1e6, "The longest turn since the start."),
    ("client_limit_disconnections", "client_limit_disconnections_total", Counter, 1.0, "Clients closed for their buffers."),
    ("changes", "changes_total", Counter, 1.0, "Changes of keys and locks."),
    ("log_syncs", "log_syncs_total", Counter, 1.0, "Syncs of the append-only file."),
    ("log_held_replies", "log_held_replies", Gauge, 1.0, "Clients whose replies wait for the disk."),
    ("lock_held", "lock_held", Gauge, 1.0, "Locks that are held."),
    ("lock_semaphores_held", "lock_semaphores_held", Gauge, 1.0, "Semaphores with permits out."),
    ("lock_permits_out", "lock_permits_out", Gauge, 1.0, "Permits of semaphores that are out."),
    ("lock_holders", "lock_holders", Gauge, 1.0, "Present grants."),
    ("lock_session_holders", "lock_session_holders", Gauge, 1.0, "Present grants that end with a session."),
    ("lock_contended", "lock_contended", Gauge, 1.0, "Names with waiters."),
    ("lock_slowlog_len", "lock_slowlog_length", Gauge, 1.0, "Entries of LOCK.SLOWLOG."),
    ("lock_remembered_names", "lock_remembered_names", Gauge, 1.0, "Names with a history."),
    ("lock_expiry_messages", "lock_expiry_messages_total", Counter, 1.0, "Messages of lock-expiry-publish."),
];

/// The same for fields of `LOCK.STATS`.
const OF_STATS: &[(&str, &str, Kind, f64, &str)] = &[
    ("waiting", "lock_waiting", Gauge, 1.0, "Waiters, for all locks."),
    ("sessions", "lock_sessions", Gauge, 1.0, "Lock sessions."),
    ("oldest-wait-ms", "lock_longest_wait_seconds", Gauge, 1e3, "The longest present wait."),
    ("longest-hold-ms", "lock_longest_hold_seconds", Gauge, 1e3, "The age of the oldest present grant."),
    ("grants-renewed", "lock_grants_renewed", Gauge, 1.0, "Present grants past their first lease."),
    ("longest-queue", "lock_longest_queue", Gauge, 1.0, "The longest queue for one name."),
    ("grants", "lock_grants_total", Counter, 1.0, "Grants."),
    ("immediate-grants", "lock_immediate_grants_total", Counter, 1.0, "Grants without a wait."),
    ("queued-grants", "lock_queued_grants_total", Counter, 1.0, "Grants after a wait."),
    ("releases", "lock_releases_total", Counter, 1.0, "Releases."),
    ("expiries", "lock_expiries_total", Counter, 1.0, "Grants that ended with their leases."),
    ("session-ends", "lock_session_ends_total", Counter, 1.0, "Grants that ended with their sessions."),
    ("session-ends-held", "lock_session_ends_held_total", Counter, 1.0, "Sessions that ended while they held something."),
    ("deletions", "lock_deletions_total", Counter, 1.0, "Grants that ended because the lock was deleted."),
    ("broken", "lock_broken_total", Counter, 1.0, "Grants that an operator ended."),
    ("timeouts", "lock_timeouts_total", Counter, 1.0, "Waits that ended without a grant."),
    ("deadlocks-refused", "lock_deadlocks_refused_total", Counter, 1.0, "Waits refused because they would have closed a cycle."),
];

/// The quantiles of waits in `LOCK.STATS`.
const WAITS: [(&str, &str); 4] =
    [("0.5", "wait-us-p50"), ("0.99", "wait-us-p99"), ("0.999", "wait-us-p99.9"), ("1", "wait-us-max")];

/// Adds what `INFO all` tells.
pub fn of_info(metrics: &mut Metrics, info: &str) {
    for (name, metric, kind, per, help) in OF_INFO {
        if let Some(value) = field(info, name).and_then(|text| text.parse::<f64>().ok()) {
            metrics.add(*kind, &format!("portcullis_{metric}"), help, value / per);
        }
    }
    if let Some(version) = field(info, "portcullis_version") {
        metrics.add_with(Gauge, "portcullis_info", "The server, by its labels.", &[("version", version)], 1.0);
    }
    turns(metrics, info);
}

/// The turns of the executor as a histogram. In `INFO` each bound has the number of all shorter turns.
fn turns(metrics: &mut Metrics, info: &str) {
    let Some(bounds) = field(info, "turn_histogram_usec") else { return };
    let number = |name: &str| field(info, name).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    let (name, help) = ("portcullis_turn_duration_seconds", "How long turns of the executor took.");
    for (us, count) in bounds.split(',').filter_map(|bound| bound.split_once('=')) {
        let (Ok(us), Ok(count)) = (us.parse::<f64>(), count.parse::<f64>()) else { continue };
        metrics.add_part(Histogram, name, "_bucket", help, &[("le", &(us / 1e6).to_string())], count);
    }
    metrics.add_part(Histogram, name, "_bucket", help, &[("le", "+Inf")], number("turns"));
    metrics.add_part(Histogram, name, "_sum", help, &[], number("turns_usec") / 1e6);
    metrics.add_part(Histogram, name, "_count", help, &[], number("turns"));
}

/// Adds what `LOCK.STATS` tells.
pub fn of_stats(metrics: &mut Metrics, stats: &Value) {
    let number = |name: &str| stats.field(name).and_then(Value::as_integer).map(|number| number as f64);
    for (name, metric, kind, per, help) in OF_STATS {
        if let Some(value) = number(name) {
            metrics.add(*kind, &format!("portcullis_{metric}"), help, value / per);
        }
    }
    let (name, help) = ("portcullis_lock_wait_seconds", "How long grants were waited for.");
    for (quantile, of) in WAITS {
        if let Some(us) = number(of) {
            metrics.add_part(Summary, name, "", help, &[("quantile", quantile)], us / 1e6);
        }
    }
    if let Some(count) = number("queued-grants") {
        metrics.add_part(Summary, name, "_count", help, &[], count);
    }
}

/// Asks for the locks of a database that were waited for longest.
pub fn commands(count: usize) -> [Command; 1] {
    let list = Command::new("LOCK.LIST").arg("CONTENDED").arg("WAITING").arg(0);
    [list.arg("SHOW").arg(1).arg("COUNT").arg(count as u64)]
}

/// A lock with waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contended {
    pub db: u32,
    pub name: String,
    pub waiters: u64,
    pub oldest_ms: u64,
}

/// A lock with a longer name, in bytes, is no series.
const NAME_MAX: usize = 1024;

/// The locks of `LOCK.LIST`.
pub fn contended(db: u32, list: &Value) -> Vec<Contended> {
    let read = |lock: &Value| {
        let number = |name: &str| lock.field(name).and_then(Value::as_integer).and_then(|number| u64::try_from(number).ok());
        let (waiters, oldest_ms) = (number("waiting")?, number("oldest-wait")?);
        let name = lock.field("name").and_then(Value::as_bytes).filter(|name| name.len() <= NAME_MAX)?;
        let name = json::text(name);
        (waiters > 0).then_some(Contended { db, name, waiters, oldest_ms })
    };
    list.as_array().unwrap_or_default().iter().filter_map(read).collect()
}

/// Adds the locks that were waited for longest, at most `max` of them: each is a series of its own.
pub fn of_contended(metrics: &mut Metrics, mut locks: Vec<Contended>, max: usize) {
    locks.sort_by(|a, b| b.oldest_ms.cmp(&a.oldest_ms).then_with(|| (a.db, &a.name).cmp(&(b.db, &b.name))));
    for lock in locks.iter().take(max) {
        let db = lock.db.to_string();
        let labels = [("db", db.as_str()), ("name", lock.name.as_str())];
        metrics.add_with(Gauge, "portcullis_lock_waiters", "Waiters for a lock.", &labels, lock.waiters as f64);
        let (name, help) = ("portcullis_lock_oldest_wait_seconds", "How long the first waiter for a lock has waited.");
        metrics.add_with(Gauge, name, help, &labels, lock.oldest_ms as f64 / 1000.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locks_that_were_waited_for_longest_have_metrics() {
        let mut metrics = Metrics::default();
        let lock = |name: &str, oldest_ms| Contended { db: 1, name: name.to_owned(), waiters: 2, oldest_ms };
        of_contended(&mut metrics, vec![lock("a", 10), lock("b", 2500), lock("c", 30)], 2);
        let text = metrics.text();
        assert!(text.contains("portcullis_lock_oldest_wait_seconds{db=\"1\",name=\"b\"} 2.5\n"), "{text}");
        assert!(text.contains("name=\"c\"") && !text.contains("name=\"a\""), "{text}");
    }

    #[test]
    fn turns_are_a_histogram() {
        let mut metrics = Metrics::default();
        of_info(&mut metrics, "turns:7\r\nturns_usec:5000\r\nturn_histogram_usec:4=3,1056=6\r\n");
        let text = metrics.text();
        for line in [
            "portcullis_turn_duration_seconds_bucket{le=\"0.000004\"} 3\n",
            "portcullis_turn_duration_seconds_bucket{le=\"0.001056\"} 6\n",
            "portcullis_turn_duration_seconds_bucket{le=\"+Inf\"} 7\n",
            "portcullis_turn_duration_seconds_sum 0.005\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
