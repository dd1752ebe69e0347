//! The command table: one file per family, rows beside their handlers. Every list of all commands derives from it. [`elements`] has
//! what the families of several types share.

pub mod clients;
pub mod compat;
pub mod elements;
pub mod hashes;
pub mod keys;
#[cfg(test)]
mod keyspace_events;
pub mod lists;
pub mod locks;
pub mod reference;
pub mod scripts;
pub mod server;
pub mod sets;
pub mod sorted_sets;
pub mod streams;
pub mod strings;
pub mod testing;

use std::borrow::Cow;
use std::sync::LazyLock;

use crate::engine::command::Command;
use crate::engine::table::CommandTable;
use crate::script;

#[cfg(any(test, feature = "internals"))]
pub use crate::commands::reference::markdown::{markdown_names, markdown_page};

/// The command families, in the order of `COMMAND`. This is a static because rows are identified by their addresses, and a
/// constant may have several.
static FAMILIES: &[&[Command]] = &[
    strings::basic::COMMANDS,
    compat::lcs::COMMANDS,
    strings::set::COMMANDS,
    strings::counters::COMMANDS,
    strings::bitmaps::COMMANDS,
    strings::bitfields::COMMANDS,
    keys::names::COMMANDS,
    keys::expiry::COMMANDS,
    keys::scan::COMMANDS,
    keys::serialization::COMMANDS,
    hashes::fields::COMMANDS,
    hashes::expiry::COMMANDS,
    hashes::leases::COMMANDS,
    lists::ends::COMMANDS,
    lists::whole::COMMANDS,
    keys::sort::COMMANDS,
    sorted_sets::members::COMMANDS,
    sorted_sets::ranges::COMMANDS,
    sorted_sets::pops::COMMANDS,
    sorted_sets::algebra::COMMANDS,
    sets::members::COMMANDS,
    sets::algebra::COMMANDS,
    compat::hyperloglog::COMMANDS,
    compat::geo::points::COMMANDS,
    compat::geo::search::COMMANDS,
    streams::entries::COMMANDS,
    streams::reads::COMMANDS,
    streams::groups::COMMANDS,
    streams::claims::COMMANDS,
    streams::info::COMMANDS,
    locks::acquire::COMMANDS,
    locks::info::COMMANDS,
    locks::list::COMMANDS,
    locks::graph::COMMANDS,
    locks::doctor::COMMANDS,
    locks::stats::COMMANDS,
    locks::leaks::COMMANDS,
    locks::breaking::COMMANDS,
    locks::help::COMMANDS,
    locks::sessions::COMMANDS,
    locks::semaphores::COMMANDS,
    locks::throttle::COMMANDS,
    clients::connection::COMMANDS,
    clients::client::COMMANDS,
    server::process::COMMANDS,
    keys::databases::COMMANDS,
    server::memory::COMMANDS,
    server::slowlog::COMMANDS,
    compat::modules::COMMANDS,
    server::latency::COMMANDS,
    compat::cluster::COMMANDS,
    compat::sentinel::COMMANDS,
    server::replication::COMMANDS,
    server::node::COMMANDS,
    testing::clock::COMMANDS,
    testing::fault::COMMANDS,
    server::config::COMMANDS,
    clients::acl::COMMANDS,
    server::command::COMMANDS,
    clients::pubsub::COMMANDS,
    scripts::eval::COMMANDS,
    scripts::functions::COMMANDS,
    clients::transactions::COMMANDS,
    lists::blocking::COMMANDS,
    sorted_sets::blocking::COMMANDS,
];

static TABLE: LazyLock<CommandTable> = LazyLock::new(|| CommandTable::new(FAMILIES, script::scripting));

/// The command table that engines are created with.
#[inline]
pub fn table() -> &'static CommandTable {
    &TABLE
}

/// All commands. Subcommands are listed under their container commands.
pub fn all() -> impl Iterator<Item = &'static Command> {
    table().all()
}

/// Finds a command by its name, ignoring case.
#[inline]
pub fn lookup(name: &[u8]) -> Option<&'static Command> {
    table().lookup(name)
}

/// See [`CommandTable::resolve`].
///
/// # Errors
/// On unknown names and on a wrong number of arguments.
#[inline]
#[cfg(any(test, feature = "internals"))]
pub fn resolve(args: &[&[u8]]) -> crate::base::error::Result<&'static Command> {
    table().resolve(args)
}

/// See [`CommandTable::full_name`].
pub fn full_name(command: &'static Command) -> Cow<'static, str> {
    table().full_name(command)
}
