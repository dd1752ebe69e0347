//! The receiving end of a [live copy](crate::persist::live_copy): applies its parts to another engine.

use crate::base::time::Now;
use crate::driver::replay::{Purpose, Replay};
use crate::engine::Engine;
use crate::persist::append::read::{Reader, Step};
use crate::persist::live_copy::Part;
use crate::persist::natives::clock::Moment;
use crate::persist::rdb_file;
use crate::persist::rdb_file::load::Loader;

/// An engine that becomes a copy.
pub struct Received<'e> {
    replay: Replay<&'e mut Engine>,
    now: Now,
    items: rdb_file::read::Reader,
    loader: Loader,
}

impl<'e> Received<'e> {
    /// Begins to receive a copy. The engine must be empty.
    pub fn new(engine: &'e mut Engine, moment: Moment) -> Self {
        let mut replay = Replay::new(engine, moment);
        let items = rdb_file::read::Reader::new(None, false, replay.unix_ms());
        let loader = replay.begin_rdb(true, true);
        Received { replay, now: moment.now, items, loader }
    }

    /// Applies the next part, which was written at this moment.
    ///
    /// # Errors
    /// In words: the part is not what a [`LiveCopy`](crate::persist::live_copy::LiveCopy) writes.
    pub fn apply(&mut self, part: &Part, moment: Moment) -> Result<(), String> {
        self.now = moment.now;
        self.replay.set_moment(moment);
        self.loader.set_moment(moment);
        match part {
            Part::Items(bytes) => {
                self.items.feed(bytes);
                while let Some(event) = self.items.next().map_err(|fault| fault.to_string())? {
                    self.replay.rdb_event(&mut self.loader, event).map_err(|fault| fault.to_string())?;
                }
            }
            Part::Changes(bytes) => {
                let mut requests = Reader::new(bytes.len() as u64);
                let mut fed = false;
                loop {
                    match requests.step().map_err(|damage| damage.to_string())? {
                        Step::Unit(unit) => self.replay.unit(unit)?,
                        Step::More if !fed => {
                            requests.feed(bytes);
                            fed = true;
                        }
                        Step::More => break,
                        Step::Preamble => return Err("changes do not begin with an RDB file".to_owned()),
                    }
                }
                requests.finish().map_err(|damage| damage.to_string())?;
            }
        }
        Ok(())
    }

    /// Ends the copy after its last part. Returns the number of keys.
    ///
    /// # Errors
    /// In words: the copy is not whole.
    pub fn finish(mut self) -> Result<usize, String> {
        self.items.check_end().map_err(|fault| fault.to_string())?;
        let refusals = self.replay.take_refusals();
        if let Some(refusal) = refusals.named.iter().chain(&refusals.libraries).next() {
            return Err(format!("the copy refused a change: {refusal}"));
        }
        Ok(self.replay.finish(self.now, Purpose::Base)?.1)
    }
}
