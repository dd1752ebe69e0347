//! Commands that set, read or delete fields together with their deadlines: `HSETEX`, `HGETEX`, `HGETDEL`.

use std::ops::Range;

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::base::time::Now;
use crate::commands::hashes::expiry::{EXPIRE, End, TIMES, parse_end, parse_fields, set_end};
use crate::commands::hashes::fields::{GROW_FAST, WRITE_FAST};
use crate::commands::keys::deadline::Unit;
use crate::engine::command::keys::uses;
use crate::engine::command::options::{Tail, upper};
use crate::engine::command::{Access, Command, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::store::values::hash::FieldTtl;

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("hgetdel", hgetdel, "Returns the values of fields of a hash and deletes the fields.";
        access: Access::ReadWrite, flags: WRITE_FAST, since: "8.0.0", key_uses: uses::TAKEN, ..TIMES),
    row!("hgetex", hgetex,
        "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] FIELDS numfields field [field ...]",
        "Returns the values of fields of a hash, and sets or removes their expiration.";
        access: Access::ReadWrite, flags: WRITE_FAST, since: "8.0.0", ..TIMES),
    row!("hsetex", hsetex,
        "key [FNX | FXX] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL] FIELDS numfields field value [field value ...]",
        "Sets fields of a hash and their expiration, optionally only if all of them or none of them exist.";
        flags: GROW_FAST, since: "8.0.0", key_uses: uses::CHANGED, ..EXPIRE),
]);

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

/// Options of `HSETEX` and `HGETEX`.
struct Options {
    /// `EX`, `PX`, `EXAT`, `PXAT` or `PERSIST`.
    end: Option<End>,
    /// `KEEPTTL`.
    keep: bool,
    /// `FXX` (true): every field must exist. `FNX` (false): no field may exist.
    exist: Option<bool>,
    /// The positions of the fields and, for `HSETEX`, their values.
    fields: Range<usize>,
}

/// Parses the options and the fields in any order, for `HSETEX` if `pairs`, otherwise for `HGETEX`.
fn parse_options(now: Now, command: &str, args: &[&[u8]], pairs: bool) -> Result<Options> {
    let mut options = Options { end: None, keep: false, exist: None, fields: 0..0 };
    let one_expiry = if pairs { Error::ONE_EXPIRY_OR_KEEPTTL } else { Error::ONE_EXPIRY_OR_PERSIST };
    // PERSIST is an option of HGETEX; KEEPTTL and the conditions are options of HSETEX. This is checked last.
    let mut foreign = false;
    let mut rest = Tail(&args[2..]);
    while let Some(option) = rest.next() {
        let word = upper(option);
        match &*word {
            b"FIELDS" if !options.fields.is_empty() => return Err(Error::FIELDS_TWICE),
            b"FIELDS" => {
                let count = rest.next().ok_or_else(|| Error::arity(command))?;
                let count = parse_i64(count).and_then(|count| i32::try_from(count).ok()).filter(|&count| count > 0);
                let count = count.ok_or(Error::FIELDS_INVALID)? as usize;
                let at = args.len() - rest.left();
                let end = at + if pairs { count * 2 } else { count };
                rest = Tail(args.get(end..).ok_or(Error::TOO_FEW_FIELDS)?);
                options.fields = at..end;
            }
            b"PERSIST" if options.end.is_some() => return Err(one_expiry),
            b"PERSIST" => {
                options.end = Some(End::Never);
                foreign |= pairs;
            }
            b"KEEPTTL" if options.keep || options.end.is_some_and(|end| end != End::Never) => return Err(one_expiry),
            b"KEEPTTL" => {
                options.keep = true;
                foreign |= !pairs;
            }
            b"FXX" | b"FNX" if options.exist.is_some() => return Err(Error::ONE_FIELD_CONDITION),
            b"FXX" | b"FNX" => {
                options.exist = Some(*word == *b"FXX");
                foreign |= !pairs;
            }
            _ => {
                let unit = Unit::of_option(option).ok_or_else(|| Error::quoting("ERR unknown argument: ", option, ""))?;
                fail_if!(options.end.is_some() || options.keep, one_expiry);
                let argument = rest.next().ok_or(Error::EXPIRE_MISSING)?;
                options.end = Some(parse_end(now, argument, unit, command)?);
            }
        }
    }
    fail_if!(foreign, Error::UNKNOWN_ARGUMENT);
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
    if options.end.is_some() {
        edit.make_timed();
    }
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
            ("HSET h a 1", ":1"),
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
