//! The order in which a given server of this crate executed commands for native locks, from `MONITOR`: when each request for a
//! lock arrived, and when each release was executed.
//!
//! `MONITOR` shows commands without their replies, which only the clients know. A grant that was released by its token was held
//! from when its client knew of it until the release was executed. It was made no earlier than the release of the previous grant:
//!
//! ```text
//!   its LOCK.ACQUIRE      LOCK.RELEASE of the grant before      its client knows      its LOCK.RELEASE
//!          ├── waits ───────────────┼── granted some time here ────────┼── held ───────────────┤
//! ```
//!
//! Grants that ended otherwise have no order and count by what their clients know. The same holds for grants of `redis-server`:
//! it has no native locks, and other commands (a `SET NX`, a script) do not tell who holds a lock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::client::{Client, Command, Monitor, Options, Result};
use crate::recipes::ReleaseOutcome;
use crate::torture::history::{EventKind, History, Op, Stamp};
use crate::torture::live::world::lock;

/// Pause between attempts to reconnect.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum time to wait for the last lines.
const END_MAX: Duration = Duration::from_secs(2);
/// Number of `TIME` requests for an estimate of the clock's offset.
const TIMES: usize = 8;

/// The request that a line shows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Request {
    Acquire(Op),
    Release(Op, u64),
}

/// What a server has shown.
#[derive(Default)]
struct Seen {
    /// The requests in the server's order, with the server's time in microseconds.
    lines: Vec<(i64, Request)>,
    /// The times without a connection, by the run's clock.
    gaps: Vec<(u64, u64)>,
    /// When the last line came, by the run's clock.
    last_us: u64,
}

/// Follows one server with `MONITOR`.
pub struct MonitorFollower {
    client: Client,
    start: Instant,
    /// The argument of the `PING` that marks the end.
    last: String,
    /// An offset to add to the server's time. The result is the run's time or an earlier one.
    offset_us: i64,
    seen: Arc<Mutex<Seen>>,
    reader: JoinHandle<()>,
}

fn us(start: Instant) -> u64 {
    start.elapsed().as_micros() as u64
}

/// A lower bound for the run's time minus the server's time, in microseconds.
async fn offset_us(client: &Client, start: Instant) -> Result<i64> {
    let mut least_us = i64::MAX;
    for _ in 0..TIMES {
        let sent_us = us(start) as i64;
        let time: Vec<u64> = client.query(Command::new("TIME")).await?;
        let server_us = time.first().unwrap_or(&0) * 1_000_000 + time.get(1).unwrap_or(&0);
        least_us = least_us.min(sent_us - server_us as i64);
    }
    Ok(least_us)
}

/// Parses a line: the server's time and the request, if its key has this prefix.
fn read(line: &[u8], prefix: &str) -> Option<(i64, Request)> {
    let line = std::str::from_utf8(line).ok()?;
    let (time, rest) = line.split_once(' ')?;
    let (_, words) = rest.split_once("] \"")?;
    let words: Vec<&str> = words.strip_suffix('"')?.split("\" \"").collect();
    let [name, key, owner, options @ ..] = &words[..] else { return None };
    if !key.starts_with(prefix) {
        return None;
    }
    // The owner `c3.17` is client 3 in acquisition 17.
    let op = owner.split_once('.')?.1.parse().ok()?;
    let request = match name.to_ascii_uppercase().as_str() {
        "LOCK.ACQUIRE" => Request::Acquire(op),
        "LOCK.RELEASE" => {
            let at = options.iter().position(|option| option.eq_ignore_ascii_case("TOKEN"))?;
            Request::Release(op, options.get(at + 1)?.parse().ok()?)
        }
        _ => return None,
    };
    let (seconds, fraction) = time.split_once('.')?;
    Some((seconds.parse::<i64>().ok()? * 1_000_000 + fraction.parse::<i64>().ok()?, request))
}

impl MonitorFollower {
    /// Follows the server of a URL, for keys with this prefix. The run began at `start`.
    ///
    /// # Errors
    /// Those of the connection, and of a server that refuses `MONITOR`.
    pub async fn begin(url: &str, prefix: &str, start: Instant) -> Result<MonitorFollower> {
        let options: Options = url.parse()?;
        let client = Client::with(options.clone()).await?;
        let mut monitor = Monitor::open(&options).await?;
        let offset_us = offset_us(&client, start).await?;
        let last = format!("{prefix}last");
        let seen = Arc::new(Mutex::new(Seen { last_us: us(start), ..Seen::default() }));
        let (noted, prefix, end) = (Arc::clone(&seen), prefix.to_owned(), format!("\"{last}\""));
        let reader = tokio::spawn(async move {
            loop {
                match monitor.next().await {
                    Ok(line) if line.ends_with(end.as_bytes()) => return,
                    Ok(line) => {
                        let mut seen = lock(&noted);
                        seen.lines.extend(read(&line, &prefix));
                        seen.last_us = us(start);
                    }
                    Err(_) => {
                        monitor = loop {
                            sleep(PAUSE).await;
                            if let Ok(monitor) = Monitor::open(&options).await {
                                break monitor;
                            }
                        };
                        let mut seen = lock(&noted);
                        let gap = (seen.last_us, us(start));
                        seen.gaps.push(gap);
                        seen.last_us = gap.1;
                    }
                }
            }
        });
        Ok(MonitorFollower { client, start, last, offset_us, seen, reader })
    }

