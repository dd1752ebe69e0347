//! MEMORY: the memory usage of keys and of the server.

use crate::base::error::{Error, Result};
use crate::commands::reference::help;
use crate::commands::server::info;
use crate::engine::command::keys::KeyUse;
use crate::engine::command::options::{Tail, integer};
use crate::engine::command::{Access, Command, Flags, Group, Keys, Traits, row, rows, subrows};
use crate::engine::context::Context;
use crate::engine::{Action, Engine};
use crate::store::entry::ValueRef;

/// Bytes of a key's slot in the hash table.
const SLOT_BYTES: usize = 8;

const ROW: Command = Command { group: Group::Server, since: "4.0.0", ..Command::DEFAULT };

const FROM_ALL_SHARDS: &[&str] = &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"];

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("memory", "A container for memory diagnostics commands.";
    complexity: "Depends on subcommand.", subcommands: &subrows([
        row!("doctor", doctor, "Reports memory problems in words."; tips: FROM_ALL_SHARDS, ..ROW),
        help::row(Group::Server, "4.0.0"),
        row!("malloc-stats", malloc_stats, "Returns the allocator's statistics. The allocator keeps none.";
            tips: FROM_ALL_SHARDS, ..ROW),
        row!("purge", purge, "Asks the allocator to return free memory to the system. It also does so on its own, bit by bit.";
            tips: &["request_policy:all_shards", "response_policy:all_succeeded"], ..ROW),
        row!("stats", stats, "Returns details about memory usage."; traits: Traits::COUNTS_KEYS, tips: FROM_ALL_SHARDS, ..ROW),
        row!("usage", usage, "key [SAMPLES count]", "Returns the memory usage of a key and its value in bytes.";
            flags: Flags::READONLY, keys: Keys::Range { first: 2, last: 2, step: 1 },
            key_uses: &[(Access::Read, KeyUse::empty())], ..ROW),
    ]), ..ROW)]);

fn usage(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut rest = Tail(&args[3..]);
    while let Some(count) = rest.value_of("SAMPLES")? {
        // The size of a value is computed exactly, so SAMPLES is only checked.
        fail_if!(integer(count)? < 0, Error::SYNTAX);
    }
    let (mut db, reply) = cx.db_and_reply();
    match db.peek(args[2]) {
        Some(entry) => {
            let boxed = match entry.value() {
                ValueRef::Boxed(value) => value.allocated(),
                ValueRef::Bytes(_) | ValueRef::Grant(_) | ValueRef::Count { .. } => 0,
            };
            reply.integer((SLOT_BYTES + entry.allocated() + boxed) as i64);
        }
        None => reply.null(),
    }
    Ok(())
}

/// Memory usage besides keys and values, in bytes.
pub(crate) struct Overhead {
    /// Databases that are not empty: index, bytes of the hash tables, bytes of timers.
    dbs: Vec<(u32, u64, u64)>,
    /// Clients, with their buffers and the keys that they wait for.
    pub clients: u64,
    /// Scripts and their interpreter.
    scripts: u64,
    /// Functions and their interpreter.
    functions: u64,
}

impl Overhead {
    pub(crate) fn of(engine: &Engine) -> Self {
        let keyspace = engine.keyspace();
        let used = (0..keyspace.databases() as u32).filter(|&index| keyspace.db_len(index) > 0);
        let dbs = used.map(|index| {
            let (tables, timers) = keyspace.db_bytes(index);
            (index, tables as u64, timers as u64)
        });
        Overhead {
            dbs: dbs.collect(),
            clients: engine.all_client_memory() as u64,
            scripts: (engine.lua().scripts.cache_bytes() + engine.lua().scripts.interpreter_bytes()) as u64,
            functions: (engine.lua().functions.library_bytes() + engine.lua().functions.interpreter_bytes()) as u64,
        }
    }

    /// The sum.
    pub(crate) fn total(&self) -> u64 {
        self.dbs.iter().map(|(_, tables, timers)| tables + timers).sum::<u64>() + self.clients + self.scripts + self.functions
    }
}

/// A value in `MEMORY STATS`.
enum Figure {
    Integer(u64),
    Double(f64),
}

