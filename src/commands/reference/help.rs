//! The reply to `HELP` of a command with subcommands.

use crate::base::error::{Error, Result};
use crate::engine::command::{Command, Flags, Group};
use crate::engine::context::Context;

/// The `HELP` row of a container.
pub const fn row(group: Group, since: &'static str) -> Command {
    let flags = Flags::LOADING.union(Flags::STALE);
    let summary = "Lists the subcommands.";
    Command { name: "help", flags, group, since, summary, handler: from_rows, ..Command::DEFAULT }
}

/// The default handler of `HELP`: lists the container's rows with their syntax and summary.
pub fn from_rows(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let Some(container) = crate::commands::lookup(args[0]) else { return Err(Error::unknown_command(args)) };
    let mut lines = Vec::new();
    for row in container.subcommands.iter().filter(|row| row.name != "help") {
        let args = crate::commands::reference::syntax::display(
            &crate::commands::reference::syntax::parse(row.syntax).unwrap_or_default(),
        );
        lines.push(format!("{} {args}", row.name.to_ascii_uppercase()).trim_end().to_owned());
        lines.push(format!("    {}", row.summary));
    }
    reply(cx, args, &lines)
}

/// Replies with the help of the container `args[0]`. `lines` are usage lines, each followed by its indented explanation.
pub fn reply<S: AsRef<str>>(cx: &mut Context<'_>, args: &[&[u8]], lines: &[S]) -> Result {
    let container = String::from_utf8_lossy(args[0]).to_uppercase();
    cx.reply.array(lines.len() + 3);
    cx.reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        cx.reply.simple(line.as_ref());
    }
    cx.reply.simple("HELP");
    cx.reply.simple("    Print this help.");
    Ok(())
}
