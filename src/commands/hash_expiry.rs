//! Deadlines of the fields of hashes, and the commands that set, read or delete fields and their deadlines in one step.

use std::ops::Range;

use crate::commands::deadline::Unit;
use crate::commands::hashes::{GROW_FAST, HASH, READ_FAST, WRITE_FAST};
use crate::engine::change::Event;
use crate::engine::command::{Access, Command};
use crate::engine::context::Context;
use crate::engine::error::{Error, Result};
use crate::engine::hashes::HashEdit;
use crate::engine::number::parse_i64;
use crate::engine::time::Now;
use crate::store::hash::FieldTtl;

/// The latest unix time at which a field can end, in milliseconds.
const UNIX_MS_MAX: i64 = (1 << 46) - 1;

/// What is answered for a field that is not there.
const NO_FIELD: i64 = -2;
/// What is answered for a field without a deadline.
const NO_DEADLINE: i64 = -1;

/// The rows.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "hexpire",
        summary: "Lets fields of a hash end after so many seconds.",
        syntax: "key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        handler: |cx, args| expire(cx, args, Unit::EX),
        ..EXPIRE
    },
    Command {
        name: "hpexpire",
        summary: "Lets fields of a hash end after so many milliseconds.",
        syntax: "key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        handler: |cx, args| expire(cx, args, Unit::PX),
        ..EXPIRE
    },
    Command {
        name: "hexpireat",
        summary: "Lets fields of a hash end at a unix time in seconds.",
        syntax: "key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        handler: |cx, args| expire(cx, args, Unit::EXAT),
        ..EXPIRE
    },
    Command {
        name: "hpexpireat",
        summary: "Lets fields of a hash end at a unix time in milliseconds.",
        syntax: "key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        handler: |cx, args| expire(cx, args, Unit::PXAT),
        ..EXPIRE
    },
    Command {
        name: "httl",
        summary: "Gives the seconds that fields of a hash have left.",
        tips: &["nondeterministic_output"],
        handler: |cx, args| time_left(cx, args, Unit::EX),
        ..TIMES
    },
    Command {
        name: "hpttl",
        summary: "Gives the milliseconds that fields of a hash have left.",
        tips: &["nondeterministic_output"],
        handler: |cx, args| time_left(cx, args, Unit::PX),
        ..TIMES
    },
    Command {
        name: "hexpiretime",
        summary: "Gives the unix times in seconds at which fields of a hash end.",
        handler: |cx, args| time_left(cx, args, Unit::EXAT),
        ..TIMES
    },
    Command {
        name: "hpexpiretime",
        summary: "Gives the unix times in milliseconds at which fields of a hash end.",
        handler: |cx, args| time_left(cx, args, Unit::PXAT),
        ..TIMES
    },
    Command {
        name: "hpersist",
        access: Access::ReadWrite,
        flags: WRITE_FAST,
        summary: "Takes their deadlines from fields of a hash.",
        handler: persist,
        ..TIMES
    },
    Command {
        name: "hgetdel",
        access: Access::ReadWrite,
        flags: WRITE_FAST,
        since: "8.0.0",
        summary: "Gives the values of fields of a hash and deletes them.",
        handler: hgetdel,
        ..TIMES
    },
    Command {
        name: "hgetex",
        access: Access::ReadWrite,
        flags: WRITE_FAST,
        since: "8.0.0",
        summary: "Gives the values of fields of a hash and sets or takes their deadlines.",
        syntax: "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] FIELDS numfields field [field ...]",
        handler: hgetex,
        ..TIMES
    },
    Command {
        name: "hsetex",
        flags: GROW_FAST,
        since: "8.0.0",
        summary: "Sets fields of a hash and their deadlines, all of them or none.",
        syntax: "key [FNX | FXX] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL] FIELDS numfields <field value> [field value ...]",
        handler: hsetex,
        ..EXPIRE
    },
];

const EXPIRE: Command = Command { arity: -6, flags: GROW_FAST, since: "7.4.0", complexity: "O(N) for N fields named", ..HASH };

