//! The receiving end of a [live copy](crate::persist::live_copy): applies its parts to another engine.

use std::sync::Arc;

use crate::base::time::Now;
use crate::driver::copy::CopyProgress;
use crate::driver::replay::{Purpose, Replay};
use crate::engine::Engine;
use crate::engine::config::Config;
use crate::persist::append::read::{Reader, Step};
use crate::persist::live_copy::Part;
use crate::persist::natives::clock::Moment;
use crate::persist::rdb_file;
use crate::persist::rdb_file::load::Loader;

/// An engine that becomes a copy.
pub struct Received {
    replay: Replay<Box<Engine>>,
    now: Now,
    items: rdb_file::read::Reader,
    loader: Loader,
}

impl Received {
    /// Begins to receive a copy. The engine must be empty.
    pub fn new(engine: Box<Engine>, moment: Moment) -> Self {
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

    /// Ends the copy after its last part. Returns the engine.
    ///
    /// # Errors
    /// In words: the copy is not whole.
    pub fn finish(mut self) -> Result<Box<Engine>, String> {
        self.items.check_end().map_err(|fault| fault.to_string())?;
        let refusals = self.replay.take_refusals();
        match refusals.named.iter().chain(&refusals.libraries).next() {
            Some(refusal) => Err(format!("the copy refused a change: {refusal}")),
            None => Ok(self.replay.finish(self.now, Purpose::Base)?.0),
        }
    }
}

/// What is on the way to the receiver of a copy.
pub enum Message {
    /// A part, and when it was written.
    Part(Part, Moment),
    /// The copy is whole: it has the keys of this moment.
    End(Moment),
}

/// A copy that was received: the engine, and the moment whose keys it has; or why there is none.
pub type Copied = Result<(Box<Engine>, Moment), String>;

/// What came of a message.
pub enum Taken {
    /// There is more to receive. With `true`, the driver is to go on copying.
    More(Box<Receiver>, bool),
    /// The copy was received.
    Whole(Copied),
    /// It was given up.
    GivenUp,
}

/// The receiver of a copy.
pub struct Receiver {
    received: Received,
    progress: Arc<CopyProgress>,
}

impl Receiver {
    /// The receiver of a copy that begins at this moment, of a server with this configuration.
    pub fn new(config: Config, moment: Moment, progress: Arc<CopyProgress>) -> Box<Receiver> {
        let config = Config { maxmemory: 0, ..config };
        let engine = Box::new(Engine::new(config, 0, moment.now, crate::commands::table()));
        Box::new(Receiver { received: Received::new(engine, moment), progress })
    }

    /// Receives a message.
    pub fn receive(mut self: Box<Self>, message: Message) -> Taken {
        if self.progress.is_abandoned() {
            return Taken::GivenUp;
        }
        match message {
            Message::Part(part, moment) => match self.received.apply(&part, moment) {
                Ok(()) => {
                    let goes_on = self.progress.received(&part);
                    Taken::More(self, goes_on)
                }
                Err(reason) => Taken::Whole(Err(reason)),
            },
            Message::End(moment) => Taken::Whole(self.received.finish().map(|engine| (engine, moment))),
        }
    }
}
