//! Scans of the keyspace: `KEYS`, `SCAN`, `RANDOMKEY`, `DBSIZE`. The options and cursors of all `SCAN` commands are here, too.

use crate::base::error::{Error, Result};
use crate::base::glob;
use crate::engine::ADVANCE_BUDGET;
use crate::engine::command::options::{Tail, upper};
use crate::engine::command::{Categories, Command, Flags, Group, row, rows};
use crate::engine::context::Context;
use crate::engine::jobs::keys::Keys;
use crate::keyspace::databases::Db;
use crate::resp::reply::Sink;

const WALK: Command =
    Command { flags: Flags::READONLY, group: Group::Generic, categories: Categories::KEYSPACE, ..Command::DEFAULT };

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("keys", keys, "pattern",
        "Returns all keys that match a pattern. In a large database, other clients are served meanwhile.";
        categories: Categories::KEYSPACE.union(Categories::DANGEROUS), complexity: "O(N) for N keys in the database",
        tips: &["request_policy:all_shards", "nondeterministic_output_order"], ..WALK),
    row!("scan", scan, "cursor [MATCH pattern] [COUNT count] [TYPE type]", "Iterates over the keys of the database.";
        since: "2.8.0", complexity: "O(N) for N keys visited per call, at most 2,048 whatever COUNT says",
        tips: &["nondeterministic_output", "request_policy:special", "response_policy:special"], ..WALK),
    row!("randomkey", randomkey, "Returns a random key of the database.";
        tips: &["request_policy:all_shards", "response_policy:special", "nondeterministic_output"], ..WALK),
    Command {
        name: "dbsize",
        flags: Flags::READONLY.union(Flags::FAST),
        group: Group::Server,
        summary: "Returns the number of keys in the database.",
        tips: &["request_policy:all_shards", "response_policy:agg_sum"],
        handler: |cx, _| {
            // Keys that have expired by now are not counted.
            let (now, mut budget) = (cx.now, ADVANCE_BUDGET);
            while budget > 0 && cx.engine.keyspace_mut().expire_due(now, &mut budget) {}
            let len = cx.db().len();
            cx.reply.integer(len as i64);
            Ok(())
        },
        ..WALK
    },
]);

fn keys(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let pattern = args[1];
    let all = pattern == b"*";
    let len = cx.db().len();
    if cx.may_start_job(len) {
        let walked = Keys::new(cx.db, (!all).then_some(pattern));
        cx.start_job(walked);
        return Ok(());
    }
    let (db, reply) = cx.db_and_reply();
    // The keys are visited twice, first to count them: a list of them would cost more than matching again.
    let mut matching = 0;
    db.scan(0, usize::MAX, |entry| matching += usize::from(all || glob::matches(pattern, entry.key(), false)));
    reply.array(matching);
    db.scan(0, usize::MAX, |entry| {
        if all || glob::matches(pattern, entry.key(), false) {
            reply.bulk(entry.key());
        }
    });
    Ok(())
}

/// The names that `TYPE` accepts: Redis's types and our own.
const TYPES: [&[u8]; 10] = [b"string", b"list", b"set", b"zset", b"hash", b"stream", b"lock", b"semaphore", b"latch", b"guard"];

/// Maximum number of elements that one call of the `SCAN` family visits. `COUNT` is only a hint: visiting more would delay
/// other clients.
pub const VISITED_MAX: usize = 2048;

/// Options of the `SCAN` family.
#[derive(Debug)]
pub struct ScanOptions<'a> {
    /// `MATCH`.
    pub pattern: Option<&'a [u8]>,
    /// `COUNT`, from 1 to [`VISITED_MAX`].
    pub count: usize,
    /// `TYPE`, if the command has this option.
    pub type_name: Option<&'a [u8]>,
    /// `NOVALUES`, if the command has this option.
    pub no_values: bool,
}

