//! MODULE: there are no modules, and none can be loaded. Many tools list the modules when they connect.

use crate::base::error::{Error, Result};
use crate::commands::reference::help;
use crate::engine::command::{Command, Flags, Group, row, rows, subrows};
use crate::engine::context::Context;

const ROW: Command = Command {
    group: Group::Server,
    since: "4.0.0",
    flags: Flags::ADMIN.union(Flags::NOSCRIPT),
    complexity: "O(1)",
    ..Command::DEFAULT
};

const LOADS: Flags = Flags::ADMIN.union(Flags::NOSCRIPT).union(Flags::NO_ASYNC_LOADING);

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("module", "A container for module commands. There are no modules.";
    flags: Flags::empty(), complexity: "Depends on subcommand.", subcommands: &subrows([
        help::row(Group::Server, "5.0.0"),
        row!("list", list, "Returns the loaded modules: none."; tips: &["nondeterministic_output_order"], ..ROW),
        row!("load", |_, _| Err(Error::NO_MODULES), "path [arg [arg ...]]", "Refused: modules are not supported.";
            refused: "Modules are not supported.", flags: LOADS, ..ROW),
        row!("loadex", |_, _| Err(Error::NO_MODULES),
            "path [CONFIG configs:(name value) [CONFIG configs:(name value) ...]] [ARGS args [args ...]]",
            "Refused: modules are not supported.";
            refused: "Modules are not supported.", flags: LOADS, since: "7.0.0", ..ROW),
        row!("unload", |_, _| Err(Error::NO_MODULES), "name", "Refused: modules are not supported.";
            refused: "Modules are not supported.", flags: LOADS, ..ROW),
    ]), ..ROW)]);

fn list(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.reply.array(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn there_are_none_and_none_can_be_loaded() {
        let mut h = Harness::new();
        h.script(&[
            ("MODULE LIST", "*0"),
            ("MODULE LOAD /tmp/m.so", "-ERR MODULE command not allowed. Portcullis does not support modules."),
            ("MODULE UNLOAD m", "-ERR MODULE command not allowed. Portcullis does not support modules."),
            ("MODULE", "-ERR wrong number of arguments for 'module' command"),
            ("MODULE GRAPH", "-ERR unknown subcommand 'GRAPH'. Try MODULE HELP."),
        ]);
    }
}
