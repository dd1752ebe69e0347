//! Gives committed entries to the executor: at once on a leader, and in groups on a follower.
//!
//! ```text
//!   leader:    entries ─────────────────────▶ executor, which answers those who wait
//!   follower:  entries ─▶ held for a moment ─▶ executor, which is woken once for all of them
//! ```
//!
//! The executor's answers are read when the next entries come. Nobody is woken for them.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::AsyncRuntime;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

use crate::quorum::node::application::{Application, Applied, Asked, Committed};
use crate::quorum::runtime::Runtime;

/// How long a follower's entries wait for others. A new leader has so much less applied when it begins.
const HELD: Duration = Duration::from_millis(5);
/// Maximum number of groups that are given and not looked at.
const GROUPS_MAX: usize = 8;
/// About how many bytes of entries are given at a time, and held, at most.
pub const BYTES_MAX: usize = 256 << 10;

/// The error of whatever is asked of an executor that has ended.
pub fn ending() -> io::Error {
    io::Error::other("the server is ending")
}

/// Gives entries to an application. Copies give to the same one, in one order.
#[derive(Clone)]
pub struct ApplyQueue<M> {
    application: M,
    groups: Arc<Mutex<Groups>>,
}

#[derive(Default)]
struct Groups {
    held: Vec<Committed>,
    held_bytes: usize,
    /// Whether a task is waiting to give what is held.
    timed: bool,
    /// What becomes of the groups that were given, the first one first.
    given: VecDeque<oneshot::Receiver<Applied>>,
}

