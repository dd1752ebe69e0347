//! Consumer groups of streams: `XGROUP`, `XACK`, `XPENDING`.

use crate::base::error::{Error, Result};
use crate::commands::reference::help;
use crate::commands::streams::entries::{
    READ, STREAM, WRITE_FAST, parse_any_id, parse_count, parse_end, parse_id, parse_ids, parse_start,
};
use crate::engine::command::keys::uses;
use crate::engine::command::options::{Tail, integer, upper};
use crate::engine::command::{Command, Flags, Keys, Replies, row, rows, subrows};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::keyspace::databases::Db;
use crate::keyspace::types::streams::StreamEdit;
use crate::store::values::stream::{Pending, StreamId};

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("xgroup", "A container for commands on consumer groups."; keys: Keys::None, subcommands: XGROUP, ..STREAM),
    row!("xack", xack, "key group id [id ...]", "Acknowledges entries that were delivered to consumers of a group.";
        replies: Replies::Integer, flags: WRITE_FAST, key_uses: uses::CHANGED,
        complexity: "O(log(P)) for each ID, for P pending entries", ..STREAM),
    row!("xpending", xpending, "key group [[IDLE min-idle-time:integer] start:string end:string count [consumer]]",
        "Returns the entries that were delivered to consumers of a group and are not acknowledged.";
        flags: READ, complexity: "O(log(P)+M) for P pending entries and M examined; without a range O(C) for C consumers",
        tips: &["nondeterministic_output"], ..STREAM),
]);

const SUB: Command = Command { keys: Keys::Range { first: 2, last: 2, step: 1 }, ..STREAM };

const XGROUP: &[Command] = &subrows([
    row!("create", create, "key group <id | $> [MKSTREAM] [ENTRIESREAD entries-read:integer]", "Creates a consumer group.";
        flags: Flags::WRITE.union(Flags::DENYOOM), key_uses: uses::EXTENDED, ..SUB),
    row!("setid", setid, "key group <id | $> [ENTRIESREAD entries-read:integer]",
        "Sets the last ID that was delivered to a consumer group.";
        flags: Flags::WRITE, key_uses: uses::CHANGED, ..SUB),
    row!("destroy", destroy, "key group", "Deletes a consumer group.";
        flags: Flags::WRITE, key_uses: uses::REMOVED_FROM, complexity: "O(1). Pending entries are freed in steps afterwards.",
        ..SUB),
    row!("createconsumer", create_consumer, "key group consumer", "Creates a consumer of a group.";
        flags: Flags::WRITE.union(Flags::DENYOOM), key_uses: uses::EXTENDED, since: "6.2.0", ..SUB),
    row!("delconsumer", delete_consumer, "key group consumer", "Deletes a consumer of a group and its pending entries.";
        flags: Flags::WRITE, key_uses: uses::REMOVED_FROM,
        complexity: "O(N*log(P)) for N pending entries of the consumer and P of the group", ..SUB),
    help::row(STREAM.group, "5.0.0"),
]);

/// Options of `XGROUP CREATE` and `SETID`.
fn parse_options(args: &[&[u8]], create: bool) -> Result<(bool, Option<u64>)> {
    let (mut make, mut entries_read) = (false, None);
    let mut rest = Tail(&args[5..]);
    while let Some(option) = rest.next() {
        match &*upper(option) {
            b"MKSTREAM" if create => make = true,
            b"ENTRIESREAD" if rest.left() > 0 => match rest.integer()? {
                ..-1 => return Err(Error::ENTRIES_READ_RANGE),
                count => entries_read = u64::try_from(count).ok(),
            },
            _ => return Err(Error::subcommand_syntax(args)),
        }
    }
    Ok((make, entries_read))
}

fn create(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (make, entries_read) = parse_options(args, true)?;
    let (key, group) = (args[2], args[3]);
    let mut db = cx.db();
    let last_id = db.edit_stream(key)?.map(|edit| edit.stream().last_id);
    fail_if!(last_id.is_none() && !make, Error::XGROUP_NO_KEY);
    // The maximum: MKSTREAM, and ENTRIESREAD with its value.
    fail_if!(args.len() > 8, Error::subcommand_syntax(args));
    let id = if args[4] == b"$" { last_id.unwrap_or_default() } else { parse_id(args[4], 0)? };
    let before = db.keyspace.changes.count;
    let mut edit = db.edit_or_create_stream(key)?;
    if last_id.is_none() {
        edit.report_created();
    }
    fail_if!(edit.group(group).is_some(), Error::BUSY_GROUP);
    edit.set_group(group, id, entries_read);
    edit.event(Event::XGROUP_CREATE);
    db.keyspace.changes.count_as(before, 1);
    cx.reply.ok();
    Ok(())
}

