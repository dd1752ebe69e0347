//! EXPIRE, PERSIST, TTL and their variants. `Keyspace::expire_due` expires keys at their deadlines.

use crate::base::error::{Error, Result};
use crate::commands::keys::deadline::Unit;
use crate::engine::command::keys::uses;
use crate::engine::command::options::{integer, upper};
use crate::engine::command::{Access, Categories, Command, Flags, Group, Keys, Natives, Replies, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::store::entry::EntryRef;

const SET: Command = Command {
    flags: Flags::WRITE.union(Flags::FAST),
    keys: Keys::ONE,
    access: Access::ReadWrite,
    natives: Natives::Checked,
    group: Group::Generic,
    categories: Categories::KEYSPACE,
    ..Command::DEFAULT
};

const ASK: Command = Command { flags: Flags::READONLY.union(Flags::FAST), syntax: "key", ..SET };

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("expire", |cx, args| expire(cx, args, Unit::EX, "expire"), "key seconds [NX | XX | GT | LT]",
        "Sets the expiration of a key in seconds.";
        replies: Replies::Integer, key_uses: uses::CHANGED, ..SET),
    row!("pexpire", |cx, args| expire(cx, args, Unit::PX, "pexpire"), "key milliseconds [NX | XX | GT | LT]",
        "Sets the expiration of a key in milliseconds.";
        replies: Replies::Integer, since: "2.6.0", key_uses: uses::CHANGED, ..SET),
    row!("expireat", |cx, args| expire(cx, args, Unit::EXAT, "expireat"), "key unix-time-seconds [NX | XX | GT | LT]",
        "Sets the expiration of a key to a Unix time in seconds.";
        replies: Replies::Integer, since: "1.2.0", key_uses: uses::CHANGED, ..SET),
    row!("pexpireat", |cx, args| expire(cx, args, Unit::PXAT, "pexpireat"), "key unix-time-milliseconds [NX | XX | GT | LT]",
        "Sets the expiration of a key to a Unix time in milliseconds.";
        replies: Replies::Integer, since: "2.6.0", key_uses: uses::CHANGED, ..SET),
    row!("persist", persist, "key", "Removes the expiration of a key.";
        replies: Replies::Integer, since: "2.2.0", key_uses: uses::CHANGED, ..SET),
    row!("ttl", |cx, args| ask(cx, args, Unit::EX), "Returns the remaining time to live of a key in seconds.";
        replies: Replies::Integer, tips: &["nondeterministic_output"], ..ASK),
    row!("pttl", |cx, args| ask(cx, args, Unit::PX), "Returns the remaining time to live of a key in milliseconds.";
        replies: Replies::Integer, since: "2.6.0", tips: &["nondeterministic_output"], ..ASK),
    row!("expiretime", |cx, args| ask(cx, args, Unit::EXAT), "Returns the expiration of a key as a Unix time in seconds.";
        replies: Replies::Integer, since: "7.0.0", ..ASK),
    row!("pexpiretime", |cx, args| ask(cx, args, Unit::PXAT), "Returns the expiration of a key as a Unix time in milliseconds.";
        replies: Replies::Integer, since: "7.0.0", ..ASK),
]);

/// The conditions `NX`, `XX`, `GT` and `LT` for setting a deadline.
#[derive(Clone, Copy, Debug, Default)]
pub struct Condition {
    /// Only if there is no deadline.
    pub nx: bool,
    /// Only if there is a deadline.
    pub xx: bool,
    /// Only if the new deadline is later. No deadline counts as the latest.
    pub gt: bool,
    /// Only if the new deadline is earlier.
    pub lt: bool,
}

impl Condition {
    /// Parses the options of the `EXPIRE` family.
    #[inline]
    pub fn parse(options: &[&[u8]]) -> Result<Condition> {
        if options.is_empty() { Ok(Condition::default()) } else { Condition::parse_words(options) }
    }

    fn parse_words(options: &[&[u8]]) -> Result<Condition> {
        let mut condition = Condition::default();
        for option in options {
            match &*upper(option) {
                b"NX" => condition.nx = true,
                b"XX" => condition.xx = true,
                b"GT" => condition.gt = true,
                b"LT" => condition.lt = true,
                _ => return Err(Error::unsupported_option(option)),
            }
        }
        fail_if!(condition.nx && (condition.xx || condition.gt || condition.lt), Error::EXPIRE_NX);
        fail_if!(condition.gt && condition.lt, Error::EXPIRE_GT_LT);
        Ok(condition)
    }

