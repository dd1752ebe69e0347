//! The command table: one family a file, rows beside their handlers. Everything that must know all commands asks here.

pub mod acl;
pub mod bitfields;
pub mod bitmaps;
pub mod blocking;
pub mod blocking_zsets;
pub mod client;
mod client_blocking;
pub(crate) mod client_list;
mod client_tracking;
mod clock;
pub mod cluster;
pub mod config;
pub mod connection;
pub mod counters;
pub mod databases;
pub mod deadline;
mod debug;
mod debug_digest;
pub mod expiry;
mod fault;
#[cfg(test)]
pub(crate) mod forms;
pub mod functions;
pub mod geo;
pub mod geo_search;
pub mod hash_expiry;
pub mod hash_leases;
pub mod hashes;
pub mod help;
pub mod hyperloglog;
mod index;
pub mod info;
pub mod introspect;
pub mod introspect_docs;
pub mod keys;
mod latency;
pub mod lcs;
pub mod lists;
pub mod lists_whole;
mod lock_info;
mod lock_sessions;
pub mod locks;
#[cfg(any(test, feature = "internals"))]
mod markdown;
pub mod memory;
#[cfg(any(test, feature = "internals"))]
pub mod missing;
pub mod modules;
pub mod numbers;
pub mod pubsub;
mod replication;
pub mod scan;
pub mod scripting;
mod semaphores;
pub mod serialization;
pub mod server;
pub mod set;
pub mod set_algebra;
pub mod sets;
mod slowlog;
pub mod sort;
pub mod stream_claims;
pub mod stream_groups;
pub mod stream_info;
pub mod stream_reads;
pub mod streams;
pub mod strings;
pub mod syntax;
mod throttle;
pub mod transactions;
pub mod zset_algebra;
pub mod zset_pops;
pub mod zset_ranges;
pub mod zsets;

use std::borrow::Cow;
use std::sync::LazyLock;

use crate::engine::command::Command;
use crate::engine::error::Error;

pub use index::{Index, lookup};
pub use introspect::find;
#[cfg(any(test, feature = "internals"))]
pub use markdown::{markdown_names, markdown_page};

/// The families, in the order in which `COMMAND` lists them. A static: rows are told apart by where they lie, which a constant may
/// do several times.
static FAMILIES: &[&[Command]] = &[
    strings::COMMANDS,
    lcs::COMMANDS,
    set::COMMANDS,
    counters::COMMANDS,
    bitmaps::COMMANDS,
    bitfields::COMMANDS,
    keys::COMMANDS,
    expiry::COMMANDS,
    scan::COMMANDS,
    serialization::COMMANDS,
    hashes::COMMANDS,
    hash_expiry::COMMANDS,
    hash_leases::COMMANDS,
    lists::COMMANDS,
    lists_whole::COMMANDS,
    sort::COMMANDS,
    zsets::COMMANDS,
    zset_ranges::COMMANDS,
    zset_pops::COMMANDS,
    zset_algebra::COMMANDS,
    sets::COMMANDS,
    set_algebra::COMMANDS,
    hyperloglog::COMMANDS,
    geo::COMMANDS,
    geo_search::COMMANDS,
    streams::COMMANDS,
    stream_reads::COMMANDS,
    stream_groups::COMMANDS,
    stream_claims::COMMANDS,
    stream_info::COMMANDS,
    locks::COMMANDS,
    lock_info::COMMANDS,
    lock_sessions::COMMANDS,
    semaphores::COMMANDS,
    throttle::COMMANDS,
    connection::COMMANDS,
    client::COMMANDS,
    server::COMMANDS,
    databases::COMMANDS,
    memory::COMMANDS,
    slowlog::COMMANDS,
    modules::COMMANDS,
    latency::COMMANDS,
    cluster::COMMANDS,
    replication::COMMANDS,
    clock::COMMANDS,
    fault::COMMANDS,
    config::COMMANDS,
    acl::COMMANDS,
    introspect::COMMANDS,
    pubsub::COMMANDS,
    scripting::COMMANDS,
    functions::COMMANDS,
    transactions::COMMANDS,
    blocking::COMMANDS,
    blocking_zsets::COMMANDS,
];

static CONTAINERS: LazyLock<Vec<&'static Command>> =
    LazyLock::new(|| all().filter(|command| !command.subcommands.is_empty()).collect());

/// All commands; subcommands hang on their containers.
pub fn all() -> impl Iterator<Item = &'static Command> {
    FAMILIES.iter().flat_map(|family| family.iter())
}

/// The row for a request: a container's subcommand where it names one. Errors on unknown names and on a wrong number of arguments.
#[inline]
pub fn resolve(args: &[&[u8]]) -> Result<&'static Command, Error> {
    resolve_row(lookup(args[0]), args)
}

/// As [`resolve`], for a name whose row was looked up already.
#[inline]
pub fn resolve_row(row: Option<&'static Command>, args: &[&[u8]]) -> Result<&'static Command, Error> {
    match row {
        Some(command) if command.subcommands.is_empty() && command.takes(args.len()) => Ok(command),
        _ => resolve_subcommand(row, args),
    }
}

/// Goes on where the row is not the one to be called as it stands: it has subcommands, or there is an error to tell.
#[inline(never)]
fn resolve_subcommand(row: Option<&'static Command>, args: &[&[u8]]) -> Result<&'static Command, Error> {
    let Some(mut command) = row else { return Err(Error::unknown_command(args)) };
    if !command.subcommands.is_empty() && args.len() > 1 {
        let container = command.name;
        command = command
            .subcommands
            .iter()
            .find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(args[1]))
            .ok_or_else(|| Error::unknown_subcommand(container, args[1]))?;
        if !command.takes(args.len()) {
            return Err(Error::arity(&format!("{container}|{}", command.name)));
        }
    } else if !command.takes(args.len()) {
        return Err(Error::arity(command.name));
    }
    Ok(command)
}

/// The row that a request names, whatever the number of its arguments: a container's subcommand, or the container where it names
/// none.
pub fn named(args: &[&[u8]]) -> Option<&'static Command> {
    let command = lookup(args.first()?)?;
    match args.get(1) {
        Some(word) if !command.subcommands.is_empty() => {
            command.subcommands.iter().find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(word))
        }
        _ => Some(command),
    }
}

/// The name under which statistics and error texts show a command: `get`, or `client|list` for a subcommand.
pub fn full_name(command: &'static Command) -> Cow<'static, str> {
    // A subcommand is known by the table it lies in.
    match CONTAINERS.iter().find(|container| container.subcommands.as_ptr_range().contains(&std::ptr::from_ref(command))) {
        Some(container) => format!("{}|{}", container.name, command.name).into(),
        None => command.name.into(),
    }
}

/// Bytes in use by the process, by measurement, or by the engine's own account where nobody measures.
pub(crate) fn memory_in_use(engine: &mut crate::engine::Engine) -> u64 {
    info::usage(engine).allocated
}
