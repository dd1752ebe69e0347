//! Transferring pending entries to another consumer: `XCLAIM` and `XAUTOCLAIM`.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::commands::streams::entries::{STREAM, WRITE_FAST, parse_id, parse_start, write_entry};
use crate::engine::command::keys::uses;
use crate::engine::command::options::{Tail, upper};
use crate::engine::command::{Access, Command, row, rows};
use crate::engine::context::Context;
use crate::keyspace::types::streams::StreamEdit;
use crate::resp::reply::Sink;
use crate::store::values::stream::StreamId;

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("xclaim", xclaim,
        "key group consumer min-idle-time id [id ...] [IDLE ms:integer] [TIME unix-time-milliseconds] [RETRYCOUNT count] [FORCE] [JUSTID] [LASTID lastid]",
        "Makes a consumer the owner of pending entries.";
        flags: WRITE_FAST, access: Access::ReadWrite, complexity: "O(log(P)) for each ID, for P pending entries",
        tips: &["nondeterministic_output"], ..STREAM),
    row!("xautoclaim", xautoclaim, "key group consumer min-idle-time start:string [COUNT count] [JUSTID]",
        "Makes a consumer the owner of entries that have been pending for a minimum time.";
        flags: WRITE_FAST, key_uses: uses::TAKEN, since: "6.2.0",
        complexity: "O(log(P)*M) for P pending entries and M examined, at most ten times COUNT",
        tips: &["nondeterministic_output"], ..STREAM),
]);

/// Maximum number of pending entries that `XAUTOCLAIM` examines per entry of `COUNT`.
const ATTEMPTS: usize = 10;

/// The arguments of `XCLAIM`.
struct Claim {
    min_idle_ms: i64,
    ids: Vec<StreamId>,
    /// The new delivery time of the entries.
    delivered_ms: i64,
    /// The new delivery count; `None` increments it.
    retry_count: Option<i64>,
    force: bool,
    just_id: bool,
    last_id: StreamId,
}

impl Claim {
    /// Parses the arguments from the idle time on.
    fn parse(args: &[&[u8]], now_ms: i64) -> Result<Self> {
        let number = |text: &[u8], error: Error| parse_i64(text).ok_or(error);
        let min_idle_ms = number(args[4], Error::XCLAIM_MIN_IDLE)?.max(0);
        let ids: Vec<StreamId> = args[5..].iter().map_while(|id| parse_id(id, 0).ok()).collect();
        let (mut delivered_ms, mut retry_count, mut last_id) = (None, None, StreamId::MIN);
        let (mut force, mut just_id) = (false, false);
        let mut rest = Tail(&args[5 + ids.len()..]);
        while let Some(option) = rest.next() {
            let has_more = rest.left() > 0;
            match &*upper(option) {
                b"FORCE" => force = true,
                b"JUSTID" => just_id = true,
                b"IDLE" if has_more => {
                    delivered_ms = Some(now_ms.wrapping_sub(number(rest.value()?, Error::XCLAIM_IDLE)?));
                }
                b"TIME" if has_more => delivered_ms = Some(number(rest.value()?, Error::XCLAIM_TIME)?),
                b"RETRYCOUNT" if has_more => retry_count = Some(number(rest.value()?, Error::XCLAIM_RETRYCOUNT)?),
                b"LASTID" if has_more => last_id = parse_id(rest.value()?, 0)?,
                _ => return Err(Error::quoting("ERR Unrecognized XCLAIM option '", option, "'")),
            }
        }
        // A negative time or one in the future is replaced by the current time.
        let delivered_ms = delivered_ms.filter(|at| (0..=now_ms).contains(at)).unwrap_or(now_ms);
        Ok(Claim { min_idle_ms, ids, delivered_ms, retry_count: retry_count.filter(|n| *n >= 0), force, just_id, last_id })
    }
}

/// Writes a claimed entry, or only its id.
fn write_claimed(reply: &mut dyn Sink, edit: &StreamEdit<'_, '_>, id: StreamId, just_id: bool) {
    match edit.stream().get(id) {
        Some(entry) if !just_id => write_entry(reply, entry),
        _ => reply.element(id),
    }
}

