//! `SET` with all its options, and related commands that compare before they set or delete.
//!
//! Redis and Valkey differ here, and both dialects are supported: `IFEQ`, `IFNE`, `IFDEQ`, `IFDNE`, `DELEX` and `DIGEST` of Redis
//! 8.4, `IFEQ` and `DELIFEQ` of Valkey 8.1 and 9.

use xxhash_rust::xxh3::xxh3_64;

use crate::base::error::{Error, Result};
use crate::base::time::Now;
use crate::commands::keys::deadline::Unit;
use crate::engine::command::keys::{KeyUse, uses};
use crate::engine::command::options::upper;
use crate::engine::command::{Access, Command, Flags, Group, Keys, Natives, Replies, Traits, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::keyspace::databases::Ttl;

const STRING: Command = Command { group: Group::String, keys: Keys::ONE, ..Command::DEFAULT };

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("set", set,
        "key value [NX | XX | IFEQ ifeq-value | IFNE ifne-value | IFDEQ ifdeq-digest | IFDNE ifdne-digest] [GET] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]",
        "Sets the string value of a key, optionally on a condition and with an expiration. Replaces a value of any type.";
        replies: Replies::Scalar, traits: Traits::BOUNDED_COST, flags: Flags::WRITE.union(Flags::DENYOOM),
        access: Access::ReadWrite, key_uses: uses::SET_OR_READ, use_in: |args| if reads(args) { GETS } else { SETS },
        key_notes: &["Reads the old value only with GET, IFEQ, IFNE, IFDEQ or IFDNE."], only_creates: |args| {
            Options::parse(args.get(3..).unwrap_or_default())
                .is_ok_and(|options| matches!(options.condition, Some(Condition::Absent)))
        }, ..STRING),
    row!("delex", delex, "key [IFEQ ifeq-value | IFNE ifne-value | IFDEQ ifdeq-digest | IFDNE ifdne-digest]",
        "Deletes a key, optionally only if its string value meets a condition.";
        flags: Flags::WRITE.union(Flags::FAST), key_uses: &[(Access::ReadWrite, COMPARED.1.union(KeyUse::VARIABLE))],
        use_in: |args| if args.len() > 2 { COMPARED } else { (Access::Remove, KeyUse::DELETE) },
        key_notes: &["Reads the value only with a condition."], since: "8.4.0",
        complexity: "O(1), or O(N) for the digest of N bytes", ..STRING),
    row!("delifeq", delifeq, "key value", "Deletes a key only if its string value equals the given one (Valkey).";
        flags: Flags::WRITE.union(Flags::FAST), key_uses: &[(Access::Remove, COMPARED.1)], since: "9.0.0",
        natives: Natives::Checked, ..STRING),
    row!("digest", digest, "key", "Returns the XXH3 digest of a string value in hexadecimal.";
        flags: Flags::READONLY.union(Flags::FAST), since: "8.4.0", complexity: "O(N) for N bytes", ..STRING),
]);

const GETS: (Access, KeyUse) = (Access::ReadWrite, KeyUse::ACCESS.union(KeyUse::UPDATE));
/// A comparison tells of the value: who may not read it could guess it.
const COMPARED: (Access, KeyUse) = (Access::ReadWrite, KeyUse::ACCESS.union(KeyUse::DELETE));
const SETS: (Access, KeyUse) = (Access::Overwrite, KeyUse::UPDATE);

/// Whether a `SET` tells something of the old value. For one that will be refused, as in Redis, whether it has the word `GET`.
fn reads(args: &[&[u8]]) -> bool {
    let options = args.get(3..).unwrap_or_default();
    match Options::parse(options) {
        Ok(options) => options.get || options.condition.is_some_and(Condition::compares),
        Err(_) => options.iter().any(|arg| arg.eq_ignore_ascii_case(b"GET")),
    }
}

