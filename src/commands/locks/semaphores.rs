//! `SEM.*`: semaphores whose permits have leases. `LATCH.*`: latches, which open when they are counted down to 0.

use crate::base::error::{Error, Result};
use crate::commands::locks::acquire::{
    LOCK, acquire_one, bound, check_owner, milliseconds, parse_wait, rebind_unseen_grants, release, renew, request_id,
};
use crate::engine::command::options::{Tail, integer, option, optional, upper};
use crate::engine::command::{Command, Flags, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::{Classes, Event};
use crate::keyspace::databases::Ttl;
use crate::keyspace::waits::Wake;
use crate::lock::Mode;
use crate::lock::queue::Wanted;
use crate::store::entry::ValueRef;
use crate::store::values::value::Value;

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("sem.acquire", acquire, "key id lease LIMIT limit [PERMITS permits] [WAIT milliseconds] [SESSION] [REQUEST id]",
        "Acquires permits of a semaphore, or waits for them in its queue. Returns the fencing token.";
        flags: LOCK.flags.union(Flags::BLOCKING), ..LOCK),
    row!("sem.release", |cx, args| release(cx, args, true), "key id [ALL] [TOKEN token] [REQUEST id]",
        "Releases the permits that an owner holds of a semaphore.";
        flags: Flags::WRITE.union(Flags::FAST), ..LOCK),
    row!("sem.renew", |cx, args| renew(cx, args, true), "key id <lease | KEEP> [TOKEN token]",
        "Restarts the lease of permits, or with KEEP leaves it as it is. Returns the remaining milliseconds. If the connection that had the grant has ended, this one takes it over.";
        flags: Flags::WRITE.union(Flags::FAST), ..LOCK),
    row!("latch.set", set, "key count [PX milliseconds]", "Sets the count of a latch, unless it is counting down."; ..LOCK),
    row!("latch.down", down, "key [by]",
        "Counts a latch down and returns the remaining count. At 0 the latch opens, and all waiters go on.";
        flags: Flags::WRITE.union(Flags::FAST), complexity: "O(1); O(W) for W waiters when the latch opens", ..LOCK),
    row!("latch.await", await_open, "key WAIT milliseconds", "Blocks until a latch is open.";
        flags: Flags::READONLY.union(Flags::BLOCKING).union(Flags::FAST), ..LOCK),
]);

const SET: Event = Event::new(Classes::LOCK, "latch.set");
const DOWN: Event = Event::new(Classes::LOCK, "latch.down");

/// Maximum number of permits of one semaphore.
const LIMIT_MAX: i64 = 1 << 20;

fn acquire(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_owner(args[2])?;
    let lease_ms = milliseconds(args[3], 1, "lease")?;
    let (mut limit, mut permits, mut waits, mut session, mut request) = (None, 1, None, false, None);
    let check = |number: i64, what: &str| match number {
        1..=LIMIT_MAX => Ok(number as u32),
        _ => Err(Error::new(format!("ERR {what} must be between 1 and {LIMIT_MAX}"))),
    };
    let mut rest = Tail(&args[4..]);
    while let Some(word) = rest.next() {
        match &*upper(word) {
            b"LIMIT" => limit = Some(check(rest.integer()?, "limit")?),
            b"PERMITS" => permits = check(rest.integer()?, "permits")?,
            b"WAIT" => waits = Some(parse_wait(cx, rest.value()?)?),
            b"SESSION" => session = true,
            b"REQUEST" => request = Some(request_id(rest.value()?)?),
            _ => return Err(Error::SYNTAX),
        }
    }
    let limit = limit.ok_or(Error::SYNTAX)?;
    fail_if!(permits > limit, Error::new(format!("ERR {permits} permits exceed the limit of {limit}")));
    // A semaphore with one permit has one holder at a time.
    let mode = if limit == 1 { Mode::Exclusive } else { Mode::Shared };
    rebind_unseen_grants(cx, &args[1..2], args[2]);
    let bound = bound(cx, session);
    let wanted = Wanted { mode, permits, limit, lease_ms, max_hold_ms: 0, delay_ms: 0, bound };
    acquire_one(cx, args, wanted, waits, request)
}

/// Returns a latch's remaining count; `None` if there is no such key.
fn left(cx: &mut Context<'_>, name: &[u8]) -> Result<Option<u64>> {
    match cx.db().peek(name).map(|entry| entry.value()) {
        None => Ok(None),
        Some(ValueRef::Boxed(Value::Latch(left))) => Ok(Some(*left)),
        Some(_) => Err(Error::WRONG_TYPE),
    }
}

fn count(text: &[u8]) -> Result<u64> {
    u64::try_from(integer(text)?).map_err(|_| Error::new("ERR count is out of range, must be positive"))
}

fn set(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let count = count(args[2])?;
    let ttl = match option(&args[3..], "PX")? {
        None => Ttl::Clear,
        Some(ms) => Ttl::At(cx.now.deadline_in(milliseconds(ms, 1, "time")?)),
    };
    let set = left(cx, args[1])?.is_none_or(|left| left == 0);
    if set {
        let mut db = cx.db();
        db.put(args[1], Box::new(Value::Latch(count)), ttl, SET)?;
        db.keyspace.has_natives = true;
    }
    cx.reply.integer(i64::from(set));
    Ok(())
}

fn down(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let by = optional(&args[2..])?.map_or(Ok(1), count)?;
    let Some(before) = left(cx, args[1])? else {
        cx.reply.null();
        return Ok(());
    };
    let left = before.saturating_sub(by);
    if left != before {
        cx.db().put(args[1], Box::new(Value::Latch(left)), Ttl::Keep, DOWN)?;
    }
    cx.reply.integer(i64::try_from(left).unwrap_or(i64::MAX));
    Ok(())
}

fn await_open(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(!args[2].eq_ignore_ascii_case(b"WAIT"), Error::SYNTAX);
    let deadline = parse_wait(cx, args[3])?;
    if left(cx, args[1])? == Some(0) {
        cx.reply.integer(1);
    } else if cx.may_block() {
        cx.block(args, [args[1]].into_iter(), Wake::LATCH, deadline);
    } else {
        cx.reply.null();
    }
    Ok(())
}
