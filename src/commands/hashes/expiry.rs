//! Field deadlines: `HEXPIRE`, `HTTL`, `HPERSIST` and their variants.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::base::time::Now;
use crate::commands::hashes::fields::{GROW_FAST, HASH, READ_FAST, WRITE_FAST};
use crate::commands::keys::deadline::Unit;
use crate::engine::command::keys::uses;
use crate::engine::command::options::{choice, integer};
use crate::engine::command::{Access, Command, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::keyspace::types::hashes::HashEdit;

/// The latest unix time in milliseconds at which a field can expire.
const UNIX_MS_MAX: i64 = (1 << 46) - 1;

/// Reply for a field that does not exist.
const NO_FIELD: i64 = -2;
/// Reply for a field without a deadline.
const NO_DEADLINE: i64 = -1;

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("hexpire", |cx, args| expire(cx, args, Unit::EX), "key seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Sets the expiration of fields of a hash in seconds.";
        key_uses: uses::CHANGED, ..EXPIRE),
    row!("hpexpire", |cx, args| expire(cx, args, Unit::PX),
        "key milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Sets the expiration of fields of a hash in milliseconds.";
        key_uses: uses::CHANGED, ..EXPIRE),
    row!("hexpireat", |cx, args| expire(cx, args, Unit::EXAT),
        "key unix-time-seconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Sets the expiration of fields of a hash to a Unix time in seconds.";
        key_uses: uses::CHANGED, ..EXPIRE),
    row!("hpexpireat", |cx, args| expire(cx, args, Unit::PXAT),
        "key unix-time-milliseconds [NX | XX | GT | LT] FIELDS numfields field [field ...]",
        "Sets the expiration of fields of a hash to a Unix time in milliseconds.";
        key_uses: uses::CHANGED, ..EXPIRE),
    row!("httl", |cx, args| time_left(cx, args, Unit::EX), "Returns the remaining time to live of fields of a hash in seconds.";
        tips: &["nondeterministic_output"], ..TIMES),
    row!("hpttl", |cx, args| time_left(cx, args, Unit::PX),
        "Returns the remaining time to live of fields of a hash in milliseconds.";
        tips: &["nondeterministic_output"], ..TIMES),
    row!("hexpiretime", |cx, args| time_left(cx, args, Unit::EXAT),
        "Returns the expiration of fields of a hash as a Unix time in seconds.";
        ..TIMES),
    row!("hpexpiretime", |cx, args| time_left(cx, args, Unit::PXAT),
        "Returns the expiration of fields of a hash as a Unix time in milliseconds.";
        ..TIMES),
    row!("hpersist", persist, "Removes the expiration of fields of a hash.";
        access: Access::ReadWrite, flags: WRITE_FAST, key_uses: uses::CHANGED, ..TIMES),
]);

pub(crate) const EXPIRE: Command = Command { flags: GROW_FAST, since: "7.4.0", complexity: "O(N) for N given fields", ..HASH };

pub(crate) const TIMES: Command = Command { flags: READ_FAST, syntax: "key FIELDS numfields field [field ...]", ..EXPIRE };

/// When a field expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Never.
    Never,
    /// Its time has passed.
    Now,
    /// At this deadline, in monotonic milliseconds.
    At(u64),
}

/// Parses a time.
pub(crate) fn parse_end(now: Now, argument: &[u8], unit: Unit, command: &str) -> Result<End> {
    let number = integer(argument)?;
    fail_if!(number < 0, Error::FIELD_EXPIRE_NEGATIVE);
    let base = if unit.absolute { 0 } else { now.unix_ms() };
    match number.checked_mul(unit.ms) {
        Some(ms) if ms <= UNIX_MS_MAX - base => {}
        _ => return Err(Error::invalid_expire(command)),
    }
    Ok(unit.deadline(now, number, command)?.map_or(End::Now, End::At))
}

