//! `XREAD` and `XREADGROUP`.

use smallvec::SmallVec;

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::commands::streams::entries::{STREAM, parse_count, parse_id, write_entry};
use crate::engine::command::keys::{Begin, Find, KeyAt, KeyPositions, KeySpec, KeyUse};
use crate::engine::command::options::{Options, REST, words};
use crate::engine::command::{Access, Command, Flags, Keys, row, rows};
use crate::engine::context::Context;
use crate::keyspace::databases::Db;
use crate::keyspace::waits::Wake;
use crate::resp::reply::{Protocol, Sink};
use crate::store::values::stream::StreamId;

/// The options of both commands; each refuses those that it does not have.
const OPTIONS: Options = &[("BLOCK", 1), ("COUNT", 1), ("GROUP", 2), ("NOACK", 0), (STREAMS, REST)];
const STREAMS: &str = "STREAMS";

const fn streams_from(from: usize) -> KeySpec {
    KeySpec {
        access: Access::Read,
        uses: KeyUse::ACCESS,
        begin: Begin::Keyword { word: STREAMS, from },
        find: Find::Range { last: -1, step: 1, limit: 2 },
    }
}

/// The streams of a request; `None` if there are none, or not an id for each.
fn find_streams(args: &[&[u8]]) -> Option<KeyPositions> {
    let streams = words(args, 1, OPTIONS).find(|word| word.name == STREAMS)?;
    let (keys, ids) = streams.args.split_at(streams.args.len() / 2);
    (keys.len() == ids.len()).then(|| (streams.at..streams.at + keys.len()).map(KeyAt::read).collect())
}

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("xread", |cx, args| xread(cx, args, false), "[COUNT count] [BLOCK milliseconds] STREAMS key [key ...] id [id ...]",
        "Returns the entries of streams after the given IDs. Optionally blocks until there is one.";
        flags: Flags::READONLY.union(Flags::BLOCKING), keys: Keys::Parsed { shown: &[streams_from(1)], find: find_streams },
        complexity: "O(log(N)+M) for each stream, for N entries and M returned", ..STREAM),
    row!("xreadgroup", |cx, args| xread(cx, args, true),
        "GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] STREAMS key [key ...] id [id ...]",
        "Returns entries of streams that no consumer of the group has received, or those that this consumer has not acknowledged. Optionally blocks until there is one.";
        flags: Flags::WRITE.union(Flags::BLOCKING), access: Access::Read,
        keys: Keys::Parsed { shown: &[streams_from(4)], find: find_streams },
        complexity: "O(log(N)+M*log(P)) for each stream, for N entries, M returned and P pending", ..STREAM),
]);

/// The position after which a stream is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// This id. For a group: the consumer's pending entries after this id.
    After(StreamId),
    /// The last id that was delivered to the group (`>`).
    New,
}

/// Parses the milliseconds of `BLOCK`.
fn parse_block(milliseconds: &[u8], now_ms: i64) -> Result<u64> {
    let timeout = parse_i64(milliseconds).ok_or(Error::TIMEOUT_NOT_INTEGER)?;
    let block_ms = u64::try_from(timeout).map_err(|_| Error::TIMEOUT_NEGATIVE)?;
    fail_if!(timeout > i64::MAX - now_ms, Error::TIMEOUT_RANGE);
    Ok(block_ms)
}

/// The error of an odd number of arguments after `STREAMS`.
fn unbalanced(grouped: bool) -> Error {
    let (name, symbol) = if grouped { ("xreadgroup", "ID or '>'") } else { ("xread", "ID, '+', or '$'") };
    Error::new(format!("ERR Unbalanced '{name}' list of streams: for each stream key an {symbol} must be specified."))
}

/// The arguments of `XREAD` or `XREADGROUP`.
pub struct Request<'r, 'a> {
    /// Maximum number of entries per stream.
    pub count: usize,
    /// Milliseconds to block, 0 for no limit; `None` for not at all.
    pub block_ms: Option<u64>,
    /// The group and the consumer.
    pub group: Option<(&'a [u8], &'a [u8])>,
    /// Whether delivered entries count as acknowledged.
    pub no_ack: bool,
    /// The keys.
    pub keys: &'r [&'a [u8]],
    /// The ids as text.
    ids: &'r [&'a [u8]],
}