const TIMES: Command =
    Command { arity: -5, flags: READ_FAST, access: Access::Read, syntax: "key FIELDS numfields field [field ...]", ..EXPIRE };

/// When a field is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Never.
    Never,
    /// Its time has passed already.
    Now,
    /// At this deadline, in monotonic milliseconds.
    At(u64),
}

/// Reads a time.
fn parse_end(now: Now, argument: &[u8], unit: Unit, command: &str) -> Result<End> {
    let number = parse_i64(argument).ok_or(Error::NOT_INTEGER)?;
    if number < 0 {
        return Err(Error::FIELD_EXPIRE_NEGATIVE);
    }
    let base = if unit.absolute { 0 } else { now.unix_ms() };
    match number.checked_mul(unit.ms) {
        Some(ms) if ms <= UNIX_MS_MAX - base => {}
        _ => return Err(Error::invalid_expire(command)),
    }
    Ok(unit.deadline(now, number, command)?.map_or(End::Now, End::At))
}

/// Reads `FIELDS numfields field [field ...]`, which begins at `at` and must be all that is left.
fn parse_fields<'r, 'a>(args: &'r [&'a [u8]], at: usize, not_positive: Error) -> Result<&'r [&'a [u8]]> {
    let [word, count, names @ ..] = &args[at.min(args.len())..] else { return Err(Error::FIELDS_MISSING) };
    if !word.eq_ignore_ascii_case(b"FIELDS") {
        return Err(Error::FIELDS_MISSING);
    }
    let count = parse_i64(count).filter(|&count| count > 0).ok_or(not_positive)?;
    if usize::try_from(count) != Ok(names.len()) {
        return Err(Error::NUMFIELDS_MISMATCH);
    }
    Ok(names)
}

/// `NX`, `XX`, `GT` and `LT`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    None,
    NoDeadline,
    Deadline,
    Later,
    Sooner,
}

impl Condition {
    fn of_option(option: &[u8]) -> Condition {
        let options: [(&[u8], Condition); 4] =
            [(b"NX", Condition::NoDeadline), (b"XX", Condition::Deadline), (b"GT", Condition::Later), (b"LT", Condition::Sooner)];
        options.iter().find(|(name, _)| option.eq_ignore_ascii_case(name)).map_or(Condition::None, |(_, c)| *c)
    }

    /// Whether a field with this deadline may get that one. No deadline is later than any.
    fn allows(self, old: Option<u64>, new: End) -> bool {
        let new = match new {
            End::At(deadline) => Some(deadline),
            End::Now => Some(0),
            End::Never => None,
        };
        match self {
            Condition::None => true,
            Condition::NoDeadline => old.is_none(),
            Condition::Deadline => old.is_some(),
            Condition::Later => old.is_some_and(|old| new.is_none_or(|new| new > old)),
            Condition::Sooner => old.is_none_or(|old| new.is_some_and(|new| new < old)),
        }
    }
}

/// Lets a field that is there end; gives whether it has ended at once.
fn set_end(edit: &mut HashEdit<'_, '_>, name: &[u8], end: End) -> bool {
    match end {
        End::Now => return edit.end(name),
        End::At(deadline) => edit.set_deadline(name, Some(deadline)),
        End::Never => edit.set_deadline(name, None),
    };
    false
}

