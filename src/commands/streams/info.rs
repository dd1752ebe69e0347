//! `XINFO`: information about a stream, its groups and their consumers.

use crate::base::error::{Error, Result};
use crate::commands::reference::help;
use crate::commands::streams::entries::{READ, STREAM, parse_count, write_entries, write_entry};
use crate::engine::command::{Command, Keys, row, rows, subrows};
use crate::engine::context::Context;
use crate::resp::reply::Sink;
use crate::store::values::stream::{Consumer, Group, Stream, StreamId};

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("xinfo", "A container for commands that inspect streams.";
    keys: Keys::None, subcommands: XINFO, ..STREAM)]);

const SUB: Command = Command { flags: READ, keys: Keys::Range { first: 2, last: 2, step: 1 }, ..STREAM };

const XINFO: &[Command] = &subrows([
    row!("stream", stream, "key [FULL [COUNT count]]",
        "Returns information about a stream: its counters and ends, and with FULL its entries, groups and consumers.";
        complexity: "O(1); with FULL O(N) for N returned entries, groups and consumers", ..SUB),
    row!("groups", groups, "key", "Returns the consumer groups of a stream."; complexity: "O(N) for N groups", ..SUB),
    row!("consumers", consumers, "key group", "Returns the consumers of a group.";
        complexity: "O(N) for N consumers", tips: &["nondeterministic_output"], ..SUB),
    help::row(STREAM.group, "5.0.0"),
]);

fn stream(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let stream = db.stream(args[2])?.ok_or(Error::NO_SUCH_KEY)?;
    let count = match &args[3..] {
        [] => None,
        [full] if full.eq_ignore_ascii_case(b"FULL") => Some(10),
        [full, option, count] if full.eq_ignore_ascii_case(b"FULL") && option.eq_ignore_ascii_case(b"COUNT") => {
            let count = parse_count(count, 10)?;
            Some(if count == 0 { usize::MAX } else { usize::try_from(count).unwrap_or(usize::MAX) })
        }
        _ => return Err(Error::subcommand_syntax(args)),
    };
    reply.map(if count.is_some() { 9 } else { 10 });
    reply.entry("length", stream.len());
    reply.entry("radix-tree-keys", stream.blocks());
    // There is no radix tree. This is the minimum number of nodes that one for these blocks would have.
    reply.entry("radix-tree-nodes", stream.blocks() as i64 + 1);
    reply.entry("last-generated-id", stream.last_id);
    reply.entry("max-deleted-entry-id", stream.max_deleted_id);
    reply.entry("entries-added", stream.entries_added);
    reply.entry("recorded-first-entry-id", stream.first_id());
    let Some(count) = count else {
        reply.entry("groups", stream.groups().len());
        let ends = [
            ("first-entry", stream.range(StreamId::MIN, StreamId::MAX).next()),
            ("last-entry", stream.range_back(StreamId::MIN, StreamId::MAX).next()),
        ];
        for (name, entry) in ends {
            reply.bulk(name.as_bytes());
            if let Some(entry) = entry { write_entry(reply, entry) } else { reply.null() }
        }
        return Ok(());
    };
    reply.bulk(b"entries");
    write_entries(reply, stream.range(StreamId::MIN, StreamId::MAX).take(count));
    reply.bulk(b"groups");
    reply.array(stream.groups().len());
    for (name, group) in stream.groups() {
        write_full_group(reply, stream, name, group, count);
    }
    Ok(())
}

fn write_full_group(reply: &mut dyn Sink, stream: &Stream, name: &[u8], group: &Group, count: usize) {
    reply.map(7);
    reply.entry("name", name);
    reply.entry("last-delivered-id", group.last_id);
    reply.entry("entries-read", group.entries_read);
    reply.entry("lag", stream.lag(group));
    reply.entry("pel-count", group.pending().len());
    reply.bulk(b"pending");
    reply.array(group.pending().len().min(count));
    for (id, pending) in group.pending().iter().take(count) {
        reply.array(4);
        reply.element(*id);
        reply.bulk(&group.owner(pending).name);
        reply.integer(pending.delivered_ms);
        reply.integer(pending.count);
    }
    reply.bulk(b"consumers");
    reply.array(group.consumers().len());
    for consumer in group.consumers() {
        write_full_consumer(reply, group, consumer, count);
    }
}

fn write_full_consumer(reply: &mut dyn Sink, group: &Group, consumer: &Consumer, count: usize) {
    reply.map(5);
    reply.entry("name", &consumer.name);
    reply.entry("seen-time", consumer.seen_ms);
    reply.entry("active-time", consumer.active_ms.unwrap_or(-1));
    reply.entry("pel-count", consumer.pending().len());
    reply.bulk(b"pending");
    let pending: Vec<_> = consumer.pending().iter().take(count).filter_map(|id| Some((id, group.pending().get(id)?))).collect();
    reply.array(pending.len());
    for (id, pending) in pending {
        reply.array(3);
        reply.element(*id);
        reply.integer(pending.delivered_ms);
        reply.integer(pending.count);
    }
}

fn groups(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let stream = db.stream(args[2])?.ok_or(Error::NO_SUCH_KEY)?;
    reply.array(stream.groups().len());
    for (name, group) in stream.groups() {
        reply.map(6);
        reply.entry("name", name);
        reply.entry("consumers", group.consumers().len());
        reply.entry("pending", group.pending().len());
        reply.entry("last-delivered-id", group.last_id);
        reply.entry("entries-read", group.entries_read);
        reply.entry("lag", stream.lag(group));
    }
    Ok(())
}

fn consumers(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let now_ms = cx.now.unix_ms();
    let (mut db, reply) = cx.db_and_reply();
    let stream = db.stream(args[2])?.ok_or(Error::NO_SUCH_KEY)?;
    let group = stream.group(args[3]).ok_or_else(|| Error::no_group_of_key(args[2], args[3]))?;
    reply.array(group.consumers().len());
    for consumer in group.consumers() {
        reply.map(4);
        reply.entry("name", &consumer.name);
        reply.entry("pending", consumer.pending().len());
        reply.entry("idle", now_ms.saturating_sub(consumer.seen_ms).max(0));
        reply.entry("inactive", consumer.active_ms.map_or(-1, |at| now_ms.saturating_sub(at)));
    }
    Ok(())
}
