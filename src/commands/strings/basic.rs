//! Strings: reading, writing and ranges of bytes. `SET` and its conditions are in [`crate::commands::strings::set`], numbers in
//! [`crate::commands::strings::counters`].

use crate::base::error::{Error, Result};
use crate::commands::keys::deadline::Unit;
use crate::commands::strings::bitmaps::check_growth;
use crate::engine::command::keys::{CountFault, counted, uses};
use crate::engine::command::options::{Options, Tail, Word, integer, words};
use crate::engine::command::{Access, Command, Flags, Group, Keys, Replies, Traits, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::{Classes, Event};
use crate::keyspace::databases::Ttl;
use crate::store::entry::Form;

const READ: Flags = Flags::READONLY;
const READ_FAST: Flags = Flags::READONLY.union(Flags::FAST);
const WRITE: Flags = Flags::WRITE.union(Flags::DENYOOM);
const WRITE_FAST: Flags = WRITE.union(Flags::FAST);

const STRING: Command = Command { group: Group::String, keys: Keys::ONE, ..Command::DEFAULT };

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("get", get, "key", "Returns the string value of a key."; replies: Replies::Scalar, flags: READ_FAST, ..STRING),
    row!("getdel", getdel, "key", "Returns the string value of a key and deletes the key.";
        replies: Replies::Scalar, flags: Flags::WRITE.union(Flags::FAST), access: Access::Remove, since: "6.2.0",
        key_uses: uses::TAKEN, ..STRING),
    row!("getex", getex, "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]",
        "Returns the string value of a key, and sets or removes its expiration.";
        replies: Replies::Scalar, flags: Flags::WRITE.union(Flags::FAST), access: Access::ReadWrite,
        key_notes: &["Changes the expiration of the key, not its value."], since: "6.2.0", ..STRING),
    row!("getset", getset, "key value", "Sets the string value of a key and returns the previous one.";
        replies: Replies::Scalar, flags: WRITE_FAST, access: Access::ReadWrite, ..STRING),
    row!("mget", mget, "key [key ...]", "Returns the string values of several keys.";
        flags: READ_FAST, keys: Keys::ALL, complexity: "O(N) for N keys", tips: &["request_policy:multi_shard"], ..STRING),
    row!("mset", mset, "key value [key value ...]", "Sets the string values of several keys atomically.";
        replies: Replies::Scalar, flags: WRITE, keys: Keys::PAIRS, access: Access::Overwrite, since: "1.0.1",
        complexity: "O(N) for N keys", tips: &["request_policy:multi_shard", "response_policy:all_succeeded"], ..STRING),
    row!("msetnx", msetnx, "key value [key value ...]",
        "Sets the string values of several keys atomically, only if none of them exists.";
        replies: Replies::Integer, flags: WRITE, keys: Keys::PAIRS, access: Access::Overwrite, since: "1.0.1",
        key_uses: uses::CREATED, complexity: "O(N) for N keys", ..STRING),
    row!("msetex", msetex,
        "numkeys key value [key value ...] [NX | XX] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
        "Sets the string values of several keys atomically, with a common expiration and an optional condition.";
        flags: WRITE.union(Flags::MOVABLEKEYS), keys: Keys::Counted { numkeys: 1, step: 2 }, access: Access::Overwrite,
        since: "8.4.0", only_creates: msetex_creates, complexity: "O(N) for N keys", ..STRING),
    row!("setnx", setnx, "key value", "Sets the string value of a key only if the key does not exist.";
        replies: Replies::Integer, flags: WRITE_FAST, access: Access::Overwrite, key_uses: uses::CREATED, ..STRING),
    row!("setex", |cx, args| set_with_lease(cx, args, Unit::EX, "setex"), "key seconds value",
        "Sets the string value of a key and its expiration in seconds.";
        replies: Replies::Scalar, traits: Traits::BOUNDED_COST, flags: WRITE, access: Access::Overwrite, since: "2.0.0",
        ..STRING),
    row!("psetex", |cx, args| set_with_lease(cx, args, Unit::PX, "psetex"), "key milliseconds value",
        "Sets the string value of a key and its expiration in milliseconds.";
        replies: Replies::Scalar, traits: Traits::BOUNDED_COST, flags: WRITE, access: Access::Overwrite, since: "2.6.0",
        ..STRING),
    row!("append", append, "key value", "Appends to the string value of a key. Creates the key if it does not exist.";
        replies: Replies::Integer, flags: WRITE_FAST, access: Access::ReadWrite, since: "2.0.0", key_uses: uses::EXTENDED,
        complexity: "O(1) amortised", ..STRING),
    row!("strlen", strlen, "key", "Returns the length of a string value in bytes.";
        replies: Replies::Integer, flags: READ_FAST, since: "2.2.0", key_uses: uses::EXAMINED, ..STRING),
    row!("getrange", getrange, "key start end", "Returns a part of a string value.";
        replies: Replies::Scalar, traits: Traits::BOUNDED_COST, flags: READ, since: "2.4.0",
        complexity: "O(N) for N returned bytes", ..STRING),
    row!("substr", getrange, "key start end", "Returns a part of a string value. The old name of GETRANGE.";
        replies: Replies::Scalar, flags: READ, complexity: "O(N) for N returned bytes", ..STRING),
    row!("setrange", setrange, "key offset value",
        "Overwrites a part of a string value from an offset on, and pads a shorter string with zero bytes. Creates the key if it does not exist.";
        replies: Replies::Integer, flags: WRITE, access: Access::ReadWrite, since: "2.2.0", key_uses: uses::CHANGED,
        complexity: "O(N) for N bytes written", ..STRING),
]);

