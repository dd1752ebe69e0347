//! Loading: the driver fills a second engine from its files, while this one refuses what needs the keys.
//!
//! ```text
//!   begin_loading ─▶ an engine to load into ─▶ the driver applies its files ─▶ end_loading: its keys are those of this engine now
//!        └───────────────── requests of clients: LOADING, unless the command has the flag ──────┘
//! ```
//!
//! A load neither meets a pause, a limit or an observer of this engine, nor counts in its statistics.
//!
//! An engine whose clients have keys already takes over a loaded one by [`Engine::reload`] (`DEBUG RELOAD`, `DEBUG LOADAOF`).

use crate::base::error::{Error, Result};
use crate::base::ids::{KeyBuf, SessionId};
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::{Command, Flags};
use crate::engine::persistence::{Loading, Reload};
use crate::keyspace::change::{Change, Effect, Event};
use crate::keyspace::images::Images;
use crate::keyspace::interests::NIL;
use crate::keyspace::journal::Libraries;
use crate::keyspace::lock_records::{Coming, LockRecords};
use crate::lock::Client;

impl Engine {
    /// Refuses commands without the flag `LOADING` until [`Engine::end_loading`]. Returns the engine to load into.
    pub fn begin_loading(&mut self, now: Now, total_bytes: u64) -> Box<Engine> {
        self.persistence.loading = Some(Loading { started_s: now.unix_ms() / 1000, total_bytes, ..Loading::default() });
        self.update_slow_path();
        self.empty_like_this(now)
    }

    /// An empty engine for [`Engine::reload`], with the same configuration.
    pub fn empty_like_this(&self, now: Now) -> Box<Engine> {
        // With the same seed, because hashes of keys and values derive from it.
        Box::new(Engine::new(self.config.clone(), self.host.seed, now, self.commands))
    }

    /// Takes over what was loaded, in place of the keys of this engine, which must have none, and serves all commands.
    pub fn end_loading(&mut self, loaded: Engine) {
        let libraries = loaded.library_sources();
        let Engine { keyspace: loaded, .. } = loaded;
        let next_token = self.keyspace.changes.locks.as_ref().map_or(0, |locks| locks.next_token());
        let keyspace = &mut self.keyspace;
        (keyspace.space, keyspace.numbers) = (loaded.space, loaded.numbers);
        keyspace.has_natives = loaded.has_natives;
        keyspace.changes.locks = loaded.changes.locks;
        keyspace.changes.locks_due_ms = loaded.changes.locks_due_ms;
        keyspace.changes.has_follow_up |= loaded.changes.has_follow_up;
        if let Some(locks) = &mut keyspace.changes.locks {
            locks.set_next_token(next_token);
        }
        for source in &libraries {
            if let Err(error) = self.scripts_mut().load_library(source) {
                tracing::error!(%error, "cannot load a function library");
            }
        }
        self.persistence.loading = None;
        // It may have changed meanwhile.
        self.distribute_config();
        self.memory.measure_again(self.config.maxmemory != 0);
        self.update_slow_path();
    }