/// The stream that a subcommand changes. Fails if it does not exist or, if `grouped`, if the group does not exist.
fn edit<'d, 'a>(db: &'d mut Db<'a>, args: &[&'d [u8]], grouped: bool) -> Result<StreamEdit<'d, 'a>> {
    let edit = db.edit_stream(args[2])?.ok_or(Error::XGROUP_NO_KEY)?;
    fail_if!(grouped && edit.group(args[3]).is_none(), Error::no_group_of_key(args[2], args[3]));
    Ok(edit)
}

fn setid(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (_, entries_read) = parse_options(args, false)?;
    let mut db = cx.db();
    let mut edit = edit(&mut db, args, true)?;
    fail_if!(args.len() != 5 && args.len() != 7, Error::subcommand_syntax(args));
    let id = if args[4] == b"$" { edit.stream().last_id } else { parse_any_id(args[4], 0)? };
    edit.set_group(args[3], id, entries_read);
    edit.event(Event::XGROUP_SETID);
    cx.reply.ok();
    Ok(())
}

fn destroy(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let mut edit = edit(&mut db, args, false)?;
    let removed = edit.remove_group(args[3]);
    if removed {
        edit.event(Event::XGROUP_DESTROY);
    }
    cx.reply.integer(i64::from(removed));
    Ok(())
}

fn create_consumer(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let mut edit = edit(&mut db, args, true)?;
    let there = edit.group(args[3]).is_some_and(|group| group.consumer(args[4]).is_some());
    let made = !there && edit.touch_consumer(args[3], args[4], edit.now_ms());
    cx.reply.integer(i64::from(made));
    Ok(())
}

fn delete_consumer(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let mut edit = edit(&mut db, args, true)?;
    let removed = edit.remove_consumer(args[3], args[4]);
    if removed.is_some() {
        edit.event(Event::XGROUP_DELCONSUMER);
    }
    cx.reply.integer(removed.unwrap_or(0) as i64);
    Ok(())
}

fn xack(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let mut acknowledged = 0;
    if let Some(mut edit) = db.read_and_edit_stream(args[1])?
        && edit.group(args[2]).is_some()
    {
        acknowledged = parse_ids(&args[3..])?.into_iter().filter(|id| edit.remove_pending(args[2], *id)).count();
    }
    cx.reply.integer(acknowledged as i64);
    Ok(())
}

/// A range of `XPENDING`.
struct PendingRange<'a> {
    min_idle_ms: i64,
    start: StreamId,
    end: StreamId,
    count: u64,
    consumer: Option<&'a [u8]>,
}

impl<'a> PendingRange<'a> {
    fn parse(args: &[&'a [u8]]) -> Result<Option<Self>> {
        if args.len() == 3 {
            return Ok(None);
        }
        fail_if!(!(6..=9).contains(&args.len()), Error::SYNTAX);
        let (mut min_idle_ms, mut at) = (0, 3);
        if args[3].eq_ignore_ascii_case(b"IDLE") {
            min_idle_ms = integer(args[4])?;
            fail_if!(args.len() < 8, Error::SYNTAX);
            at += 2;
        }
        let count = parse_count(args[at + 2], 0)?;
        let (start, end) = (parse_start(args[at])?, parse_end(args[at + 1])?);
        Ok(Some(PendingRange { min_idle_ms, start, end, count, consumer: args.get(at + 3).copied() }))
    }
}

fn xpending(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let range = PendingRange::parse(args)?;
    let now_ms = cx.now.unix_ms();
    let (mut db, reply) = cx.db_and_reply();
    let group = db.stream(args[1])?.and_then(|stream| stream.group(args[2]));
    let group = group.ok_or_else(|| Error::no_group(args[1], args[2], ""))?;
    let Some(range) = range else {
        reply.array(4);
        reply.integer(group.pending().len() as i64);
        let (Some((first, _)), Some((last, _))) = (group.pending().first_key_value(), group.pending().last_key_value()) else {
            reply.null();
            reply.null();
            reply.null_array();
            return Ok(());
        };
        reply.element(*first);
        reply.element(*last);
        let consumers: Vec<_> = group.consumers().filter(|consumer| !consumer.pending().is_empty()).collect();
        reply.array(consumers.len());
        for consumer in consumers {
            reply.array(2);
            reply.bulk(&consumer.name);
            reply.bulk(itoa::Buffer::new().format(consumer.pending().len()).as_bytes());
        }
        return Ok(());
    };
    let consumer = range.consumer.map(|name| group.consumer(name));
    if consumer.is_some_and(|consumer| consumer.is_none()) || range.start > range.end {
        reply.array(0);
        return Ok(());
    }
    let all = group.pending();
    let idle = |pending: &Pending| now_ms.saturating_sub(pending.delivered_ms);
    let wanted = |(_, pending): &(StreamId, &Pending)| range.min_idle_ms == 0 || idle(pending) >= range.min_idle_ms;
    let count = usize::try_from(range.count).unwrap_or(usize::MAX);
    let found: Vec<(StreamId, &Pending)> = match consumer.flatten() {
        Some(consumer) => {
            let of_consumer = consumer.pending().range(range.start..=range.end).filter_map(|id| Some((*id, all.get(id)?)));
            of_consumer.filter(wanted).take(count).collect()
        }
        None => all.range(range.start..=range.end).map(|(id, pending)| (*id, pending)).filter(wanted).take(count).collect(),
    };
    reply.array(found.len());
    for (id, pending) in found {
        reply.array(4);
        reply.element(id);
        reply.bulk(&group.owner(pending).name);
        reply.integer(idle(pending).max(0));
        reply.integer(pending.count);
    }
    Ok(())
}