fn get(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    match db.string(args[1])? {
        Some(value) => reply.bulk(value),
        None => reply.null(),
    }
    Ok(())
}

fn getdel(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    get(cx, args)?;
    cx.db().delete(args[1], Event::DEL)?;
    Ok(())
}

/// How `GETEX` changes the deadline.
enum NewDeadline {
    Leave,
    Persist,
    At(Option<u64>),
}

fn getex(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut chosen: Option<(Unit, &[u8])> = None;
    let mut persist = false;
    let mut rest = Tail(&args[2..]);
    // An option may be repeated, and the last one counts. Two different options are mutually exclusive.
    while let Some(option) = rest.next() {
        match Unit::of_option(option) {
            None if option.eq_ignore_ascii_case(b"PERSIST") && chosen.is_none() => persist = true,
            Some(unit) if !persist && chosen.is_none_or(|(known, _)| known == unit) => chosen = Some((unit, rest.value()?)),
            _ => return Err(Error::SYNTAX),
        }
    }
    // The type of the key is checked before the number, as in Redis.
    fail_if!(cx.db().peek(args[1]).is_some_and(|entry| entry.bytes().is_none()), Error::WRONG_TYPE);
    if cx.db().peek(args[1]).is_none() {
        return get(cx, args);
    }
    let new = match chosen {
        Some((unit, number)) => {
            let number = integer(number)?;
            fail_if!(number <= 0, Error::invalid_expire("getex"));
            NewDeadline::At(unit.deadline(cx.now, number, "getex")?)
        }
        None if persist => NewDeadline::Persist,
        None => NewDeadline::Leave,
    };
    get(cx, args)?;
    let mut db = cx.db();
    match new {
        NewDeadline::Leave => {}
        NewDeadline::Persist => {
            if db.peek(args[1]).is_some_and(|entry| entry.deadline().is_some()) {
                db.set_deadline(args[1], None, Event::PERSIST)?;
            }
        }
        NewDeadline::At(Some(deadline)) => {
            db.set_deadline(args[1], Some(deadline), Event::EXPIRE)?;
        }
        NewDeadline::At(None) => {
            db.delete(args[1], Event::DEL)?;
        }
    }
    Ok(())
}