    /// Replaces the keys, locks and libraries by those of `loaded`, or adds them, and reports that to the change log. `loaded` must
    /// come from [`Engine::empty_like_this`].
    ///
    /// Connections stay. For keys it is as if all were removed and written again: watched keys count as changed, and holders are
    /// told that their locks were deleted. For locks it is as at a restart: waiters are unblocked as if they timed out, grants of
    /// connections have ended, and named sessions have their grace; those of keys that stay (`flush` is false) go on. Tokens keep
    /// growing. Cached scripts stay.
    ///
    /// # Errors
    /// A key is in both engines, and `reload` allows neither to go: the key and its database. Nothing has changed then.
    pub fn reload(&mut self, now: Now, loaded: &Engine, reload: Reload) -> std::result::Result<(), KeyBuf> {
        debug_assert!(
            self.scripting.long_run.is_none() && loaded.host.seed == self.host.seed,
            "nothing runs meanwhile, and hashes are the same"
        );
        let state_of =
            |engine: &Engine| (engine.keyspace.images(Some(now)), engine.keyspace.lock_records(), engine.library_sources());
        let (mut images, mut records, mut libraries) = if reload.flush { Default::default() } else { state_of(self) };
        let (more_images, more_records, more_libraries) = state_of(loaded);
        for (key, image) in more_images {
            fail_if!(!reload.merge && images.contains_key(&key), key);
            images.insert(key, image);
        }
        records.sessions.retain(|_, session| more_records.sessions.values().all(|other| other.id != session.id));
        records.sessions.extend(more_records.sessions);
        records.requests.extend(more_records.requests);
        libraries.extend(more_libraries);
        let next_token = loaded.keyspace.changes.locks.as_ref().map_or(0, |locks| locks.next_token());
        let lock_waiters = self.clients.sessions.iter().filter(|(_, session)| session.lock_waiter != NIL);
        for id in lock_waiters.map(|(id, _)| id).collect::<Vec<_>>() {
            self.unblock_from_locks(now, id, None);
        }
        let connected: Vec<u64> = self.clients.sessions.iter().map(|(_, session)| session.id).collect();
        let stays = |client: Client| !reload.flush && connected.contains(&client.id);
        let scripts = self.scripting.interpreters.sources();
        self.keyspace.changes.begin();
        self.remove_state(now, &scripts);
        let coming = Coming::Restarted(self.config.lock_session_grace);
        self.put_state(now, (images, records, &libraries), 0, coming, stays);
        self.keyspace.with_locks(now, |locks, _| locks.set_next_token(next_token));
        self.publish_events();
        self.keyspace.changes.end();
        self.follow_up(now);
        Ok(())
    }

    /// Removes all keys, locks, libraries and scripts, and caches these scripts. Nobody may wait for a lock.
    pub(in crate::engine) fn remove_state(&mut self, now: Now, scripts: &[Box<[u8]>]) {
        for db in 0..self.keyspace.databases() as u32 {
            if self.keyspace.db_len(db) > 0 {
                self.keyspace.db(db, now).flush();
            }
        }
        if self.scripts_mut().flush() {
            let event = Event::SILENT;
            self.keyspace.changes.emit(Change { now, db: 0, key: b"", event, effect: Effect::FlushLibraries });
        }
        self.publish_events();
        // Holders are notified of the loss before they get their grants back.
        while self.keyspace.has_unfreed() || self.keyspace.changes.has_lost() {
            self.keyspace.free_some(&mut { u32::MAX });
        }
        self.serve_lock_waiters(now);
        self.keyspace.with_locks(now, |locks, _| locks.forget_all());
        for source in scripts {
            if let Err(error) = self.scripts_mut().load_script(source) {
                tracing::error!(%error, "cannot reload a cached script");
            }
        }
    }

    /// Writes keys, locks and libraries into an engine without any, with all times `later_ms` milliseconds later.
    pub(in crate::engine) fn put_state(
        &mut self,
        now: Now,
        (images, records, libraries): (Images, LockRecords, &Libraries),
        later_ms: i64,
        coming: Coming,
        connected: impl Fn(Client) -> bool,
    ) {
        for source in libraries {
            match self.scripts_mut().load_library(source) {
                Ok(()) => self.keyspace.changes.emit(Change {
                    now,
                    db: 0,
                    key: b"",
                    event: Event::SILENT,
                    effect: Effect::LoadLibrary { source },
                }),
                Err(error) => tracing::error!(%error, "cannot reload a function library"),
            }
        }
        self.keyspace.put_lock_records(now, records, later_ms, coming, &connected);
        for (key, image) in images {
            self.keyspace.put_image(now, key.as_key(), image, later_ms, &connected);
        }
        self.keyspace.with_locks(now, |locks, keys| locks.finish_adopting(keys, now));
    }

    /// Whether files are being loaded.
    pub fn is_loading(&self) -> bool {
        self.persistence.loading.is_some()
    }

    /// Refuses a command that may not run while files are loaded, and the `EXEC` of one.
    #[cold]
    pub(in crate::engine) fn check_loading(&self, id: SessionId, command: &Command) -> Result {
        let runs = |command: &Command| command.flags.contains(Flags::LOADING);
        let queued = self.clients.sessions[id].transaction.as_ref().filter(|_| command.is_exec());
        let queued = queued.into_iter().flat_map(|transaction| &transaction.queue);
        let all_run = queued.into_iter().all(|queued| self.diagnosis.command_stats.row(queued.slot.into()).is_some_and(runs));
        if runs(command) && all_run { Ok(()) } else { Err(Error::LOADING) }
    }
}
