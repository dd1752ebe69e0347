//! `LOCK.SESSION`: sessions whose grants outlive a connection.

use crate::base::error::{Error, Result};
use crate::commands::locks::acquire::{LOCK, milliseconds};
use crate::engine::command::{Command, Flags, Keys, row, rows};
use crate::engine::context::Context;
use crate::engine::locks::ENDED_AT_ONCE;
use crate::lock::sessions::ID_MAX;

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("lock.session", session, "id [GRACE milliseconds | END]",
    "Names the lock session of a connection, or takes one over. Its SESSION grants outlive the connection by the grace period. END ends the session and its grants. Returns the number of grants.";
    flags: Flags::WRITE.union(Flags::FAST).union(Flags::NOSCRIPT), keys: Keys::None,
    complexity: "O(1), or O(N) for N grants that END ends", ..LOCK)]);

fn session(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let id = args[1];
    fail_if!(!(1..=ID_MAX).contains(&id.len()), Error::new(format!("ERR session id must have 1 to {ID_MAX} bytes")));
    let (end, grace_ms) = match args[2..] {
        [] => (false, None),
        [word] if word.eq_ignore_ascii_case(b"END") => (true, None),
        [word, ms] if word.eq_ignore_ascii_case(b"GRACE") => (false, Some(milliseconds(ms, 0, "grace")?)),
        _ => return Err(Error::SYNTAX),
    };
    let (now, client) = (cx.now, cx.engine.lock_client(cx.session));
    let user = cx.session().user;
    let user = cx.engine.users().name(user).unwrap_or_default().to_vec();
    let of = (id, &user[..]);
    let grants = cx.engine.keyspace_mut().with_locks(now, |locks, keys| {
        if end {
            locks.end_session(keys, now, of, &mut { ENDED_AT_ONCE })
        } else {
            let named = locks.name_session(now, client, of, grace_ms);
            locks.end_over(keys, now, &mut { ENDED_AT_ONCE });
            named
        }
    });
    let grants = grants.map_err(|_| Error::quoting("NOPERM session '", id, "' belongs to another user"))?;
    cx.reply.integer(i64::try_from(grants).unwrap_or(i64::MAX));
    Ok(())
}