/// Condition on the key's present value.
#[derive(Clone, Copy)]
enum Condition<'a> {
    /// The key does not exist.
    Absent,
    /// The key exists.
    Present,
    /// The value is this string.
    Equal(&'a [u8]),
    /// The value is another string, or there is no key.
    NotEqual(&'a [u8]),
    /// The value is a string with this digest.
    DigestEqual(u64),
    /// The value is a string with another digest, or there is no key.
    DigestNotEqual(u64),
}

impl<'a> Condition<'a> {
    /// Parses an option with an argument as a comparison; `None` for any other option.
    fn comparison(option: &[u8], argument: &'a [u8]) -> Result<Option<Condition<'a>>> {
        Ok(Some(match &*upper(option) {
            b"IFEQ" => Condition::Equal(argument),
            b"IFNE" => Condition::NotEqual(argument),
            b"IFDEQ" => Condition::DigestEqual(parse_digest(argument)?),
            b"IFDNE" => Condition::DigestNotEqual(parse_digest(argument)?),
            _ => return Ok(None),
        }))
    }

    /// Whether the condition compares strings: the key must then hold a string, if it exists.
    fn compares(self) -> bool {
        !matches!(self, Condition::Absent | Condition::Present)
    }

    fn met_by(self, value: Option<&[u8]>) -> bool {
        match (self, value) {
            (Condition::Absent, value) => value.is_none(),
            (Condition::Present, value) => value.is_some(),
            (Condition::Equal(wanted), value) => value == Some(wanted),
            (Condition::NotEqual(other), value) => value != Some(other),
            (Condition::DigestEqual(wanted), value) => value.is_some_and(|v| xxh3_64(v) == wanted),
            (Condition::DigestNotEqual(other), value) => value.is_none_or(|v| xxh3_64(v) != other),
        }
    }
}

fn parse_digest(argument: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(argument).ok().filter(|t| t.len() == 16 && t.bytes().all(|b| b.is_ascii_hexdigit()));
    text.and_then(|t| u64::from_str_radix(t, 16).ok()).ok_or(Error::INVALID_DIGEST)
}

/// The options of `SET`.
struct Options<'a> {
    condition: Option<Condition<'a>>,
    get: bool,
    /// `KEEPTTL`.
    keep: bool,
    expiry: Option<(Unit, &'a [u8])>,
}

impl<'a> Options<'a> {
    #[inline(always)]
    fn parse(args: &[&'a [u8]]) -> Result<Self> {
        let (mut condition, mut get, mut keep) = (None, false, false);
        let mut expiry: Option<(Unit, &[u8])> = None;
        let mut rest = args.iter().copied();
        while let Some(option) = rest.next() {
            match option {
                [b'n' | b'N', b'x' | b'X'] if matches!(condition, None | Some(Condition::Absent)) => {
                    condition = Some(Condition::Absent);
                }
                [b'x' | b'X', b'x' | b'X'] if matches!(condition, None | Some(Condition::Present)) => {
                    condition = Some(Condition::Present);
                }
                _ if let Some(unit) = Unit::of_option(option) => {
                    fail_if!(keep || expiry.is_some_and(|(other, _)| other != unit), Error::SYNTAX);
                    expiry = Some((unit, rest.next().ok_or(Error::SYNTAX)?));
                }
                _ if option.eq_ignore_ascii_case(b"GET") => get = true,
                _ if option.eq_ignore_ascii_case(b"KEEPTTL") && expiry.is_none() => keep = true,
                _ if condition.is_none() => {
                    let argument = rest.next().ok_or(Error::SYNTAX)?;
                    condition = Some(Condition::comparison(option, argument)?.ok_or(Error::SYNTAX)?);
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(Options { condition, get, keep, expiry })
    }

    /// What happens to the key's deadline.
    #[inline(always)]
    fn ttl(&self, now: Now) -> Result<Ttl> {
        Ok(match self.expiry {
            Some((unit, argument)) => Ttl::At(unit.positive_deadline(now, argument, "set")?),
            None if self.keep => Ttl::Keep,
            None => Ttl::Clear,
        })
    }
}

fn set(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (key, value) = (args[1], args[2]);
    if args.len() == 3 {
        cx.db().put_string(key, value, Ttl::Clear, Event::SET)?;
        cx.reply.ok();
        return Ok(());
    }
    let options = Options::parse(&args[3..])?;
    let ttl = options.ttl(cx.now)?;
    // A string that is set on a condition, or in exchange for another one, may be a lock.
    let (mut db, reply) = cx.db_noting_writer_and_reply(options.condition.is_some() || options.get);
    let (hash, place) = db.locate_here(key);
    if options.get {
        db.note_lookup(key, place.is_some());
    }
    let mut old = None;
    if let Some(place) = place
        && (options.get || options.condition.is_some_and(Condition::compares))
    {
        old = Some(db.keyspace.space.get(db.dict, place).bytes().ok_or(Error::WRONG_TYPE)?);
    }
    let met = match options.condition {
        None => true,
        Some(Condition::Absent) => place.is_none(),
        Some(Condition::Present) => place.is_some(),
        Some(comparison) => comparison.met_by(old),
    };
    // Checked before the reply: native values are never overwritten.
    if let Some(place) = place
        && met
        && db.keyspace.space.get(db.dict, place).is_native()
    {
        return Err(Error::WRONG_TYPE);
    }
    if options.get {
        if let Some(old) = old { reply.bulk(old) } else { reply.null() }
    } else if met {
        reply.ok();
    } else {
        reply.null();
    }
    if met {
        db.put_string_at(hash, place, key, value, ttl, Event::SET)?;
        if let Ttl::At(_) = ttl {
            db.also(key, Event::EXPIRE);
        }
    }
    Ok(())
}

/// Deletes the key if the condition is met. Replies whether it did.
fn delete_if(cx: &mut Context<'_>, key: &[u8], met: bool) -> Result {
    let gone = met && cx.db().delete(key, Event::DEL)?;
    cx.reply.integer(i64::from(gone));
    Ok(())
}

fn delex(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let key = args[1];
    match args.len() {
        2 => return delete_if(cx, key, true),
        4 => {}
        _ => return Err(Error::arity("delex")),
    }
    let mut db = cx.db();
    let Some(value) = db.string(key)? else {
        cx.reply.integer(0);
        return Ok(());
    };
    let condition = Condition::comparison(args[2], args[3])?.ok_or(Error::INVALID_CONDITION)?;
    let met = condition.met_by(Some(value));
    delete_if(cx, key, met)
}

fn delifeq(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let met = cx.db().string(args[1])? == Some(args[2]);
    delete_if(cx, args[1], met)
}

fn digest(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    match db.string(args[1])? {
        Some(value) => reply.bulk(format!("{:016x}", xxh3_64(value)).as_bytes()),
        None => reply.null(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn conditions_decide_and_get_shows_what_was() {
        let mut h = Harness::new();
        h.script(&[
            ("SET k a NX PX 1000", "+OK"),
            ("SET k b NX", "$-1"),
            ("SET k b NX GET", "$1 a"),
            ("SET k b XX GET", "$1 a"),
            ("TTL k", ":-1"),
            ("SET k c IFEQ x", "$-1"),
            ("SET k c IFEQ b PX 500", "+OK"),
            ("SET k d IFNE c", "$-1"),
            ("SET k d IFNE x KEEPTTL", "+OK"),
            ("PTTL k", ":500"),
            ("SET k e IFEQ x GET", "$1 d"),
            ("GET k", "$1 d"),
            ("SET missing e IFEQ x", "$-1"),
            ("SET missing e IFNE x", "+OK"),
            ("SET k v NX XX", "-ERR syntax error"),
            ("SET k v IFEQ d NX", "-ERR syntax error"),
            ("SET k v EX 10 PX 10", "-ERR syntax error"),
            ("SET k v EX", "-ERR syntax error"),
            ("SET k v KEEPTTL EX 10", "-ERR syntax error"),
            ("SET k v EX 0", "-ERR invalid expire time in 'set' command"),
            ("SET k v EX x", "-ERR value is not an integer or out of range"),
            ("SET k v PX 9223372036854775807", "-ERR invalid expire time in 'set' command"),
            ("SET k v PXAT 1", "+OK"),
            ("GET k", "$-1"),
            ("HSET h f v", ":1"),
            ("SET h v IFEQ v", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("SET h v GET", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("SET h v", "+OK"),
        ]);
    }

    #[test]
    fn digests_compare_like_the_strings_they_stand_for() {
        let mut h = Harness::new();
        h.script(&[
            ("DIGEST k", "$-1"),
            ("SET k Hello", "+OK"),
            // XXH3-64 with seed 0 of these five bytes, from the reference implementation.
            ("DIGEST k", "$16 38e23bf5a2a77616"),
            ("SET k x IFDEQ 0000000000000000", "$-1"),
            ("SET k x IFDEQ 38E23BF5A2A77616", "+OK"),
            ("SET k y IFDNE 38e23bf5a2a77616", "+OK"),
            ("SET k y IFDEQ 12", "-ERR must be exactly 16 hexadecimal characters"),
            ("SET new y IFDNE 38e23bf5a2a77616", "+OK"),
            ("SET newer y IFDEQ 38e23bf5a2a77616", "$-1"),
            ("DELEX k IFEQ z", ":0"),
            ("DELEX k BOGUS z", "-ERR Invalid condition"),
            ("DELEX k IFEQ", "-ERR wrong number of arguments for 'delex' command"),
            ("DELEX k IFEQ y", ":1"),
            ("DELEX k IFEQ y", ":0"),
            ("DELIFEQ new x", ":0"),
            ("DELIFEQ new y", ":1"),
            ("DELEX new", ":0"),
        ]);
    }
}