/// Parses `FIELDS numfields field [field ...]` from `at` to the end of the arguments.
pub(crate) fn parse_fields<'r, 'a>(args: &'r [&'a [u8]], at: usize, not_positive: Error) -> Result<&'r [&'a [u8]]> {
    let [word, count, names @ ..] = &args[at.min(args.len())..] else { return Err(Error::FIELDS_MISSING) };
    fail_if!(!word.eq_ignore_ascii_case(b"FIELDS"), Error::FIELDS_MISSING);
    let count = parse_i64(count).filter(|&count| count > 0).ok_or(not_positive)?;
    fail_if!(usize::try_from(count) != Ok(names.len()), Error::NUMFIELDS_MISMATCH);
    Ok(names)
}

/// The options `NX`, `XX`, `GT` and `LT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    None,
    Nx,
    Xx,
    Gt,
    Lt,
}

impl Condition {
    fn of_option(option: &[u8]) -> Condition {
        let known = [("NX", Condition::Nx), ("XX", Condition::Xx), ("GT", Condition::Gt), ("LT", Condition::Lt)];
        choice(option, &known).unwrap_or(Condition::None)
    }

    /// Whether the condition allows replacing the old deadline. No deadline counts as the latest.
    fn allows(self, old: Option<u64>, new: End) -> bool {
        let new = match new {
            End::At(deadline) => Some(deadline),
            End::Now => Some(0),
            End::Never => None,
        };
        match self {
            Condition::None => true,
            Condition::Nx => old.is_none(),
            Condition::Xx => old.is_some(),
            Condition::Gt => old.is_some_and(|old| new.is_none_or(|new| new > old)),
            Condition::Lt => old.is_none_or(|old| new.is_some_and(|new| new < old)),
        }
    }
}

/// Sets the expiration of an existing field. Returns whether it has expired immediately.
pub(crate) fn set_end(edit: &mut HashEdit<'_, '_>, name: &[u8], end: End) -> bool {
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
    edit.make_timed();
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

/// `HTTL` and its variants. `unit` selects the remaining time or the unix time, and seconds or milliseconds.
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
                // Seconds are rounded up.
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
        // The engine has not advanced yet, but the expired field is not visible.
        h.now.advance_us(100_000);
        h.script(&[("HGET h a", "$-1"), ("HLEN h", ":2"), ("HSETNX h a 5", ":1"), ("HPTTL h FIELDS 1 a", "*1 :-1")]);
        h.pass(900);
        h.script(&[("HLEN h", ":2"), ("HGET h b", "$-1"), ("HPEXPIRE h 5 FIELDS 2 a c", "*2 :1 :1")]);
        h.pass(5);
        assert_eq!(h.engine.keyspace().stats.expired_fields, 4);
        h.script(&[("EXISTS h", ":0"), ("DBSIZE", ":0")]);
    }

    #[test]
    fn a_hash_whose_fields_have_all_ended_is_not_there() {
        let mut h = Harness::new();
        for i in 0..200 {
            h.args(&[b"HSETEX", b"h", b"PX", b"10", b"FIELDS", b"1", format!("f{i}").as_bytes(), b"v"]);
        }
        h.now.advance_us(10_000);
        h.script(&[("EXISTS h", ":0"), ("TYPE h", "+none"), ("HGETALL h", "*0"), ("SET h x NX", "+OK")]);
        assert_eq!(h.engine.keyspace().stats.expired_fields, 200);
        h.pass(1);
    }

    #[test]
    fn more_ended_fields_than_a_command_takes_out_are_passed_over() {
        let mut h = Harness::new();
        h.run("HSET h stays 1");
        for i in 0..300 {
            h.args(&[b"HSETEX", b"h", b"PX", b"10", b"FIELDS", b"1", format!("f{i}").as_bytes(), b"v"]);
        }
        h.now.advance_us(10_000);
        h.script(&[("HLEN h", ":1"), ("HGETALL h", "*2 $5 stays $1 1"), ("HSET h f299 new", ":1"), ("HDEL h f298", ":0")]);
        let fields = h.run("HRANDFIELD h 5");
        assert!(["*2 $4 f299 $5 stays", "*2 $5 stays $4 f299"].contains(&&*fields), "{fields}");
        h.pass(0);
        h.script(&[("HLEN h", ":2")]);
        assert_eq!(h.engine.keyspace().stats.expired_fields, 300);
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
            ("HTTL h FIELDS 1 a", "*1 :-1"),
            ("HGETALL h", "*2 $1 a $1 1"),
        ]);
    }
}