fn getset(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    get(cx, &args[..2])?;
    let mut db = cx.db_noting_writer();
    let (hash, place) = db.locate(args[1]);
    db.put_string_at(hash, place, args[1], args[2], Ttl::Clear, Event::SET)
}

fn mget(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    reply.array(args.len() - 1);
    for key in &args[1..] {
        if let Ok(Some(value)) = db.string(key) { reply.bulk(value) } else { reply.null() }
    }
    Ok(())
}

/// Sets pairs of key and value.
fn set_pairs(cx: &mut Context<'_>, pairs: &[&[u8]], ttl: Ttl) -> Result {
    let mut db = cx.db();
    for pair in pairs.chunks_exact(2) {
        db.put_string(pair[0], pair[1], ttl, Event::SET)?;
        if let Ttl::At(_) = ttl {
            db.also(pair[0], Event::EXPIRE);
        }
    }
    Ok(())
}

fn mset(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(args.len().is_multiple_of(2), Error::arity("mset"));
    set_pairs(cx, &args[1..], Ttl::Clear)?;
    cx.reply.ok();
    Ok(())
}

fn msetnx(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(args.len().is_multiple_of(2), Error::arity("msetnx"));
    let mut db = cx.db();
    let any = args[1..].chunks_exact(2).any(|pair| db.contains(pair[0]));
    if !any {
        set_pairs(cx, &args[1..], Ttl::Clear)?;
    }
    cx.reply.integer(i64::from(!any));
    Ok(())
}

/// The pairs of `MSETEX` and its options.
fn split_msetex<'r, 'a>(args: &'r [&'a [u8]]) -> Result<(&'r [&'a [u8]], impl Iterator<Item = Word<'r, 'a>>)> {
    const OPTIONS: Options = &[("NX", 0), ("XX", 0), ("KEEPTTL", 0), ("EX", 1), ("PX", 1), ("EXAT", 1), ("PXAT", 1)];
    let (pairs, options) = counted(args, 1, 2).map_err(|fault| match fault {
        CountFault::TooMany(count) if i32::try_from(count).is_ok() => Error::arity("msetex"),
        _ => Error::INVALID_NUMKEYS,
    })?;
    Ok((pairs, words(args, args.len() - options.len(), OPTIONS)))
}

/// Whether a request sets only keys that do not exist.
fn msetex_creates(args: &[&[u8]]) -> bool {
    split_msetex(args).is_ok_and(|(_, mut options)| options.any(|word| word.name == "NX"))
}

fn msetex(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (pairs, options) = split_msetex(args)?;
    let (mut condition, mut ttl) = (None, None);
    for word in options {
        match (word.name, word.args) {
            ("NX" | "XX", _) if condition.is_none() => condition = Some(word.name == "XX"),
            ("KEEPTTL", _) if ttl.is_none() => ttl = Some(Ttl::Keep),
            (name, [number]) if ttl.is_none() => {
                let unit = Unit::of_option(name.as_bytes()).ok_or(Error::SYNTAX)?;
                ttl = Some(Ttl::At(unit.positive_deadline(cx.now, number, "msetex")?));
            }
            _ => return Err(Error::SYNTAX),
        }
    }
    let mut db = cx.db();
    let met = condition.is_none_or(|wanted| pairs.chunks_exact(2).all(|pair| db.contains(pair[0]) == wanted));
    if met {
        set_pairs(cx, pairs, ttl.unwrap_or(Ttl::Clear))?;
    }
    cx.reply.integer(i64::from(met));
    Ok(())
}

fn setnx(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db_noting_writer();
    let (hash, place) = db.locate(args[1]);
    if place.is_none() {
        db.put_string_at(hash, None, args[1], args[2], Ttl::Clear, Event::SET)?;
    }
    cx.reply.integer(i64::from(place.is_none()));
    Ok(())
}

