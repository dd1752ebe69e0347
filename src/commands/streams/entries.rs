//! Stream entries: adding, ranges, deleting, trimming. Reads are in [`crate::commands::streams::reads`], groups in
//! [`crate::commands::streams::groups`], claims in [`crate::commands::streams::claims`], information about streams in
//! [`crate::commands::streams::info`].

use crate::base::error::{Error, Result};
use crate::engine::command::keys::uses;
use crate::engine::command::options::{Tail, integer, upper};
use crate::engine::command::{Access, Command, Flags, Group, Keys, Replies, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::resp::element::Element;
use crate::resp::reply::Sink;
use crate::store::values::stream::{Entry, StreamId, Threshold, Trim};

/// What the rows of stream commands have in common.
pub(crate) const STREAM: Command =
    Command { group: Group::Stream, keys: Keys::ONE, access: Access::ReadWrite, since: "5.0.0", ..Command::DEFAULT };
pub(crate) const READ: Flags = Flags::READONLY;
pub(crate) const WRITE_FAST: Flags = Flags::WRITE.union(Flags::FAST);
pub(crate) const GROW_FAST: Flags = WRITE_FAST.union(Flags::DENYOOM);

const RANGE_COST: &str = "O(log(N)+M) for N entries of the stream and M returned";

/// Maximum bytes of an entry.
const ENTRY_BYTES_MAX: usize = 1 << 30;

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("xadd", xadd,
        "key [NOMKSTREAM] [<MAXLEN | MINID> [= | ~] threshold [LIMIT count]] <* | id> field value [field value ...]",
        "Appends an entry to a stream. Creates the stream if it does not exist.";
        replies: Replies::Scalar, flags: GROW_FAST, key_uses: uses::CHANGED,
        key_notes: &["Deletes entries with MAXLEN or MINID."], complexity: "O(1), or O(N) for N trimmed entries",
        tips: &["nondeterministic_output"], ..STREAM),
    row!("xlen", |cx, args| {
            let len = cx.db().stream(args[1])?.map_or(0, |stream| stream.len());
            cx.reply.integer(len as i64);
            Ok(())
        }, "key", "Returns the number of entries of a stream.";
        replies: Replies::Integer, flags: Flags::READONLY.union(Flags::FAST), key_uses: uses::EXAMINED, ..STREAM),
    row!("xrange", |cx, args| xrange(cx, args, args[2], args[3], false), "key start:string end:string [COUNT count]",
        "Returns the entries of a stream in a range of IDs.";
        flags: READ, complexity: RANGE_COST, ..STREAM),
    row!("xrevrange", |cx, args| xrange(cx, args, args[3], args[2], true), "key end:string start:string [COUNT count]",
        "Returns the entries of a stream in a range of IDs, in descending order.";
        flags: READ, complexity: RANGE_COST, ..STREAM),
    row!("xdel", xdel, "key id [id ...]", "Deletes entries of a stream by their IDs.";
        replies: Replies::Integer, flags: WRITE_FAST, key_uses: uses::REMOVED_FROM,
        complexity: "O(log(N)) for each ID, for N entries of the stream", ..STREAM),
    row!("xtrim", xtrim, "key <MAXLEN | MINID> [= | ~] threshold [LIMIT count]", "Deletes the oldest entries of a stream.";
        replies: Replies::Integer, flags: Flags::WRITE, key_uses: uses::REMOVED_FROM, complexity: "O(N) for N deleted entries",
        tips: &["nondeterministic_output"], ..STREAM),
    row!("xsetid", xsetid, "key last-id [ENTRIESADDED entries-added:integer] [MAXDELETEDID max-deleted-id]",
        "Sets the last ID and the counters of a stream. Replication uses it.";
        flags: GROW_FAST, key_uses: uses::CHANGED, ..STREAM),
]);

