//! Keys of any type: deleting, inspecting, renaming, copying. Deadlines are in [`crate::commands::keys::expiry`], scans of the
//! keyspace in [`crate::commands::keys::scan`].

use crate::base::error::{Error, Result};
use crate::base::ids::Key;
use crate::base::number::parse_i64;
use crate::commands::reference::help;
use crate::engine::command::keys::uses;
use crate::engine::command::options::{Tail, integer, upper};
use crate::engine::command::{Access, Categories, Command, Flags, Group, Keys, Natives, Replies, Traits, row, rows, subrows};
use crate::engine::context::Context;
use crate::keyspace::change::{Classes, Event};
use crate::keyspace::databases::{Db, Ttl};
use crate::keyspace::lru::idle_seconds;
use crate::store::entry::{EntryRef, Form, ValueRef};
use crate::store::values::hash::Hash;
use crate::store::values::value::Value;

const READ_FAST: Flags = Flags::READONLY.union(Flags::FAST);
const WRITE_FAST: Flags = Flags::WRITE.union(Flags::FAST);

const KEY: Command = Command { group: Group::Generic, keys: Keys::ONE, categories: Categories::KEYSPACE, ..Command::DEFAULT };
/// What the rows of `DEL` and `UNLINK` have in common.
const DELETE: Command = Command {
    replies: Replies::Integer,
    keys: Keys::ALL,
    access: Access::Remove,
    natives: Natives::Deleted,
    complexity: "O(N) for N keys. Large values are freed in steps afterwards.",
    syntax: "key [key ...]",
    tips: &["request_policy:multi_shard", "response_policy:agg_sum"],
    handler: |cx, args| count(cx, &args[1..], |db, key| db.force_delete(key, Event::DEL)),
    ..KEY
};

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("del", "Deletes keys."; traits: Traits::BOUNDED_COST, flags: Flags::WRITE, ..DELETE),
    row!("unlink", "Deletes keys. The same as DEL, which also frees large values in steps.";
        flags: WRITE_FAST, since: "4.0.0", ..DELETE),
    row!("exists", |cx, args| count(cx, &args[1..], |db, key| db.look(key).is_some()), "key [key ...]",
        "Counts the keys that exist. A key that is given twice counts twice.";
        replies: Replies::Integer, flags: READ_FAST, keys: Keys::ALL, key_uses: uses::EXAMINED, complexity: "O(N) for N keys",
        tips: &["request_policy:multi_shard", "response_policy:agg_sum"], ..KEY),
    row!("touch", touch, "key [key ...]", "Counts the keys that exist and updates their last access time.";
        replies: Replies::Integer, flags: READ_FAST, keys: Keys::ALL, since: "3.2.1", key_uses: uses::EXAMINED,
        complexity: "O(N) for N keys", tips: &["request_policy:multi_shard", "response_policy:agg_sum"], ..KEY),
    row!("type", type_of, "key", "Returns the type of the value of a key.";
        replies: Replies::Scalar, flags: READ_FAST, key_uses: uses::EXAMINED, ..KEY),
    row!("rename", rename, "key newkey", "Renames a key. Overwrites the destination.";
        replies: Replies::Scalar, flags: Flags::WRITE, keys: Keys::TWO, access: Access::ReadWrite, key_uses: uses::RENAMED,
        ..KEY),
    row!("renamenx", renamenx, "key newkey", "Renames a key only if the new name does not exist.";
        replies: Replies::Integer, flags: WRITE_FAST, keys: Keys::TWO, access: Access::ReadWrite, key_uses: uses::RENAMED_NEW,
        ..KEY),
    row!("copy", copy, "source destination [DB destination-db] [REPLACE]",
        "Copies the value and the expiration of a key to another key.";
        replies: Replies::Integer, flags: Flags::WRITE.union(Flags::DENYOOM), keys: Keys::TWO, since: "6.2.0",
        key_uses: uses::COPIED, complexity: "O(N) for a collection of N elements", natives: Natives::Checked, ..KEY),
    row!("move", move_key, "key db:integer", "Moves a key to another database.";
        replies: Replies::Integer, flags: WRITE_FAST, access: Access::ReadWrite, ..KEY),
    row!("object", "A container for commands that inspect values.";
        keys: Keys::None, since: "2.2.3", categories: Categories::empty(), subcommands: OBJECT, ..KEY),
]);