    /// Whether `old` may be replaced by `new`. If `new` is `None`, it has passed already.
    pub fn allows(self, old: Option<u64>, new: Option<u64>) -> bool {
        let new = new.unwrap_or(0);
        !(self.nx && old.is_some()
            || self.xx && old.is_none()
            || self.gt && old.is_none_or(|old| new <= old)
            || self.lt && old.is_some_and(|old| new >= old))
    }
}

fn expire(cx: &mut Context<'_>, args: &[&[u8]], unit: Unit, name: &str) -> Result {
    let condition = Condition::parse(&args[3..])?;
    let number = integer(args[2])?;
    let new = unit.deadline(cx.now, number, name)?;
    let mut db = cx.db();
    let done = match db.peek(args[1]) {
        None => false,
        Some(entry) if entry.has_own_deadline() => return Err(Error::WRONG_TYPE),
        Some(entry) if !condition.allows(entry.deadline(), new) => false,
        Some(_) => match new {
            Some(deadline) => db.set_deadline(args[1], Some(deadline), Event::EXPIRE)?,
            None => db.delete(args[1], Event::DEL)?,
        },
    };
    cx.reply.integer(i64::from(done));
    Ok(())
}

fn persist(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let entry = db.peek(args[1]);
    fail_if!(entry.is_some_and(EntryRef::has_own_deadline), Error::WRONG_TYPE);
    let volatile = entry.is_some_and(|entry| entry.deadline().is_some());
    let done = volatile && db.set_deadline(args[1], None, Event::PERSIST)?;
    cx.reply.integer(i64::from(done));
    Ok(())
}

fn ask(cx: &mut Context<'_>, args: &[&[u8]], unit: Unit) -> Result {
    let now = cx.now;
    let answer = match cx.db().look(args[1]).map(|entry| entry.deadline()) {
        None => -2,
        Some(None) => -1,
        Some(Some(deadline)) => {
            let ms = if unit.absolute { now.unix_of(deadline) } else { now.left_ms(deadline) as i64 };
            // Seconds are rounded to the nearest, as in Redis.
            if unit.ms == 1 { ms } else { ms.saturating_add(unit.ms / 2) / unit.ms }
        }
    };
    cx.reply.integer(answer);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn keys_end_when_their_time_has_come_and_not_before() {
        let mut h = Harness::new();
        h.script(&[("SET k v PX 100", "+OK"), ("PTTL k", ":100")]);
        h.pass(99);
        h.script(&[("PTTL k", ":1"), ("EXISTS k", ":1"), ("DBSIZE", ":1")]);
        h.pass(1);
        h.script(&[("DBSIZE", ":0"), ("PTTL k", ":-2")]);
    }

    #[test]
    fn conditions_compare_with_the_deadline_that_is_there() {
        let mut h = Harness::new();
        h.script(&[
            ("SET k v", "+OK"),
            ("EXPIRE k 100 XX", ":0"),
            ("EXPIRE k 100 GT", ":0"),
            ("EXPIRE k 100 LT", ":1"),
            ("EXPIRE k 100 LT", ":0"),
            ("EXPIRE k 200 LT", ":0"),
            ("EXPIRE k 200 GT", ":1"),
            ("EXPIRE k 50 NX", ":0"),
            ("EXPIRE k 50 XX", ":1"),
            ("TTL k", ":50"),
            ("EXPIRE k 50 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible"),
            ("EXPIRE k 50 GT LT", "-ERR GT and LT options at the same time are not compatible"),
            ("EXPIRE k 50 ZZ", "-ERR Unsupported option ZZ"),
            ("EXPIRE k 9223372036854775807", "-ERR invalid expire time in 'expire' command"),
            ("PEXPIREAT k 1800000000123", ":1"),
            ("PEXPIRETIME k", ":1800000000123"),
            ("EXPIRETIME k", ":1800000000"),
            ("PERSIST k", ":1"),
            ("PERSIST k", ":0"),
            ("EXPIRETIME k", ":-1"),
            ("EXPIRE k -1", ":1"),
            ("EXISTS k", ":0"),
            ("EXPIRE k 1", ":0"),
        ]);
    }
}
