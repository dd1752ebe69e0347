//! The executor's part of a copy: it visits the keys between the turns of connections.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use crate::engine::config::Config;
use crate::persist::live_copy::LiveCopy;
use crate::persist::natives::clock::Moment;
use crate::server::durable::boot;
use crate::server::durable::copy::{BACKLOG_MAX, Copying, ENGINE_STACK, Message, Purpose, Shared, Then, be_nice, receive};
use crate::server::shell::Shell;

/// Bytes of items that are copied between two turns of connections: some tens of microseconds.
const ROOM: usize = 8 << 10;
/// Bytes of changes on the way beyond which the copy is given up: they come faster than they can be copied.
const CHANGES_MAX: u64 = 256 << 20;

impl Shell {
    /// Begins to copy the keyspace. `then` is called on the copy's thread.
    ///
    /// # Errors
    /// Why there can be no thread.
    pub(in crate::server::durable) fn begin_copy(&mut self, purpose: Purpose, then: Then) -> Result<Arc<Shared>, String> {
        let moment = Moment { boot: boot::clock(), now: self.clock.now() };
        let Some(control) = self.control.clone() else { return Err("the server has no event loop".to_owned()) };
        let config = Config { maxmemory: 0, ..self.driver.engine.config.clone() };
        let (messages, received) = channel();
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("copying".into()).stack_size(ENGINE_STACK);
        let spawned = thread.spawn(move || {
            be_nice();
            // An order that does nothing wakes the event loop, which goes on copying.
            let wake = || _ = control.send(Box::new(|_| ()));
            // After a panic the snapshot fails, instead of being in progress for ever. Only this thread has seen the other engine.
            let made = catch_unwind(AssertUnwindSafe(|| receive(config, moment, &received, &of_thread, &wake)));
            let made = made.unwrap_or_else(|_| Some(Err("the copying thread panicked".to_owned())));
            // Nobody listens to what becomes of a copy that was given up.
            if let Some(made) = made.filter(|_| !of_thread.abandoned.load(Ordering::Relaxed)) {
                then(made, &of_thread);
            }
        });
        spawned.map_err(|error| format!("cannot start a thread: {error}"))?;
        let libraries = self.driver.engine.library_sources();
        let copy = LiveCopy::begin(&self.driver.engine.keyspace, moment, libraries);
        self.driver.set_copy(Some(copy.clone()));
        self.copying = Some(Box::new(Copying { copy, messages, shared: Arc::clone(&shared), purpose }));
        self.update_files();
        Ok(shared)
    }

    /// Copies some keys, if a copy is in progress. Returns whether to call this again soon.
    pub(in crate::server::durable) fn copy_some(&mut self) -> bool {
        let Some(copying) = &self.copying else { return false };
        let backlog = copying.shared.backlog.load(Ordering::Relaxed);
        if copying.shared.changes.load(Ordering::Relaxed) + copying.copy.pending_bytes() as u64 > CHANGES_MAX {
            self.fail_copy("changes come faster than they can be copied");
            return false;
        }
        if backlog > BACKLOG_MAX {
            copying.shared.waits.store(true, Ordering::Relaxed);
            // The thread may have caught up before it saw that.
            return copying.shared.backlog.load(Ordering::Relaxed) <= BACKLOG_MAX;
        }
        let moment = Moment { boot: boot::clock(), now: self.clock.now() };
        let more = copying.copy.step(&self.driver.engine.keyspace, moment, ROOM).unwrap_or(false);
        copying.copy.take().into_iter().for_each(|part| copying.send(part, moment));
        if matches!(copying.purpose, Purpose::Snapshot) {
            self.driver.engine.persistence.snapshot.keys[0] = copying.copy.keys();
        }
        if more || self.driver.engine.keyspace.changes.in_unit() {
            return true;
        }
        if let Some(copying) = self.copying.take() {
            copying.copy.finish(&self.driver.engine.keyspace).into_iter().for_each(|part| copying.send(part, moment));
            let _ = copying.messages.send(Message::End(moment));
            match copying.purpose {
                Purpose::Snapshot => {
                    let changes = self.driver.engine.keyspace.changes.count;
                    self.driver.engine.persistence.snapshot.copied_changes = changes;
                }
                Purpose::Log(log, file) => {
                    self.begins_log = false;
                    self.log_file = Some(file);
                    self.driver.begin_file(log);
                }
            }
            self.driver.set_copy(None);
            self.update_files();
        }
        false
    }

    /// Gives up a copy in progress, and says so to what it was for.
    fn fail_copy(&mut self, reason: &str) {
        let Some(copying) = self.copying.take() else { return };
        copying.shared.abandoned.store(true, Ordering::Relaxed);
        self.driver.set_copy(None);
        self.update_files();
        match copying.purpose {
            Purpose::Snapshot => self.snapshot_failed(reason),
            Purpose::Log(..) => self.log_not_begun(reason),
        }
    }

    /// Gives up a copy in progress. Its thread ends without a word.
    pub(in crate::server::durable) fn abandon_copy(&mut self) {
        if let Some(copying) = self.copying.take() {
            copying.shared.abandoned.store(true, Ordering::Relaxed);
        }
        self.driver.set_copy(None);
        self.update_files();
    }
}