impl<'r, 'a> Request<'r, 'a> {
    /// Parses a request. A wait must not end after the largest unix time in milliseconds; `now_ms`
    /// is the current unix time.
    pub fn parse(args: &'r [&'a [u8]], grouped: bool, now_ms: i64) -> Result<Self> {
        let mut request = Request { count: usize::MAX, block_ms: None, group: None, no_ack: false, keys: &[], ids: &[] };
        let mut streams = None;
        for word in words(args, 1, OPTIONS) {
            match (word.name, word.args) {
                ("BLOCK", [milliseconds]) => request.block_ms = Some(parse_block(milliseconds, now_ms)?),
                ("COUNT", [count]) => {
                    let count = parse_count(count, 0)?;
                    request.count = if count == 0 { usize::MAX } else { usize::try_from(count).unwrap_or(usize::MAX) };
                }
                (STREAMS, named) if named.len() % 2 == 1 => return Err(unbalanced(grouped)),
                (STREAMS, named) => streams = Some(named.split_at(named.len() / 2)),
                ("GROUP", [group, consumer]) if grouped => request.group = Some((group, consumer)),
                ("GROUP", _) => return Err(Error::XREAD_GROUP),
                ("NOACK", _) if grouped => request.no_ack = true,
                ("NOACK", _) => return Err(Error::XREAD_NOACK),
                _ => return Err(Error::SYNTAX),
            }
        }
        (request.keys, request.ids) = streams.ok_or(Error::SYNTAX)?;
        fail_if!(grouped && request.group.is_none(), Error::XREADGROUP_NO_GROUP);
        Ok(request)
    }

    /// The position for each stream, with `$` and `+` replaced by current ids. Fails if a key holds another type or has no such
    /// group.
    pub fn positions(&self, db: &mut Db<'_>) -> Result<SmallVec<[From; 4]>> {
        let mut positions = SmallVec::new();
        for (key, id) in self.keys.iter().zip(self.ids) {
            let stream = db.stream(key)?;
            if let Some((group, _)) = self.group
                && stream.is_none_or(|stream| stream.group(group).is_none())
            {
                return Err(Error::no_group(key, group, " in XREADGROUP with GROUP option"));
            }
            positions.push(match (*id, self.group) {
                (b"$", Some(_)) => return Err(Error::XREADGROUP_LAST),
                (b"+", Some(_)) => return Err(Error::XREADGROUP_TOP),
                (b">", Some(_)) => From::New,
                (b">", None) => return Err(Error::XREAD_NEW),
                (b"$", None) => From::After(stream.map_or(StreamId::MIN, |stream| stream.last_id)),
                (b"+", None) => {
                    let last = stream.and_then(|stream| stream.last_present());
                    From::After(last.and_then(StreamId::previous).unwrap_or(StreamId::MIN))
                }
                (id, _) => From::After(parse_id(id, 0)?),
            });
        }
        Ok(positions)
    }
}

/// Writes the entries of each stream. Returns false, and writes nothing, if there are none.
pub fn serve(db: &mut Db<'_>, reply: &mut dyn Sink, request: &Request<'_, '_>, positions: &[From]) -> Result<bool> {
    let mut found: SmallVec<[usize; 4]> = SmallVec::new();
    for (at, (key, from)) in request.keys.iter().zip(positions).enumerate() {
        let has = match request.group {
            None => {
                let stream = db.stream(key)?;
                stream.and_then(|stream| stream.last_present()).is_some_and(|last| matches!(from, From::After(id) if last > *id))
            }
            Some((group, consumer)) => {
                let Some(mut edit) = db.read_and_edit_stream(key)? else { continue };
                let top = edit.stream().last_present();
                let mut has_new = edit.group(group).is_some_and(|group| top.is_some_and(|top| top > group.last_id));
                // A stream that is named twice continues the second time where the first time ended.
                let before = found.iter().filter(|&&other| request.keys[other] == *key && positions[other] == From::New).count();
                if has_new && before > 0 {
                    let read = edit.group(group).and_then(|group| group.last_id.next());
                    let mut left = read.into_iter().flat_map(|from| edit.stream().range(from, StreamId::MAX));
                    has_new = left.nth(before.saturating_mul(request.count)).is_some();
                }
                edit.touch_consumer(group, consumer, edit.now_ms());
                *from != From::New || has_new
            }
        };
        if has {
            found.push(at);
        }
    }
    if found.is_empty() {
        return Ok(false);
    }
    if reply.protocol() == Protocol::Resp3 {
        reply.map(found.len())
    } else {
        reply.array(found.len())
    }
    for at in found {
        let (key, from) = (request.keys[at], positions[at]);
        if reply.protocol() == Protocol::Resp2 {
            reply.array(2);
        }
        reply.bulk(key);
        let before = db.keyspace.changes.count;
        match (request.group, from) {
            (None, From::After(id)) => {
                let stream = db.stream(key)?;
                let entries =
                    stream.iter().flat_map(|stream| id.next().into_iter().flat_map(|id| stream.range(id, StreamId::MAX)));
                let entries: Vec<_> = entries.take(request.count).collect();
                reply.array(entries.len());
                entries.into_iter().for_each(|entry| write_entry(reply, entry));
            }
            (Some(names), From::After(id)) => deliver_pending(db, reply, request, key, names, id)?,
            (Some(names), From::New) => deliver_new(db, reply, request, key, names)?,
            (None, From::New) => reply.array(0),
        }
        if request.group.is_some() {
            // A read by a group counts as one change, however many entries it returned.
            db.keyspace.changes.count_as(before, 1);
        }
    }
    Ok(true)
}

