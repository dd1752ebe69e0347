//! HyperLogLog commands: estimates of the number of different elements. HyperLogLogs are strings in Redis's format.

use crate::base::error::{Error, Result};
use crate::engine::command::keys::KeyUse;
use crate::engine::command::{Access, Command, Flags, Group, Keys, Replies, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::{Classes, Event};
use crate::keyspace::databases::{Db, Ttl};
use crate::store::entry::Form;
use crate::store::values::hyperloglog as hll;
use crate::store::values::hyperloglog::{Corrupt, REGISTERS};

const HLL: Command =
    Command { group: Group::Hyperloglog, keys: Keys::ONE, access: Access::ReadWrite, since: "2.8.9", ..Command::DEFAULT };
const GROW: Flags = Flags::WRITE.union(Flags::DENYOOM);
const READ_AND_CACHED: (Access, KeyUse) = (Access::ReadWrite, KeyUse::ACCESS);

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("pfadd", pfadd, "key [element [element ...]]", "Adds elements to a HyperLogLog. Creates it if it does not exist.";
        replies: Replies::Integer, flags: GROW.union(Flags::FAST), key_uses: &[(Access::ReadWrite, KeyUse::INSERT)],
        complexity: "O(N) for N elements", ..HLL),
    row!("pfcount", pfcount, "key [key ...]", "Estimates the number of different elements of one or more HyperLogLogs together.";
        replies: Replies::Integer, flags: Flags::READONLY.union(Flags::MAY_REPLICATE), keys: Keys::ALL,
        key_uses: &[READ_AND_CACHED], key_notes: &["Stores the estimate in the value."], complexity: "O(N) for N keys", ..HLL),
    row!("pfmerge", pfmerge, "destkey [sourcekey:key [sourcekey:key ...]]", "Merges HyperLogLogs into the first one.";
        replies: Replies::Scalar, flags: GROW, keys: Keys::ALL,
        key_uses: &[(Access::ReadWrite, KeyUse::ACCESS.union(KeyUse::INSERT)), (Access::Read, KeyUse::ACCESS)],
        complexity: "O(N) for N HyperLogLogs", ..HLL),
    row!("pfdebug", pfdebug, "subcommand key", "Shows the registers or the encoding of a HyperLogLog.";
        flags: GROW.union(Flags::ADMIN), keys: Keys::Range { first: 2, last: 2, step: 1 }, key_uses: &[READ_AND_CACHED],
        complexity: "O(N) for N registers", ..HLL),
    row!("pfselftest", pfselftest, "Tests the HyperLogLog implementation.";
        flags: Flags::ADMIN, keys: Keys::None, complexity: "O(N) for N elements of the test", ..HLL),
]);

const PFADD: Event = Event::new(Classes::STRING, "pfadd");

/// Number of elements that the self-test adds.
const TEST_ELEMENTS: u64 = 100_000;

/// Converts the error of corrupt registers.
fn or_corrupt<T>(result: std::result::Result<T, Corrupt>) -> Result<T> {
    result.map_err(|Corrupt| Error::CORRUPT_HLL)
}

/// The HyperLogLog of a key; `None` if the key does not exist. Fails if it holds anything else. Counts as a hit or a miss.
fn read<'d>(db: &'d mut Db<'_>, key: &[u8]) -> Result<Option<&'d [u8]>> {
    db.string(key)?.map_or(Ok(None), |bytes| checked(bytes).map(Some))
}

/// As [`read`] for a command that changes it; counts as neither a hit nor a miss.
fn peek<'d>(db: &'d mut Db<'_>, key: &[u8]) -> Result<Option<&'d [u8]>> {
    let Some(entry) = db.peek(key) else { return Ok(None) };
    checked(entry.bytes().ok_or(Error::WRONG_TYPE)?).map(Some)
}

fn checked(bytes: &[u8]) -> Result<&[u8]> {
    if hll::is_valid(bytes) { Ok(bytes) } else { Err(Error::NOT_HLL) }
}

/// Stores a HyperLogLog. The key's deadline stays.
fn put(db: &mut Db<'_>, key: &[u8], bytes: &[u8], event: Event) -> Result {
    db.put_string(key, bytes, Ttl::Keep, event)?;
    db.set_form(key, Form::Raw);
    Ok(())
}

fn sparse_max(cx: &Context<'_>) -> usize {
    cx.engine.config().hll_sparse_max_bytes as usize
}

fn pfadd(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let sparse_max = sparse_max(cx);
    let (key, elements) = (args[1], &args[2..]);
    let mut db = cx.db();
    let changed = match peek(&mut db, key)? {
        Some(bytes) if hll::is_dense(bytes) => add_to_dense(&mut db, key, elements)?,
        found => {
            let sparse = found.map(<[u8]>::to_vec);
            add_to_sparse(&mut db, key, sparse, elements, sparse_max)?
        }
    };
    db.set_form(key, Form::Raw);
    cx.reply.integer(i64::from(changed));
    Ok(())
}

