//! Lists: pushing, popping and access by index. Commands that search or change the middle of a list are in
//! [`crate::commands::lists::whole`].

use crate::base::error::{Error, Result};
use crate::commands::elements::{PopRequest, index_range, pop_count};
use crate::engine::command::keys::uses;
use crate::engine::command::options::{choice, integer};
use crate::engine::command::{Access, Command, Flags, Group, Keys, Replies, Traits, row, rows};
use crate::engine::context::Context;
use crate::keyspace::types::lists::ListEdit;
use crate::resp::reply::Sink;
use crate::store::values::list::{Digits, Element, End};

/// What the rows of list commands have in common.
pub(crate) const LIST: Command = Command { group: Group::List, keys: Keys::ONE, access: Access::ReadWrite, ..Command::DEFAULT };
pub(crate) const GROW: Flags = Flags::WRITE.union(Flags::DENYOOM);
const GROW_FAST: Flags = GROW.union(Flags::FAST);
const WRITE_FAST: Flags = Flags::WRITE.union(Flags::FAST);

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("lpush", |cx, args| push(cx, args, End::Left, false), "key element [element ...]",
        "Prepends elements to a list, one after the other. Creates the list if it does not exist.";
        replies: Replies::Integer, flags: GROW_FAST, key_uses: uses::EXTENDED, complexity: "O(N) for N elements pushed", ..LIST),
    row!("rpush", |cx, args| push(cx, args, End::Right, false), "key element [element ...]",
        "Appends elements to a list. Creates the list if it does not exist.";
        replies: Replies::Integer, flags: GROW_FAST, key_uses: uses::EXTENDED, complexity: "O(N) for N elements pushed", ..LIST),
    row!("lpushx", |cx, args| push(cx, args, End::Left, true), "key element [element ...]",
        "Prepends elements to a list only if the list exists.";
        replies: Replies::Integer, flags: GROW_FAST, since: "2.2.0", key_uses: uses::EXTENDED,
        complexity: "O(N) for N elements pushed", ..LIST),
    row!("rpushx", |cx, args| push(cx, args, End::Right, true), "key element [element ...]",
        "Appends elements to a list only if the list exists.";
        replies: Replies::Integer, flags: GROW_FAST, since: "2.2.0", key_uses: uses::EXTENDED,
        complexity: "O(N) for N elements pushed", ..LIST),
    row!("lpop", |cx, args| pop(cx, args, End::Left), "key [count]",
        "Removes and returns the first elements of a list. Deletes the list with its last element.";
        replies: Replies::ScalarWithoutCount, flags: WRITE_FAST, key_uses: uses::TAKEN,
        complexity: "O(N) for N returned elements", ..LIST),
    row!("rpop", |cx, args| pop(cx, args, End::Right), "key [count]",
        "Removes and returns the last elements of a list. Deletes the list with its last element.";
        replies: Replies::ScalarWithoutCount, flags: WRITE_FAST, key_uses: uses::TAKEN,
        complexity: "O(N) for N returned elements", ..LIST),
    row!("lmpop", lmpop, "numkeys key [key ...] <LEFT | RIGHT> [COUNT count]",
        "Removes and returns elements of the first list that exists.";
        flags: Flags::WRITE.union(Flags::MOVABLEKEYS), keys: Keys::Counted { numkeys: 1, step: 1 }, since: "7.0.0",
        key_uses: uses::TAKEN, complexity: "O(N+M) for N keys and M returned elements", ..LIST),
    row!("lmove", lmove, "source destination <LEFT | RIGHT> <LEFT | RIGHT>",
        "Moves an element from an end of a list to an end of another list and returns it.";
        replies: Replies::Scalar, traits: Traits::BOUNDED_COST, flags: GROW, keys: Keys::TWO, since: "6.2.0",
        key_uses: uses::MOVED, ..LIST),
    row!("rpoplpush", |cx, args| move_element(cx, (args[1], End::Right), (args[2], End::Left)), "source destination",
        "Moves the last element of a list to the beginning of another list and returns it. LMOVE takes any ends.";
        replies: Replies::Scalar, traits: Traits::BOUNDED_COST, flags: GROW, keys: Keys::TWO, since: "1.2.0",
        key_uses: uses::MOVED, ..LIST),
    row!("llen", llen, "key", "Returns the length of a list.";
        replies: Replies::Integer, flags: Flags::READONLY.union(Flags::FAST), key_uses: uses::EXAMINED, ..LIST),
    row!("lindex", lindex, "key index", "Returns an element of a list by its index. Negative indexes count from the end.";
        replies: Replies::Scalar, flags: Flags::READONLY, complexity: "O(N) for N nodes between the element and the nearer end",
        ..LIST),
    row!("lrange", lrange, "key start stop", "Returns the elements of a list between two indexes, both included.";
        flags: Flags::READONLY,
        complexity: "O(S+N) for S nodes between the first element and the nearer end, and N returned elements", ..LIST),
]);

