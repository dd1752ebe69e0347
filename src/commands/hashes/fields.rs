//! Fields of hashes and their values. Field deadlines are in [`crate::commands::hashes::expiry`].

use crate::base::error::{Error, Result};
use crate::base::number::{LongDouble, parse_i64};
use crate::commands::elements::{self, Draw, Element, Scanned};
use crate::commands::keys::scan::parse_cursor;
use crate::engine::command::keys::uses;
use crate::engine::command::options::integer;
use crate::engine::command::{Access, Command, Flags, Group, Keys, Replies, Traits, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::keyspace::types::hashes::HashView;
use crate::resp::reply::Sink;
use crate::store::values::hash::{Field, FieldTtl, small_number};

/// What the rows of hash commands have in common.
pub(crate) const HASH: Command =
    Command { group: Group::Hash, keys: Keys::ONE, access: Access::ReadWrite, since: "2.0.0", ..Command::DEFAULT };
pub(crate) const READ: Flags = Flags::READONLY;
pub(crate) const READ_FAST: Flags = Flags::READONLY.union(Flags::FAST);
pub(crate) const WRITE_FAST: Flags = Flags::WRITE.union(Flags::FAST);
pub(crate) const GROW_FAST: Flags = WRITE_FAST.union(Flags::DENYOOM);

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("hset", hset, "key field value [field value ...]", "Sets fields of a hash. Creates the hash if it does not exist.";
        replies: Replies::Integer, flags: GROW_FAST, key_uses: uses::CHANGED, complexity: "O(N) for N fields", ..HASH),
    row!("hmset", hmset, "key field value [field value ...]",
        "Sets fields of a hash. HSET does the same and returns the number of new fields.";
        replies: Replies::Scalar, flags: GROW_FAST, key_uses: uses::CHANGED, complexity: "O(N) for N fields", ..HASH),
    row!("hsetnx", hsetnx, "key field value", "Sets a field of a hash only if the field does not exist.";
        replies: Replies::Integer, flags: GROW_FAST, key_uses: uses::EXTENDED, ..HASH),
    row!("hget", hget, "key field", "Returns the value of a field of a hash.";
        replies: Replies::Scalar, flags: READ_FAST, ..HASH),
    row!("hmget", hmget, "key field [field ...]", "Returns the values of several fields of a hash.";
        flags: READ_FAST, complexity: "O(N) for N requested fields", ..HASH),
    row!("hgetall", hgetall, "key", "Returns all fields and values of a hash.";
        traits: Traits::BOUNDED_COST, flags: READ, complexity: "O(N) for N fields of the hash",
        tips: &["nondeterministic_output_order"], ..HASH),
    row!("hkeys", |cx, args| list(cx, args[1], |field| field.name), "key", "Returns all fields of a hash.";
        traits: Traits::BOUNDED_COST, flags: READ, complexity: "O(N) for N fields of the hash",
        tips: &["nondeterministic_output_order"], ..HASH),
    row!("hvals", |cx, args| list(cx, args[1], |field| field.value), "key", "Returns all values of a hash.";
        traits: Traits::BOUNDED_COST, flags: READ, complexity: "O(N) for N fields of the hash",
        tips: &["nondeterministic_output_order"], ..HASH),
    row!("hlen", |cx, args| {
            let len = cx.db().hash(args[1])?.map_or(0, |hash| hash.len());
            cx.reply.integer(len as i64);
            Ok(())
        }, "key", "Returns the number of fields of a hash.";
        replies: Replies::Integer, flags: READ_FAST, key_uses: uses::EXAMINED, ..HASH),
    row!("hstrlen", |cx, args| {
            let len = cx.db().hash(args[1])?.and_then(|hash| hash.get(args[2])).map_or(0, |field| field.value.len());
            cx.reply.integer(len as i64);
            Ok(())
        }, "key field", "Returns the length of the value of a field in bytes.";
        replies: Replies::Integer, flags: READ_FAST, since: "3.2.0", key_uses: uses::EXAMINED, ..HASH),
    row!("hexists", |cx, args| {
            let found = cx.db().hash(args[1])?.is_some_and(|hash| hash.get(args[2]).is_some());
            cx.reply.integer(i64::from(found));
            Ok(())
        }, "key field", "Checks whether a field of a hash exists.";
        replies: Replies::Integer, flags: READ_FAST, key_uses: uses::EXAMINED, ..HASH),
    row!("hdel", hdel, "key field [field ...]", "Deletes fields of a hash. Deletes the hash with its last field.";
        replies: Replies::Integer, flags: WRITE_FAST, key_uses: uses::REMOVED_FROM, complexity: "O(N) for N fields to delete",
        ..HASH),
    row!("hincrby", hincrby, "key field increment",
        "Increments the integer value of a field by a number. A missing field counts as 0.";
        replies: Replies::Integer, flags: GROW_FAST, ..HASH),
    row!("hincrbyfloat", hincrbyfloat, "key field increment:double",
        "Increments the floating point value of a field by a number. A missing field counts as 0.";
        replies: Replies::Scalar, flags: GROW_FAST, since: "2.6.0", ..HASH),
    row!("hrandfield", hrandfield, "key [count [WITHVALUES]]",
        "Returns random fields of a hash: different ones, or with a negative count possibly the same one several times.";
        flags: READ, since: "6.2.0", complexity: "O(N) for N returned fields", tips: &["nondeterministic_output"], ..HASH),
    row!("hscan", hscan, "key cursor [MATCH pattern] [COUNT count] [NOVALUES]", "Iterates over the fields of a hash.";
        flags: READ, since: "2.8.0", complexity: "O(N) for N fields visited per call", tips: &["nondeterministic_output"],
        ..HASH),
]);

