//! Strings that hold numbers.

use crate::engine::change::{Classes, Event};
use crate::engine::command::{Access, Command, Flags, Group, Keys};
use crate::engine::context::Context;
use crate::engine::error::{Error, Result};
use crate::engine::keyspace::Ttl;
use crate::engine::number::{LongDouble, parse_i64};
use crate::store::entry::Form;

const COUNTER: Command = Command {
    group: Group::String,
    flags: Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST),
    keys: Keys::ONE,
    access: Access::ReadWrite,
    ..Command::DEFAULT
};

/// The rows.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "incr",
        arity: 2,
        summary: "Adds one to the integer of a key.",
        syntax: "key",
        handler: |cx, args| add(cx, args[1], 1),
        ..COUNTER
    },
    Command {
        name: "decr",
        arity: 2,
        summary: "Takes one from the integer of a key.",
        syntax: "key",
        handler: |cx, args| add(cx, args[1], -1),
        ..COUNTER
    },
    Command {
        name: "incrby",
        arity: 3,
        summary: "Adds to the integer of a key.",
        syntax: "key increment",
        handler: |cx, args| add(cx, args[1], parse_i64(args[2]).ok_or(Error::NOT_INTEGER)?),
        ..COUNTER
    },
    Command {
        name: "decrby",
        arity: 3,
        summary: "Takes from the integer of a key.",
        syntax: "key decrement",
        handler: |cx, args| {
            let decrement = parse_i64(args[2]).ok_or(Error::NOT_INTEGER)?;
            add(cx, args[1], decrement.checked_neg().ok_or(Error::DECREMENT_OVERFLOW)?)
        },
        ..COUNTER
    },
    Command {
        name: "incrbyfloat",
        arity: 3,
        since: "2.6.0",
        summary: "Adds to the floating point number of a key.",
        syntax: "key increment:double",
        handler: incrbyfloat,
        ..COUNTER
    },
];

fn add(cx: &mut Context<'_>, key: &[u8], increment: i64) -> Result {
    let mut db = cx.db();
    let (hash, place) = db.locate(key);
    let (mut new, mut digits) = (increment, itoa::Buffer::new());
    let event = Event::new(Classes::STRING, "incrby");
    match place {
        None => db.put_string_at(hash, None, key, digits.format(new).as_bytes(), Ttl::Clear, event),
        Some(place) => db.rewrite_string(hash, place, key, event, |old| {
            let old = parse_i64(old).ok_or(Error::NOT_INTEGER)?;
            new = old.checked_add(increment).ok_or(Error::OVERFLOW)?;
            Ok(digits.format(new).as_bytes())
        })?,
    }
    cx.reply.integer(new);
    Ok(())
}

fn incrbyfloat(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let (hash, place) = db.locate(args[1]);
    let old = match place {
        None => LongDouble::parse(b"0"),
        Some(place) => LongDouble::parse(db.keyspace.space.get(db.dict, place).bytes().ok_or(Error::WRONG_TYPE)?),
    };
    let old = old.ok_or(Error::NOT_FLOAT)?;
    let increment = LongDouble::parse(args[2]).ok_or(Error::NOT_FLOAT)?;
    let new = old.sum(increment);
    if !new.is_finite() {
        return Err(Error::NAN_OR_INFINITY);
    }
    let text = new.to_fixed();
    let event = Event::new(Classes::STRING, "incrbyfloat");
    db.put_string_at(hash, place, args[1], text.as_ref(), Ttl::Keep, event);
    db.set_form(args[1], Form::Text);
    cx.reply.bulk(text.as_ref());
    Ok(())
}