/// Adds elements to a dense HyperLogLog in place. Returns whether it changed.
fn add_to_dense(db: &mut Db<'_>, key: &[u8], elements: &[&[u8]]) -> Result<bool> {
    let mut edit = db.edit_string(key)?;
    let mut changed = false;
    for element in elements {
        if let Some((at, bytes)) = hll::change(edit.bytes(), element) {
            edit.write(at, &bytes);
            changed = true;
        }
    }
    if changed {
        let mut count: [u8; 8] = edit.bytes()[hll::CACHE].try_into().unwrap_or_default();
        count[7] |= 0x80;
        edit.write(hll::CACHE.start, &count);
        edit.finish(Form::Raw, Some(PFADD));
    }
    Ok(changed)
}

/// Adds elements to a sparse HyperLogLog, or to a new one, and stores it. Returns whether it is new or changed.
fn add_to_sparse(db: &mut Db<'_>, key: &[u8], sparse: Option<Vec<u8>>, elements: &[&[u8]], sparse_max: usize) -> Result<bool> {
    let mut changed = sparse.is_none();
    let mut bytes = sparse.unwrap_or_else(hll::empty);
    for element in elements {
        match hll::add(&mut bytes, element, sparse_max) {
            Ok(new) => changed |= new,
            Err(corrupt) => {
                // The elements before the error are kept, without an event, as in Redis.
                put(db, key, &bytes, Event::SILENT)?;
                return or_corrupt(Err(corrupt));
            }
        }
    }
    if changed {
        hll::invalidate(&mut bytes);
        put(db, key, &bytes, PFADD)?;
    }
    Ok(changed)
}

fn pfcount(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let count = match &args[1..] {
        [key] => match read(&mut db, key)? {
            None => 0,
            Some(bytes) => match hll::cached_count(bytes) {
                Some(count) => {
                    db.set_form(key, Form::Raw);
                    count
                }
                None => {
                    let count = or_corrupt(hll::count(bytes))?;
                    // Publishes no event, but the stored string changes.
                    let mut edit = db.edit_string(key)?;
                    edit.write(hll::CACHE.start, &count.to_le_bytes());
                    edit.finish(Form::Raw, None);
                    count
                }
            },
        },
        keys => {
            let mut registers = [0; REGISTERS];
            for key in keys {
                if let Some(bytes) = read(&mut db, key)? {
                    or_corrupt(hll::merge(&mut registers, bytes))?;
                }
            }
            hll::count_registers(&registers)
        }
    };
    cx.reply.integer(count as i64);
    Ok(())
}

fn pfmerge(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let sparse_max = sparse_max(cx);
    let mut db = cx.db();
    let mut registers = [0; REGISTERS];
    let mut dense = false;
    for key in &args[1..] {
        if let Some(bytes) = read(&mut db, key)? {
            dense |= hll::is_dense(bytes);
            or_corrupt(hll::merge(&mut registers, bytes))?;
        }
    }
    let mut merged = peek(&mut db, args[1])?.map_or_else(hll::empty, <[u8]>::to_vec);
    if dense {
        or_corrupt(hll::to_dense(&mut merged))?;
    }
    for (index, value) in registers.iter().enumerate().filter(|(_, value)| **value > 0) {
        or_corrupt(hll::raise(&mut merged, index, *value, sparse_max))?;
    }
    hll::invalidate(&mut merged);
    put(&mut db, args[1], &merged, PFADD)?;
    cx.reply.ok();
    Ok(())
}

fn pfdebug(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (what, key) = (args[1].to_ascii_lowercase(), args[2]);
    let (mut db, reply) = cx.db_and_reply();
    let mut bytes = peek(&mut db, key)?.ok_or(Error::NO_SUCH_HLL)?.to_vec();
    match &what[..] {
        b"getreg" | b"todense" => {
            let changed = or_corrupt(hll::to_dense(&mut bytes))?;
            if changed {
                put(&mut db, key, &bytes, Event::SILENT)?;
            }
            if what == b"todense" {
                reply.integer(i64::from(changed));
            } else {
                reply.array(REGISTERS);
                hll::registers(&bytes).for_each(|value| reply.integer(i64::from(value)));
            }
        }
        b"decode" if hll::is_dense(&bytes) => return Err(Error::HLL_NOT_SPARSE),
        b"decode" => reply.bulk(hll::describe(&bytes).as_bytes()),
        b"encoding" => reply.simple(if hll::is_dense(&bytes) { "dense" } else { "sparse" }),
        _ => return Err(Error::quoting("ERR Unknown PFDEBUG subcommand '", args[1], "'")),
    }
    Ok(())
}

