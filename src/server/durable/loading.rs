//! The load at a start, in slices between the turns of the event loop. Clients are served meanwhile, and get `LOADING` errors.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::persist::append::clock::Moment;
use crate::server::durable::boot;
use crate::server::durable::load::Files;
use crate::server::durable::pace::Pace;
use crate::server::durable::replay::Replay;
use crate::server::durable::start::{Then, begin_log};
use crate::server::net::control::Control;
use crate::server::shell::Shell;

/// A load in progress.
pub struct Loading {
    /// Fills an engine of its own.
    replay: Replay<Box<Engine>>,
    files: Files,
    then: Then,
    control: Control<Shell>,
    /// Told when all is loaded.
    loaded: SyncSender<()>,
    began: Instant,
    /// When the next slice begins, because of `key-load-delay`.
    resumes: Instant,
}

impl Shell {
    /// Begins to load files.
    pub(super) fn begin_loading(&mut self, files: Files, then: Then, control: Control<Shell>, loaded: SyncSender<()>) {
        // In this order: time that passes between the two makes a lease end later, not earlier.
        let boot = boot::clock();
        let moment = Moment { boot, now: self.clock.now() };
        let (_, total) = files.progress();
        let replay = Replay::new(self.engine.begin_loading(moment.now, total), moment);
        let began = Instant::now();
        self.loading = Some(Box::new(Loading { replay, files, then, control, loaded, began, resumes: began }));
    }

    /// How long the next slice of a load is to be waited for; `None` if nothing is loaded.
    pub(in crate::server) fn next_load(&self) -> Option<Duration> {
        let loading = self.loading.as_ref()?;
        // Without the delay, the next slice begins at once.
        let delays = self.engine.config.key_load_delay != 0;
        Some(if delays { loading.resumes.saturating_duration_since(Instant::now()) } else { Duration::ZERO })
    }

    /// Loads a slice, if one is due.
    ///
    /// # Errors
    /// Why the server must not start, in words for its operator.
    #[cold]
    pub(in crate::server) fn load_some(&mut self) -> Result<(), String> {
        if self.next_load().is_none_or(|wait| !wait.is_zero()) {
            return Ok(());
        }
        let Some(loading) = &mut self.loading else { return Ok(()) };
        loading.replay.set_key_load_delay(self.engine.config.key_load_delay);
        // What was owed was waited for.
        let mut pace = Pace::slice();
        let done = loading.files.load_some(&mut loading.replay, &mut pace)?;
        loading.resumes = Instant::now() + pace.owed();
        if let Some(figures) = &mut self.engine.persistence.loading {
            figures.loaded_bytes = loading.files.progress().0;
            figures.used_memory = loading.files.used_memory();
        }
        if done { self.end_loading() } else { Ok(()) }
    }

    /// Serves what was loaded.
    fn end_loading(&mut self) -> Result<(), String> {
        let Some(loading) = self.loading.take() else { return Ok(()) };
        let Loading { replay, files, then, control, loaded, began, .. } = *loading;
        let tally = files.tally();
        let (engine, keys) = replay.finish(self.clock.now(), files.purpose())?;
        self.engine.end_loading(*engine);
        self.engine.persistence.last_load = [tally.expired, tally.loaded];
        // What was loaded is no change since the last snapshot.
        let changes = self.engine.keyspace.changes.count;
        self.engine.persistence.snapshot.saved_changes = changes;
        let seconds = began.elapsed().as_secs_f64();
        match then {
            Then::Serve => tracing::info!("DB loaded from disk: {keys} keys, {seconds:.3} seconds"),
            Then::Log(opened) => {
                tracing::info!("DB loaded from append only file: {keys} keys, {seconds:.3} seconds");
                begin_log(self, &control, *opened, files.finish())?;
            }
        }
        // Nobody waits if the server was told to end meanwhile.
        let _ = loaded.send(());
        // It may have been switched meanwhile.
        self.log_as_configured();
        self.after_order();
        Ok(())
    }
}