/// Delivers a consumer's pending entries again. An entry that was deleted has no fields.
fn deliver_pending(
    db: &mut Db<'_>,
    reply: &mut dyn Sink,
    request: &Request<'_, '_>,
    key: &[u8],
    (group, consumer): (&[u8], &[u8]),
    after: StreamId,
) -> Result {
    let Some(mut edit) = db.edit_stream(key)? else { return Ok(()) };
    let pending = edit.group(group).and_then(|group| group.consumer(consumer)).map(|consumer| consumer.pending());
    let ids = pending.into_iter().zip(after.next()).flat_map(|(pending, from)| pending.range(from..));
    let ids: Vec<StreamId> = ids.take(request.count).copied().collect();
    reply.array(ids.len());
    let now_ms = edit.now_ms();
    for id in ids {
        match edit.stream().get(id) {
            Some(entry) => write_entry(reply, entry),
            None => {
                reply.array(2);
                reply.element(id);
                reply.null_array();
                continue;
            }
        }
        let count = edit.group(group).and_then(|group| group.pending().get(&id)).map_or(0, |pending| pending.count);
        edit.set_pending(group, id, consumer, now_ms, count.saturating_add(1));
    }
    Ok(())
}

/// Delivers new entries to a consumer.
fn deliver_new(
    db: &mut Db<'_>,
    reply: &mut dyn Sink,
    request: &Request<'_, '_>,
    key: &[u8],
    (group, consumer): (&[u8], &[u8]),
) -> Result {
    let Some(mut edit) = db.edit_stream(key)? else { return Ok(()) };
    let stream = edit.stream();
    let Some(mut progress) =
        stream.group(group).map(|group| crate::store::values::stream::Group::new(group.last_id, group.entries_read))
    else {
        return Ok(());
    };
    let from = progress.last_id.next();
    let entries = from.into_iter().flat_map(|from| stream.range(from, StreamId::MAX));
    let entries: Vec<_> = entries.take(request.count).collect();
    reply.array(entries.len());
    for entry in &entries {
        write_entry(reply, *entry);
        progress.entries_read = stream.entries_read_with(&progress, entry.id);
        progress.last_id = entry.id;
    }
    let ids: Vec<StreamId> = entries.iter().map(|entry| entry.id).collect();
    if ids.is_empty() {
        return Ok(());
    }
    edit.set_group(group, progress.last_id, progress.entries_read);
    if !request.no_ack {
        let now_ms = edit.now_ms();
        ids.iter().for_each(|id| edit.set_pending(group, *id, consumer, now_ms, 1));
        edit.activate_consumer(group, consumer, edit.now_ms());
    }
    Ok(())
}

fn xread(cx: &mut Context<'_>, args: &[&[u8]], grouped: bool) -> Result {
    let request = Request::parse(args, grouped, cx.now.unix_ms())?;
    let (mut db, reply) = cx.db_and_reply();
    let positions = request.positions(&mut db)?;
    if serve(&mut db, reply, &request, &positions)? {
        return Ok(());
    }
    let Some(block_ms) = request.block_ms.filter(|_| cx.may_block()) else {
        cx.reply.null_array();
        return Ok(());
    };
    // Entries after the current last id end the wait, so `$` is replaced before the command blocks.
    let last: SmallVec<[String; 4]> = positions
        .iter()
        .map(|from| match from {
            From::After(id) => id.to_string(),
            From::New => String::new(),
        })
        .collect();
    let mut asked: SmallVec<[&[u8]; 16]> = args.iter().copied().collect();
    let first = asked.len() - last.len();
    for (id, last) in asked[first..].iter_mut().zip(&last).filter(|(id, _)| **id == b"$") {
        *id = last.as_bytes();
    }
    // A group's reader is also woken when the group or the key is deleted.
    let wake = if grouped { Wake::STREAM | Wake::GONE } else { Wake::STREAM };
    let deadline = (block_ms > 0).then(|| cx.now.deadline_in(block_ms));
    cx.block(&asked, request.keys.iter().copied(), wake, deadline);
    Ok(())
}