const OBJECT_KEY: Command = Command {
    flags: Flags::READONLY,
    keys: Keys::Range { first: 2, last: 2, step: 1 },
    key_uses: uses::EXAMINED,
    since: "2.2.3",
    syntax: "key",
    tips: &["nondeterministic_output"],
    ..KEY
};

const OBJECT: &[Command] = &subrows([
    row!("encoding", object_encoding, "Returns the internal encoding of a value."; ..OBJECT_KEY),
    row!("freq", object_freq, "Returns the logarithmic access counter of a key. Requires an LFU eviction policy.";
        since: "4.0.0", ..OBJECT_KEY),
    row!("idletime", object_idletime, "Returns the seconds since the last access to a key."; ..OBJECT_KEY),
    row!("refcount", object_refcount, "Returns the reference count of a value."; ..OBJECT_KEY),
    Command { categories: KEY.categories, ..help::row(Group::Generic, "6.2.0") },
]);

fn count(cx: &mut Context<'_>, keys: &[&[u8]], mut hit: impl FnMut(&mut Db<'_>, &[u8]) -> bool) -> Result {
    let mut db = cx.db();
    let hits = keys.iter().filter(|key| hit(&mut db, key)).count();
    cx.reply.integer(hits as i64);
    Ok(())
}

fn touch(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    // TOUCH is an access even for a client with NO-TOUCH.
    count(cx, &args[1..], |db, key| {
        db.touch = true;
        db.read(key).is_some()
    })
}

fn type_of(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    reply.simple(db.look(args[1]).map_or("none", EntryRef::type_name));
    Ok(())
}

const RENAMED: (Event, Event) = (Event::new(Classes::GENERIC, "rename_from"), Event::new(Classes::GENERIC, "rename_to"));
const MOVED: (Event, Event) = (Event::new(Classes::GENERIC, "move_from"), Event::new(Classes::GENERIC, "move_to"));

fn rename_to(cx: &mut Context<'_>, from: &[u8], to: &[u8]) -> Result {
    let (from, to) = (cx.key(from), cx.key(to));
    cx.engine.keyspace_mut().relocate(cx.now, from, to, RENAMED).map(drop)
}

fn rename(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(!cx.db().contains(args[1]), Error::NO_SUCH_KEY);
    if args[1] != args[2] {
        rename_to(cx, args[1], args[2])?;
    }
    cx.reply.ok();
    Ok(())
}

fn renamenx(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(!cx.db().contains(args[1]), Error::NO_SUCH_KEY);
    let free = !cx.db().contains(args[2]);
    if free {
        rename_to(cx, args[1], args[2])?;
    }
    cx.reply.integer(i64::from(free));
    Ok(())
}

/// Parses the index of a database.
fn database(cx: &Context<'_>, argument: &[u8]) -> Result<u32> {
    let index = integer(argument)?;
    fail_if!(i32::try_from(index).is_err(), Error::INT_RANGE);
    u32::try_from(index).ok().filter(|&n| (n as usize) < cx.engine.keyspace().databases()).ok_or(Error::DB_RANGE)
}

fn copy(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut target, mut replace) = (cx.db, false);
    let mut rest = Tail(&args[3..]);
    while let Some(option) = rest.next() {
        match &*upper(option) {
            b"REPLACE" => replace = true,
            b"DB" => target = database(cx, rest.value()?)?,
            _ => return Err(Error::SYNTAX),
        }
    }
    fail_if!(target == cx.db && args[1] == args[2], Error::SAME_OBJECT);
    let mut source = cx.db();
    let Some(entry) = source.read(args[1]) else {
        cx.reply.integer(0);
        return Ok(());
    };
    let (deadline, form) = (entry.deadline(), entry.form());
    let value = match entry.value() {
        ValueRef::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
        // A grant belongs to its holder and cannot be copied.
        ValueRef::Grant(_) => return Err(Error::WRONG_TYPE),
        ValueRef::Count { field, count } => Value::Hash(Hash::of_count(field, count)),
        ValueRef::Boxed(value) if value.is_native() => return Err(Error::WRONG_TYPE),
        ValueRef::Boxed(value) => value.clone(),
    };
    let mut db = cx.db_at(target);
    if !replace && db.contains(args[2]) {
        cx.reply.integer(0);
        return Ok(());
    }
    db.make_way(args[2])?;
    let ttl = deadline.map_or(Ttl::Clear, Ttl::At);
    let event = Event::new(Classes::GENERIC, "copy_to");
    if let Value::Bytes(bytes) = &value {
        db.put_string(args[2], bytes, ttl, event)?;
        db.set_form(args[2], form);
    } else {
        db.put(args[2], Box::new(value), ttl, event)?;
    }
    cx.reply.integer(1);
    Ok(())
}