/// Parses a number like `strtoull`: leading whitespace, a plus sign and leading zeros are accepted.
fn parse_u64(text: &[u8]) -> Option<u64> {
    let blanks = text.iter().take_while(|b| b.is_ascii_whitespace() || **b == 0x0b).count();
    std::str::from_utf8(&text[blanks..]).ok()?.parse().ok()
}

/// Parses an id of XADD: `ms-seq`, `ms`, or `ms-*` for any sequence number.
fn parse_open_id(text: &[u8], missing: u64) -> Option<(u64, Option<u64>)> {
    // Redis parses it as a C string, which ends at the first NUL.
    let text = text.split(|&b| b == 0).next().filter(|_| text.len() < 128)?;
    match text.iter().position(|&b| b == b'-') {
        None => Some((parse_u64(text)?, Some(missing))),
        Some(at) if &text[at + 1..] == b"*" => Some((parse_u64(&text[..at])?, None)),
        Some(at) => Some((parse_u64(&text[..at])?, Some(parse_u64(&text[at + 1..])?))),
    }
}

/// Parses `ms-seq` or `ms`. `missing` is the sequence number if there is none.
pub(crate) fn parse_id(text: &[u8], missing: u64) -> Result<StreamId> {
    if let Some((ms, Some(seq))) = parse_open_id(text, missing) { Ok(StreamId::new(ms, seq)) } else { Err(Error::STREAM_ID) }
}

/// As [`parse_id`]; `-` and `+` are the smallest and the largest id.
pub(crate) fn parse_any_id(text: &[u8], missing: u64) -> Result<StreamId> {
    match text {
        b"-" => Ok(StreamId::MIN),
        b"+" => Ok(StreamId::MAX),
        text => parse_id(text, missing),
    }
}

/// Parses the first id of an interval. A leading `(` excludes it.
pub(crate) fn parse_start(text: &[u8]) -> Result<StreamId> {
    match text {
        [b'(', id @ ..] if !id.is_empty() => parse_id(id, 0)?.next().ok_or(Error::STREAM_INTERVAL_START),
        text => parse_any_id(text, 0),
    }
}

/// Parses the last id of an interval. A leading `(` excludes it.
pub(crate) fn parse_end(text: &[u8]) -> Result<StreamId> {
    match text {
        [b'(', id @ ..] if !id.is_empty() => parse_id(id, u64::MAX)?.previous().ok_or(Error::STREAM_INTERVAL_END),
        text => parse_any_id(text, u64::MAX),
    }
}

impl Element for StreamId {
    fn write(self, reply: &mut dyn Sink) {
        reply.bulk(self.to_string().as_bytes());
    }
}

/// Writes an entry: its id, and an array of alternating fields and values.
pub(crate) fn write_entry(reply: &mut dyn Sink, entry: Entry<'_>) {
    reply.array(2);
    reply.element(entry.id);
    reply.array(entry.len() * 2);
    for (name, value) in entry.iter() {
        reply.bulk(name);
        reply.bulk(value);
    }
}

/// Writes entries as an array.
pub(crate) fn write_entries<'a>(reply: &mut dyn Sink, entries: impl Iterator<Item = Entry<'a>>) {
    let entries: Vec<_> = entries.collect();
    reply.array(entries.len());
    entries.into_iter().for_each(|entry| write_entry(reply, entry));
}

/// Options of `XADD` and `XTRIM`.
#[derive(Default)]
struct AddOptions {
    no_mkstream: bool,
    threshold: Option<Threshold>,
    approximate: bool,
    limit: Option<u64>,
    /// Position of the id of `XADD`.
    id_at: usize,
    /// The id of `XADD`; `None` for any.
    id: Option<(u64, Option<u64>)>,
}