fn xclaim(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (now_ms, is_of_load) = (cx.now.unix_ms(), cx.now.is_of_load());
    let (group, consumer) = (args[2], args[3]);
    let (mut db, reply) = cx.db_and_reply();
    let edit = db.read_and_edit_stream(args[1])?.filter(|edit| edit.group(group).is_some());
    let mut edit = edit.ok_or_else(|| Error::no_group(args[1], group, ""))?;
    let claim = Claim::parse(args, now_ms)?;
    if let Some(of) = edit.group(group)
        && claim.last_id > of.last_id
    {
        let entries_read = of.entries_read;
        edit.set_group(group, claim.last_id, entries_read);
    }
    // An append-only file has deliveries as claims, and they were then.
    let at_ms = if is_of_load { claim.delivered_ms } else { now_ms };
    edit.touch_consumer(group, consumer, at_ms);
    let mut claimed = Vec::new();
    for id in claim.ids {
        let old = edit.group(group).and_then(|group| group.pending().get(&id)).copied();
        if edit.stream().get(id).is_none() {
            edit.remove_pending(group, id);
            continue;
        }
        let count = match old {
            Some(old) if claim.min_idle_ms > 0 && now_ms.saturating_sub(old.delivered_ms) < claim.min_idle_ms => continue,
            Some(old) => old.count,
            // The forced delivery counts as one, and claiming increments it.
            None if claim.force => 1,
            None => continue,
        };
        let count = claim.retry_count.unwrap_or(if claim.just_id { count } else { count.saturating_add(1) });
        edit.set_pending(group, id, consumer, claim.delivered_ms, count);
        claimed.push(id);
    }
    if !claimed.is_empty() {
        edit.activate_consumer(group, consumer, at_ms);
    }
    reply.array(claimed.len());
    claimed.into_iter().for_each(|id| write_claimed(reply, &edit, id, claim.just_id));
    Ok(())
}

fn xautoclaim(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let now_ms = cx.now.unix_ms();
    let (group, consumer) = (args[2], args[3]);
    let min_idle_ms = parse_i64(args[4]).ok_or(Error::XAUTOCLAIM_MIN_IDLE)?.max(0);
    let start = parse_start(args[5])?;
    let (mut count, mut just_id) = (100, false);
    let mut rest = Tail(&args[6..]);
    while let Some(option) = rest.next() {
        match &*upper(option) {
            b"COUNT" => {
                let number = parse_i64(rest.value()?).filter(|n| (1..=i64::MAX / 16).contains(n));
                count = usize::try_from(number.ok_or(Error::XAUTOCLAIM_COUNT)?).unwrap_or(usize::MAX);
            }
            b"JUSTID" => just_id = true,
            _ => return Err(Error::SYNTAX),
        }
    }
    let (mut db, reply) = cx.db_and_reply();
    let edit = db.read_and_edit_stream(args[1])?.filter(|edit| edit.group(group).is_some());
    let mut edit = edit.ok_or_else(|| Error::no_group(args[1], group, ""))?;
    edit.touch_consumer(group, consumer, now_ms);
    let (mut claimed, mut deleted) = (Vec::new(), Vec::new());
    let mut next = Some(start);
    for _ in 0..count.saturating_mul(ATTEMPTS) {
        if claimed.len() + deleted.len() >= count {
            break;
        }
        let found = edit.group(group).zip(next).and_then(|(group, next)| group.pending().range(next..).next());
        let Some((&id, &pending)) = found else {
            next = None;
            break;
        };
        next = id.next();
        if edit.stream().get(id).is_none() {
            edit.remove_pending(group, id);
            deleted.push(id);
        } else if min_idle_ms == 0 || now_ms.saturating_sub(pending.delivered_ms) >= min_idle_ms {
            let count = if just_id { pending.count } else { pending.count.saturating_add(1) };
            edit.set_pending(group, id, consumer, now_ms, count);
            claimed.push(id);
        }
    }
    if !claimed.is_empty() {
        edit.activate_consumer(group, consumer, now_ms);
    }
    // The next call starts at the next pending entry.
    let cursor = edit.group(group).zip(next).and_then(|(group, next)| group.pending().range(next..).next());
    let cursor = cursor.map_or(StreamId::MIN, |(id, _)| *id);
    reply.array(3);
    reply.element(cursor);
    reply.array(claimed.len());
    claimed.into_iter().for_each(|id| write_claimed(reply, &edit, id, just_id));
    reply.array(deleted.len());
    deleted.into_iter().for_each(|id| reply.element(id));
    Ok(())
}
