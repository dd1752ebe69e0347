//! Taking members off the ends of sorted sets.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::commands::sorted_sets::members::{WRITE_FAST, ZSET};
use crate::engine::command::keys::uses;
use crate::engine::command::{Command, Flags, Keys};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::keyspace::databases::Db;
use crate::keyspace::types::zsets::End;
use crate::resp::reply::{Protocol, Sink};

/// The rows.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "zpopmin",
        arity: -2,
        flags: WRITE_FAST,
        key_uses: uses::TAKEN,
        since: "5.0.0",
        summary: "Removes the members with the lowest scores and gives them.",
        complexity: "O(log(N)*M) for N members of the set and M popped",
        syntax: "key [count]",
        handler: |cx, args| zpop(cx, args, End::Min),
        ..ZSET
    },
    Command {
        name: "zpopmax",
        arity: -2,
        flags: WRITE_FAST,
        key_uses: uses::TAKEN,
        since: "5.0.0",
        summary: "Removes the members with the highest scores and gives them.",
        complexity: "O(log(N)*M) for N members of the set and M popped",
        syntax: "key [count]",
        handler: |cx, args| zpop(cx, args, End::Max),
        ..ZSET
    },
    Command {
        name: "zmpop",
        arity: -4,
        flags: Flags::WRITE,
        keys: Keys::Counted { numkeys: 1, step: 1 },
        key_uses: uses::TAKEN,
        since: "7.0.0",
        summary: "Removes members from one end of the first sorted set that is there, and gives them.",
        complexity: "O(K)+O(M*log(N)) for K keys, N members of the set and M popped",
        syntax: "numkeys key [key ...] <MIN | MAX> [COUNT count]",
        handler: zmpop,
        ..ZSET
    },
];

/// How popped members are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `ZPOPMIN key`: member and score, one after the other.
    Flat,
    /// `ZPOPMIN key count` on RESP3: pairs.
    Pairs,
    /// `BZPOPMIN`: the key in front, then as flat.
    KeyFlat,
    /// `ZMPOP`: the key, and an array of pairs.
    KeyPairs,
}

/// Pops up to `count` members off one end of a key, in the given form; false, with nothing written, where the key is not there. An error
/// where it holds another type.
pub fn pop(db: &mut Db<'_>, reply: &mut dyn Sink, key: &[u8], end: End, count: usize, form: Form) -> Result<bool> {
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
    let count = match &args[2..] {
        [] => None,
        [count] => Some(parse_i64(count).and_then(|n| usize::try_from(n).ok()).ok_or(Error::NOT_POSITIVE)?),
        _ => return Err(Error::SYNTAX),
    };
    let (mut db, reply) = cx.db_and_reply();
    let pairs = count.is_some() && reply.protocol() == Protocol::Resp3;
    let form = if pairs { Form::Pairs } else { Form::Flat };
    if !pop(&mut db, reply, args[1], end, count.unwrap_or(1), form)? {
        reply.array(0);
    }
    Ok(())
}

/// What `ZMPOP` and its kin ask for: `numkeys key [key ...] <MIN | MAX> [COUNT count]`.
pub struct PopRequest<'r, 'a> {
    /// The keys.
    pub keys: &'r [&'a [u8]],
    /// Which end.
    pub end: End,
    /// Members at most, 1 or more.
    pub count: usize,
}

impl<'r, 'a> PopRequest<'r, 'a> {
    /// Reads the arguments from the number of keys on.
    pub fn parse(args: &'r [&'a [u8]]) -> Result<Self> {
        let positive = |text: &[u8]| parse_i64(text).filter(|n| *n > 0).map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let numkeys = args.first().and_then(|text| positive(text)).ok_or(Error::NUMKEYS_POSITIVE)?;
        let Some([end, options @ ..]) = numkeys.checked_add(1).and_then(|at| args.get(at..)) else { return Err(Error::SYNTAX) };
        let end = match end {
            word if word.eq_ignore_ascii_case(b"MIN") => End::Min,
            word if word.eq_ignore_ascii_case(b"MAX") => End::Max,
            _ => return Err(Error::SYNTAX),
        };
        let mut count = None;
        let mut rest = options.iter();
        while let Some(option) = rest.next() {
            match rest.next() {
                Some(number) if count.is_none() && option.eq_ignore_ascii_case(b"COUNT") => {
                    count = Some(positive(number).ok_or(Error::COUNT_POSITIVE)?);
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(PopRequest { keys: &args[1..=numkeys], end, count: count.unwrap_or(1) })
    }
}

fn zmpop(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let request = PopRequest::parse(&args[1..])?;
    let (mut db, reply) = cx.db_and_reply();
    for key in request.keys {
        if pop(&mut db, reply, key, request.end, request.count, Form::KeyPairs)? {
            return Ok(());
        }
    }
    reply.null_array();
    Ok(())
}
