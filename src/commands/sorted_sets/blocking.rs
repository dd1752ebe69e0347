//! Commands that block until there is a sorted set: `BZPOPMIN`, `BZPOPMAX`, `BZMPOP`.

use crate::base::error::Result;
use crate::commands::elements::PopRequest;
use crate::commands::lists::blocking::{BLOCKING, WAIT};
use crate::commands::sorted_sets::pops::{Form, parse_end, pop_first};
use crate::engine::blocking::deadline;
use crate::engine::command::{Command, Flags, Group, Keys, row, rows};
use crate::engine::context::Context;
use crate::keyspace::types::zsets::End;
use crate::keyspace::waits::Wake;

const BZPOP: Command = Command {
    flags: WAIT.union(Flags::FAST),
    keys: Keys::Range { first: 1, last: -2, step: 1 },
    group: Group::SortedSet,
    since: "5.0.0",
    complexity: "O(log(N)) with N being the number of elements in the sorted set.",
    syntax: "key [key ...] timeout",
    ..BLOCKING
};

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("bzpopmin", |cx, args| bzpop(cx, args, End::Min),
        "Removes and returns the member with the lowest score of the first sorted set that exists. Blocks until there is one.";
        ..BZPOP),
    row!("bzpopmax", |cx, args| bzpop(cx, args, End::Max),
        "Removes and returns the member with the highest score of the first sorted set that exists. Blocks until there is one.";
        ..BZPOP),
    row!("bzmpop", bzmpop, "timeout numkeys key [key ...] <MIN | MAX> [COUNT count]",
        "Removes and returns members with the lowest or highest scores of the first sorted set that exists. Blocks until there is one.";
        keys: Keys::Counted { numkeys: 2, step: 1 }, group: Group::SortedSet, since: "7.0.0",
        complexity: "O(K)+O(M*log(N)) for K keys, N members of the sorted set and M popped", ..BLOCKING),
]);

fn bzpop(cx: &mut Context<'_>, args: &[&[u8]], end: End) -> Result {
    let [_, keys @ .., timeout] = args else { return Ok(()) };
    let deadline = deadline(cx.now, timeout)?;
    pop_or_wait(cx, args, &PopRequest { keys, end, count: 1 }, Form::KeyFlat, deadline)
}

fn bzmpop(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let request = PopRequest::parse(args, 2, parse_end)?;
    let deadline = deadline(cx.now, args[1])?;
    pop_or_wait(cx, args, &request, Form::KeyPairs, deadline)
}

fn pop_or_wait(cx: &mut Context<'_>, args: &[&[u8]], request: &PopRequest<'_, End>, form: Form, deadline: Option<u64>) -> Result {
    if !pop_first(cx, request, form)? {
        cx.block_or_reply(args, request.keys, Wake::ZSET, deadline, |reply| reply.null_array());
    }
    Ok(())
}
