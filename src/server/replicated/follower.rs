//! Applies committed batches to an engine without clients.

use crate::engine::Engine;
use crate::persist::append::read::{Reader, Step};
use crate::persist::natives::clock::Moment;
use crate::quorum::types::{Batch, ClusterTime};
use crate::server::durable::load::Purpose;
use crate::server::durable::load::replay::Replay;
use crate::server::replicated::moment;

/// The state that is built.
pub struct Follower {
    replay: Replay<Box<Engine>>,
    time: ClusterTime,
}

impl Follower {
    /// Begins with an empty engine.
    pub fn new(engine: Box<Engine>) -> Follower {
        let time = ClusterTime::default();
        Follower { replay: Replay::new(engine, moment(time)), time }
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
        self.set_time(batch.time);
        let mut reader = Reader::behind_preamble(0, batch.bytes.len() as u64);
        reader.feed(&batch.bytes);
        loop {
            match reader.step().map_err(|damage| damage.to_string())? {
                Step::Unit(unit) => self.replay.unit(unit)?,
                Step::Preamble => return Err("a batch begins with an RDB".to_owned()),
                Step::More => break,
            }
        }
        match reader.finish().map_err(|damage| damage.to_string())? {
            crate::persist::append::read::Ending::Torn(damage) => Err(format!("{batch} is not whole: {damage}")),
            _ => Ok(()),
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
