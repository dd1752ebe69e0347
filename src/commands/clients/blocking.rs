//! `CLIENT PAUSE`, `UNPAUSE` and `UNBLOCK`: suspending and resuming other clients.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::engine::command::options::{choice, integer};
use crate::engine::command::{Command, Flags, Group, Traits, row};
use crate::engine::context::Context;
use crate::engine::pause::Mode;

const ADMIN: Command = Command {
    traits: Traits::KEEPS_CACHING,
    flags: Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE).union(Flags::ADMIN),
    group: Group::Connection,
    ..Command::DEFAULT
};

/// The row of `CLIENT PAUSE`.
pub const PAUSE: Command = row!("pause", pause, "timeout [WRITE | ALL]",
    "Suspends the commands of all clients, or those that write, for a number of milliseconds.";
    since: "3.0.0", ..ADMIN);

/// The row of `CLIENT UNBLOCK`.
pub const UNBLOCK: Command = row!("unblock", unblock, "client-id [TIMEOUT | ERROR]",
    "Unblocks a client that waits in a blocking command.";
    since: "5.0.0", complexity: "O(N) where N is the number of client connections", ..ADMIN);

/// The row of `CLIENT UNPAUSE`.
pub const UNPAUSE: Command = row!("unpause", unpause, "Resumes the commands of suspended clients.";
    since: "6.2.0", complexity: "O(N) where N is the number of paused clients", ..ADMIN);

fn pause(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mode = match args[3..] {
        [] => Mode::All,
        [mode] => choice(mode, &[("ALL", Mode::All), ("WRITE", Mode::Write)]).ok_or(Error::PAUSE_MODE)?,
        _ => return Err(Error::subcommand_syntax(args)),
    };
    let ms = match parse_i64(args[2]).ok_or(Error::TIMEOUT_NOT_INTEGER)? {
        ms if ms.checked_add(cx.now.unix_ms()).is_none() => return Err(Error::TIMEOUT_RANGE),
        ms => u64::try_from(ms).map_err(|_| Error::TIMEOUT_NEGATIVE)?,
    };
    let until_ms = cx.now.deadline_in(ms);
    cx.engine.pause(mode, until_ms);
    cx.reply.ok();
    Ok(())
}

fn unpause(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.engine.unpause();
    cx.reply.ok();
    Ok(())
}

fn unblock(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let fails = match args[3..] {
        [] => false,
        [reason] => choice(reason, &[("TIMEOUT", false), ("ERROR", true)]).ok_or(Error::UNBLOCK_REASON)?,
        _ => return Err(Error::subcommand_syntax(args)),
    };
    let client = integer(args[2])?;
    let unblocked = match cx.engine.sessions().find(client as u64) {
        Some(id) => cx.engine.unblock(cx.now, id, fails.then_some(&Error::UNBLOCKED)),
        None => false,
    };
    cx.reply.integer(i64::from(unblocked));
    Ok(())
}
