//! What a follower has yet to apply.
//!
//! A follower that has fallen behind is given much at once. It applies that in slices, with rests between them. Otherwise other threads
//! would wait for a processor until all of it is applied, on a machine with few of them. It does not rest while more comes than it
//! applies.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::quorum::node::{Applied, Committed};
use crate::server::durable::load::pace::Pace;
use crate::server::replicated::follower::Follower;

/// Time from the beginning of a slice to that of the next one, at least.
const EVERY: Duration = Duration::from_micros(800);
/// Number of groups from which on it does not rest.
const GROUPS_MAX: usize = 4;

/// Groups of entries, with who is told when they are applied.
#[derive(Default)]
pub struct Backlog {
    groups: VecDeque<(VecDeque<Committed>, oneshot::Sender<Applied>)>,
    rests_until: Option<Instant>,
}

impl Backlog {
    /// Adds a group.
    pub fn push(&mut self, entries: Vec<Committed>, done: oneshot::Sender<Applied>) {
        self.groups.push_back((entries.into(), done));
    }

    /// Applies a slice of the groups, which begins `now`, unless it is time to rest.
    ///
    /// # Errors
    /// In words: an entry cannot be applied.
    pub fn apply_some(&mut self, follower: &mut Follower, now: Instant, mut slice: Pace) -> Result<(), String> {
        if self.rest(now).is_some() {
            return Ok(());
        }
        while let Some((entries, _)) = self.groups.front_mut() {
            if !follower.apply_some(entries, &mut slice)? {
                self.rests_until = Some(now + EVERY);
                return Ok(());
            }
            if let Some((_, done)) = self.groups.pop_front() {
                // Who gave it may not wait any more.
                let _ = done.send(Applied::Done);
            }
        }
        Ok(())
    }

    /// Ends the rest.
    pub fn end_rest(&mut self) {
        self.rests_until = None;
    }

    /// How long it rests from `now` on, if it does; `None` as well if there is nothing to apply.
    pub fn rest(&self, now: Instant) -> Option<Duration> {
        let until = self.rests_until.filter(|_| !self.groups.is_empty() && self.groups.len() < GROUPS_MAX)?;
        Some(until.saturating_duration_since(now)).filter(|left| !left.is_zero())
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
                let (done, applied) = oneshot::channel();
                backlog.push(entry(number), done);
                applied
            };
            let mut first = push(&mut backlog, 1);
            let now = Instant::now();
            // The clock is read after every 16 requests.
            let slice = || Pace::lasting(Duration::ZERO);
            backlog.apply_some(&mut follower, now, slice()).unwrap();
            assert_eq!((backlog.rest(now), backlog.rest(now + EVERY)), (Some(EVERY), None));
            assert!(first.try_recv().is_err());
            backlog.apply_some(&mut follower, now, Pace::unlimited()).unwrap();
            assert!(first.try_recv().is_err(), "it rests");
            let others: Vec<_> = (2..=GROUPS_MAX as u64).map(|number| push(&mut backlog, number)).collect();
            assert!(backlog.rest(now).is_none(), "more comes than it applies");
            backlog.apply_some(&mut follower, now, slice()).unwrap();
            assert!(first.try_recv().is_err(), "32 of 40");
            backlog.apply_some(&mut follower, now, Pace::unlimited()).unwrap();
            assert!(backlog.is_empty() && backlog.rest(now).is_none());
            for mut applied in others.into_iter().chain([first]) {
                assert_eq!(applied.try_recv(), Ok(Applied::Done));
            }
            let engine = follower.finish(
                crate::server::replicated::moment(ClusterTime::default()),
                crate::server::durable::load::Purpose::TakeOver,
            );
            assert_eq!(engine.unwrap().keyspace.db_len(0), 40 * GROUPS_MAX, "each key once");
        });
    }
}
