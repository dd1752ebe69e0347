//! The order in which servers of this crate granted native locks and got them back, from their change logs. No client can see
//! this order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::keyspace::change::{Change, ChangeLog, Effect};
use crate::recipes::ReleaseOutcome;
use crate::torture::history::{EventKind, History, Op, Stamp};
use crate::torture::live::world::lock;

/// The grants of all servers, by fencing token.
pub struct GrantLog {
    start: Instant,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Number of grants and ends of grants so far.
    number: u64,
    /// When each token was granted, and when its grant ended.
    grants: HashMap<u64, (Stamp, Option<Stamp>)>,
}

impl GrantLog {
    /// An empty log of a run that began at `start`.
    pub fn new(start: Instant) -> Arc<GrantLog> {
        Arc::new(GrantLog { start, seen: Mutex::default() })
    }

    /// A change log for one server, which records its grants here.
    pub fn log(self: &Arc<GrantLog>) -> Box<dyn ChangeLog + Send> {
        Box::new(Log { grant_log: Arc::clone(self), held: HashMap::new() })
    }

    fn stamp(&self, seen: &mut Seen) -> Stamp {
        seen.number += 1;
        Stamp { order: seen.number, at_us: self.start.elapsed().as_micros() as u64 }
    }

    fn granted(&self, token: u64) {
        let seen = &mut *lock(&self.seen);
        let stamp = self.stamp(seen);
        // After a failover the server may restore a grant whose end it lost. The grant keeps its first stamp.
        seen.grants.entry(token).or_insert((stamp, None)).1 = None;
    }

    fn ended(&self, token: u64) {
        let seen = &mut *lock(&self.seen);
        let stamp = self.stamp(seen);
        if let Some((_, ended)) = seen.grants.get_mut(&token) {
            *ended = Some(stamp);
        }
    }

    /// Adds to a history what servers did for each grant whose token they know. If there are any, the other grants stay without
    /// stamps and are not compared by order.
    pub fn complete(&self, history: &mut History) {
        let seen = lock(&self.seen);
        let mut tokens: HashMap<Op, u64> = HashMap::new();
        for event in &mut history.events {
            match &mut event.kind {
                EventKind::Granted { op, token: Some(token), trace, .. } => {
                    if let Some((granted, _)) = seen.grants.get(token) {
                        (trace.last, trace.served) = (Some(*granted), Some(*granted));
                        tokens.insert(*op, *token);
                    }
                }
                EventKind::Released { op, outcome: Some(ReleaseOutcome::Released), trace, .. } => {
                    let grant = tokens.get(op).and_then(|token| seen.grants.get(token));
                    // A later end has another reason: the grant was restored by a failover.
                    let ended = grant.and_then(|(_, ended)| *ended).filter(|ended| ended.at_us <= event.at_us);
                    if ended.is_some() {
                        (trace.first, trace.last) = (ended, ended);
                    }
                }
                _ => {}
            }
        }
    }
}

/// The change log of one server.
struct Log {
    grant_log: Arc<GrantLog>,
    /// The tokens of each lock's holders.
    held: HashMap<Vec<u8>, Vec<u64>>,
}

impl Log {
    fn set(&mut self, key: &[u8], tokens: Vec<u64>) {
        let before = self.held.remove(key).unwrap_or_default();
        // In one change, ended grants come before the new ones that take their place.
        before.iter().filter(|token| !tokens.contains(token)).for_each(|token| self.grant_log.ended(*token));
        tokens.iter().filter(|token| !before.contains(token)).for_each(|token| self.grant_log.granted(*token));
        if !tokens.is_empty() {
            self.held.insert(key.to_vec(), tokens);
        }
    }
}

impl ChangeLog for Log {
    fn record(&mut self, change: &Change<'_>) {
        match &change.effect {
            Effect::SetLock { lock } => self.set(change.key, lock.holders.iter().map(|grant| grant.token).collect()),
            Effect::Delete => self.set(change.key, Vec::new()),
            Effect::Flush => {
                for (_, tokens) in std::mem::take(&mut self.held) {
                    tokens.into_iter().for_each(|token| self.grant_log.ended(token));
                }
            }
            _ => {}
        }
    }

    fn end_unit(&mut self) {}
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::engine::harness::Harness;
    use crate::torture::check::{Property, Rules, judge};
    use crate::torture::history::Trace;

    /// Two acquisitions with these tokens. The client of `granted_first` knows of its grant and releases it before the other
    /// client knows of its own.
    fn history(grant_log: &GrantLog, tokens: [u64; 2], granted_first: usize) -> History {
        let mut history = History::default();
        let granted = |op: usize| EventKind::Granted {
            op: op as Op,
            token: Some(tokens[op]),
            valid_until_us: Some(10_000_000),
            watched: false,
            trace: Trace::default(),
        };
        for op in 0..2u32 {
            history.push(u64::from(op), op, EventKind::Acquire { op, lock: 0, lease_us: 10_000_000, wait_us: 0, job: 0 });
        }
        let late = 1 - granted_first;
        history.push(1_000_000, granted_first as u32, granted(granted_first));
        history.push(2_000_000, granted_first as u32, EventKind::Release { op: granted_first as Op });
        let released = EventKind::Released {
            op: granted_first as Op,
            outcome: Some(ReleaseOutcome::Released),
            tries: 1,
            trace: Trace::default(),
        };
        history.push(2_100_000, granted_first as u32, released);
        history.push(3_000_000, late as u32, granted(late));
        grant_log.complete(&mut history);
        history
    }

    #[test]
    fn tokens_are_judged_by_the_order_of_the_server() {
        let grant_log = GrantLog::new(Instant::now());
        let mut harness = Harness::new();
        harness.engine.keyspace_mut().changes.log = Some(grant_log.log());
        let mut grant = |owner: &str| {
            let reply = harness.run(&format!("LOCK.ACQUIRE door {owner} 10000"));
            harness.run(&format!("LOCK.RELEASE door {owner}"));
            reply.chars().filter(char::is_ascii_digit).collect::<String>().parse::<u64>().unwrap()
        };
        let tokens = [grant("alice"), grant("bob")];
        assert!(tokens[0] < tokens[1]);
        // The second grant was known first: by the clients' order the tokens decrease, by the server's order they increase.
        let violated = |history: &History| {
            let findings = judge(history, &Rules::new(Some(1), 10_000_000));
            let of_tokens = findings.into_iter().find(|(property, _)| *property == Property::Tokens);
            of_tokens.map_or(0, |(_, finding)| finding.violations.len())
        };
        assert_eq!(violated(&history(&grant_log, tokens, 1)), 0);
        assert_eq!(violated(&history(&grant_log, [tokens[1], tokens[0]], 1)), 0, "nor where they are known in that order");
        let swapped = GrantLog::new(Instant::now());
        swapped.granted(tokens[1]);
        swapped.granted(tokens[0]);
        assert_eq!(violated(&history(&swapped, tokens, 0)), 1, "a server that grants them in that order is found");
    }
}