fn expire(cx: &mut Context<'_>, args: &[&[u8]], unit: Unit) -> Result {
    let (now, command) = (cx.now, cx.command.name);
    let (mut db, reply) = cx.db_and_reply();
    let edit = db.edit_hash(args[1])?;
    let end = parse_end(now, args[2], unit, command)?;
    let condition = Condition::of_option(args[3]);
    let at = if condition == Condition::None { 3 } else { 4 };
    let names = parse_fields(args, at, Error::NUMFIELDS_POSITIVE)?;
    reply.array(names.len());
    let Some(mut edit) = edit else {
        names.iter().for_each(|_| reply.integer(NO_FIELD));
        return Ok(());
    };
    let (mut updated, mut deleted) = (false, false);
    for name in names {
        let Some(field) = edit.get(name) else {
            reply.integer(NO_FIELD);
            continue;
        };
        if !condition.allows(field.deadline, end) {
            reply.integer(0);
            continue;
        }
        if set_end(&mut edit, name, end) {
            deleted = true;
            reply.integer(2);
        } else {
            updated = true;
            reply.integer(1);
        }
    }
    edit.finish(match (updated, deleted) {
        (_, true) => &[Event::HDEL],
        (true, false) => &[Event::HEXPIRE],
        (false, false) => &[],
    });
    Ok(())
}

/// `HTTL` and its kin: `unit` says whether time left or unix time, and in what.
fn time_left(cx: &mut Context<'_>, args: &[&[u8]], unit: Unit) -> Result {
    let now = cx.now;
    let (mut db, reply) = cx.db_and_reply();
    let hash = db.hash(args[1])?;
    let names = parse_fields(args, 2, Error::FIELDS_POSITIVE)?;
    reply.array(names.len());
    for name in names {
        reply.integer(match hash.and_then(|hash| hash.get(name)) {
            None => NO_FIELD,
            Some(field) => field.deadline.map_or(NO_DEADLINE, |deadline| {
                let ms = if unit.absolute { now.unix_of(deadline) } else { now.left_ms(deadline) as i64 };
                // Whole seconds, rounded up.
                ms.saturating_add(unit.ms - 1) / unit.ms
            }),
        });
    }
    Ok(())
}

fn persist(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let edit = db.edit_hash(args[1])?;
    let names = parse_fields(args, 2, Error::FIELDS_POSITIVE)?;
    reply.array(names.len());
    let Some(mut edit) = edit else {
        names.iter().for_each(|_| reply.integer(NO_FIELD));
        return Ok(());
    };
    let mut changed = false;
    for name in names {
        reply.integer(match edit.get(name).map(|field| field.deadline) {
            None => NO_FIELD,
            Some(None) => NO_DEADLINE,
            Some(Some(_)) => {
                changed |= edit.set_deadline(name, None);
                1
            }
        });
    }
    edit.finish(if changed { &[Event::HPERSIST] } else { &[] });
    Ok(())
}

fn hgetdel(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let edit = db.edit_hash(args[1])?;
    let names = parse_fields(args, 2, Error::FIELDS_POSITIVE)?;
    reply.array(names.len());
    let Some(mut edit) = edit else {
        names.iter().for_each(|_| reply.null());
        return Ok(());
    };
    let mut deleted = false;
    for name in names {
        match edit.get(name) {
            Some(field) => reply.bulk(field.value),
            None => reply.null(),
        }
        deleted |= edit.remove(name);
    }
    edit.finish(if deleted { &[Event::HDEL] } else { &[] });
    Ok(())
}

/// What `HSETEX` and `HGETEX` take.
struct Options {
    /// `EX`, `PX`, `EXAT`, `PXAT` and `PERSIST`
    end: Option<End>,
    /// `KEEPTTL`
    keep: bool,
    /// `FXX`: every field must be there; `FNX`: none.
    exist: Option<bool>,
    /// Where the fields, and for `HSETEX` their values, stand.
    fields: Range<usize>,
}