/// Sets pairs of field and value. Returns the number of new fields.
fn set_pairs(cx: &mut Context<'_>, args: &[&[u8]]) -> Result<usize> {
    fail_if!(args.len() % 2 == 1, Error::arity(cx.command.name));
    // One field with a small number may be a lock.
    let may_be_lock = args.len() == 4 && small_number(args[3]).is_some();
    let mut db = if may_be_lock { cx.db_noting_writer() } else { cx.db() };
    let mut edit = db.edit_or_create_hash(args[1])?;
    edit.make_room(&args[2..]);
    let mut new = 0;
    for pair in args[2..].chunks_exact(2) {
        new += usize::from(edit.set(pair[0], pair[1], FieldTtl::Clear));
    }
    edit.finish(&[Event::HSET]);
    Ok(new)
}

fn hset(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let new = set_pairs(cx, args)?;
    cx.reply.integer(new as i64);
    Ok(())
}

fn hmset(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    set_pairs(cx, args)?;
    cx.reply.ok();
    Ok(())
}

fn hsetnx(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db_noting_writer();
    let mut edit = db.edit_or_create_hash(args[1])?;
    let new = edit.get(args[2]).is_none();
    if new {
        edit.make_room(&args[2..]);
        edit.set(args[2], args[3], FieldTtl::Clear);
        edit.finish(&[Event::HSET]);
    }
    cx.reply.integer(i64::from(new));
    Ok(())
}

fn hget(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    match db.hash(args[1])?.and_then(|hash| hash.get(args[2])) {
        Some(field) => reply.bulk(field.value),
        None => reply.null(),
    }
    Ok(())
}

fn hmget(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let hash = db.hash(args[1])?;
    reply.array(args.len() - 2);
    for name in &args[2..] {
        if let Some(field) = hash.and_then(|hash| hash.get(name)) { reply.bulk(field.value) } else { reply.null() }
    }
    Ok(())
}

fn hgetall(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let Some(hash) = db.hash(args[1])? else {
        reply.map(0);
        return Ok(());
    };
    reply.map(hash.len());
    for field in hash.iter() {
        reply.bulk(field.name);
        reply.bulk(field.value);
    }
    Ok(())
}

