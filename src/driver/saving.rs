//! When snapshots are made: `SAVE`, `BGSAVE` and the save points of `save`. A snapshot has the keys of the moment at which its
//! copy was whole.

use std::sync::Arc;

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::driver::copy::{CopyProgress, Copying, Purpose};
use crate::driver::{Driver, Present};
use crate::engine::Engine;

/// Milliseconds between two looks at the save points.
const LOOK_EVERY_MS: u64 = 1000;
/// Milliseconds after a failed snapshot before save points begin another one: Redis's `CONFIG_BGSAVE_RETRY_DELAY`.
const AGAIN_MS: u64 = 5000;

/// State of snapshots besides what `INFO` shows.
#[derive(Default)]
pub(super) struct Saving {
    /// Of the one that is being made: what its receiver must be told if it is given up, even when the copy is whole.
    running: Option<Arc<CopyProgress>>,
    /// Sessions whose `SAVE` waits for the snapshot in progress.
    waiting: Vec<SessionId>,
    /// When the save points are looked at next, in monotonic milliseconds; `None` without any.
    pub(super) look_ms: Option<u64>,
    /// When the last one began, in monotonic milliseconds.
    tried_ms: u64,
    /// The number of the last one. What is told of an earlier one is about one that was given up.
    number: u64,
}

impl Saving {
    /// Of an engine that has begun.
    pub(super) fn of(engine: &Engine) -> Saving {
        Saving { look_ms: first_look_ms(engine, engine.started()), ..Saving::default() }
    }
}

/// When the save points are looked at first.
fn first_look_ms(engine: &Engine, now: Now) -> Option<u64> {
    (!engine.config().save.is_empty()).then(|| now.deadline_in(LOOK_EVERY_MS))
}

impl Driver {
    /// Begins a snapshot; `SAVE` waits for it. One that is in progress goes on instead, unless `anew`.
    pub fn save(&mut self, at: Present, session: Option<SessionId>, anew: bool) {
        if let Some(id) = session {
            self.saving.waiting.push(id);
        }
        if anew {
            self.abandon_snapshot();
        }
        if self.saving.running.is_some() {
            return;
        }
        // The append-only file may be being switched on.
        self.engine.persistence_mut().snapshot.scheduled = self.copies();
        if self.copies() {
            return;
        }
        self.saving.tried_ms = at.now.mono_ms();
        self.saving.number += 1;
        let number = self.saving.number;
        if let Err(reason) = self.may_save() {
            return self.snapshot_made(at, number, Err(reason));
        }
        tracing::info!("Background saving started");
        self.engine.persistence_mut().snapshot.since_ms = Some(at.now.mono_ms());
        self.engine.persistence_mut().snapshot.keys = [0, self.engine.keyspace().len() as u64];
        let copying = Copying::new(Purpose::Snapshot(number), self.limits);
        self.saving.running = Some(Arc::clone(&copying.progress));
        self.copying = Some(copying);
    }

    /// Whether there is something to save, and a name for it.
    ///
    /// # Errors
    /// In words: there is not.
    pub fn may_save(&self) -> Result<(), String> {
        #[cfg(feature = "quorum")]
        if self.member().is_some_and(|member| !member.leads()) {
            return Err("this node does not lead, and has no keys of its own".to_owned());
        }
        if self.engine.config().dbfilename.is_empty() { Err("dbfilename is empty".to_owned()) } else { Ok(()) }
    }

    /// Takes the end of a snapshot: its length in bytes, or why there is none.
    pub fn snapshot_made(&mut self, at: Present, number: u64, made: Result<u64, String>) {
        if number != self.saving.number {
            return;
        }
        self.saving.running = None;
        let changes = self.engine.persistence().snapshot.copied_changes;
        self.engine.persistence_mut().snapshot.end(at.now, made.is_ok().then_some(changes));
        match &made {
            Ok(_) => tracing::info!("Background saving terminated with success"),
            Err(reason) => tracing::warn!(reason, "Background saving error"),
        }
        if made.is_err() {
            // The receiver may have ended before the copy was whole.
            self.take_copy(Copying::is_for_snapshot);
        }
        self.tell_saved(at, made.is_ok());
    }

    /// Takes note of a snapshot that the adapter has written by itself at this time, in place of the one in progress.
    pub fn saved_at_once(&mut self, at: Present, made: bool) {
        let changes = self.engine.keyspace().changes.count;
        self.engine.persistence_mut().snapshot.end(at.now, made.then_some(changes));
        self.tell_saved(at, made);
    }

    /// Tells those who wait for a snapshot how it ended.
    fn tell_saved(&mut self, at: Present, saved: bool) {
        self.refuse_writes();
        for id in std::mem::take(&mut self.saving.waiting) {
            self.engine.end_wait_for_driver(at.now, id, (!saved).then_some(&Error::SAVE_FAILED));
        }
        self.go_on_saving(at);
    }

