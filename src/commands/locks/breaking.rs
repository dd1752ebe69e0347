//! `LOCK.BREAK`: an administrator ends a grant.

use crate::base::error::{Error, Result};
use crate::base::ids::Key;
use crate::base::words::{brief, pasteable};
use crate::commands::locks::acquire::{LOCK, token};
use crate::engine::command::options::{Tail, upper};
use crate::engine::command::{Categories, Command, Flags, row, rows};
use crate::engine::context::Context;
use crate::engine::locks::refusal_error;
use crate::engine::observe::notices::Notice;
use crate::lock::history::breaks::Breaker;

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("lock.break", break_lock, "key TOKEN token [REASON reason]",
    "Ends one grant of a lock or a semaphore, which LOCK.INFO shows by its token, and serves the next waiter at once. LOCK.WHY shows who did it, and why.";
    flags: Flags::WRITE, categories: Categories::LOCKADMIN,
    complexity: "O(1), or O(N) for N waiters that are granted the lock together", ..LOCK)]);

fn break_lock(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut of, mut reason): (Option<u64>, &[u8]) = (None, b"");
    let mut rest = Tail(&args[2..]);
    while let Some(word) = rest.next() {
        match &*upper(word) {
            b"TOKEN" => of = Some(token(rest.value()?)?),
            b"REASON" => reason = brief(rest.value()?),
            _ => return Err(Error::SYNTAX),
        }
    }
    let of = of.ok_or(Error::SYNTAX)?;
    if cx.db().peek(args[1]).is_some_and(|entry| !entry.is_native()) {
        let name = pasteable(args[1]);
        return Err(Error::new(format!("WRONGTYPE {name} is a plain key, which has no grant to break: DEL {name} ends it")));
    }
    let (now, db, session) = (cx.now, cx.db, cx.session);
    let client = cx.engine.lock_client(cx.session);
    let known = cx.engine.known_client(client);
    let (told, reason) = (reason, reason.into());
    let (user, name, addr) = (known.user, known.name, known.addr);
    let by = Breaker { client: client.id, user, name, addr, reason };
    let broken = cx
        .engine
        .keyspace_mut()
        .with_locks(now, |locks, keys| locks.break_grant(keys, now, Key { db, name: args[1] }, of, (client, by)));
    let owner = broken.map_err(|refusal| refusal_error(&refusal, args[1], b"", 0))?;
    let notice = Notice::Broken { db, lock: args[1], owner: &owner, token: of, reason: told };
    cx.engine.notice(now, Some(session), notice);
    cx.reply.integer(1);
    Ok(())
}