impl<M: Application> ApplyQueue<M> {
    /// Gives entries to this application.
    pub fn new(application: M) -> ApplyQueue<M> {
        ApplyQueue { application, groups: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Groups> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives entries at once, behind those that are held.
    pub fn give(&self, entries: Vec<Committed>) {
        let mut groups = self.lock();
        groups.held.extend(entries);
        self.give_held(&mut groups);
    }

    fn give_held(&self, groups: &mut Groups) {
        groups.held_bytes = 0;
        let (done, applied) = oneshot::channel();
        self.application.ask(Asked::Committed(std::mem::take(&mut groups.held), done));
        groups.given.push_back(applied);
    }

    /// Holds entries, and gives them within a moment.
    pub fn hold(&self, entries: Vec<Committed>) {
        let mut groups = self.lock();
        groups.held_bytes += entries.iter().map(|entry| entry.batch.bytes.len()).sum::<usize>();
        groups.held.extend(entries);
        if groups.held_bytes >= BYTES_MAX {
            self.give_held(&mut groups);
        } else if !std::mem::replace(&mut groups.timed, true) {
            let this = self.clone();
            drop(Runtime::spawn(async move {
                Runtime::sleep(HELD).await;
                this.end_hold();
            }));
        }
    }

    /// Gives what is held: its moment is over.
    fn end_hold(&self) {
        let mut groups = self.lock();
        groups.timed = false;
        if !groups.held.is_empty() {
            self.give_held(&mut groups);
        }
    }

    /// Forgets what is held, and what was given: the application's state is about to be replaced.
    pub fn forget(&self) {
        let mut groups = self.lock();
        (groups.held, groups.held_bytes) = (Vec::new(), 0);
        groups.given.clear();
    }

    /// Whether so much was given that it must be looked at.
    pub fn is_full(&self) -> bool {
        self.lock().given.len() >= GROUPS_MAX
    }

    /// What became of the groups that were given: of those that are applied, or of `all`, for which it waits. If the machine starts
    /// anew, it has taken none of the groups behind the first that it refused, and what is held is forgotten as well.
    ///
    /// # Errors
    /// The executor has ended.
    pub async fn applied(&self, all: bool) -> io::Result<Applied> {
        let mut applied = Applied::Done;
        loop {
            let Some(mut group) = self.lock().given.pop_front() else { break };
            let of_group = match group.try_recv() {
                Ok(applied) => applied,
                Err(TryRecvError::Empty) if all || applied == Applied::StartsAnew => group.await.map_err(|_| ending())?,
                Err(TryRecvError::Empty) => {
                    self.lock().given.push_front(group);
                    break;
                }
                Err(TryRecvError::Closed) => return Err(ending()),
            };
            if of_group == Applied::StartsAnew {
                applied = of_group;
            }
        }
        if applied == Applied::StartsAnew {
            self.forget();
        }
        Ok(applied)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;
    use futures_util::FutureExt;

    use super::*;
    use crate::quorum::node::application::Previous;
    use crate::quorum::types::{Batch, ClusterTime};

    /// The indexes of a group, and who is told of it.
    type Group = (Vec<u64>, oneshot::Sender<Applied>);

    /// Keeps what it is given.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<Group>>>);

    impl Kept {
        /// The indexes in each group that was given since the last call, after all of them were answered.
        fn answer(&self, applied: Applied) -> Vec<Vec<u64>> {
            let groups = std::mem::take(&mut *self.0.lock().unwrap());
            groups.into_iter().map(|(indexes, done)| (indexes, _ = done.send(applied)).0).collect()
        }
    }

    impl Application for Kept {
        fn ask(&self, asked: Asked) {
            if let Asked::Committed(entries, done) = asked {
                self.0.lock().unwrap().push((entries.iter().map(|entry| entry.index).collect(), done));
            }
        }

        fn compact(
            &self,
            _previous: Previous,
            _batches: &mut dyn Iterator<Item = io::Result<Batch>>,
            _into: &Path,
        ) -> Result<(), String> {
            Err("nothing is compacted here".to_owned())
        }
    }

    fn entry(index: u64, len: usize) -> Vec<Committed> {
        let time = ClusterTime { us: 0, wall_offset_ms: 0 };
        vec![Committed { index, batch: Batch { origin: 1, number: index, time, bytes: Bytes::from(vec![0; len]) } }]
    }

    #[tokio::test]
    async fn what_is_held_is_given_in_a_moment_and_in_order() {
        let kept = Kept::default();
        let queue = ApplyQueue::new(kept.clone());
        (1..=3).for_each(|index| queue.hold(entry(index, 10)));
        assert!(kept.answer(Applied::Done).is_empty(), "it waits for others");
        queue.end_hold();
        assert_eq!(kept.answer(Applied::Done), [[1, 2, 3]]);
        queue.hold(entry(4, 10));
        queue.give(entry(5, 10));
        assert_eq!(kept.answer(Applied::Done), [[4, 5]], "a leader does not wait");
        queue.hold(entry(6, BYTES_MAX));
        assert_eq!(kept.answer(Applied::Done), [[6]], "nor does much");
        queue.end_hold();
        assert!(kept.answer(Applied::Done).is_empty());
        assert_eq!(queue.applied(true).await.unwrap(), Applied::Done);
    }

    #[tokio::test]
    async fn a_machine_that_starts_anew_is_noticed_later_and_nothing_behind_is_given() {
        let kept = Kept::default();
        let queue = ApplyQueue::new(kept.clone());
        queue.give(entry(1, 10));
        assert_eq!(queue.applied(false).await.unwrap(), Applied::Done, "it is not known yet");
        queue.give(entry(2, 10));
        kept.answer(Applied::StartsAnew);
        queue.hold(entry(3, 10));
        assert_eq!(queue.applied(false).await.unwrap(), Applied::StartsAnew);
        queue.end_hold();
        assert!(kept.answer(Applied::Done).is_empty(), "the third is in the state that the machine is given now");
        assert_eq!(queue.applied(true).await.unwrap(), Applied::Done);
    }

    #[tokio::test]
    async fn an_executor_that_has_ended_is_noticed_and_one_that_is_slow_is_waited_for() {
        let kept = Kept::default();
        let queue = ApplyQueue::new(kept.clone());
        (0..GROUPS_MAX as u64).for_each(|index| queue.give(entry(index, 10)));
        assert!(queue.is_full());
        assert!(queue.applied(true).now_or_never().is_none());
        kept.0.lock().unwrap().clear();
        assert_eq!(queue.applied(false).await.unwrap_err().to_string(), ending().to_string());
    }
}
