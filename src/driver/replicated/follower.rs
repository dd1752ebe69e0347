//! Applies committed batches to an engine without clients.

use std::collections::VecDeque;

use crate::driver::pace::Pace;
use crate::driver::replay::{Purpose, Replay};
use crate::driver::replicated::clock::moment;
use crate::engine::Engine;
use crate::persist::append::read::{Ending, Reader, Step};
use crate::persist::natives::clock::Moment;
use crate::quorum::node::Committed;
use crate::quorum::types::{Batch, ClusterTime};

/// The state that is built.
pub struct Follower {
    replay: Replay<Box<Engine>>,
    time: ClusterTime,
    /// What is left of a batch that is applied in part.
    reading: Option<Reader>,
}

impl Follower {
    /// Begins with an empty engine.
    pub fn new(engine: Box<Engine>) -> Follower {
        let time = ClusterTime::default();
        Follower { replay: Replay::new(engine, moment(time)), time, reading: None }
    }

    /// The time of the last batch.
    pub fn time(&self) -> ClusterTime {
        self.time
    }

    /// Sets the time of what is applied next. Time never goes back.
    pub fn set_time(&mut self, time: ClusterTime) {
        self.time = ClusterTime { us: self.time.us.max(time.us), ..time };
        self.replay.set_moment(moment(self.time));
    }

    /// What the state is built by.
    pub fn replay(&mut self) -> &mut Replay<Box<Engine>> {
        &mut self.replay
    }

    /// Applies a batch.
    ///
    /// # Errors
    /// In words: it has what this version does not know, or is not whole.
    pub fn apply(&mut self, batch: &Batch) -> Result<(), String> {
        self.apply_slice(batch, &mut Pace::unlimited()).map(|_| ())
    }

    /// Applies entries until all are applied or the slice is over, and removes those that are. Returns whether all are.
    ///
    /// # Errors
    /// In words: an entry cannot be applied.
    pub fn apply_some(&mut self, entries: &mut VecDeque<Committed>, slice: &mut Pace) -> Result<bool, String> {
        while let Some(entry) = entries.front() {
            let applied = self.apply_slice(&entry.batch, slice);
            if !applied.map_err(|reason| format!("entry {} of the log cannot be applied: {reason}", entry.index))? {
                return Ok(false);
            }
            entries.pop_front();
        }
        Ok(true)
    }

    /// Applies a batch, or what is left of it, until the slice is over. Returns whether all of it is applied.
    fn apply_slice(&mut self, batch: &Batch, slice: &mut Pace) -> Result<bool, String> {
        if self.reading.is_none() {
            self.set_time(batch.time);
        }
        let reader = self.reading.get_or_insert_with(|| {
            let mut reader = Reader::of_batch(batch.bytes.len() as u64);
            reader.feed(&batch.bytes);
            reader
        });
        loop {
            match reader.step().map_err(|damage| damage.to_string())? {
                Step::Unit(unit) => self.replay.unit(unit)?,
                Step::Preamble => return Err("a batch begins with an RDB".to_owned()),
                Step::More => break,
            }
            if slice.is_over() {
                return Ok(false);
            }
        }
        match self.reading.take().map(Reader::finish) {
            Some(Err(damage)) => Err(damage.to_string()),
            Some(Ok(Ending::Torn(damage))) => Err(format!("{batch} is not whole: {damage}")),
            _ => Ok(true),
        }
    }

    /// Returns the engine, in which time passes from this moment on.
    ///
    /// # Errors
    /// In words: records contradict each other.
    pub fn finish(mut self, at: Moment, purpose: Purpose) -> Result<Box<Engine>, String> {
        self.replay.set_moment(at);
        self.replay.finish(at.now, purpose).map(|(engine, _)| engine)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::base::time::Now;
    use crate::engine::config::Config;

    #[test]
    fn what_a_newer_version_wrote_is_refused_and_named() {
        crate::on_executor_stack(|| {
            let engine = Engine::new(Config::default(), 0, Now::new(0, 0), crate::commands::table());
            let mut follower = Follower::new(Box::new(engine));
            let batch = |bytes: &'static [u8]| Batch {
                origin: 1,
                number: 1,
                time: ClusterTime::default(),
                bytes: Bytes::from_static(bytes),
            };
            assert_eq!(follower.apply(&batch(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n")), Ok(()));
            let refused = follower.apply(&batch(b"*2\r\n$11\r\nLOCK.LATERS\r\n$1\r\na\r\n")).unwrap_err();
            assert!(refused.contains("LOCK.LATERS"), "{refused}");
        });
    }
}