impl AddOptions {
    /// Parses the arguments after the key, up to the id of `XADD`.
    fn parse(args: &[&[u8]], add: bool, max_entries: u64) -> Result<Self> {
        let mut options = AddOptions { id_at: args.len(), ..AddOptions::default() };
        let mut rest = Tail(&args[2..]);
        while let Some(option) = rest.next() {
            let word = upper(option);
            match &*word {
                b"MAXLEN" | b"MINID" if rest.left() > 0 => {
                    fail_if!(options.threshold.is_some(), Error::STREAM_TWO_TRIMS);
                    let mut least = rest.value()?;
                    if rest.left() > 0 && matches!(least, b"~" | b"=") {
                        options.approximate = least == b"~";
                        least = rest.value()?;
                    }
                    options.threshold = Some(if *word == *b"MINID" {
                        Threshold::Id(parse_id(least, 0)?)
                    } else {
                        Threshold::Length(u64::try_from(integer(least)?).map_err(|_| Error::STREAM_MAXLEN_NEGATIVE)?)
                    });
                }
                b"LIMIT" if rest.left() > 0 => {
                    options.limit = Some(u64::try_from(rest.integer()?).map_err(|_| Error::STREAM_LIMIT_NEGATIVE)?);
                }
                b"NOMKSTREAM" if add => options.no_mkstream = true,
                _ if add => {
                    options.id_at = args.len() - 1 - rest.left();
                    if option != b"*" {
                        options.id = Some(parse_open_id(option, 0).ok_or(Error::STREAM_ID)?);
                    }
                    break;
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        fail_if!(options.limit.is_some_and(|limit| limit > 0) && options.threshold.is_none(), Error::STREAM_LIMIT_ALONE);
        fail_if!(!add && options.threshold.is_none(), Error::STREAM_TRIM_NOTHING);
        fail_if!(options.limit.is_some() && !options.approximate, Error::STREAM_LIMIT_EXACT);
        if options.approximate && options.limit.is_none() {
            // The default limit is a hundred blocks, as in Redis. LIMIT allows more per call.
            let blocks = max_entries.saturating_mul(100);
            options.limit = Some(if blocks == 0 { 10_000 } else { blocks.min(1_000_000) });
        }
        Ok(options)
    }

    fn trim(&self) -> Option<Trim> {
        Some(Trim { threshold: self.threshold?, approximate: self.approximate, limit: self.limit.unwrap_or(0) })
    }
}

fn xadd(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let options = AddOptions::parse(args, true, cx.engine.config().stream_node_max_entries)?;
    let pairs = args.get(options.id_at + 1..).unwrap_or_default();
    fail_if!(pairs.is_empty() || pairs.len() % 2 == 1, Error::arity(cx.command.name));
    fail_if!(options.id == Some((0, Some(0))), Error::STREAM_ID_ZERO);
    let now_ms = u64::try_from(cx.now.unix_ms()).unwrap_or(0);
    let (mut db, reply) = cx.db_and_reply();
    let last_id = match db.edit_stream(args[1])? {
        Some(edit) => edit.stream().last_id,
        None if options.no_mkstream => {
            reply.null();
            return Ok(());
        }
        None => StreamId::MIN,
    };
    fail_if!(last_id == StreamId::MAX, Error::STREAM_EXHAUSTED);
    let id = match options.id {
        None if now_ms > last_id.ms => Some(StreamId::new(now_ms, 0)),
        None => last_id.next(),
        Some((ms, Some(seq))) => Some(StreamId::new(ms, seq)),
        Some((ms, None)) if ms == last_id.ms => last_id.seq.checked_add(1).map(|seq| StreamId::new(ms, seq)),
        Some((ms, None)) => Some(StreamId::new(ms, 0)),
    };
    let id = id.filter(|id| *id > last_id).ok_or(Error::STREAM_ID_SMALL)?;
    fail_if!(pairs.iter().map(|part| part.len()).sum::<usize>() > ENTRY_BYTES_MAX, Error::STREAM_ENTRY_TOO_LARGE);
    let mut edit = db.edit_or_create_stream(args[1])?;
    edit.append(id, pairs);
    edit.event(Event::XADD);
    reply.element(id);
    if let Some(trim) = options.trim()
        && edit.trim(trim) > 0
    {
        edit.event(Event::XTRIM);
    }
    Ok(())
}

fn xtrim(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let options = AddOptions::parse(args, false, cx.engine.config().stream_node_max_entries)?;
    let mut db = cx.db();
    let mut removed = 0;
    if let Some(mut edit) = db.edit_stream(args[1])?
        && let Some(trim) = options.trim()
    {
        removed = edit.trim(trim);
        if removed > 0 {
            edit.event(Event::XTRIM);
            db.keyspace.changes.count += removed;
        }
    }
    cx.reply.integer(removed as i64);
    Ok(())
}

/// Parses a count. A negative count becomes `negative`. Fails if it is not a number.
pub(crate) fn parse_count(text: &[u8], negative: u64) -> Result<u64> {
    Ok(u64::try_from(integer(text)?).unwrap_or(negative))
}

fn xrange(cx: &mut Context<'_>, args: &[&[u8]], start: &[u8], end: &[u8], reverse: bool) -> Result {
    let (start, end) = (parse_start(start)?, parse_end(end)?);
    let mut count = u64::MAX;
    let mut rest = Tail(&args[4..]);
    while let Some(number) = rest.value_of("COUNT")? {
        count = parse_count(number, 0)?;
    }
    let (mut db, reply) = cx.db_and_reply();
    let Some(stream) = db.stream(args[1])? else {
        reply.array(0);
        return Ok(());
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count == 0 {
        reply.null_array();
    } else if reverse {
        write_entries(reply, stream.range_back(start, end).take(count));
    } else {
        write_entries(reply, stream.range(start, end).take(count));
    }
    Ok(())
}

/// Parses ids. Fails on any invalid id, before one of them is processed.
pub(crate) fn parse_ids(args: &[&[u8]]) -> Result<Vec<StreamId>> {
    args.iter().map(|id| parse_id(id, 0)).collect()
}

fn xdel(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let mut removed = 0;
    if let Some(mut edit) = db.edit_stream(args[1])? {
        removed = parse_ids(&args[2..])?.into_iter().filter(|id| edit.remove(*id)).count();
        if removed > 0 {
            edit.event(Event::XDEL);
        }
    }
    cx.reply.integer(removed as i64);
    Ok(())
}

fn xsetid(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let id = parse_id(args[2], 0)?;
    let (mut added, mut deleted) = (None, None);
    let mut rest = Tail(&args[3..]);
    while let Some(option) = rest.next() {
        match &*upper(option) {
            b"ENTRIESADDED" => added = Some(u64::try_from(rest.integer()?).map_err(|_| Error::XSETID_NEGATIVE)?),
            b"MAXDELETEDID" => {
                let max = parse_id(rest.value()?, 0)?;
                fail_if!(id < max, Error::XSETID_BELOW_GIVEN);
                deleted = Some(max).filter(|max| *max != StreamId::MIN);
            }
            _ => return Err(Error::SYNTAX),
        }
    }
    let mut db = cx.db();
    let mut edit = db.edit_stream(args[1])?.ok_or(Error::NO_SUCH_KEY)?;
    let stream = edit.stream();
    fail_if!(id < stream.max_deleted_id, Error::XSETID_BELOW_DELETED);
    if let Some(top) = stream.last_present() {
        fail_if!(id < top, Error::XSETID_BELOW_TOP);
        fail_if!(added.is_some_and(|added| added < stream.len()), Error::XSETID_BELOW_LENGTH);
    }
    let (added, deleted) = (added.unwrap_or(stream.entries_added), deleted.unwrap_or(stream.max_deleted_id));
    edit.set_counters(id, added, deleted);
    edit.event(Event::XSETID);
    cx.reply.ok();
    Ok(())
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