    /// Looks whether a save point is reached.
    #[cold]
    pub(super) fn look_at_save_points(&mut self, at: Present) {
        let now = at.now;
        let config = self.engine.config();
        self.saving.look_ms = Some(now.deadline_in(LOOK_EVERY_MS));
        let snapshot = &self.engine.persistence().snapshot;
        let changes = snapshot.changes_since(self.engine.keyspace().changes.count);
        let since_s = now.unix_ms() / 1000 - snapshot.last_unix_s.unwrap_or(self.engine.started().unix_ms() / 1000);
        let is_reached = |&(seconds, least): &(u64, u64)| changes >= least.max(1) && since_s > seconds as i64;
        // While files are loaded, what there is would replace what they have.
        let reached = config.save_points().find(is_reached).filter(|_| !self.engine.is_loading());
        let waits = snapshot.failed && now.mono_ms() < self.saving.tried_ms + AGAIN_MS;
        if let Some((seconds, _)) = reached
            && !waits
            && self.saving.running.is_none()
            && !self.engine.persistence().rewriting()
        {
            tracing::info!("{changes} changes in {seconds} seconds. Saving...");
            self.save(at, None, false);
        }
    }

    /// Applies a new value of `save`, or of another directive about snapshots.
    pub fn save_as_configured(&mut self, at: Present) {
        self.saving.look_ms = first_look_ms(&self.engine, at.now);
        self.refuse_writes();
    }

    /// Gives up the snapshot in progress: its file does not take the place of another one, also if the copy is whole and the file
    /// is being written. What is still told of it is not listened to.
    pub fn abandon_snapshot(&mut self) {
        let Some(running) = self.saving.running.take() else { return };
        running.abandon();
        self.saving.number += 1;
        self.engine.persistence_mut().snapshot.since_ms = None;
        self.engine.persistence_mut().snapshot.keys = [0; 2];
        self.take_copy(Copying::is_for_snapshot);
    }

    /// Begins what was scheduled for the time when nothing else is being made.
    pub(super) fn go_on_saving(&mut self, at: Present) {
        let persistence = self.engine.persistence_mut();
        if self.copying.is_some() || persistence.rewriting() || persistence.snapshot.since_ms.is_some() {
            return;
        }
        if persistence.snapshot.scheduled {
            self.save(at, None, false);
        } else if std::mem::take(&mut persistence.rewrite_scheduled) {
            self.rewrite(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::time::Now;
    use crate::driver::copy::CopyOrder;
    use crate::engine::Engine;
    use crate::engine::config::Config;
    use crate::persist::natives::clock::BootClock;

    const AT: Present = Present { now: Now::new(1_000_000, 0), ns: 1_000_000_000, frozen: false };

    /// Copies until the copy is whole. Returns what its receiver shares with the driver.
    fn copy(driver: &mut Driver) -> Arc<CopyProgress> {
        while driver.copy_some(AT, BootClock::default()) {}
        let orders = driver.take_demands().copy;
        assert!(matches!(orders.last(), Some(CopyOrder::End(_))), "{orders:?}");
        let begun = orders.into_iter().find_map(|order| match order {
            CopyOrder::Begin(_, _, progress) => Some(progress),
            _ => None,
        });
        begun.expect("it has begun")
    }

    #[test]
    fn a_snapshot_that_is_given_up_while_its_file_is_written_replaces_nothing() {
        crate::on_executor_stack(|| {
            let mut driver = Driver::new(Engine::new(Config::default(), 1, AT.now, crate::commands::table()));
            driver.save(AT, None, false);
            let first = copy(&mut driver);
            assert!(!first.is_abandoned());
            // As after FLUSHALL: what the first one has is outdated.
            driver.save(AT, None, true);
            assert!(first.is_abandoned());
            let second = copy(&mut driver);
            driver.snapshot_made(AT, 1, Ok(9));
            assert_eq!(driver.engine.persistence().snapshot.made, 0, "the first one was given up");
            driver.snapshot_made(AT, 3, Ok(9));
            assert_eq!((driver.engine.persistence().snapshot.made, second.is_abandoned()), (1, false));
        });
    }

    #[test]
    fn a_file_that_is_switched_off_before_its_base_is_written_is_not_being_switched_on() {
        crate::on_executor_stack(|| {
            let config = Config { appendonly: true, ..Config::default() };
            let mut driver = Driver::new(Engine::new(config, 1, AT.now, crate::commands::table()));
            driver.log_as_configured(AT);
            assert!(driver.take_demands().opens_file && driver.switches_log_on());
            assert!(driver.file_opened(AT, BootClock::default()).is_some());
            copy(&mut driver);
            assert!(driver.switches_log_on(), "its base is not on the disk");
            driver.engine.change_config(|config| config.appendonly = false);
            driver.log_as_configured(AT);
            driver.submit(AT, false, BootClock::default);
            assert!(!driver.switches_log_on());
            driver.file_begun(AT);
            driver.file_closed(AT);
            assert!(driver.is_memory_only() && driver.engine.persistence().figures.is_none());
        });
    }
}
