//! Refuses commands that write while the driver's log does not take what they change.

use crate::base::error::{Error, Result};
use crate::base::ids::SessionId;
use crate::engine::Engine;
use crate::engine::command::{Command, Flags, Traits};

impl Engine {
    /// Refuses commands that write with this error, or accepts them again.
    #[cold]
    pub fn refuse_writes(&mut self, refusal: Option<Error>) {
        self.persistence.refusal = refusal;
        self.update_slow_path();
    }

    /// Refuses a command that writes while the log does not accept writes. As in Redis, `PING` is refused with them, so that monitoring
    /// notices.
    #[cold]
    pub(in crate::engine) fn check_disk(&self, id: SessionId, command: &Command, args: &[&[u8]]) -> Result {
        let Some(refusal) = &self.persistence.refusal else { return Ok(()) };
        let mut flags = self.flags_of(command, args);
        if command.is_exec()
            && let Some(transaction) = &self.clients.sessions[id].transaction
        {
            flags |= transaction.flags;
        }
        let writes = flags.contains(Flags::WRITE) || command.traits.contains(Traits::TELLS_OF_DISK);
        if writes { Err(refusal.clone()) } else { Ok(()) }
    }
}