fn move_key(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(cx.engine.in_cluster(), Error::new("ERR MOVE is not allowed in cluster mode"));
    let target = database(cx, args[2])?;
    fail_if!(target == cx.db, Error::SAME_OBJECT);
    let movable = cx.db().contains(args[1]) && !cx.db_at(target).contains(args[1]);
    if movable {
        let from = cx.key(args[1]);
        cx.engine.keyspace_mut().relocate(cx.now, from, Key { db: target, ..from }, MOVED)?;
    }
    cx.reply.integer(i64::from(movable));
    Ok(())
}

/// The internal encoding of a value for `OBJECT ENCODING`.
pub(crate) fn encoding(entry: EntryRef<'_>) -> &'static str {
    match entry.value() {
        ValueRef::Boxed(Value::Hash(hash)) => hash.encoding(),
        ValueRef::Count { .. } => "listpack",
        ValueRef::Boxed(Value::List(list)) => list.encoding(),
        ValueRef::Boxed(Value::ZSet(zset)) => zset.encoding(),
        ValueRef::Boxed(Value::Set(set)) => set.encoding(),
        ValueRef::Boxed(Value::Stream(_)) => "stream",
        ValueRef::Boxed(Value::Lock(lock)) => lock.type_name(),
        ValueRef::Boxed(Value::Latch(_)) => "latch",
        ValueRef::Boxed(Value::Guard(_)) => "int",
        ValueRef::Grant(_) => "packed",
        ValueRef::Boxed(Value::Bytes(_)) => "raw",
        ValueRef::Bytes(_) if entry.form() == Form::Raw => "raw",
        ValueRef::Bytes(bytes) if entry.form() == Form::Shortest && parse_i64(bytes).is_some() => "int",
        // Redis stores strings of up to 44 bytes in one allocation with their header.
        ValueRef::Bytes(bytes) if bytes.len() <= 44 => "embstr",
        ValueRef::Bytes(_) => "raw",
    }
}

fn object_encoding(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    reply.element(db.inspect(args[2]).map(encoding));
    Ok(())
}

fn object_freq(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    if cx.db().inspect(args[2]).is_none() {
        cx.reply.null();
        return Ok(());
    }
    fail_if!(!cx.engine.keyspace().lru.counted, Error::NO_LFU);
    let counter = cx.db().frequency(args[2]).unwrap_or_default();
    cx.reply.integer(i64::from(counter));
    Ok(())
}

fn object_idletime(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (second, counted) = (cx.now.second(), cx.engine.keyspace().lru.counted);
    let (mut db, reply) = cx.db_and_reply();
    match db.inspect(args[2]) {
        Some(_) if counted => return Err(Error::NO_LRU),
        Some(entry) => reply.integer(i64::from(idle_seconds(entry, second))),
        None => reply.null(),
    }
    Ok(())
}

fn object_refcount(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    match db.inspect(args[2]) {
        // Redis shares the integers below 10,000 and reports the maximum as their reference count.
        Some(entry) if encoding(entry) == "int" => {
            let shared = entry.bytes().and_then(parse_i64).is_some_and(|n| (0..10_000).contains(&n));
            reply.integer(if shared { i64::from(i32::MAX) } else { 1 });
        }
        Some(_) => reply.integer(1),
        None => reply.null(),
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::commands::keyspace_events::Listener;
    use crate::engine::harness::Harness;

    #[test]
    fn a_renamed_key_keeps_its_deadline_and_takes_the_place_of_another() {
        let mut h = Harness::new();
        h.script(&[
            ("RENAME a b", "-ERR no such key"),
            ("SET a 1 PX 500", "+OK"),
            ("SET b 2", "+OK"),
            ("RENAMENX a b", ":0"),
            ("RENAME a b", "+OK"),
            ("GET b", "$1 1"),
            ("PTTL b", ":500"),
            ("EXISTS a b b", ":2"),
            ("RENAME b b", "+OK"),
            ("RENAMENX b b", ":0"),
        ]);
        h.pass(500);
        h.script(&[("EXISTS b", ":0"), ("DBSIZE", ":0")]);
    }

    #[test]
    fn events_of_keys_that_go_elsewhere_come_in_redis_s_order() {
        let mut h = Harness::new();
        let listener = Listener::new(&mut h, "Anm");
        for (requests, events) in [
            (&["SET a 1", "SET b 2", "RENAME a b"][..], &["b new", "a rename_from", "b rename_to"][..]),
            (&["SET a 1", "SET b 2", "COPY a b REPLACE"], &["b new", "b copy_to"]),
            (&["HSET a f v", "MOVE a 3"], &["3:a new", "a move_from", "3:a move_to"]),
            (&["SET a 1", "EXISTS a b"], &["b keymiss"]),
            (&["TYPE a"], &["a keymiss"]),
            (&["PEXPIRETIME a"], &["a keymiss"]),
            (&["OBJECT ENCODING a"], &[]),
            (&["SET a 1 GET"], &["a keymiss", "a new", "a set"]),
        ] {
            listener.check(&mut h, requests, events);
        }
    }

    #[test]
    fn what_was_deleted_is_freed_though_no_timer_runs() {
        let mut h = Harness::new();
        for n in 0..1000 {
            h.args(&[b"HSET", b"h", format!("field{n}").as_bytes(), b"v"]);
        }
        assert_eq!(h.engine.next_deadline(), None);
        h.run("DEL h");
        assert!(h.engine.next_deadline().is_some_and(|at| h.now.reached(at)));
        h.pass(0);
        assert!(!h.engine.keyspace().has_unfreed());
        assert_eq!(h.engine.next_deadline(), None);
    }

    #[test]
    fn copies_and_moves_reach_other_databases() {
        let mut h = Harness::new();
        h.script(&[
            ("SET a 1 PX 500", "+OK"),
            ("COPY a a", "-ERR source and destination objects are the same"),
            ("COPY a b DB 99", "-ERR DB index is out of range"),
            ("COPY a b DB x", "-ERR value is not an integer or out of range"),
            ("COPY a b WHAT", "-ERR syntax error"),
            ("COPY a b", ":1"),
            ("COPY a b", ":0"),
            ("SET a 2", "+OK"),
            ("COPY a b REPLACE", ":1"),
            ("GET b", "$1 2"),
            ("PTTL b", ":-1"),
            ("COPY a b DB 3", ":1"),
            ("MOVE a 3", ":1"),
            ("MOVE a 3", ":0"),
            ("MOVE b 3", ":0"),
            ("MOVE b 0", "-ERR source and destination objects are the same"),
            ("DBSIZE", ":1"),
        ]);
    }

    #[test]
    fn encodings_are_named_as_redis_names_them() {
        let mut h = Harness::new();
        h.script(&[
            ("SET k 12345", "+OK"),
            ("OBJECT ENCODING k", "$3 int"),
            ("OBJECT REFCOUNT k", ":1"),
            ("SET k 77", "+OK"),
            ("OBJECT REFCOUNT k", ":2147483647"),
            ("SET k abc", "+OK"),
            ("OBJECT ENCODING k", "$6 embstr"),
            ("APPEND k d", ":4"),
            ("OBJECT ENCODING k", "$3 raw"),
            ("SET k abcd", "+OK"),
            ("OBJECT ENCODING k", "$6 embstr"),
            ("OBJECT FREQ missing", "$-1"),
            ("OBJECT IDLETIME k", ":0"),
        ]);
        h.now.advance_us(12_000_000);
        h.script(&[("OBJECT IDLETIME k", ":12"), ("TOUCH k nokey", ":1"), ("OBJECT IDLETIME k", ":0")]);
    }
}