fn pfselftest(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let sparse_max = sparse_max(cx);
    let seed = cx.engine.random();
    let (mut sparse, mut dense) = (hll::empty(), hll::empty());
    or_corrupt(hll::to_dense(&mut dense))?;
    let mut checkpoint = 1;
    for n in 1..=TEST_ELEMENTS {
        let element = (n ^ seed).to_le_bytes();
        or_corrupt(hll::add(&mut sparse, &element, sparse_max))?;
        or_corrupt(hll::add(&mut dense, &element, sparse_max))?;
        if n == checkpoint {
            let count = or_corrupt(hll::count(&dense))?;
            fail_if!(or_corrupt(hll::count(&sparse))? != count, Error::new("TESTFAILED dense/sparse disagree"));
            // Six standard errors.
            let error_max = (1.04 / (REGISTERS as f64).sqrt() * 6.0 * n as f64).ceil() as u64;
            if count.abs_diff(n) > error_max {
                return Err(Error::new(format!("TESTFAILED Too big error. card:{n} abserr:{}", count.abs_diff(n))));
            }
            checkpoint *= 10;
        }
    }
    cx.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    const NOT_HLL: &str = "-WRONGTYPE Key is not a valid HyperLogLog string value.";

    #[test]
    fn elements_are_shown_counted_and_merged() {
        let mut h = Harness::new();
        h.script(&[
            ("PFADD a", ":1"),
            ("PFADD a", ":0"),
            ("PFADD a x y z x", ":1"),
            ("PFADD a x", ":0"),
            ("OBJECT ENCODING a", "$3 raw"),
            ("TYPE a", "+string"),
            ("PFCOUNT a", ":3"),
            ("PFCOUNT a", ":3"),
            ("PFADD b x q", ":1"),
            ("PFCOUNT a b none", ":4"),
            ("PFCOUNT none", ":0"),
            ("PFMERGE c a b none", "+OK"),
            ("PFCOUNT c", ":4"),
            ("PFMERGE d", "+OK"),
            ("PFCOUNT d", ":0"),
            ("PFDEBUG ENCODING c", "+sparse"),
            ("PFDEBUG DECODE d", "$7 Z:16384"),
            ("PFDEBUG TODENSE c", ":1"),
            ("PFDEBUG todense c", ":0"),
            ("PFDEBUG ENCODING c", "+dense"),
            ("PFDEBUG DECODE c", "-ERR HLL encoding is not sparse"),
            ("PFDEBUG DECODE none", "-ERR The specified key does not exist"),
            ("PFDEBUG NOTHING c", "-ERR Unknown PFDEBUG subcommand 'NOTHING'"),
            ("PFCOUNT c", ":4"),
            ("PFADD c x", ":0"),
            ("PFADD c new", ":1"),
            ("PFCOUNT c", ":5"),
            ("PFMERGE a c", "+OK"),
            ("PFDEBUG ENCODING a", "+dense"),
            ("STRLEN a", ":12304"),
            ("PFSELFTEST", "+OK"),
        ]);
        assert_eq!(h.run("PFDEBUG GETREG d").split(' ').filter(|word| *word == ":0").count(), 16_384);
    }

    #[test]
    fn what_is_no_hyperloglog_is_refused() {
        let mut h = Harness::new();
        h.script(&[("SET s text", "+OK"), ("LPUSH l x", ":1"), ("PFADD a x", ":1")]);
        for call in ["PFADD s x", "PFCOUNT s", "PFCOUNT a s", "PFMERGE a s", "PFMERGE s a", "PFDEBUG ENCODING s"] {
            h.script(&[(call, NOT_HLL)]);
        }
        h.script(&[
            ("PFADD l x", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("PFCOUNT a l", "-WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("SETRANGE a 4 \u{2}", ":20"),
            ("PFCOUNT a", NOT_HLL),
            ("DEL a", ":1"),
            ("PFADD a x", ":1"),
            ("APPEND a more", ":24"),
            ("PFCOUNT a", "-INVALIDOBJ Corrupted HLL object detected"),
            ("PFCOUNT a none", "-INVALIDOBJ Corrupted HLL object detected"),
            ("PFMERGE b a", "-INVALIDOBJ Corrupted HLL object detected"),
            ("EXISTS b", ":0"),
        ]);
        h.args(&[b"SETRANGE", b"e", b"0", b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80"]);
        h.script(&[
            ("PFADD e x", "-INVALIDOBJ Corrupted HLL object detected"),
            ("PFDEBUG TODENSE e", "-INVALIDOBJ Corrupted HLL object detected"),
        ]);
    }

    #[test]
    fn deadlines_stay_and_many_elements_make_it_dense() {
        let mut h = Harness::new();
        h.script(&[("PFADD a x", ":1"), ("PEXPIRE a 1000", ":1")]);
        for n in 0..5000 {
            h.args(&[b"PFADD", b"a", format!("element:{n}").as_bytes()]);
        }
        h.script(&[("PFDEBUG ENCODING a", "+dense"), ("PTTL a", ":1000"), ("OBJECT ENCODING a", "$3 raw")]);
        let count: i64 = h.run("PFCOUNT a")[1..].parse().unwrap_or(0);
        assert!((4850..5150).contains(&count), "{count}");
        h.script(&[("CONFIG SET hll-sparse-max-bytes 0", "+OK"), ("PFADD b", ":1"), ("PFDEBUG ENCODING b", "+sparse")]);
        h.script(&[("PFADD b x", ":1"), ("PFDEBUG ENCODING b", "+dense")]);
    }
}