/// `LEFT` or `RIGHT`.
pub(crate) fn parse_end(word: &[u8]) -> Result<End> {
    choice(word, &[("LEFT", End::Left), ("RIGHT", End::Right)]).ok_or(Error::SYNTAX)
}

/// Writes one element.
pub(crate) fn write_element(reply: &mut dyn Sink, element: Element<'_>) {
    match element {
        Element::Bytes(bytes) => reply.bulk(bytes),
        Element::Integer(n) => reply.bulk(Digits::new().format(n).as_bytes()),
    }
}

/// Pops up to `count` elements from an end of a list, writes them as an array and publishes the event.
fn pop_into(mut edit: ListEdit<'_, '_>, reply: &mut dyn Sink, end: End, count: usize) {
    let list = edit.list();
    let count = count.min(list.len());
    reply.array(count);
    list.iter(end).take(count).for_each(|element| write_element(reply, element));
    edit.pop(end, count);
    edit.finish(Some(end.popped()));
}

fn push(cx: &mut Context<'_>, args: &[&[u8]], end: End, only_existing: bool) -> Result {
    let mut db = cx.db();
    let len = if only_existing {
        match db.edit_list(args[1])? {
            None => 0,
            Some(mut edit) => {
                edit.push(end, &args[2..]);
                edit.list().len()
            }
        }
    } else {
        db.list_push(args[1], end, &args[2..])?
    };
    cx.reply.integer(len as i64);
    Ok(())
}

fn pop(cx: &mut Context<'_>, args: &[&[u8]], end: End) -> Result {
    let count = match args {
        [_, _] => None,
        [_, _, count] => Some(pop_count(count)?),
        _ => return Err(Error::arity(cx.command.name)),
    };
    let (mut db, reply) = cx.db_and_reply();
    match (db.edit_list(args[1])?, count) {
        (None, None) => reply.null(),
        (None, Some(_)) => reply.null_array(),
        (Some(_), Some(0)) => reply.array(0),
        (Some(edit), Some(count)) => pop_into(edit, reply, end, count),
        (Some(mut edit), None) => {
            if let Some(element) = edit.list().iter(end).next() {
                write_element(reply, element);
            }
            edit.pop(end, 1);
            edit.finish(Some(end.popped()));
        }
    }
    Ok(())
}

/// Pops from the first list of a request that exists, and writes the key and the elements. Returns false if there is no list.
pub(crate) fn pop_first(cx: &mut Context<'_>, request: &PopRequest<'_, End>) -> Result<bool> {
    let (mut db, reply) = cx.db_and_reply();
    for key in request.keys {
        if let Some(edit) = db.edit_list(key)? {
            reply.array(2);
            reply.bulk(key);
            pop_into(edit, reply, request.end, request.count);
            return Ok(true);
        }
    }
    Ok(false)
}

fn lmpop(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let request = PopRequest::parse(args, 1, parse_end)?;
    if !pop_first(cx, &request)? {
        cx.reply.null_array();
    }
    Ok(())
}

fn lmove(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (from, to) = (parse_end(args[3])?, parse_end(args[4])?);
    move_element(cx, (args[1], from), (args[2], to))
}

fn move_element(cx: &mut Context<'_>, from: (&[u8], End), to: (&[u8], End)) -> Result {
    match cx.db().list_move(from, to)? {
        Some(element) => cx.reply.bulk(&element),
        None => cx.reply.null(),
    }
    Ok(())
}

fn llen(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let len = cx.db().list(args[1])?.map_or(0, |list| list.len());
    cx.reply.integer(len as i64);
    Ok(())
}

/// Parses an index into a list of this length. Negative indexes count from the end. `None` if it is out of range.
pub(crate) fn index(argument: &[u8], len: usize) -> Result<Option<usize>> {
    let index = integer(argument)?;
    let index = if index < 0 { (len as i64).saturating_add(index) } else { index };
    Ok(usize::try_from(index).ok().filter(|&index| index < len))
}

fn lindex(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let element = match db.list(args[1])? {
        Some(list) => index(args[2], list.len())?.and_then(|index| list.get(index)),
        None => None,
    };
    match element {
        Some(element) => write_element(reply, element),
        None => reply.null(),
    }
    Ok(())
}

fn lrange(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (start, stop) = (integer(args[2])?, integer(args[3])?);
    let (mut db, reply) = cx.db_and_reply();
    let Some(list) = db.list(args[1])? else {
        reply.array(0);
        return Ok(());
    };
    let range = index_range(start, stop, list.len());
    reply.array(range.len());
    list.iter_from(range.start).take(range.len()).for_each(|element| write_element(reply, element));
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "lists_tests.rs"]
mod tests;