/// Reads the options and the fields, in any order. With `pairs` it is `HSETEX`, without it is `HGETEX`.
fn parse_options(now: Now, command: &str, args: &[&[u8]], pairs: bool) -> Result<Options> {
    let mut options = Options { end: None, keep: false, exist: None, fields: 0..0 };
    let one_expiry = if pairs { Error::ONE_EXPIRY_OR_KEEPTTL } else { Error::ONE_EXPIRY_OR_PERSIST };
    // PERSIST belongs to HGETEX, KEEPTTL and the conditions to HSETEX; that is looked at last.
    let mut foreign = false;
    let mut at = 2;
    while let Some(option) = args.get(at) {
        if option.eq_ignore_ascii_case(b"FIELDS") {
            if !options.fields.is_empty() {
                return Err(Error::FIELDS_TWICE);
            }
            let Some(count) = args.get(at + 1) else { return Err(Error::arity(command)) };
            let count = parse_i64(count).and_then(|count| i32::try_from(count).ok()).filter(|&count| count > 0);
            let count = count.ok_or(Error::FIELDS_INVALID)? as usize;
            let end = at + 2 + if pairs { count * 2 } else { count };
            if end > args.len() {
                return Err(Error::TOO_FEW_FIELDS);
            }
            options.fields = at + 2..end;
            at = end;
            continue;
        }
        if let Some(unit) = Unit::of_option(option) {
            if options.end.is_some() || options.keep {
                return Err(one_expiry);
            }
            let argument = args.get(at + 1).ok_or(Error::EXPIRE_MISSING)?;
            options.end = Some(parse_end(now, argument, unit, command)?);
            at += 1;
        } else if option.eq_ignore_ascii_case(b"PERSIST") {
            if options.end.is_some() {
                return Err(one_expiry);
            }
            options.end = Some(End::Never);
            foreign |= pairs;
        } else if option.eq_ignore_ascii_case(b"KEEPTTL") {
            if options.keep || options.end.is_some_and(|end| end != End::Never) {
                return Err(one_expiry);
            }
            options.keep = true;
            foreign |= !pairs;
        } else if option.eq_ignore_ascii_case(b"FXX") || option.eq_ignore_ascii_case(b"FNX") {
            if options.exist.replace(option.eq_ignore_ascii_case(b"FXX")).is_some() {
                return Err(Error::ONE_FIELD_CONDITION);
            }
            foreign |= !pairs;
        } else {
            return Err(Error::quoting("ERR unknown argument: ", option, ""));
        }
        at += 1;
    }
    if foreign {
        return Err(Error::UNKNOWN_ARGUMENT);
    }
    if options.fields.is_empty() { Err(Error::FIELDS_NOWHERE) } else { Ok(options) }
}

fn hgetex(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (now, command) = (cx.now, cx.command.name);
    let (mut db, reply) = cx.db_and_reply();
    let edit = db.edit_hash(args[1])?;
    let options = parse_options(now, command, args, false)?;
    reply.array(options.fields.len());
    let Some(mut edit) = edit else {
        options.fields.for_each(|_| reply.null());
        return Ok(());
    };
    let (mut updated, mut deleted) = (false, false);
    for name in &args[options.fields] {
        let Some(field) = edit.get(name) else {
            reply.null();
            continue;
        };
        reply.bulk(field.value);
        let timed = field.deadline.is_some();
        match options.end {
            None => {}
            Some(End::Never) if !timed => {}
            Some(end) if set_end(&mut edit, name, end) => deleted = true,
            Some(_) => updated = true,
        }
    }
    edit.finish(match (updated, deleted, options.end) {
        (true, _, Some(End::Never)) => &[Event::HPERSIST],
        (true, _, _) => &[Event::HEXPIRE],
        (_, true, _) => &[Event::HDEL],
        _ => &[],
    });
    Ok(())
}

