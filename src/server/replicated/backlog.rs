//! What a follower has yet to apply.
//!
//! A follower that has fallen behind is given much at once. It applies that in slices with rests between them: on a machine with few
//! processors, others would wait for one until the whole is applied, and nobody waits for the follower. If more comes than it applies
//! so, it does not rest.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::quorum::node::{Applied, Committed};
use crate::server::durable::load::pace::Pace;
use crate::server::replicated::follower::Follower;

/// How long it rests after a slice.
const REST: Duration = Duration::from_micros(500);
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

    /// Applies a slice of the groups, unless it is time to rest.
    ///
    /// # Errors
    /// In words: an entry cannot be applied.
    pub fn apply_some(&mut self, follower: &mut Follower, mut slice: Pace) -> Result<(), String> {
        if self.rest().is_some() {
            return Ok(());
        }
        while let Some((entries, _)) = self.groups.front_mut() {
            if !follower.apply_some(entries, &mut slice)? {
                self.rests_until = Some(Instant::now() + REST).filter(|_| self.groups.len() < GROUPS_MAX);
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

    /// How long it rests, if it does; `None` as well if there is nothing to apply.
    pub fn rest(&self) -> Option<Duration> {
        let until = self.rests_until.filter(|_| !self.groups.is_empty() && self.groups.len() < GROUPS_MAX)?;
        Some(until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
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
            // The clock is read after every 16 requests.
            let slice = || Pace::lasting(Duration::ZERO);
            backlog.apply_some(&mut follower, slice()).unwrap();
            assert!(backlog.rest().is_some() && first.try_recv().is_err());
            backlog.apply_some(&mut follower, Pace::unlimited()).unwrap();
            assert!(first.try_recv().is_err(), "it rests");
            let others: Vec<_> = (2..=GROUPS_MAX as u64).map(|number| push(&mut backlog, number)).collect();
            assert!(backlog.rest().is_none(), "more comes than it applies");
            backlog.apply_some(&mut follower, slice()).unwrap();
            assert!(first.try_recv().is_err(), "32 of 40");
            backlog.apply_some(&mut follower, Pace::unlimited()).unwrap();
            assert!(backlog.is_empty() && backlog.rest().is_none());
            for mut applied in others.into_iter().chain([first]) {
                assert_eq!(applied.try_recv(), Ok(Applied::Done));
            }
            let engine = follower.finish(
                crate::server::replicated::moment(ClusterTime::default()),
                crate::server::durable::load::Purpose::Start { truncates: false },
            );
            assert_eq!(engine.unwrap().keyspace.db_len(0), 40 * GROUPS_MAX, "each key once");
        });
    }
}
