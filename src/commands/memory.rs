//! MEMORY: what keys and the server take up.

use crate::commands::{help, info};
use crate::engine::command::{Access, Command, Flags, Group, Keys};
use crate::engine::command_keys::KeyUse;
use crate::engine::context::Context;
use crate::engine::error::{Error, Result};
use crate::engine::number::parse_i64;
use crate::store::entry::ValueRef;

/// Bytes of a key's slot in its table.
const SLOT_BYTES: usize = 8;

const ROW: Command = Command { group: Group::Server, since: "4.0.0", arity: 2, ..Command::DEFAULT };

const OF_EACH: &[&str] = &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"];

/// The rows.
pub const COMMANDS: &[Command] = &[Command {
    name: "memory",
    arity: -2,
    summary: "Tells what takes up memory.",
    complexity: "Depends on subcommand.",
    subcommands: &[
        Command { name: "doctor", summary: "Says what is odd about the use of memory.", tips: OF_EACH, handler: doctor, ..ROW },
        Command {
            name: "help",
            flags: Flags::LOADING.union(Flags::STALE),
            summary: "Lists the subcommands.",
            handler: help::from_rows,
            ..ROW
        },
        Command {
            name: "malloc-stats",
            summary: "Names the allocator: it keeps no statistics to show.",
            tips: OF_EACH,
            handler: malloc_stats,
            ..ROW
        },
        Command {
            name: "purge",
            summary: "Accepted: the allocator gives memory back by itself.",
            tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
            handler: purge,
            ..ROW
        },
        Command { name: "stats", summary: "Lists figures on the use of memory.", tips: OF_EACH, handler: stats, ..ROW },
        Command {
            name: "usage",
            arity: -3,
            flags: Flags::READONLY,
            keys: Keys::Range { first: 2, last: 2, step: 1 },
            key_uses: &[(Access::Read, KeyUse::empty())],
            summary: "Gives the bytes that a key and its value take up.",
            syntax: "key [SAMPLES count]",
            handler: usage,
            ..ROW
        },
    ],
    ..ROW
}];

fn usage(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut options = args[3..].iter();
    while let Some(word) = options.next() {
        let count = options.next().filter(|_| word.eq_ignore_ascii_case(b"samples")).ok_or(Error::SYNTAX)?;
        // What a value takes up is known without taking samples.
        if parse_i64(count).ok_or(Error::NOT_INTEGER)? < 0 {
            return Err(Error::SYNTAX);
        }
    }
    let (mut db, reply) = cx.db_and_reply();
    match db.peek(args[2]) {
        Some(entry) => {
            let boxed = match entry.value() {
                ValueRef::Boxed(value) => value.allocated(),
                ValueRef::Bytes(_) => 0,
            };
            reply.integer((SLOT_BYTES + entry.allocated() + boxed) as i64);
        }
        None => reply.null(),
    }
    Ok(())
}

fn stats(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let used = info::usage(cx.engine);
    let (now, tables) = (cx.now, cx.engine.keyspace.table_bytes());
    let peak = cx.engine.stats.memory_peak;
    let clients = cx.engine.all_client_memory();
    let keys: usize = (0..cx.engine.keyspace.databases() as u32).map(|index| cx.engine.keyspace.db(index, now).len()).sum();
    let dataset = used.allocated.saturating_sub(tables as u64);
    let integers = [
        ("peak.allocated", peak),
        ("total.allocated", used.allocated),
        ("startup.allocated", 0),
        ("replication.backlog", 0),
        ("clients.slaves", 0),
        ("clients.normal", clients as u64),
        ("cluster.links", 0),
        ("aof.buffer", 0),
        ("overhead.total", tables as u64),
        ("keys.count", keys as u64),
        ("keys.bytes-per-key", dataset.checked_div(keys as u64).unwrap_or(0)),
        ("dataset.bytes", dataset),
        ("allocator.allocated", used.allocated),
        ("allocator.active", used.resident),
        ("allocator.resident", used.resident),
        ("fragmentation.bytes", used.resident.saturating_sub(used.allocated)),
    ];
    let percent = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    let doubles = [
        ("dataset.percentage", percent(dataset, used.allocated)),
        ("peak.percentage", percent(used.allocated, peak)),
        ("fragmentation", percent(used.resident, used.allocated) / 100.0),
    ];
    cx.reply.map(integers.len() + doubles.len());
    for (name, number) in integers {
        cx.reply.bulk(name.as_bytes());
        cx.reply.integer(number as i64);
    }
    for (name, number) in doubles {
        cx.reply.bulk(name.as_bytes());
        cx.reply.double(number);
    }
    Ok(())
}

fn doctor(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let used = info::usage(cx.engine);
    let peak = cx.engine.stats.memory_peak;
    let mut findings = Vec::new();
    if used.allocated > 5 << 20 {
        if peak > used.allocated / 2 * 3 {
            findings.push(format!("The peak of {} was half as much again as what is in use.", info::human(peak)));
        }
        if used.resident > used.allocated / 10 * 14 {
            findings.push(format!("{} are resident, which is far more than is in use.", info::human(used.resident)));
        }
    }
    if cx.engine.keyspace.has_unfreed() {
        findings.push("Memory of deleted keys is still being freed.".to_owned());
    }
    let text = if findings.is_empty() {
        format!("Nothing odd: {} are in use.", info::human(used.allocated))
    } else {
        findings.join("\n")
    };
    cx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

fn malloc_stats(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let text = format!("The allocator ({}) keeps no statistics to show.", cx.engine.environment.allocator);
    cx.reply.verbatim("txt", text.as_bytes());
    Ok(())
}

fn purge(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
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
        let stats = harness.run("MEMORY STATS");
        assert!(stats.starts_with("%19 ") && stats.contains("keys.count :2 "), "{stats}");
        harness.script(&[("MEMORY PURGE", "+OK")]);
        assert!(harness.run("MEMORY DOCTOR").contains("txt:Nothing odd: "));
        assert!(harness.run("MEMORY MALLOC-STATS").starts_with("="));
    }
}
