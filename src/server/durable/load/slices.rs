//! The load at a start, in slices between the turns of the event loop. Clients are served meanwhile, and get `LOADING` errors.

use std::time::{Duration, Instant};

use crate::driver::pace::Pace;
use crate::driver::replay::Replay;
use crate::engine::Engine;
use crate::server::clock::monotonic_ns;
use crate::server::durable::load::{Files, LoadedFiles};

/// What is done once all is loaded; `S` is the shell.
pub type Then<S> = Box<dyn FnOnce(&mut S, LoadedFiles) -> Result<(), String>>;

/// A load in progress.
pub struct Loading<S> {
    /// Fills an engine of its own.
    pub replay: Replay<Box<Engine>>,
    /// What is loaded.
    pub files: Files,
    /// What follows.
    pub then: Then<S>,
    /// What the log calls the files.
    pub source: &'static str,
    /// When it began.
    pub began: Instant,
    /// When the next slice begins, because of `key-load-delay`.
    pub resumes: Instant,
}

impl<S> Loading<S> {
    /// How long the next slice is to be waited for. Without a delay, it begins at once.
    pub fn wait(&self, delay: i64) -> Duration {
        if delay == 0 { Duration::ZERO } else { self.resumes.saturating_duration_since(Instant::now()) }
    }

    /// Loads a slice. Returns whether all is loaded.
    ///
    /// # Errors
    /// In words, with the file and the offset.
    pub fn load_some(&mut self, delay: i64) -> Result<bool, String> {
        self.replay.set_key_load_delay(delay);
        let mut pace = Pace::slice(monotonic_ns);
        let done = self.files.load_some(&mut self.replay, &mut pace)?;
        self.resumes = Instant::now() + pace.owed();
        Ok(done)
    }
}