fn hsetex(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let options = parse_options(cx.now, cx.command.name, args, true)?;
    let pairs = &args[options.fields];
    let mut db = cx.db();
    if let Some(exist) = options.exist {
        let edit = db.edit_hash(args[1])?;
        let there = |pair: &[&[u8]]| edit.as_ref().is_some_and(|edit| edit.get(pair[0]).is_some());
        if !pairs.chunks_exact(2).all(|pair| there(pair) == exist) {
            cx.reply.integer(0);
            return Ok(());
        }
    }
    let mut edit = db.edit_or_create_hash(args[1])?;
    edit.make_room(pairs);
    let ttl = match options.end {
        Some(End::At(deadline)) => FieldTtl::At(deadline),
        _ if options.keep => FieldTtl::Keep,
        _ => FieldTtl::Clear,
    };
    for pair in pairs.chunks_exact(2) {
        edit.set(pair[0], pair[1], ttl);
        if options.end == Some(End::Now) {
            edit.end(pair[0]);
        }
    }
    edit.finish(match options.end {
        None => &[Event::HSET],
        Some(End::Now) => &[Event::HSET, Event::HDEL],
        Some(_) => &[Event::HSET, Event::HEXPIRE],
    });
    cx.reply.integer(1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn fields_end_on_time_and_the_key_with_the_last_one() {
        let mut h = Harness::new();
        h.script(&[
            ("HSET h a 1 b 2 c 3", ":3"),
            ("HPEXPIRE h 100 FIELDS 2 a x", "*2 :1 :-2"),
            ("HEXPIRE h 1 FIELDS 1 b", "*1 :1"),
            ("HPTTL h FIELDS 4 a b c x", "*4 :100 :1000 :-1 :-2"),
            ("HTTL h FIELDS 2 a b", "*2 :1 :1"),
            ("HPEXPIRETIME h FIELDS 1 b", "*1 :1700001001000"),
            ("HEXPIRETIME h FIELDS 2 a c", "*2 :1700001001 :-1"),
            ("OBJECT ENCODING h", "$10 listpackex"),
        ]);
        assert!(h.engine.next_deadline().is_some_and(|at| at <= 1_000_100));
        // Nobody has let time pass for the engine yet: the field is not seen all the same.
        h.now.mono_us += 100_000;
        h.script(&[("HGET h a", "$-1"), ("HLEN h", ":2"), ("HSETNX h a 5", ":1"), ("HPTTL h FIELDS 1 a", "*1 :-1")]);
        h.pass(900);
        h.script(&[("HLEN h", ":2"), ("HGET h b", "$-1"), ("HPEXPIRE h 5 FIELDS 2 a c", "*2 :1 :1")]);
        h.pass(5);
        assert_eq!(h.engine.keyspace.stats.expired_fields, 4);
        h.script(&[("EXISTS h", ":0"), ("DBSIZE", ":0")]);
    }

    #[test]
    fn a_hash_whose_fields_have_all_ended_is_not_there() {
        let mut h = Harness::new();
        for i in 0..200 {
            h.args(&[b"HSETEX", b"h", b"PX", b"10", b"FIELDS", b"1", format!("f{i}").as_bytes(), b"v"]);
        }
        h.now.mono_us += 10_000;
        h.script(&[("EXISTS h", ":0"), ("TYPE h", "+none"), ("HGETALL h", "*0"), ("SET h x NX", "+OK")]);
        assert_eq!(h.engine.keyspace.stats.expired_fields, 200);
        h.pass(1);
    }

    #[test]
    fn more_ended_fields_than_a_command_takes_out_are_passed_over() {
        let mut h = Harness::new();
        h.run("HSET h stays 1");
        for i in 0..300 {
            h.args(&[b"HSETEX", b"h", b"PX", b"10", b"FIELDS", b"1", format!("f{i}").as_bytes(), b"v"]);
        }
        h.now.mono_us += 10_000;
        h.script(&[
            ("HLEN h", ":1"),
            ("HGETALL h", "*2 $5 stays $1 1"),
            ("HSET h f299 new", ":1"),
            ("HDEL h f298", ":0"),
            ("HRANDFIELD h 5", "*2 $5 stays $4 f299"),
        ]);
        h.pass(0);
        h.script(&[("HLEN h", ":2")]);
        assert_eq!(h.engine.keyspace.stats.expired_fields, 300);
    }

    #[test]
    fn conditions() {
        Harness::new().script(&[
            ("HSET h a 1 b 2", ":2"),
            ("HPEXPIRE h 100 XX FIELDS 1 a", "*1 :0"),
            ("HPEXPIRE h 100 GT FIELDS 1 a", "*1 :0"),
            ("HPEXPIRE h 100 nx FIELDS 1 a", "*1 :1"),
            ("HPEXPIRE h 100 LT FIELDS 1 b", "*1 :1"),
            ("HPEXPIRE h 200 NX FIELDS 1 a", "*1 :0"),
            ("HPEXPIRE h 200 LT FIELDS 1 a", "*1 :0"),
            ("HPEXPIRE h 100 GT FIELDS 1 a", "*1 :0"),
            ("HPEXPIRE h 200 GT FIELDS 1 a", "*1 :1"),
            ("HPEXPIRE h 50 XX FIELDS 1 a", "*1 :1"),
            ("HPTTL h FIELDS 2 a b", "*2 :50 :100"),
            ("HPEXPIREAT h 1 GT FIELDS 1 a", "*1 :0"),
            ("HPEXPIREAT h 1 LT FIELDS 2 a a", "*2 :2 :-2"),
            ("HEXPIREAT h 1 FIELDS 1 b", "*1 :2"),
            ("EXISTS h", ":0"),
        ]);
    }

    #[test]
    fn what_keeps_a_deadline_and_what_does_not() {
        Harness::new().script(&[
            ("HSETEX h EX 10 FIELDS 2 a 1 b 2", ":1"),
            ("HTTL h FIELDS 2 a b", "*2 :10 :10"),
            ("HINCRBY h a 1", ":2"),
            ("HINCRBYFLOAT h b 1", "$1 3"),
            ("HTTL h FIELDS 2 a b", "*2 :10 :10"),
            ("HSETEX h KEEPTTL FIELDS 1 a x", ":1"),
            ("HTTL h FIELDS 2 a b", "*2 :10 :10"),
            ("HSET h a 1", ":0"),
            ("HTTL h FIELDS 2 a b", "*2 :-1 :10"),
            ("HPERSIST h FIELDS 3 a b x", "*3 :-1 :1 :-2"),
            ("HTTL h FIELDS 2 a b", "*2 :-1 :-1"),
            ("COPY h g", ":1"),
            ("HEXPIRE g 10 FIELDS 1 a", "*1 :1"),
            ("COPY g h REPLACE", ":1"),
            ("RENAME h i", "+OK"),
            ("HTTL i FIELDS 2 a b", "*2 :10 :-1"),
        ]);
    }

    #[test]
    fn set_get_and_delete_in_one_step() {
        Harness::new().script(&[
            ("HSETEX h FXX FIELDS 1 a 1", ":0"),
            ("EXISTS h", ":0"),
            ("HSETEX h FNX PX 100 FIELDS 2 a 1 b 2", ":1"),
            ("HSETEX h FNX FIELDS 2 b 3 c 3", ":0"),
            ("HSETEX h FXX FIELDS 2 b 3 c 3", ":0"),
            ("HSETEX h FXX FIELDS 2 a 5 b 6", ":1"),
            ("HPTTL h FIELDS 2 a b", "*2 :-1 :-1"),
            ("HGETEX h PX 50 FIELDS 3 a x b", "*3 $1 5 $-1 $1 6"),
            ("HPTTL h FIELDS 2 a b", "*2 :50 :50"),
            ("HGETEX h FIELDS 1 a PERSIST", "*1 $1 5"),
            ("HPTTL h FIELDS 2 a b", "*2 :-1 :50"),
            ("HGETEX h PXAT 1 FIELDS 2 a a", "*2 $1 5 $-1"),
            ("HGETDEL h FIELDS 3 b b x", "*3 $1 6 $-1 $-1"),
            ("EXISTS h", ":0"),
            ("HGETDEL h FIELDS 1 b", "*1 $-1"),
            ("HGETEX h EX 1 FIELDS 1 b", "*1 $-1"),
            ("HSETEX h PX 0 FIELDS 1 a 1", ":1"),
            ("EXISTS h", ":0"),
        ]);
    }

    #[test]
    fn errors_change_nothing() {
        Harness::new().script(&[
            ("SET s x", "+OK"),
            ("HSET h a 1", ":1"),
            ("HEXPIRE s x FIELDS 1 a", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("HEXPIRE h x FIELDS 1 a", "-ERR value is not an integer or out of range"),
            ("HEXPIRE h -1 FIELDS 1 a", "-ERR invalid expire time, must be >= 0"),
            ("HEXPIRE h 99999999999999 FIELDS 1 a", "-ERR invalid expire time in 'hexpire' command"),
            ("HPEXPIRE h 70368744177663 FIELDS 1 a", "-ERR invalid expire time in 'hpexpire' command"),
            ("HPEXPIREAT h 70368744177663 FIELDS 1 x", "*1 :-2"),
            ("HPEXPIREAT h 70368744177664 FIELDS 1 a", "-ERR invalid expire time in 'hpexpireat' command"),
            ("HEXPIRE h 1 a a a", "-ERR Mandatory argument FIELDS is missing or not at the right position"),
            ("HEXPIRE h 1 FIELDS x a", "-ERR Parameter `numFields` should be greater than 0"),
            ("HEXPIRE h 1 FIELDS 2 a", "-ERR The `numfields` parameter must match the number of arguments"),
            ("HEXPIRE h 1 NX FIELDS 1", "-ERR The `numfields` parameter must match the number of arguments"),
            ("HTTL h FIELDS 0 a", "-ERR Number of fields must be a positive integer"),
            ("HTTL h x 1 a", "-ERR Mandatory argument FIELDS is missing or not at the right position"),
            ("HPERSIST h FIELDS 3 a", "-ERR The `numfields` parameter must match the number of arguments"),
            ("HSETEX h FIELDS 0 a 1", "-ERR invalid number of fields"),
            ("HSETEX h FIELDS 2 a 1", "-ERR wrong number of arguments"),
            ("HSETEX h FIELDS 1 a 1 b", "-ERR unknown argument: b"),
            ("HSETEX h FNX FXX FIELDS 1 a 1", "-ERR Only one of FXX or FNX arguments can be specified"),
            ("HSETEX h EX 1 KEEPTTL FIELDS 1 a 1", "-ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified"),
            ("HSETEX h FIELDS 1 a 1 FIELDS 1 a 1", "-ERR FIELDS keyword specified multiple times"),
            ("HSETEX h EX 1 EX", "-ERR wrong number of arguments for 'hsetex' command"),
            ("HSETEX h FNX EX 1 KEEPTTL", "-ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified"),
            ("HSETEX h FIELDS 1 a 1 EX", "-ERR missing expire time"),
            ("HSETEX h FIELDS 1 a 1 PERSIST", "-ERR unknown argument"),
            ("HGETEX h FIELDS 1 a KEEPTTL", "-ERR unknown argument"),
            ("HGETEX h PERSIST EX 1", "-ERR Only one of EX, PX, EXAT, PXAT or PERSIST arguments can be specified"),
            ("HGETEX h EX 1 EX 2", "-ERR Only one of EX, PX, EXAT, PXAT or PERSIST arguments can be specified"),
            ("HGETEX h EX 1 FNX", "-ERR unknown argument"),
            ("HGETEX h EX 1 EXAT", "-ERR Only one of EX, PX, EXAT, PXAT or PERSIST arguments can be specified"),
            ("HGETEX h KEEPTTL EX 1", "-ERR Only one of EX, PX, EXAT, PXAT or PERSIST arguments can be specified"),
            ("HGETEX h EX 1 FIELDS", "-ERR wrong number of arguments for 'hgetex' command"),
            ("HSETEX h EX 1 FNX EX", "-ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified"),
            ("HSETEX h PX 1 FNX FNX", "-ERR Only one of FXX or FNX arguments can be specified"),
            ("HGETEX h EX 1 PX", "-ERR Only one of EX, PX, EXAT, PXAT or PERSIST arguments can be specified"),
            ("HTTL h FIELDS 1 a", "*1 :-1"),
            ("HGETALL h", "*2 $1 a $1 1"),
        ]);
    }
}
