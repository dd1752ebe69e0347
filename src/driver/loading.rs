//! A load at a start, in slices: clients are served meanwhile, and get `LOADING` errors. The adapter reads the files.

use crate::base::time::Now;
use crate::driver::Driver;
use crate::driver::replay::{Purpose, Replay};
use crate::engine::Engine;
use crate::persist::natives::clock::Moment;
use crate::persist::rdb_file::load::Tally;

impl Driver {
    /// Begins to load files of so many bytes, at this moment. Returns what the adapter applies them to, until it calls
    /// [`Driver::end_loading`].
    pub fn begin_loading(&mut self, moment: Moment, bytes: u64) -> Replay<Box<Engine>> {
        Replay::new(self.engine.begin_loading(moment.now, bytes), moment)
    }

    /// Takes note of how many bytes of the files are loaded, and of how much memory their writer used.
    pub fn note_loaded(&mut self, bytes: u64, used_memory: u64) {
        if let Some(figures) = self.engine.persistence_mut().loading_mut() {
            (figures.loaded_bytes, figures.used_memory) = (bytes, used_memory);
        }
    }

    /// Takes over what was loaded; `tally` says how many keys of RDBs. Returns the number of keys. [`Driver::log_as_configured`]
    /// belongs behind it, when changes go where they are to go: it may have been set meanwhile.
    ///
    /// # Errors
    /// In words: the files contradict themselves.
    pub fn end_loading(
        &mut self,
        now: Now,
        replay: Replay<Box<Engine>>,
        purpose: Purpose,
        tally: Tally,
    ) -> Result<usize, String> {
        let (engine, keys) = replay.finish(now, purpose)?;
        self.engine.end_loading(*engine);
        self.engine.persistence_mut().last_load = [tally.expired, tally.loaded];
        // What was loaded is no change since the last snapshot.
        let changes = self.engine.keyspace().changes.count;
        self.engine.persistence_mut().snapshot.saved_changes = changes;
        Ok(keys)
    }
}
