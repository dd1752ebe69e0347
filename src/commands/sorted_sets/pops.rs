//! Popping members with the lowest or highest scores.

use crate::base::error::{Error, Result};
use crate::commands::elements::{PopRequest, pop_count};
use crate::commands::sorted_sets::members::{WRITE_FAST, ZSET};
use crate::engine::command::keys::uses;
use crate::engine::command::options::{choice, optional};
use crate::engine::command::{Command, Flags, Keys, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::keyspace::databases::Db;
use crate::keyspace::types::zsets::End;
use crate::resp::reply::{Protocol, Sink};

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("zpopmin", |cx, args| zpop(cx, args, End::Min), "key [count]", "Removes and returns the members with the lowest scores.";
        flags: WRITE_FAST, key_uses: uses::TAKEN, since: "5.0.0",
        complexity: "O(log(N)*M) for N members of the sorted set and M popped", ..ZSET),
    row!("zpopmax", |cx, args| zpop(cx, args, End::Max), "key [count]",
        "Removes and returns the members with the highest scores.";
        flags: WRITE_FAST, key_uses: uses::TAKEN, since: "5.0.0",
        complexity: "O(log(N)*M) for N members of the sorted set and M popped", ..ZSET),
    row!("zmpop", zmpop, "numkeys key [key ...] <MIN | MAX> [COUNT count]",
        "Removes and returns members with the lowest or highest scores of the first sorted set that exists.";
        flags: Flags::WRITE, keys: Keys::Counted { numkeys: 1, step: 1 }, key_uses: uses::TAKEN, since: "7.0.0",
        complexity: "O(K)+O(M*log(N)) for K keys, N members of the sorted set and M popped", ..ZSET),
]);

/// The format of a reply with popped members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `ZPOPMIN key`: members and scores alternate.
    Flat,
    /// `ZPOPMIN key count` on RESP3: pairs of member and score.
    Pairs,
    /// `BZPOPMIN`: the key, then as `Flat`.
    KeyFlat,
    /// `ZMPOP`: the key and an array of pairs.
    KeyPairs,
}

/// Pops up to `count` members from one end of a key and writes them in this format. Returns false, and writes nothing, if the key
/// does not exist. Fails if it holds another type.
fn pop(db: &mut Db<'_>, reply: &mut dyn Sink, key: &[u8], end: End, count: usize, form: Form) -> Result<bool> {
    let Some(mut edit) = db.edit_zset(key)? else { return Ok(false) };
    let given = count.min(edit.len());
    match form {
        Form::Flat => reply.array(given * 2),
        Form::Pairs => reply.array(given),
        Form::KeyFlat => {
            reply.array(given * 2 + 1);
            reply.bulk(key);
        }
        Form::KeyPairs => {
            reply.array(2);
            reply.bulk(key);
            reply.array(given);
        }
    }
    let pairs = matches!(form, Form::Pairs | Form::KeyPairs);
    edit.pop(end, count, |item| {
        if pairs {
            reply.array(2);
        }
        reply.bulk(item.member);
        reply.double(item.score);
    });
    let event = match end {
        End::Min => Event::ZPOPMIN,
        End::Max => Event::ZPOPMAX,
    };
    edit.finish(if given > 0 { std::slice::from_ref(&event) } else { &[] });
    Ok(true)
}

fn zpop(cx: &mut Context<'_>, args: &[&[u8]], end: End) -> Result {
    let count = optional(&args[2..])?.map(pop_count).transpose()?;
    let (mut db, reply) = cx.db_and_reply();
    let pairs = count.is_some() && reply.protocol() == Protocol::Resp3;
    let form = if pairs { Form::Pairs } else { Form::Flat };
    if !pop(&mut db, reply, args[1], end, count.unwrap_or(1), form)? {
        reply.array(0);
    }
    Ok(())
}

/// `MIN` or `MAX`.
pub(crate) fn parse_end(word: &[u8]) -> Result<End> {
    choice(word, &[("MIN", End::Min), ("MAX", End::Max)]).ok_or(Error::SYNTAX)
}

/// Pops from the first sorted set of a request that exists. Returns false if there is none.
pub(crate) fn pop_first(cx: &mut Context<'_>, request: &PopRequest<'_, End>, form: Form) -> Result<bool> {
    let (mut db, reply) = cx.db_and_reply();
    for key in request.keys {
        if pop(&mut db, reply, key, request.end, request.count, form)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn zmpop(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let request = PopRequest::parse(args, 1, parse_end)?;
    if !pop_first(cx, &request, Form::KeyPairs)? {
        cx.reply.null_array();
    }
    Ok(())
}
