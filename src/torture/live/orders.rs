//! The order in which servers of this crate granted native locks and had them back, by their change logs: what no client can see.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::keyspace::change::{Change, ChangeLog, Effect};
use crate::recipes::ReleaseOutcome;
use crate::torture::history::{History, Op, Stamp, What};
use crate::torture::live::world::lock;

/// What servers did, by fencing token.
pub struct Orders {
    start: Instant,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Things done so far.
    number: u64,
    /// When each token was granted, and when its grant ended.
    grants: HashMap<u64, (Stamp, Option<Stamp>)>,
}

impl Orders {
    /// Of servers whose history began then.
    pub fn new(start: Instant) -> Arc<Orders> {
        Arc::new(Orders { start, seen: Mutex::default() })
    }

    /// A change log that notes what one server does.
    pub fn log(self: &Arc<Orders>) -> Box<dyn ChangeLog + Send> {
        Box::new(Log { orders: Arc::clone(self), held: HashMap::new() })
    }

    fn stamp(&self, seen: &mut Seen) -> Stamp {
        seen.number += 1;
        Stamp { order: seen.number, at_us: self.start.elapsed().as_micros() as u64 }
    }

    fn granted(&self, token: u64) {
        let seen = &mut *lock(&self.seen);
        let stamp = self.stamp(seen);
        // A grant that a failover brought back is the one that it was.
        seen.grants.entry(token).or_insert((stamp, None)).1 = None;
    }

    fn ended(&self, token: u64) {
        let seen = &mut *lock(&self.seen);
        let stamp = self.stamp(seen);
        if let Some((_, ended)) = seen.grants.get_mut(&token) {
            *ended = Some(stamp);
        }
    }

    /// Puts into a history what servers did for each grant whose token is known to them. Where any is, the others stay without: they are compared
    /// with nothing by order.
    pub fn complete(&self, history: &mut History) {
        let seen = lock(&self.seen);
        let mut tokens: HashMap<Op, u64> = HashMap::new();
        for event in &mut history.events {
            match &mut event.what {
                What::Granted { op, token: Some(token), trace, .. } => {
                    if let Some((granted, _)) = seen.grants.get(token) {
                        (trace.last, trace.served) = (Some(*granted), Some(*granted));
                        tokens.insert(*op, *token);
                    }
                }
                What::Released { op, given: Some(ReleaseOutcome::Released), trace, .. } => {
                    let grant = tokens.get(op).and_then(|token| seen.grants.get(token));
                    // What ended later ended for another reason: a failover brought it back.
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

/// Follows one server.
struct Log {
    orders: Arc<Orders>,
    /// Tokens that each lock is held with.
    held: HashMap<Vec<u8>, Vec<u64>>,
}

impl Log {
    fn set(&mut self, key: &[u8], tokens: Vec<u64>) {
        let before = self.held.remove(key).unwrap_or_default();
        // What ends makes room for what is granted in the same step.
        before.iter().filter(|token| !tokens.contains(token)).for_each(|token| self.orders.ended(*token));
        tokens.iter().filter(|token| !before.contains(token)).for_each(|token| self.orders.granted(*token));
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
                    tokens.into_iter().for_each(|token| self.orders.ended(token));
                }
            }
            _ => {}
        }
    }

    fn commit(&mut self) {}
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::engine::harness::Harness;
    use crate::torture::check::{Property, Rules, judge};
    use crate::torture::history::Trace;

    /// Two acquisitions with these tokens, of which the one is known of and released before the other is known of.
    fn history(orders: &Orders, tokens: [u64; 2], granted_first: usize) -> History {
        let mut history = History::default();
        let granted = |op: usize| What::Granted {
            op: op as Op,
            token: Some(tokens[op]),
            valid_until_us: Some(10_000_000),
            watched: false,
            trace: Trace::default(),
        };
        for op in 0..2u32 {
            history.push(u64::from(op), op, What::Acquire { op, lock: 0, lease_us: 10_000_000, wait_us: 0, wish: 0 });
        }
        let late = 1 - granted_first;
        history.push(1_000_000, granted_first as u32, granted(granted_first));
        history.push(2_000_000, granted_first as u32, What::Release { op: granted_first as Op });
        let released =
            What::Released { op: granted_first as Op, given: Some(ReleaseOutcome::Released), tries: 1, trace: Trace::default() };
        history.push(2_100_000, granted_first as u32, released);
        history.push(3_000_000, late as u32, granted(late));
        orders.complete(&mut history);
        history
    }

    #[test]
    fn tokens_are_judged_by_the_order_of_the_server() {
        let orders = Orders::new(Instant::now());
        let mut harness = Harness::new();
        harness.engine.keyspace.changes.log = Some(orders.log());
        let mut grant = |owner: &str| {
            let reply = harness.run(&format!("LOCK.ACQUIRE door {owner} 10000"));
            harness.run(&format!("LOCK.RELEASE door {owner}"));
            reply.chars().filter(char::is_ascii_digit).collect::<String>().parse::<u64>().unwrap()
        };
        let tokens = [grant("alice"), grant("bob")];
        assert!(tokens[0] < tokens[1]);
        // The second grant was known first: by the order of the clients the tokens go back, by the server's they do not.
        let violated = |history: &History| {
            let findings = judge(history, &Rules::new(Some(1), 10_000_000));
            let of_tokens = findings.into_iter().find(|(property, _)| *property == Property::Tokens);
            of_tokens.map_or(0, |(_, finding)| finding.violations.len())
        };
        assert_eq!(violated(&history(&orders, tokens, 1)), 0);
        assert_eq!(violated(&history(&orders, [tokens[1], tokens[0]], 1)), 0, "nor where they are known in that order");
        let swapped = Orders::new(Instant::now());
        swapped.granted(tokens[1]);
        swapped.granted(tokens[0]);
        assert_eq!(violated(&history(&swapped, tokens, 0)), 1, "a server that grants them in that order is found");
    }
}
