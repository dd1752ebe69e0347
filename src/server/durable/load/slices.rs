//! The load at a start, in slices between the turns of the event loop. Clients are served meanwhile, and get `LOADING` errors.

use std::io::{Read, Seek};

use crate::base::time::Now;
use crate::driver::Driver;
use crate::driver::pace::Pace;
use crate::driver::replay::Replay;
use crate::engine::Engine;
use crate::persist::natives::clock::Moment;
use crate::server::durable::load::{Files, LoadedFiles};

/// Files that are loaded for a driver. `R` is an open one.
pub struct Load<R> {
    /// Fills an engine of its own.
    replay: Replay<Box<Engine>>,
    files: Files<R>,
}

impl<R: Read + Seek> Load<R> {
    /// Begins to load files at this moment.
    pub fn begin(driver: &mut Driver, moment: Moment, files: Files<R>) -> Load<R> {
        Load { replay: driver.begin_loading(moment, files.progress().1), files }
    }

    /// Loads for as long as `pace` allows. Returns whether all is loaded.
    ///
    /// # Errors
    /// In words, with the file and the offset.
    pub fn load_some(&mut self, driver: &mut Driver, pace: &mut Pace) -> Result<bool, String> {
        self.replay.set_key_load_delay(driver.engine.config().key_load_delay);
        let done = self.files.load_some(&mut self.replay, pace)?;
        driver.note_loaded(self.files.progress().0, self.files.used_memory());
        Ok(done)
    }

    /// Hands over what was loaded. Returns the number of keys, too.
    ///
    /// # Errors
    /// In words: the files contradict themselves.
    pub fn end(self, driver: &mut Driver, now: Now) -> Result<(LoadedFiles, usize), String> {
        let keys = driver.end_loading(now, self.replay, self.files.purpose(), self.files.tally())?;
        Ok((self.files.finish(), keys))
    }
}