    /// Adds what the server showed to a history.
    pub async fn complete(mut self, history: &mut History) {
        // The server's clock may have drifted or been set since the first estimate. The lower one is safe.
        let offset_us = offset_us(&self.client, self.start).await.map_or(self.offset_us, |later| later.min(self.offset_us));
        let asked = self.client.run(Command::new("PING").arg(&self.last)).await;
        let mut seen = match asked.is_ok() && timeout(END_MAX, &mut self.reader).await.is_ok() {
            true => std::mem::take(&mut *lock(&self.seen)),
            false => {
                self.reader.abort();
                let mut seen = std::mem::take(&mut *lock(&self.seen));
                let from_us = seen.last_us;
                seen.gaps.push((from_us, u64::MAX));
                seen
            }
        };
        seen.complete(offset_us, history);
    }
}

impl Drop for MonitorFollower {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// A grant about which everything is known.
struct Grant {
    op: Op,
    lock: u32,
    /// When its client knew of it.
    known_us: u64,
    arrived: Stamp,
    released: Stamp,
}

impl Seen {
    fn complete(&mut self, offset_us: i64, history: &mut History) {
        let (mut arrived, mut released) = (HashMap::new(), HashMap::new());
        let mut order = 0;
        for (server_us, request) in &self.lines {
            let at_us = (server_us + offset_us).max(0) as u64;
            // Orders are unique.
            order = at_us.max(order + 1);
            let stamp = Stamp { order, at_us };
            match *request {
                // The last request is the one that was granted: earlier ones were not granted, or their grant was lost.
                Request::Acquire(op) => drop(arrived.insert(op, stamp)),
                Request::Release(op, token) => {
                    let (times, _) = released.entry((op, token)).or_insert((0, stamp));
                    *times += 1;
                }
            }
        }
        let mut grants = self.grants(history, &arrived, &released);
        grants.sort_by_key(|grant| (grant.lock, grant.known_us));
        let mut before: Option<&Grant> = None;
        let mut traces = HashMap::new();
        for grant in &grants {
            let freed_us = before.filter(|before| before.lock == grant.lock).map_or(0, |before| before.released.at_us);
            let from_us = grant.arrived.at_us.max(freed_us).min(grant.known_us);
            traces.insert(grant.op, (grant, Stamp { order: grant.known_us, at_us: from_us }));
            before = Some(grant);
        }
        for event in &mut history.events {
            let Some((grant, served)) = event.kind.op().and_then(|op| traces.get(&op)) else { continue };
            match &mut event.kind {
                EventKind::Granted { trace, .. } => {
                    trace.first = Some(grant.arrived);
                    trace.served = Some(*served);
                    trace.last = Some(Stamp { order: grant.known_us, at_us: grant.known_us });
                }
                EventKind::Released { trace, .. } => (trace.first, trace.last) = (Some(grant.released), Some(grant.released)),
                _ => {}
            }
        }
    }

