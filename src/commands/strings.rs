//! Strings.

use crate::engine::change::Event;
use crate::engine::command::{Access, Command, Flags, Group, Keys};
use crate::engine::context::Context;
use crate::engine::error::Result;
use crate::engine::keyspace::Ttl;

/// The rows.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "get",
        arity: 2,
        flags: Flags::READONLY.union(Flags::FAST),
        keys: Keys::ONE,
        access: Access::Read,
        group: Group::String,
        summary: "Gives the string of a key.",
        syntax: "key",
        handler: get,
        ..Command::DEFAULT
    },
    Command {
        name: "set",
        arity: -3,
        flags: Flags::WRITE.union(Flags::DENYOOM),
        keys: Keys::ONE,
        access: Access::ReadWrite,
        group: Group::String,
        summary: "Sets the string of a key.",
        syntax: "key value",
        handler: set,
        ..Command::DEFAULT
    },
];

fn get(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    match db.string(args[1])? {
        Some(value) => reply.bulk(value),
        None => reply.null(),
    }
    Ok(())
}

fn set(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    cx.db().put_string(args[1], args[2], Ttl::Clear, Event::SET);
    cx.reply.ok();
    Ok(())
}
