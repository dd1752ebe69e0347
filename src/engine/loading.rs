//! Loading: the driver fills a second engine from its files, while this one refuses what needs the keys.
//!
//! ```text
//!   begin_loading ─▶ an engine to load into ─▶ the driver applies its files ─▶ end_loading: its keys are those of this engine now
//!        └───────────────── requests of clients: LOADING, unless the command has the flag ──────┘
//! ```
//!
//! A load neither meets a pause, a limit or an observer of this engine, nor counts in its statistics.

use crate::base::error::{Error, Result};
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::{Command, Flags};
use crate::engine::persistence::Loading;

impl Engine {
    /// Refuses commands without the flag `LOADING` until [`Engine::end_loading`]. Returns the engine to load into.
    pub fn begin_loading(&mut self, now: Now, total_bytes: u64) -> Box<Engine> {
        self.persistence.loading = Some(Loading { started_s: now.unix_ms() / 1000, total_bytes, ..Loading::default() });
        self.update_slow_path();
        // With the same seed, because hashes of keys and values derive from it.
        Box::new(Engine::new(self.config.clone(), self.seed, now, self.commands))
    }

    /// Takes over what was loaded, in place of the keys of this engine, which must have none, and serves all commands.
    pub fn end_loading(&mut self, loaded: Engine) {
        let libraries = loaded.library_sources();
        let Engine { keyspace: loaded, .. } = loaded;
        let next_token = self.keyspace.changes.locks.as_ref().map_or(0, |locks| locks.next_token());
        let keyspace = &mut self.keyspace;
        (keyspace.space, keyspace.numbers) = (loaded.space, loaded.numbers);
        keyspace.natives = loaded.natives;
        keyspace.changes.locks = loaded.changes.locks;
        keyspace.changes.locks_due_ms = loaded.changes.locks_due_ms;
        keyspace.changes.attention |= loaded.changes.attention;
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

    /// Whether files are being loaded.
    pub fn is_loading(&self) -> bool {
        self.persistence.loading.is_some()
    }

    /// Refuses a command that may not run while files are loaded, and the `EXEC` of one.
    #[cold]
    pub(in crate::engine) fn check_loading(&self, id: SessionId, command: &Command) -> Result {
        let runs = |command: &Command| command.flags.contains(Flags::LOADING);
        let queued = self.sessions[id.0 as usize].transaction.as_ref().filter(|_| command.is_exec());
        let queued = queued.into_iter().flat_map(|transaction| &transaction.queue);
        let all_run = queued.into_iter().all(|queued| self.command_stats.row(queued.slot.into()).is_some_and(runs));
        if runs(command) && all_run { Ok(()) } else { Err(Error::LOADING) }
    }
}