    /// The grants that ended by exactly one release, if the server showed everything from the request to the release.
    fn grants(&self, history: &History, arrived: &HashMap<Op, Stamp>, released: &HashMap<(Op, u64), (u32, Stamp)>) -> Vec<Grant> {
        let mut asked: HashMap<Op, (u64, u32)> = HashMap::new();
        let mut known: HashMap<Op, (u64, u64)> = HashMap::new();
        let mut grants = Vec::new();
        for event in &history.events {
            match &event.kind {
                EventKind::Acquire { op, lock, .. } => drop(asked.insert(*op, (event.at_us, *lock))),
                EventKind::Granted { op, token: Some(token), .. } => drop(known.insert(*op, (event.at_us, *token))),
                EventKind::Released { op, outcome: Some(ReleaseOutcome::Released), tries: 1, trace }
                    if !trace.resent && trace.lost_us.is_none() =>
                {
                    let (Some((asked_us, lock)), Some((known_us, token))) = (asked.get(op), known.get(op)) else { continue };
                    let (Some(arrived), Some((1, released))) = (arrived.get(op), released.get(&(*op, *token))) else { continue };
                    let seen_all = !self.gaps.iter().any(|(from_us, to_us)| from_us <= &event.at_us && to_us >= asked_us);
                    if seen_all && arrived.at_us <= *known_us {
                        let (op, lock, known_us) = (*op, *lock, *known_us);
                        grants.push(Grant { op, lock, known_us, arrived: *arrived, released: *released });
                    }
                }
                _ => {}
            }
        }
        grants
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::torture::check::{Property, Rules, judge};
    use crate::torture::history::Trace;

    const S: u64 = 1_000_000;
    const LEASE_US: u64 = 10 * S;
    /// The server's time at the beginning.
    const SERVER_US: i64 = 1_700_000_000_000_000;

    /// Two clients request a lock at the same time. For each: when it knows of its grant and when it begins to release it, in
    /// tenths of a second.
    fn history(times: [(u64, u64); 2]) -> History {
        let mut events = Vec::new();
        for (op, (known, release)) in times.into_iter().enumerate() {
            let (client, op) = (op as u32, op as Op + 1);
            let mut at = |tenths: u64, kind: EventKind| events.push((tenths * S / 10, client, kind));
            at(0, EventKind::Acquire { op, lock: 0, lease_us: LEASE_US, wait_us: 30 * S, job: 0 });
            let valid_until_us = Some(known * S / 10 + LEASE_US);
            at(
                known,
                EventKind::Granted { op, token: Some(u64::from(op)), valid_until_us, watched: false, trace: Trace::default() },
            );
            at(release, EventKind::Release { op });
            let outcome = Some(ReleaseOutcome::Released);
            at(release + 20, EventKind::Released { op, outcome, tries: 1, trace: Trace::default() });
        }
        events.sort_by_key(|(at_us, ..)| *at_us);
        let mut history = History::default();
        events.into_iter().for_each(|(at_us, client, kind)| history.push(at_us, client, kind));
        history
    }

    /// The violated properties if the server showed these lines, with times in tenths of a second.
    fn violated(mut history: History, lines: &[(i64, Request)], gaps: &[(u64, u64)]) -> Vec<Property> {
        let lines = lines.iter().map(|(tenths, request)| (SERVER_US + tenths * S as i64 / 10, *request)).collect();
        Seen { lines, gaps: gaps.to_vec(), last_us: 0 }.complete(-SERVER_US, &mut history);
        let findings = judge(&history, &Rules::new(Some(1), LEASE_US)).into_iter();
        findings.filter(|(_, finding)| !finding.violations.is_empty()).map(|(property, _)| property).collect()
    }

    #[test]
    fn lines_are_read() {
        let read = |words: &str| read(format!("1700000000.000005 [0 127.0.0.1:50000] {words}").as_bytes(), "torture:7:");
        let at = SERVER_US + 5;
        let acquire = r#""LOCK.ACQUIRE" "torture:7:lock:0" "c3.17" "10000" "REQUEST" "0" "WAIT" "30000""#;
        assert_eq!(read(acquire), Some((at, Request::Acquire(17))));
        let release = r#""lock.release" "torture:7:lock:0" "c3.17" "TOKEN" "5" "REQUEST" "1""#;
        assert_eq!(read(release), Some((at, Request::Release(17, 5))));
        for other in [
            r#""LOCK.ACQUIRE" "other" "c3.17" "10000""#,
            r#""LOCK.RELEASE" "torture:7:lock:0" "c3.17""#,
            r#""LOCK.RENEW" "torture:7:lock:0" "c3.17" "10000" "TOKEN" "5""#,
            r#""LOCK.ACQUIRE" "torture:7:lock:0" "other" "10000""#,
            r#""PING""#,
        ] {
            assert_eq!(read(other), None, "{other}");
        }
    }

    #[test]
    fn a_waiter_that_is_overtaken_is_found_by_the_order_of_arrival() {
        let lines = |first: Op, second: Op| {
            [
                (1, Request::Acquire(first)),
                (2, Request::Acquire(second)),
                (60, Request::Release(1, 1)),
                (90, Request::Release(2, 2)),
            ]
        };
        let served_in_order = || history([(30, 59), (70, 89)]);
        assert_eq!(violated(served_in_order(), &lines(1, 2), &[]), []);
        assert_eq!(violated(served_in_order(), &lines(2, 1), &[]), [Property::Fairness]);
        assert_eq!(violated(served_in_order(), &lines(2, 1), &[(5 * S, 6 * S)]), [], "where not all is seen, nothing is said");
    }

    #[test]
    fn a_grant_lasts_until_the_server_carries_its_release_out() {
        let lines = |released: i64| {
            [(1, Request::Acquire(1)), (2, Request::Acquire(2)), (released, Request::Release(1, 1)), (90, Request::Release(2, 2))]
        };
        let overlapping = || history([(30, 50), (60, 89)]);
        assert_eq!(violated(overlapping(), &lines(55), &[]), []);
        assert_eq!(violated(overlapping(), &lines(65), &[]), [Property::Exclusion]);
        let mut twice = lines(65).to_vec();
        twice.insert(2, (55, Request::Release(1, 1)));
        assert_eq!(violated(overlapping(), &twice, &[]), [], "one of the two was the one that ended it");
    }
}