fn stats(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    use Figure::{Double, Integer};
    let used = cx.engine.usage();
    let overhead = Overhead::of(cx.engine);
    let peak = cx.engine.stats().memory_peak;
    let keyspace = cx.engine.keyspace();
    let keys: u64 = (0..keyspace.databases() as u32).map(|index| keyspace.db_len(index) as u64).sum();
    let dataset = used.allocated.saturating_sub(overhead.total());
    let percent = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    let fragmentation = if used.allocated == 0 { 1.0 } else { used.resident as f64 / used.allocated as f64 };
    let before = [
        ("peak.allocated", peak),
        ("total.allocated", used.allocated),
        ("startup.allocated", 0),
        ("replication.backlog", 0),
        ("clients.slaves", 0),
        ("clients.normal", overhead.clients),
        ("cluster.links", 0),
        ("aof.buffer", 0),
        ("lua.caches", overhead.scripts),
        ("functions.caches", overhead.functions),
    ];
    // The allocator does not count pages: everything that is resident and not allocated counts as fragmentation.
    let fragmented = used.resident as i64 - used.allocated as i64;
    let after = [
        ("overhead.db.hashtable.lut", Integer(overhead.dbs.iter().map(|(_, tables, _)| tables).sum())),
        ("overhead.db.hashtable.rehashing", Integer(0)),
        ("overhead.total", Integer(overhead.total())),
        ("db.dict.rehashing.count", Integer(0)),
        ("keys.count", Integer(keys)),
        ("keys.bytes-per-key", Integer(dataset.checked_div(keys).unwrap_or(0))),
        ("dataset.bytes", Integer(dataset)),
        ("dataset.percentage", Double(percent(dataset, used.allocated))),
        ("peak.percentage", Double(percent(used.allocated, peak))),
        ("allocator.allocated", Integer(used.allocated)),
        ("allocator.active", Integer(used.resident)),
        ("allocator.resident", Integer(used.resident)),
        ("allocator.muzzy", Integer(0)),
        ("allocator-fragmentation.ratio", Double(fragmentation)),
        ("allocator-fragmentation.bytes", Integer(fragmented.max(0) as u64)),
        ("allocator-rss.ratio", Double(1.0)),
        ("allocator-rss.bytes", Integer(0)),
        ("rss-overhead.ratio", Double(1.0)),
        ("rss-overhead.bytes", Integer(0)),
        ("fragmentation", Double(fragmentation)),
    ];
    let reply = &mut *cx.reply;
    reply.map(before.len() + overhead.dbs.len() + after.len() + 1);
    for (name, number) in before {
        reply.entry(name, number);
    }
    for (index, tables, timers) in &overhead.dbs {
        reply.bulk(format!("db.{index}").as_bytes());
        reply.map(2);
        for (name, bytes) in [("overhead.hashtable.main", tables), ("overhead.hashtable.expires", timers)] {
            reply.entry(name, *bytes);
        }
    }
    for (name, figure) in after {
        reply.bulk(name.as_bytes());
        match figure {
            Integer(number) => reply.integer(number as i64),
            Double(number) => reply.double(number),
        }
    }
    reply.entry("fragmentation.bytes", fragmented);
    Ok(())
}

fn doctor(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let used = cx.engine.usage();
    let peak = cx.engine.stats().memory_peak;
    let mut findings = Vec::new();
    if used.allocated > 5 << 20 {
        if peak > used.allocated / 2 * 3 {
            findings.push(format!("The peak of {} is more than 150% of the memory in use.", info::human(peak)));
        }
        if used.resident > used.allocated / 10 * 14 {
            findings.push(format!("{} are resident, more than 140% of the memory in use.", info::human(used.resident)));
        }
    }
    if cx.engine.keyspace().has_unfreed() {
        findings.push("Memory of deleted keys is still being freed.".to_owned());
    }
    let text = if findings.is_empty() {
        format!("No problems found: {} are in use.", info::human(used.allocated))
    } else {
        findings.join("\n")
    };
    cx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

fn malloc_stats(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    // Redis's reply when it is built with the allocator of the C library.
    cx.reply.bulk(b"Stats not supported for the current allocator");
    Ok(())
}

fn purge(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.engine.ask(Action::ReturnMemory);
    cx.reply.ok();
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::engine::harness::Harness;

    fn usage(harness: &mut Harness, key: &str) -> usize {
        harness.run(&format!("MEMORY USAGE {key}")).strip_prefix(':').unwrap().parse().unwrap()
    }

    #[test]
    fn usage_grows_with_key_and_value() {
        let mut harness = Harness::new();
        harness.script(&[
            ("MEMORY USAGE k", "$-1"),
            ("MEMORY USAGE k SAMPLES", "-ERR syntax error"),
            ("MEMORY USAGE k SAMPLES x", "-ERR value is not an integer or out of range"),
            ("MEMORY USAGE k SAMPLES -1", "-ERR syntax error"),
            ("MEMORY USAGE k other 1", "-ERR syntax error"),
        ]);
        let long = "v".repeat(5000);
        harness.run("SET k v");
        harness.run(&format!("SET long {long}"));
        let short = usage(&mut harness, "k SAMPLES 0");
        assert!((10..=64).contains(&short), "{short}");
        assert!((5000..=5200).contains(&usage(&mut harness, "long")));
    }

    #[test]
    fn statistics_are_a_map_of_numbers() {
        let mut harness = Harness::new();
        harness.run("HELLO 3");
        harness.run("MSET a 1 b 2");
        harness.run("PEXPIRE a 5000");
        harness.run("SELECT 3");
        harness.run("SET c 3");
        let stats = harness.run("MEMORY STATS");
        assert!(stats.starts_with("%33 ") && stats.contains("keys.count :3 "), "{stats}");
        let of_db = |number: u8| {
            let (_, db) = stats.split_once(&format!("$4 db.{number} %2 $23 overhead.hashtable.main :"))?;
            let (main, expires) = db.split_once(" $26 overhead.hashtable.expires :")?;
            Some((main.parse::<u64>().ok()?, expires.split(' ').next()?.parse::<u64>().ok()?))
        };
        let ((main, expires), (_, none)) = (of_db(0).unwrap(), of_db(3).unwrap());
        assert!(main > 1024 && (8..64).contains(&expires) && none == 0 && of_db(1).is_none(), "{stats}");
        let (_, total) = stats.split_once("overhead.total :").unwrap();
        assert!(total.split(' ').next().unwrap().parse::<u64>().unwrap() > main + expires, "{stats}");
        harness.script(&[("MEMORY PURGE", "+OK")]);
        assert!(harness.run("MEMORY DOCTOR").contains("txt:No problems found: "));
        assert_eq!(harness.run("MEMORY MALLOC-STATS"), "$45 Stats not supported for the current allocator");
    }
}