fn set_with_lease(cx: &mut Context<'_>, args: &[&[u8]], unit: Unit, name: &str) -> Result {
    let deadline = unit.positive_deadline(cx.now, args[2], name)?;
    let mut db = cx.db();
    db.put_string(args[1], args[3], Ttl::At(deadline), Event::SET)?;
    db.also(args[1], Event::EXPIRE);
    cx.reply.ok();
    Ok(())
}

/// Fails if a string would exceed `proto-max-bulk-len`.
fn check_length(cx: &Context<'_>, have: usize, more: usize) -> Result {
    let fits = have.checked_add(more).is_some_and(|len| len as u64 <= cx.engine.config().proto_max_bulk_len);
    if fits { Ok(()) } else { Err(Error::STRING_TOO_LONG) }
}

/// The length of a key's string; `None` if the key does not exist.
fn length(cx: &mut Context<'_>, key: &[u8]) -> Result<Option<usize>> {
    match cx.db().peek(key) {
        None => Ok(None),
        Some(entry) => entry.bytes().map(|bytes| Some(bytes.len())).ok_or(Error::WRONG_TYPE),
    }
}

fn append(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let old = length(cx, args[1])?;
    let have = old.unwrap_or(0);
    check_length(cx, have, args[2].len())?;
    let mut db = cx.db();
    let mut edit = db.edit_string(args[1])?;
    edit.write(have, args[2]);
    edit.finish(if old.is_some() { Form::Raw } else { Form::Shortest }, Some(Event::new(Classes::STRING, "append")));
    cx.reply.integer((have + args[2].len()) as i64);
    Ok(())
}

fn strlen(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    reply.integer(db.string(args[1])?.map_or(0, <[u8]>::len) as i64);
    Ok(())
}

fn getrange(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (start, end) = (integer(args[2])?, integer(args[3])?);
    let (mut db, reply) = cx.db_and_reply();
    let value = db.string(args[1])?.unwrap_or(b"");
    reply.bulk(part(value, start, end));
    Ok(())
}

/// The bytes from `start` to `end`, both included. Negative positions count from the end.
fn part(value: &[u8], start: i64, end: i64) -> &[u8] {
    let len = value.len() as i64;
    let from_end = |at: i64| if at < 0 { len.saturating_add(at) } else { at };
    let (start, end) = (from_end(start).max(0), from_end(end).min(len - 1));
    // A range that ends before the first byte is empty.
    if end < 0 || start > end { b"" } else { &value[start as usize..=end as usize] }
}

fn setrange(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let offset = integer(args[2])?;
    fail_if!(offset < 0, Error::OFFSET_RANGE);
    let have = length(cx, args[1])?;
    if args[3].is_empty() {
        cx.reply.integer(have.unwrap_or(0) as i64);
        return Ok(());
    }
    check_length(cx, offset as usize, args[3].len())?;
    check_growth(cx, args[1], offset as usize + args[3].len())?;
    let event = Event::new(Classes::STRING, "setrange");
    let mut db = cx.db();
    let mut edit = db.edit_string(args[1])?;
    edit.write(offset as usize, args[3]);
    let len = edit.bytes().len();
    edit.finish(Form::Raw, Some(event));
    cx.reply.integer(len as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn parts_are_cut_as_getrange_cuts_them() {
        let value = b"Hello World";
        for (start, end, wanted) in [
            (0, 3, "Hell"),
            (0, -1, "Hello World"),
            (-4, -1, "orld"),
            (5, 3, ""),
            (5, 5000, " World"),
            (-5000, 10000, "Hello World"),
            (-1, -5, ""),
            (0, i64::MIN, ""),
            (-100, -12, ""),
            (-100, -11, "H"),
            (i64::MIN, i64::MAX, "Hello World"),
        ] {
            assert_eq!(part(value, start, end), wanted.as_bytes(), "{start} {end}");
        }
        assert_eq!(part(b"", 0, -1), b"");
    }
}