impl<'a> ScanOptions<'a> {
    /// Parses the arguments after the cursor.
    pub fn parse(args: &[&'a [u8]], takes_type: bool, takes_no_values: bool) -> Result<Self> {
        let mut options = ScanOptions { pattern: None, count: 10, type_name: None, no_values: false };
        let mut rest = Tail(args);
        while let Some(option) = rest.next() {
            match &*upper(option) {
                b"NOVALUES" if takes_no_values => options.no_values = true,
                b"COUNT" => {
                    let count = usize::try_from(rest.integer()?).ok().filter(|&n| n > 0);
                    options.count = count.ok_or(Error::SYNTAX)?.min(VISITED_MAX);
                }
                // A single star matches everything and needs no matching.
                b"MATCH" => options.pattern = Some(rest.value()?).filter(|p| *p != b"*"),
                b"TYPE" if takes_type => {
                    let name = rest.value()?;
                    if !TYPES.iter().any(|known| name.eq_ignore_ascii_case(known)) {
                        return Err(Error::quoting("ERR unknown type name '", name, "'"));
                    }
                    options.type_name = Some(name);
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(options)
    }

    /// Number of elements to visit, of which one step may visit `most` without `MATCH`.
    pub fn visited(&self, most: usize) -> usize {
        self.count.min((most / self.pattern.map_or(1, glob::cost)).max(1))
    }

    /// Whether a name matches `MATCH`.
    pub fn matches(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name, false))
    }
}

/// Parses a cursor of the `SCAN` family. Like `strtoull`, it skips leading whitespace and accepts a plus sign.
pub fn parse_cursor(argument: &[u8]) -> Result<u64> {
    let blanks = argument.iter().take_while(|b| b.is_ascii_whitespace() || **b == 0x0b).count();
    let mut argument = &argument[blanks..];
    if argument.strip_prefix(b"-").is_some_and(|zeros| !zeros.is_empty() && zeros.iter().all(|&b| b == b'0')) {
        argument = b"0";
    }
    std::str::from_utf8(argument).ok().and_then(|text| text.parse().ok()).ok_or(Error::INVALID_CURSOR)
}

/// Writes the beginning of a reply of the `SCAN` family: an array of two elements, the first of which is the cursor.
pub fn write_cursor(reply: &mut dyn Sink, cursor: u64) {
    let mut digits = itoa::Buffer::new();
    reply.array(2);
    reply.bulk(digits.format(cursor).as_bytes());
}

fn scan(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let cursor = parse_cursor(args[1])?;
    let options = ScanOptions::parse(&args[2..], true, false)?;
    let mut found: Vec<Box<[u8]>> = Vec::new();
    let next = cx.db().scan(cursor, options.visited(VISITED_MAX), |entry| {
        let type_fits = options.type_name.is_none_or(|name| name.eq_ignore_ascii_case(entry.type_name().as_bytes()));
        if type_fits && options.matches(entry.key()) {
            found.push(entry.key().into());
        }
    });
    write_cursor(&mut *cx.reply, next);
    cx.reply.array(found.len());
    found.iter().for_each(|key| cx.reply.bulk(key));
    Ok(())
}

/// Maximum number of keys that `RANDOMKEY` draws.
const DRAWS_MAX: usize = 100;

fn randomkey(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    for _ in 0..DRAWS_MAX {
        let len = cx.db().len();
        if len == 0 {
            cx.reply.null();
            return Ok(());
        }
        let index = (cx.engine.random() % len as u64) as usize;
        let mut db = cx.db();
        let Some(key) = db.nth(index).map(|entry| entry.key().to_vec()) else { continue };
        // The lookup removes an expired key; another one is drawn then.
        if db.contains(&key) {
            cx.reply.bulk(&key);
            return Ok(());
        }
    }
    // Nearly all keys have expired and are not yet removed. The next live key after a random position is returned. A cursor has
    // 30 bits.
    let from = cx.engine.random() >> 34;
    let (db, reply) = cx.db_and_reply();
    reply.element(first_from(&db, from).or_else(|| first_from(&db, 0)).as_ref());
    Ok(())
}

/// The first key of a scan from this cursor.
fn first_from(db: &Db<'_>, mut cursor: u64) -> Option<Box<[u8]>> {
    let mut found = None;
    loop {
        cursor = db.scan(cursor, 1000, |entry| {
            found.get_or_insert_with(|| entry.key().into());
        });
        if cursor == 0 || found.is_some() {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::engine::harness::Harness;

    /// The cursor and the keys of a `SCAN` reply.
    fn parts(reply: &str) -> (String, Vec<String>) {
        let words: Vec<&str> = reply.split(' ').collect();
        (words[2].to_owned(), words[4..].iter().filter(|w| !w.starts_with('$')).map(|w| (*w).to_owned()).collect())
    }

    #[test]
    fn a_scan_sees_every_key_that_stays_while_others_come_and_go() {
        let mut h = Harness::new();
        for i in 0..500 {
            h.args(&[b"SET", format!("stay{i}").as_bytes(), b"v"]);
        }
        let (mut cursor, mut seen, mut calls) = ("0".to_owned(), BTreeSet::new(), 0);
        loop {
            let (next, keys) = parts(&h.run(&format!("SCAN {cursor} MATCH stay* COUNT 20")));
            seen.extend(keys);
            calls += 1;
            if next == "0" {
                break;
            }
            cursor = next;
            for i in 0..100 {
                h.args(&[b"SET", format!("pass{calls}:{i}").as_bytes(), b"v", b"PX", b"5"]);
            }
            h.pass(3);
        }
        assert_eq!(seen.len(), 500);
        assert!(calls > 20, "{calls} calls");
    }

    #[test]
    fn options_are_checked_and_types_filtered() {
        let mut h = Harness::new();
        h.script(&[
            ("SET s v", "+OK"),
            ("HSET h f v", ":1"),
            ("SCAN 0 TYPE hash", "*2 $1 0 *1 $1 h"),
            ("SCAN 0 TYPE zset", "*2 $1 0 *0"),
            ("SCAN 0 TYPE nothing", "-ERR unknown type name 'nothing'"),
            ("SCAN x", "-ERR invalid cursor"),
            ("SCAN 0 COUNT 0", "-ERR syntax error"),
            ("SCAN 0 COUNT x", "-ERR value is not an integer or out of range"),
            ("SCAN 0 MATCH", "-ERR syntax error"),
            ("KEYS s*", "*1 $1 s"),
            ("DBSIZE", ":2"),
        ]);
    }

    #[test]
    fn a_random_key_is_never_one_that_has_ended() {
        let mut h = Harness::new();
        h.script(&[("RANDOMKEY", "$-1"), ("SET gone v PX 1", "+OK"), ("SET here v", "+OK")]);
        h.now.advance_us(2_000);
        for _ in 0..20 {
            h.script(&[("RANDOMKEY", "$4 here")]);
        }
    }

    #[test]
    fn a_random_key_is_found_among_many_that_have_ended() {
        let mut h = Harness::new();
        for n in 0..5000 {
            h.args(&[b"SET", format!("gone{n}").as_bytes(), b"v", b"PX", b"1"]);
        }
        h.script(&[("SET here v", "+OK"), ("DEBUG SET-ACTIVE-EXPIRE 0", "+OK")]);
        h.now.advance_us(2_000);
        h.script(&[("RANDOMKEY", "$4 here"), ("DEL here", ":1"), ("RANDOMKEY", "$-1")]);
    }

    #[test]
    fn a_hash_ends_with_its_last_field_for_walks_too() {
        let mut h = Harness::new();
        h.script(&[("HSETEX h PX 5 FIELDS 1 f v", ":1"), ("KEYS *", "*1 $1 h")]);
        h.now.advance_us(5_000);
        h.script(&[("KEYS *", "*0"), ("SCAN 0", "*2 $1 0 *0"), ("RANDOMKEY", "$-1")]);
    }

    #[test]
    fn one_call_visits_no_more_than_so_many_whatever_its_count() {
        let mut h = Harness::new();
        for n in 0..20_000 {
            let name = format!("n{n}");
            h.args(&[b"SET", name.as_bytes(), b"v"]);
            h.args(&[b"HSET", b"hash", name.as_bytes(), b"v"]);
            h.args(&[b"SADD", b"set", name.as_bytes()]);
            h.args(&[b"ZADD", b"zset", b"1", name.as_bytes()]);
        }
        for walk in ["SCAN", "HSCAN hash", "SSCAN set", "ZSCAN zset"] {
            let per_element = if walk.starts_with('H') || walk.starts_with('Z') { 2 } else { 1 };
            let (mut cursor, mut calls, mut seen) = ("0".to_owned(), 0, 0);
            loop {
                let reply = h.run(&format!("{walk} {cursor} COUNT 1000000000"));
                let words: Vec<&str> = reply.split(' ').collect();
                let len: usize = words[3][1..].parse().unwrap();
                // Elements with the same hash are visited together.
                assert!(len / per_element <= super::VISITED_MAX + 8, "{walk} gave {len}");
                (calls, seen, cursor) = (calls + 1, seen + len / per_element, words[2].to_owned());
                if cursor == "0" {
                    break;
                }
            }
            let expected = if walk.starts_with('Z') { 18..=21 } else { 9..=12 };
            assert!(expected.contains(&calls), "{walk}: {calls} calls");
            assert_eq!(seen, if walk == "SCAN" { 20_003 } else { 20_000 }, "{walk}");
        }
    }
}
