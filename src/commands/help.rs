//! The reply to `HELP` of a command with subcommands.

use crate::engine::context::Context;

/// Lists the subcommands of the container named by `args[0]`; `lines` are their usage lines, each followed by its indented
/// explanation.
pub fn reply(cx: &mut Context<'_>, args: &[&[u8]], lines: &[&str]) {
    let container = String::from_utf8_lossy(args[0]).to_uppercase();
    cx.reply.array(lines.len() + 3);
    cx.reply.simple(&format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        cx.reply.simple(line);
    }
    cx.reply.simple("HELP");
    cx.reply.simple("    Print this help.");
}