/// Replies with one part of every field.
fn list(cx: &mut Context<'_>, key: &[u8], part: for<'f> fn(Field<'f>) -> &'f [u8]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let Some(hash) = db.hash(key)? else {
        reply.array(0);
        return Ok(());
    };
    reply.array(hash.len());
    hash.iter().for_each(|field| reply.bulk(part(field)));
    Ok(())
}

fn hdel(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let mut deleted = 0;
    if let Some(mut edit) = db.edit_hash(args[1])? {
        deleted = args[2..].iter().filter(|name| edit.remove(name)).count();
        edit.finish(if deleted > 0 { &[Event::HDEL] } else { &[] });
    }
    cx.reply.integer(deleted as i64);
    Ok(())
}

fn hincrby(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (key, name) = (args[1], args[2]);
    let increment = integer(args[3])?;
    let mut db = cx.db_noting_writer();
    let mut edit = db.edit_or_create_hash(key)?;
    let sum = match edit.add_to_count(name, increment) {
        Some(sum) => sum,
        None => {
            let value = edit.get(name).map_or(Some(0), |field| parse_i64(field.value)).ok_or(Error::HASH_NOT_INTEGER)?;
            let sum = value.checked_add(increment).ok_or(Error::OVERFLOW)?;
            edit.set(name, itoa::Buffer::new().format(sum).as_bytes(), FieldTtl::Keep);
            sum
        }
    };
    edit.finish(&[Event::HINCRBY]);
    cx.reply.integer(sum);
    Ok(())
}

fn hincrbyfloat(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (key, name) = (args[1], args[2]);
    let increment = LongDouble::parse(args[3]).ok_or(Error::NOT_FLOAT)?;
    fail_if!(!increment.is_finite(), Error::VALUE_NAN_OR_INFINITY);
    let mut db = cx.db();
    let mut edit = db.edit_or_create_hash(key)?;
    let value = edit.get(name).map_or(Some(LongDouble::ZERO), |field| LongDouble::parse(field.value));
    let sum = value.ok_or(Error::HASH_NOT_FLOAT)?.sum(increment);
    fail_if!(!sum.is_finite(), Error::NAN_OR_INFINITY);
    let sum = sum.to_fixed();
    edit.set(name, sum.as_bytes(), FieldTtl::Keep);
    edit.finish(&[Event::HINCRBYFLOAT]);
    cx.reply.bulk(sum.as_bytes());
    Ok(())
}

impl Element for Field<'_> {
    fn name<'b>(&'b self, _: &'b mut itoa::Buffer) -> &'b [u8] {
        self.name
    }

    fn write_value(&self, reply: &mut dyn Sink) {
        reply.bulk(self.value);
    }

    fn value_len(&self) -> usize {
        self.value.len()
    }
}

impl Scanned for HashView<'_> {
    const TAKES_NO_VALUES: bool = true;
}

fn hrandfield(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let draw = Draw::parse(cx, args, "WITHVALUES")?;
    let (mut db, reply) = cx.db_and_reply();
    draw.reply(reply, db.hash(args[1])?)
}

