//! What a follower has yet to apply.
//!
//! A follower that has fallen behind is given much at once. It applies that in slices, with rests between them. Otherwise other
//! threads would wait for a processor until all of it is applied, on a machine with few of them. It does not rest while more
//! comes than it applies.

use std::collections::VecDeque;
use std::time::Duration;

use crate::driver::pace::Pace;
use crate::driver::replicated::follower::Follower;
use crate::quorum::node::{Applied, Committed, Done};

/// Nanoseconds from the beginning of a slice to that of the next one, at least.
const EVERY_NS: u64 = 800_000;
/// Number of groups from which on it does not rest.
const GROUPS_MAX: usize = 4;

/// Groups of entries, with who is told when they are applied.
#[derive(Default)]
pub struct Backlog {
    groups: VecDeque<(VecDeque<Committed>, Done)>,
    /// In nanoseconds of the monotonic clock.
    rests_until_ns: Option<u64>,
}

impl Backlog {
    /// Adds a group.
    pub fn push(&mut self, entries: Vec<Committed>, done: Done) {
        self.groups.push_back((entries.into(), done));
    }

    /// Applies a slice of the groups, which begins at `now_ns` of the monotonic clock, unless it is time to rest.
    ///
    /// # Errors
    /// In words: an entry cannot be applied.
    pub fn apply_some(&mut self, follower: &mut Follower, now_ns: u64, mut slice: Pace) -> Result<(), String> {
        if self.rest(now_ns).is_some() {
            return Ok(());
        }
        while let Some((entries, _)) = self.groups.front_mut() {
            if !follower.apply_some(entries, &mut slice)? {
                self.rests_until_ns = Some(now_ns + EVERY_NS);
                return Ok(());
            }
            // Who gave it may not wait any more.
            self.groups.pop_front().into_iter().for_each(|(_, done)| _ = done.send(Applied::Done));
        }
        Ok(())
    }

    /// Ends the rest.
    pub fn end_rest(&mut self) {
        self.rests_until_ns = None;
    }

    /// How long it rests from `now_ns` on, if it does; `None` as well if there is nothing to apply.
    pub fn rest(&self, now_ns: u64) -> Option<Duration> {
        let until_ns = self.rests_until_ns.filter(|_| (1..GROUPS_MAX).contains(&self.groups.len()))?;
        Some(Duration::from_nanos(until_ns.saturating_sub(now_ns))).filter(|left| !left.is_zero())
    }

    /// Whether there is nothing to apply.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Forgets everything: another state takes the place of this one.
    pub fn clear(&mut self) {
        *self = Backlog::default();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::base::time::Now;
    use crate::engine::Engine;
    use crate::engine::config::Config;
    use crate::quorum::node::done;
    use crate::quorum::types::{Batch, ClusterTime};

    /// A batch that sets 40 keys.
    fn entry(number: u64) -> Vec<Committed> {
        let set = |key| format!("*3\r\n$3\r\nSET\r\n$4\r\n{:04}\r\n$1\r\n1\r\n", number * 40 + key);
        let bytes = (0..40).map(set).collect::<String>().into();
        vec![Committed { index: number, batch: Batch { origin: 1, number, time: ClusterTime::default(), bytes } }]
    }

    #[test]
    fn a_long_batch_is_applied_in_slices_with_rests_unless_there_is_too_much() {
        crate::on_executor_stack(|| {
            let engine = Engine::new(Config::default(), 0, Now::new(0, 0), crate::commands::table());
            let (mut follower, mut backlog) = (Follower::new(Box::new(engine)), Backlog::default());
            let push = |backlog: &mut Backlog, number| {
                let (done, applied) = done();
                backlog.push(entry(number), done);
                applied
            };
            let mut first = push(&mut backlog, 1);
            let now_ns = 5_000_000;
            // The clock is read after every 16 requests.
            let slice = || Pace::lasting(Duration::ZERO, || 0);
            backlog.apply_some(&mut follower, now_ns, slice()).unwrap();
            assert_eq!((backlog.rest(now_ns), backlog.rest(now_ns + EVERY_NS)), (Some(Duration::from_nanos(EVERY_NS)), None));
            assert!(first.try_recv().is_err());
            backlog.apply_some(&mut follower, now_ns, Pace::unlimited()).unwrap();
            assert!(first.try_recv().is_err(), "it rests");
            let others: Vec<_> = (2..=GROUPS_MAX as u64).map(|number| push(&mut backlog, number)).collect();
            assert!(backlog.rest(now_ns).is_none(), "more comes than it applies");
            backlog.apply_some(&mut follower, now_ns, slice()).unwrap();
            assert!(first.try_recv().is_err(), "32 of 40");
            backlog.apply_some(&mut follower, now_ns, Pace::unlimited()).unwrap();
            assert!(backlog.is_empty() && backlog.rest(now_ns).is_none());
            for mut applied in others.into_iter().chain([first]) {
                assert_eq!(applied.try_recv(), Ok(Applied::Done));
            }
            let engine = follower.finish(
                crate::driver::replicated::clock::moment(ClusterTime::default()),
                crate::driver::replay::Purpose::TakeOver,
            );
            assert_eq!(engine.unwrap().keyspace().db_len(0), 40 * GROUPS_MAX, "each key once");
        });
    }
}
