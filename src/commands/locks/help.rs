//! `LOCK.HELP`, made from the rows of the table.

use crate::base::error::Result;
use crate::commands::locks::acquire::LOCK;
use crate::engine::command::{Command, Flags, Group, Keys, row, rows};
use crate::engine::context::Context;

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("lock.help", help, "Lists the commands for locks, semaphores and latches.";
    flags: Flags::LOADING.union(Flags::STALE).union(Flags::FAST), keys: Keys::None, ..LOCK)]);

/// The first thing to know when something is wrong.
const HANGS: &str = "Does everything hang? LOCK.DOCTOR says what for, who holds it, and how to end that.";

fn help(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let rows: Vec<&Command> = cx.engine.commands().all().filter(|row| row.group == Group::Lock).collect();
    cx.reply.array(2 * rows.len() + 3);
    cx.reply.simple(HANGS);
    cx.reply.simple("Commands for locks, semaphores and latches:");
    for row in rows {
        cx.reply.simple(&row.usage());
        cx.reply.simple(&format!("    {}", row.summary));
    }
    // Once more at the end, which is what a terminal still shows.
    cx.reply.simple(HANGS);
    Ok(())
}
