//! Writes notices to the log, with the client that has caused them.

use tracing::info;

use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::observe::notices::{Notice, Shown};
use crate::engine::observe::redact::REDACTED;
use crate::engine::observe::turns::Task;
use crate::engine::session::Session;

impl Engine {
    /// Writes a line to the log, unless there were too many of its kind. `by` is the client that has caused it. What is loaded from files
    /// or comes from a leader was told of when it happened.
    #[cold]
    pub(crate) fn notice(&mut self, now: Now, by: Option<SessionId>, notice: Notice<'_>) {
        if self.is_loading() {
            return;
        }
        let Some(left_out) = self.diagnosis.notices.admit(now, &notice) else { return };
        let left_out = (left_out > 0).then_some(left_out);
        let hides = self.config.hide_user_data_from_log;
        let sent = |text| Shown(if hides { REDACTED } else { text });
        let session = by.and_then(|id| self.clients.sessions.get(id));
        let client = session.map(|session| session.id);
        let addr = session.map(|session| &*session.addr);
        let user = session.and_then(|session| self.users.name(session.user)).map(Shown).map(tracing::field::display);
        let name = session.map(Session::brief_name).filter(|name| !name.is_empty()).map(sent).map(tracing::field::display);
        match notice {
            Notice::LoginFailed { user, wait_ms } => {
                let wait_ms = (wait_ms > 0).then_some(wait_ms);
                info!(client, addr, name, user = %sent(user), wait_ms, left_out, "a login failed");
            }
            Notice::HttpLoginFailed { addr, wait_ms } => {
                let wait_ms = (wait_ms > 0).then_some(wait_ms);
                info!(addr, wait_ms, left_out, "a login over HTTP failed");
            }
            Notice::ClientRefused { addr, why } => info!(addr, why, left_out, "a connection was refused"),
            Notice::OutOfMemory { command, maxmemory } => {
                info!(client, addr, user, name, command, maxmemory, left_out, "a command was refused: maxmemory is used up");
            }
            Notice::Slow { command, addr, name, us } => {
                let name = (!name.is_empty()).then(|| tracing::field::display(sent(name)));
                info!(addr, name, command = %Shown(command), us, left_out, "a slow command; SLOWLOG GET has its arguments");
            }
            Notice::LongTurn { task, us, cpu_us } => info!(task, us, cpu_us, left_out, "all clients waited for other work"),
            Notice::Configured { directives } => {
                info!(client, addr, user, name, directives, left_out, "the configuration was changed")
            }
            Notice::Broken { db, lock, owner, token, reason } => {
                let (lock, owner, reason) = (sent(lock), sent(owner), sent(reason));
                info!(client, addr, user, name, db, %lock, %owner, token, %reason, left_out, "a lock was broken");
            }
            Notice::Deadlock { cycle } => {
                info!(client, addr, user, name, cycle = %sent(cycle), left_out, "a deadlock was refused")
            }
            Notice::SessionEnded { of, locks, lock, owner } => {
                let (lock, owner) = (sent(lock), sent(owner));
                info!(client = of, locks, %lock, %owner, left_out, "a session ended with locks");
            }
            Notice::LeaseEnded { db, lock, owner, token, of, waiters } => {
                let (lock, owner) = (sent(lock), sent(owner));
                info!(client = of, db, %lock, %owner, token, waiters, left_out, "a lease ended while others waited");
            }
            Notice::Flushed { db: Some(db), keys } => {
                info!(client, addr, user, name, db, keys, left_out, "a database was emptied")
            }
            Notice::Flushed { db: None, keys } => info!(client, addr, user, name, keys, left_out, "all databases were emptied"),
        }
    }

    /// Tells of a turn in which no client was served.
    #[cold]
    pub(crate) fn notice_turn(&mut self, now: Now, task: Task, ns: u64, cpu_ns: u64) {
        // A client's request is told of as a slow command.
        if !matches!(task, Task::Client(_)) {
            self.notice(now, None, Notice::LongTurn { task: task.name(), us: ns / 1000, cpu_us: cpu_ns / 1000 });
        }
    }
}
