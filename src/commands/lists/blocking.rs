//! Commands that block until there is a list: `BLPOP`, `BRPOP`, `BLMOVE`, `BRPOPLPUSH`, `BLMPOP`. Blocking is explained in
//! [`crate::engine::blocking`].

use crate::base::error::Result;
use crate::commands::elements::PopRequest;
use crate::commands::lists::ends::{parse_end, pop_first, write_element};
use crate::engine::blocking::deadline;
use crate::engine::command::keys::uses;
use crate::engine::command::{Access, Command, Flags, Group, Keys, row, rows};
use crate::engine::context::Context;
use crate::keyspace::waits::Wake;
use crate::store::values::list::End;

/// Flags of all blocking commands.
pub(crate) const WAIT: Flags = Flags::WRITE.union(Flags::BLOCKING);

/// What the rows of blocking commands have in common.
pub(crate) const BLOCKING: Command =
    Command { flags: WAIT, group: Group::List, access: Access::ReadWrite, key_uses: uses::TAKEN, ..Command::DEFAULT };

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("blpop", |cx, args| pop(cx, args, End::Left), "key [key ...] timeout",
        "Removes and returns the first element of the first list that exists. Blocks until there is one.";
        keys: Keys::Range { first: 1, last: -2, step: 1 }, since: "2.0.0",
        complexity: "O(N) where N is the number of provided keys.", ..BLOCKING),
    row!("brpop", |cx, args| pop(cx, args, End::Right), "key [key ...] timeout",
        "Removes and returns the last element of the first list that exists. Blocks until there is one.";
        keys: Keys::Range { first: 1, last: -2, step: 1 }, since: "2.0.0",
        complexity: "O(N) where N is the number of provided keys.", ..BLOCKING),
    row!("blmpop", blmpop, "timeout numkeys key [key ...] <LEFT | RIGHT> [COUNT count]",
        "Removes and returns elements of the first list that exists. Blocks until there is one.";
        flags: WAIT.union(Flags::MOVABLEKEYS), keys: Keys::Counted { numkeys: 2, step: 1 }, since: "7.0.0",
        complexity: "O(N+M) where N is the number of provided keys and M is the number of elements returned.", ..BLOCKING),
    row!("blmove", blmove, "source destination <LEFT | RIGHT> <LEFT | RIGHT> timeout",
        "Moves an element from an end of a list to an end of another list and returns it. Blocks until there is one.";
        flags: WAIT.union(Flags::DENYOOM), keys: Keys::TWO, key_uses: uses::MOVED, since: "6.2.0", ..BLOCKING),
    row!("brpoplpush", brpoplpush, "source destination timeout",
        "Moves the last element of a list to the beginning of another list and returns it. Blocks until there is one. BLMOVE takes any ends.";
        flags: WAIT.union(Flags::DENYOOM), keys: Keys::TWO, key_uses: uses::MOVED, since: "2.2.0", ..BLOCKING),
]);

fn pop(cx: &mut Context<'_>, args: &[&[u8]], end: End) -> Result {
    let [_, keys @ .., timeout] = args else { return Ok(()) };
    let deadline = deadline(cx.now, timeout)?;
    let (mut db, reply) = cx.db_and_reply();
    for key in keys {
        if let Some(mut edit) = db.edit_list(key)? {
            reply.array(2);
            reply.bulk(key);
            if let Some(element) = edit.list().iter(end).next() {
                write_element(reply, element);
            }
            edit.pop(end, 1);
            edit.finish(Some(end.popped()));
            return Ok(());
        }
    }
    cx.block_or_reply(args, keys, Wake::LIST, deadline, |reply| reply.null_array());
    Ok(())
}

fn blmpop(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let request = PopRequest::parse(args, 2, parse_end)?;
    let deadline = deadline(cx.now, args[1])?;
    if !pop_first(cx, &request)? {
        cx.block_or_reply(args, request.keys, Wake::LIST, deadline, |reply| reply.null_array());
    }
    Ok(())
}

fn blmove(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (from, to) = (parse_end(args[3])?, parse_end(args[4])?);
    let deadline = deadline(cx.now, args[5])?;
    move_element(cx, args, from, to, deadline)
}

fn brpoplpush(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let deadline = deadline(cx.now, args[3])?;
    move_element(cx, args, End::Right, End::Left, deadline)
}

fn move_element(cx: &mut Context<'_>, args: &[&[u8]], from: End, to: End, deadline: Option<u64>) -> Result {
    match cx.db().list_move((args[1], from), (args[2], to))? {
        Some(element) => cx.reply.bulk(&element),
        None => cx.block_or_reply(args, &args[1..2], Wake::LIST, deadline, |reply| reply.null()),
    }
    Ok(())
}