fn hscan(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let cursor = parse_cursor(args[2])?;
    let (mut db, reply) = cx.db_and_reply();
    elements::scan(reply, db.hash(args[1])?, cursor, &args[3..])
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn fields_are_set_read_and_deleted() {
        Harness::new().script(&[
            ("HSET h a 1 b 2 a 3", ":2"),
            ("HGETALL h", "*4 $1 a $1 3 $1 b $1 2"),
            ("HMSET h c 4", "+OK"),
            ("HSETNX h c 5", ":0"),
            ("HSETNX h d 5", ":1"),
            ("HSETNX new d 5", ":1"),
            ("HKEYS h", "*4 $1 a $1 b $1 c $1 d"),
            ("HVALS h", "*4 $1 3 $1 2 $1 4 $1 5"),
            ("HLEN h", ":4"),
            ("HMGET h a x a", "*3 $1 3 $-1 $1 3"),
            ("HSTRLEN h a", ":1"),
            ("HSTRLEN h x", ":0"),
            ("HEXISTS h a", ":1"),
            ("HEXISTS h x", ":0"),
            ("HDEL h a x a b", ":2"),
            ("HGET h a", "$-1"),
            ("HDEL h c d", ":2"),
            ("EXISTS h", ":0"),
            ("HGETALL h", "*0"),
            ("HKEYS h", "*0"),
            ("HMGET h a", "*1 $-1"),
            ("HDEL h a", ":0"),
        ]);
    }

    #[test]
    fn errors_change_nothing() {
        Harness::new().script(&[
            ("HSET h a", "-ERR wrong number of arguments for 'hset' command"),
            ("HSET h a 1 b", "-ERR wrong number of arguments for 'hset' command"),
            ("HMSET h a 1 b", "-ERR wrong number of arguments for 'hmset' command"),
            ("HINCRBY h a x", "-ERR value is not an integer or out of range"),
            ("HINCRBYFLOAT h a x", "-ERR value is not a valid float"),
            ("HINCRBYFLOAT h a inf", "-ERR value is NaN or Infinity"),
            ("EXISTS h", ":0"),
            ("HSET h a x b 9223372036854775807 c 1.1e4932", ":3"),
            ("HINCRBY h a 1", "-ERR hash value is not an integer"),
            ("HINCRBY h b 1", "-ERR increment or decrement would overflow"),
            ("HINCRBYFLOAT h a 1", "-ERR hash value is not a float"),
            ("HINCRBYFLOAT h c 1.1e4932", "-ERR increment would produce NaN or Infinity"),
            ("HVALS h", "*3 $1 x $19 9223372036854775807 $8 1.1e4932"),
            ("SET s x", "+OK"),
            ("HSET s a 1", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("HGETALL s", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("HSCAN s x", "-ERR invalid cursor"),
            ("HSCAN s 0 COUNT x", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("HRANDFIELD s 1 x", "-ERR syntax error"),
            (
                "HRANDFIELD h -9223372036854775808",
                "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
            ),
            ("HRANDFIELD h 9223372036854775807 WITHVALUES", "-ERR value is out of range"),
            ("HRANDFIELD h -1000000000", "-ERR value is out of range"),
        ]);
    }

    #[test]
    fn increments() {
        Harness::new().script(&[
            ("HINCRBY h a 5", ":5"),
            ("HINCRBY h a -7", ":-2"),
            ("HINCRBYFLOAT h f 10.5", "$4 10.5"),
            ("HINCRBYFLOAT h f 0.1", "$4 10.6"),
            ("HINCRBYFLOAT h f 5.0e3", "$22 5010.60000000000000009"),
            ("HGETALL h", "*4 $1 a $2 -2 $1 f $22 5010.60000000000000009"),
        ]);
    }

    #[test]
    fn random_fields_and_scans_in_both_protocols() {
        let mut h = Harness::new();
        h.script(&[
            ("HRANDFIELD h", "$-1"),
            ("HRANDFIELD h 5", "*0"),
            ("HRANDFIELD h -5 WITHVALUES", "*0"),
            ("HSCAN h 0 nosuch option", "*2 $1 0 *0"),
            ("HSET h a 1", ":1"),
            ("HRANDFIELD h", "$1 a"),
            ("HRANDFIELD h 0", "*0"),
            ("HRANDFIELD h 2 WITHVALUES", "*2 $1 a $1 1"),
            ("HRANDFIELD h -2 WITHVALUES", "*4 $1 a $1 1 $1 a $1 1"),
            ("HSCAN h 0", "*2 $1 0 *2 $1 a $1 1"),
            ("HSCAN h 0 NOVALUES", "*2 $1 0 *1 $1 a"),
            ("HSCAN h 0 MATCH b*", "*2 $1 0 *0"),
            ("HSCAN h 0 COUNT 0", "-ERR syntax error"),
            ("HSCAN h 0 TYPE x", "-ERR syntax error"),
        ]);
        h.run("HELLO 3");
        h.script(&[
            ("HRANDFIELD h -2 WITHVALUES", "*2 *2 $1 a $1 1 *2 $1 a $1 1"),
            ("HGETALL h", "%1 $1 a $1 1"),
            ("HGETALL none", "%0"),
            ("HGET none a", "_"),
            ("HINCRBYFLOAT h a 1", "$1 2"),
        ]);
    }

    #[test]
    fn samples_of_a_large_hash_are_different_fields_of_it() {
        let mut h = Harness::new();
        for i in 0..2000 {
            h.args(&[b"HSET", b"h", format!("f{i}").as_bytes(), b"v"]);
        }
        for count in [1, 10, 700, 1999, 2000, 3000] {
            let reply = h.run(&format!("HRANDFIELD h {count}"));
            let names: std::collections::HashSet<&str> = reply.split(' ').filter(|word| word.starts_with('f')).collect();
            assert_eq!(names.len(), count.min(2000));
        }
        let reply = h.run("HRANDFIELD h -3000");
        assert_eq!(reply.split(' ').filter(|word| word.starts_with('f')).count(), 3000);
        let (mut cursor, mut seen) = (String::from("0"), 0);
        loop {
            let reply = h.run(&format!("HSCAN h {cursor} COUNT 100 NOVALUES"));
            let words: Vec<&str> = reply.split(' ').collect();
            seen += words.iter().filter(|word| word.starts_with('f')).count();
            cursor = words[2].to_owned();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(seen, 2000);
    }
}
