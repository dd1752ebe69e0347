//! DUMP and RESTORE: values in Redis's serialization format, for exchange with any server that supports it.

use crate::base::error::{Error, Result};
use crate::engine::command::keys::KeyUse;
use crate::engine::command::options::{Tail, integer, upper};
use crate::engine::command::{Access, Categories, Command, Flags, Group, Keys, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::{Classes, Event};
use crate::keyspace::databases::Ttl;
use crate::keyspace::rdb::dump::dump as serialize;
use crate::keyspace::rdb::load::Builder;
use crate::keyspace::rdb::parts::open;
use crate::store::values::value::Value;

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("dump", dump, "key", "Returns the value of a key in Redis's serialization format.";
        flags: Flags::READONLY, keys: Keys::ONE, group: Group::Generic, categories: Categories::KEYSPACE, since: "2.6.0",
        complexity: "O(N) for N elements of the value", tips: &["nondeterministic_output"], ..Command::DEFAULT),
    row!("restore", restore, "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
        "Creates a key from a value that DUMP returned.";
        flags: Flags::WRITE.union(Flags::DENYOOM), keys: Keys::ONE, key_uses: &[(Access::Overwrite, KeyUse::UPDATE)],
        group: Group::Generic, categories: Categories::KEYSPACE.union(Categories::DANGEROUS), since: "2.6.0",
        complexity: "O(N) for N elements of the value; O(N*log(N)) for a sorted set", ..Command::DEFAULT),
]);

fn dump(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let now = cx.now;
    match cx.db().read(args[1]) {
        Some(entry) if entry.is_native() => return Err(Error::WRONG_TYPE),
        Some(entry) => {
            let payload = serialize(entry.value(), now.ended_ms(), |deadline| now.unix_of(deadline));
            cx.reply.bulk(&payload);
        }
        None => cx.reply.null(),
    }
    Ok(())
}

/// Options of RESTORE.
#[derive(Default)]
struct Options {
    replace: bool,
    absolute: bool,
    idle_seconds: Option<u64>,
    frequency: Option<u8>,
}

fn options(args: &[&[u8]]) -> Result<Options> {
    let mut options = Options::default();
    let mut rest = Tail(args);
    while let Some(option) = rest.next() {
        match &*upper(option) {
            b"REPLACE" => options.replace = true,
            b"ABSTTL" => options.absolute = true,
            b"IDLETIME" if options.frequency.is_none() => {
                let seconds = u64::try_from(rest.integer()?);
                options.idle_seconds = Some(seconds.map_err(|_| Error::new("ERR Invalid IDLETIME value, must be >= 0"))?);
            }
            b"FREQ" if options.idle_seconds.is_none() => {
                let value = u8::try_from(rest.integer()?);
                options.frequency = Some(value.map_err(|_| Error::new("ERR Invalid FREQ value, must be >= 0 and <= 255"))?);
            }
            _ => return Err(Error::SYNTAX),
        }
    }
    Ok(options)
}

fn restore(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (key, ttl, payload) = (args[1], args[2], args[3]);
    let options = options(&args[4..])?;
    let now = cx.now;
    fail_if!(!options.replace && cx.db().contains(key), Error::new("BUSYKEY Target key name already exists."));
    let ttl_ms = u64::try_from(integer(ttl)?).map_err(|_| Error::new("ERR Invalid TTL value, must be >= 0"))?;
    let body = open(payload).ok_or_else(|| Error::new("ERR DUMP payload version or checksum are wrong"))?;
    let deadline_at = |unix_ms| now.deadline_at(unix_ms);
    let value = Builder::of(cx.engine.keyspace(), &deadline_at).load(body).ok_or_else(|| Error::new("ERR Bad data format"))?;
    // `None`: it has expired already.
    let deadline = match ttl_ms {
        0 => Some(Ttl::Clear),
        _ if options.absolute => now.deadline_at(i64::try_from(ttl_ms).unwrap_or(i64::MAX)).map(Ttl::At),
        _ => Some(Ttl::At(now.deadline_in(ttl_ms))),
    };
    let mut db = cx.db();
    let ended = matches!(&value, Value::Hash(hash) if hash.is_empty());
    match deadline {
        Some(deadline) if !ended => {
            db.make_way(key)?;
            let event = Event::new(Classes::GENERIC, "restore");
            match value {
                Value::Bytes(bytes) => db.put_string(key, &bytes, deadline, event)?,
                value => db.put(key, Box::new(value), deadline, event)?,
            }
            if let Some(seconds) = options.idle_seconds {
                db.set_idle(key, seconds);
            }
            if let Some(counter) = options.frequency {
                db.set_frequency(key, counter);
            }
        }
        _ => {
            db.delete(key, Event::DEL)?;
        }
    }
    cx.reply.ok();
    Ok(())
}
