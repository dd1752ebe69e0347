//! Strings as numbers: `INCR`, `DECR` and their variants.

use crate::base::error::{Error, Result};
use crate::base::number::LongDouble;
use crate::engine::command::options::integer;
use crate::engine::command::{Access, Command, Flags, Group, Keys, Replies, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::{Classes, Event};
use crate::keyspace::databases::Ttl;
use crate::store::dict::{KeyHash, Place};
use crate::store::entry::Form;

const COUNTER: Command = Command {
    group: Group::String,
    flags: Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST),
    keys: Keys::ONE,
    access: Access::ReadWrite,
    ..Command::DEFAULT
};

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("incr", |cx, args| add(cx, args[1], 1), "key",
        "Increments the integer value of a key by one. A missing key counts as 0.";
        replies: Replies::Integer, ..COUNTER),
    row!("decr", |cx, args| add(cx, args[1], -1), "key",
        "Decrements the integer value of a key by one. A missing key counts as 0.";
        replies: Replies::Integer, ..COUNTER),
    row!("incrby", |cx, args| add(cx, args[1], integer(args[2])?), "key increment",
        "Increments the integer value of a key by a number. A missing key counts as 0.";
        replies: Replies::Integer, ..COUNTER),
    row!("decrby", |cx, args| {
            let decrement = integer(args[2])?;
            add(cx, args[1], decrement.checked_neg().ok_or(Error::DECREMENT_OVERFLOW)?)
        }, "key decrement", "Decrements the integer value of a key by a number. A missing key counts as 0.";
        replies: Replies::Integer, ..COUNTER),
    row!("incrbyfloat", incrbyfloat, "key increment:double",
        "Increments the floating point value of a key by a number. A missing key counts as 0.";
        replies: Replies::Scalar, since: "2.6.0", ..COUNTER),
]);

const ADDED: Event = Event::new(Classes::STRING, "incrby");

fn add(cx: &mut Context<'_>, key: &[u8], increment: i64) -> Result {
    match cx.db().add_to_last_digit(key, increment, ADDED) {
        Ok(new) => cx.reply.integer(new),
        Err((hash, place)) => add_slow(cx, (hash, place), key, increment)?,
    }
    Ok(())
}

/// Adds to an existing counter by parsing it, or creates a counter.
#[inline(never)]
fn add_slow(cx: &mut Context<'_>, (hash, place): (KeyHash, Option<Place>), key: &[u8], increment: i64) -> Result {
    let mut db = cx.db();
    let (mut new, mut digits) = (increment, itoa::Buffer::new());
    match place {
        None => db.put_string_at(hash, None, key, digits.format(new).as_bytes(), Ttl::Clear, ADDED)?,
        Some(place) => db.rewrite_string(hash, place, key, ADDED, |old| {
            let old = integer(old)?;
            new = old.checked_add(increment).ok_or(Error::OVERFLOW)?;
            Ok(digits.format(new).as_bytes())
        })?,
    }
    cx.reply.integer(new);
    Ok(())
}

fn incrbyfloat(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let (hash, place) = db.locate(args[1]);
    let old = match place {
        None => LongDouble::parse(b"0"),
        Some(place) => LongDouble::parse(db.keyspace.space.get(db.dict, place).bytes().ok_or(Error::WRONG_TYPE)?),
    };
    let old = old.ok_or(Error::NOT_FLOAT)?;
    let increment = LongDouble::parse(args[2]).ok_or(Error::NOT_FLOAT)?;
    let new = old.sum(increment);
    fail_if!(!new.is_finite(), Error::NAN_OR_INFINITY);
    let text = new.to_fixed();
    let event = Event::new(Classes::STRING, "incrbyfloat");
    db.put_string_at(hash, place, args[1], text.as_ref(), Ttl::Keep, event)?;
    db.set_form(args[1], Form::Text);
    cx.reply.bulk(text.as_ref());
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;
    use crate::engine::session::Peer;

    #[test]
    fn sums_are_right_whether_one_digit_changes_or_all() {
        let mut harness = Harness::new();
        for old in [0i64, 1, 5, 9, 10, 19, 99, 100, 109, 999_999, -1, -5, -9, -10, -99, i64::MAX - 1003, i64::MIN + 1003] {
            for increment in [0i64, 1, -1, 3, -3, 9, -9, 10, -10, 1000] {
                harness.args(&[b"SET", b"k", old.to_string().as_bytes(), b"PX", b"5000"]);
                let reply = harness.args(&[b"INCRBY", b"k", increment.to_string().as_bytes()]);
                let sum = old.checked_add(increment).expect("far enough from the ends");
                assert_eq!(String::from_utf8_lossy(&reply), format!(":{sum}\r\n"), "{old} + {increment}");
                let text = sum.to_string();
                let kept = harness.args(&[b"GET", b"k"]);
                assert_eq!(String::from_utf8_lossy(&kept), format!("${}\r\n{text}\r\n", text.len()), "{old} + {increment}");
                assert_eq!(harness.args(&[b"PTTL", b"k"]), b":5000\r\n", "a counter keeps its deadline");
            }
        }
        harness.args(&[b"SET", b"k", b"9223372036854775807"]);
        assert_eq!(harness.args(&[b"INCR", b"k"]), b"-ERR increment or decrement would overflow\r\n");
        harness.engine.check_invariants();
    }

    #[test]
    fn a_step_of_a_counter_is_a_new_value_of_it() {
        let mut harness = Harness::new();
        // The result of INCRBYFLOAT has the encoding embstr; INCR makes it an int again, as in Redis.
        harness.args(&[b"SET", b"k", b"10.5"]);
        harness.args(&[b"INCRBYFLOAT", b"k", b"0.5"]);
        assert_eq!(harness.args(&[b"OBJECT", b"ENCODING", b"k"]), b"$6\r\nembstr\r\n");
        assert_eq!(harness.args(&[b"INCR", b"k"]), b":12\r\n");
        assert_eq!(harness.args(&[b"OBJECT", b"ENCODING", b"k"]), b"$3\r\nint\r\n");
        for wrong in ["", " 1", "01", "1x", "x"] {
            harness.args(&[b"SET", b"k", wrong.as_bytes()]);
            assert_eq!(harness.args(&[b"INCR", b"k"]), b"-ERR value is not an integer or out of range\r\n", "{wrong:?}");
            let kept = harness.args(&[b"GET", b"k"]);
            assert_eq!(String::from_utf8_lossy(&kept), format!("${}\r\n{wrong}\r\n", wrong.len()));
        }
        // INCR counts as a change and an access, and publishes an event.
        harness.args(&[b"CONFIG", b"SET", b"notify-keyspace-events", b"E$"]);
        let listener = harness.engine.connect(harness.now, Peer::default());
        harness.engine.execute(harness.now, listener, &[b"SUBSCRIBE", b"__keyevent@0__:incrby"]);
        harness.args(&[b"SET", b"k", b"1"]);
        let changes = harness.engine.keyspace().changes.count;
        harness.args(&[b"INCR", b"k"]);
        assert_eq!(harness.engine.keyspace().changes.count, changes + 1);
        let told = std::mem::take(&mut harness.engine.sessions_mut()[listener].out);
        assert!(told.ends_with(b"$21\r\n__keyevent@0__:incrby\r\n$1\r\nk\r\n"), "{}", String::from_utf8_lossy(&told));
    }
}
