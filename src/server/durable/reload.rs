//! `DEBUG RELOAD` and `DEBUG LOADAOF`: the files are loaded into the running server, whose connections stay.
//!
//! ```text
//!   RELOAD  ─▶ a snapshot, written at once ─┐
//!   LOADAOF ─▶ the log, written to its end ─┴▶ a second engine ─▶ Engine::reload ─▶ the log: all keys removed and written again
//! ```
//!
//! It is a debugging command: the executor does nothing else meanwhile, as in Redis. Unlike in Redis, a file that cannot be
//! loaded leaves the keys as they are, and the append-only file has what was loaded.

use std::sync::mpsc::{channel, sync_channel};
use std::time::Duration;

use crate::base::error::Error;
use crate::base::ids::SessionId;
use crate::driver::file::Phase;
use crate::driver::pace::Pace;
use crate::driver::replay::{Purpose, Replay};
use crate::driver::round::Driving;
use crate::driver::round::storing::Storing;
use crate::driver::round::writers::Writer;
use crate::engine::persistence::{Reload, ReloadFrom};
use crate::persist::append::log_writer::Order;
use crate::persist::natives::clock::Moment;
use crate::server::durable::boottime;
use crate::server::durable::folder::{Folder, LogFolder};
use crate::server::durable::load::{Files, folder_of, read_manifest};
use crate::server::durable::start::Starts;
use crate::server::shell::Shell;

/// How long the executor waits until the log has written what is on its way.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);
/// The last increment may end in the middle of nothing: this process has written it.
const PURPOSE: Purpose = Purpose::Start { truncates: false };

impl Shell {
    /// Reloads in a turn of its own, so that the reply waits for the log as everything else that the reload causes.
    #[cold]
    pub(in crate::server) fn order_reload(&mut self, id: SessionId, from: ReloadFrom) {
        let closure = move |shell: &mut Shell| {
            shell.reload(id, from);
            shell.after_closure();
        };
        if let Some(control) = &self.control { _ = control.send(Box::new(closure)) } else { self.reload(id, from) }
    }

    fn reload(&mut self, id: SessionId, from: ReloadFrom) {
        let done = match from {
            ReloadFrom::Snapshot { save, .. } if save && !self.save_now() => Err(Error::SAVE_FAILED),
            ReloadFrom::Snapshot { reload, .. } => self.load_snapshot(reload).map_err(|reason| {
                tracing::warn!(reason, "DEBUG RELOAD failed");
                Error::RELOAD_FAILED
            }),
            ReloadFrom::Log => self.load_log().map_err(|reason| {
                tracing::warn!(reason, "DEBUG LOADAOF failed");
                Error::LOADAOF_FAILED
            }),
        };
        let now = self.clock.now();
        self.driver.engine.end_wait_for_driver(now, id, done.err().as_ref());
    }

    fn load_snapshot(&mut self, reload: Reload) -> Result<(), String> {
        let name = self.driver.engine.config().dbfilename.clone();
        fail_if!(name.is_empty(), "dbfilename is empty".to_owned());
        let (mut folder, _) = self.folder_of_snapshots();
        let files = Files::of_snapshot(&mut folder, name.as_bytes())?;
        let files = files.ok_or_else(|| format!("there is no {}", folder.path().join(&name).display()))?;
        let before = self.driver.engine.keyspace().changes.count;
        self.load_in_place(files, reload)?;
        // What was loaded is no change.
        let more = self.driver.engine.keyspace().changes.count - before;
        self.driver.engine.persistence_mut().snapshot.saved_changes += more;
        tracing::warn!("DB reloaded by DEBUG RELOAD");
        Ok(())
    }

    fn load_log(&mut self) -> Result<(), String> {
        self.submit_pending(true);
        let files = match (self.driver.file(), self.background.writers.current_mut()) {
            (Some(log), _) if log.phase != Phase::Running => return Err("it is being switched on or off".to_owned()),
            (Some(log), Some(file)) => {
                if let Some(error) = &log.stuck {
                    return Err(format!("the append-only file cannot be written: {error}"));
                }
                let (held, manifest) = sync_channel(1);
                // The files are opened before this is dropped: no rewriting removes one of them in between.
                let (_until_here, until) = channel::<()>();
                // Nobody waits any more if a full disk has delayed the order.
                let show = move |manifest| _ = held.try_send(manifest).is_ok() && until.recv().is_ok();
                file.order(Order::Show(Box::new(show)));
                let manifest = manifest.recv_timeout(WRITTEN_WITHIN);
                let manifest = manifest.map_err(|_| "the append-only file is not written in time".to_owned())?;
                Files::of_manifest(&mut Folder::at(&file.path), manifest, PURPOSE)?
            }
            _ => {
                let (path, name) =
                    (folder_of(self.driver.engine.config()), self.driver.engine.config().appendfilename.as_bytes());
                let mut folder = Folder::at(&path);
                let manifest = read_manifest(&mut folder, name)?;
                let manifest = manifest.ok_or_else(|| format!("there is no append-only file in {}", path.display()))?;
                Files::of_manifest(&mut folder, manifest, PURPOSE)?
            }
        };
        self.load_in_place(files, Reload { flush: true, merge: false })?;
        let changes = self.driver.engine.keyspace().changes.count;
        self.driver.engine.persistence_mut().snapshot.saved_changes = changes;
        tracing::warn!("Append Only File loaded by DEBUG LOADAOF");
        Ok(())
    }

    fn load_in_place(&mut self, mut files: Files, reload: Reload) -> Result<(), String> {
        // In this order: time that passes between the two makes a lease end later, not earlier.
        let boot = boottime::now();
        let moment = Moment { boot, now: self.clock.now() };
        let mut replay = Replay::new(self.driver.engine.empty_like_this(moment.now), moment);
        while !files.load_some(&mut replay, &mut Pace::unlimited())? {}
        let tally = files.tally();
        let now = self.clock.now();
        let (loaded, _) = replay.finish(now, files.purpose())?;
        let reloaded = self.driver.engine.reload(now, &loaded, reload);
        reloaded.map_err(|key| format!("RDB has duplicated key '{}' in DB {}", key.name.escape_ascii(), key.db))?;
        self.driver.engine.persistence_mut().last_load = [tally.expired, tally.loaded];
        Ok(())
    }
}
