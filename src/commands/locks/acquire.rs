//! `LOCK.*`: locks with queues, fencing tokens and leases, kept by the server. `guide/native-locks.md`
//! describes them. What a lock does is in [`crate::lock`], and how replies reach waiters is in [`crate::engine::locks`].

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::engine::access::Parts;
use crate::engine::command::keys::{CountFault, counted};
use crate::engine::command::options::{Tail, integer, upper};
use crate::engine::command::{Access, Command, Flags, Group, Keys, Natives, row, rows};
use crate::engine::context::Context;
use crate::engine::locks::{deadlock_error, refusal_error};
use crate::engine::observe::notices::Notice;
use crate::keyspace::change::{Classes, Event};
use crate::keyspace::databases::Ttl;
use crate::lock::grant::OWNER_MAX;
use crate::lock::queue::Wanted;
use crate::lock::{Acquired, AllAcquired, Bound, Claim, Client, Mode, Refusal, Request, graph, requests};
use crate::store::entry::ValueRef;
use crate::store::values::value::Value;

/// Maximum of a lease, a delay or a wait, in milliseconds: some 278 years.
const MS_MAX: i64 = 1 << 43;
/// Maximum number of names acquired at once.
const NAMES_MAX: usize = 1024;

pub(crate) const LOCK: Command = Command {
    group: Group::Lock,
    natives: Natives::Own,
    since: "Portcullis 0.1.0",
    flags: Flags::WRITE.union(Flags::DENYOOM).union(Flags::FAST),
    keys: Keys::ONE,
    access: Access::ReadWrite,
    ..Command::DEFAULT
};

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("lock.acquire", acquire,
        "key owner lease [SHARED] [WAIT milliseconds] [SESSION] [DELAY milliseconds] [MAXHOLD milliseconds] [REQUEST id]",
        "Acquires a lock, or waits for it in its queue. Returns the fencing token. A repeated REQUEST returns the same token, or NOTHELD if that grant has ended.";
        flags: LOCK.flags.union(Flags::BLOCKING), complexity: "O(1), or O(W) to search a chain of W waits for a deadlock",
        ..LOCK),
    row!("lock.acquireall", acquire_all, "numkeys key [key ...] owner lease [WAIT milliseconds] [SESSION] [REQUEST id]",
        "Acquires several locks at once, or waits until all of them are available. Returns the fencing tokens.";
        flags: LOCK.flags.union(Flags::BLOCKING).union(Flags::MOVABLEKEYS), keys: Keys::Counted { numkeys: 1, step: 1 },
        complexity: "O(N) for N names", ..LOCK),
    row!("lock.release", |cx, args| release(cx, args, false), "key owner [ALL] [TOKEN token] [REQUEST id]",
        "Releases one hold of a lock, or all of them, and grants a free lock to the first waiter. Returns the remaining hold count. With TOKEN it ends no later grant. A repeated REQUEST returns the first reply; one that was refused is checked again.";
        flags: Flags::WRITE.union(Flags::FAST), ..LOCK),
    row!("lock.renew", |cx, args| renew(cx, args, false), "key owner <lease | KEEP> [TOKEN token]",
        "Restarts the lease of a holder, or with KEEP leaves it as it is. Returns the remaining milliseconds. If the connection that had the grant has ended, this one takes it over.";
        flags: Flags::WRITE.union(Flags::FAST), ..LOCK),
    row!("lock.check", check, "key token", "Checks whether a fencing token belongs to a current holder.";
        flags: Flags::READONLY.union(Flags::FAST), ..LOCK),
    row!("lock.guard", guard, "key token", "Stores the largest fencing token of a resource and refuses smaller ones."; ..LOCK),
]);

/// The options after the lease.
#[derive(Default)]
struct Options<'a> {
    shared: bool,
    session: bool,
    /// `Some(None)` waits without limit.
    wait: Option<Option<u64>>,
    delay_ms: u32,
    max_hold_ms: u64,
    request: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn parse(cx: &Context<'_>, words: &[&'a [u8]], all: bool) -> Result<Options<'a>> {
        let mut options = Options::default();
        let mut rest = Tail(words);
        while let Some(word) = rest.next() {
            match &*upper(word) {
                b"SESSION" => options.session = true,
                b"SHARED" if !all => options.shared = true,
                b"WAIT" => options.wait = Some(parse_wait(cx, rest.value()?)?),
                b"REQUEST" => options.request = Some(request_id(rest.value()?)?),
                b"DELAY" if !all => {
                    let delay_ms = u32::try_from(milliseconds(rest.value()?, 0, "delay")?);
                    options.delay_ms = delay_ms.map_err(|_| Error::new("ERR delay is out of range"))?;
                }
                b"MAXHOLD" if !all => options.max_hold_ms = milliseconds(rest.value()?, 1, "maxhold")?,
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(options)
    }
}

/// Checks the length of an owner's name.
#[inline]
pub(crate) fn check_owner(owner: &[u8]) -> Result {
    if owner.len() <= OWNER_MAX { Ok(()) } else { Err(Error::OWNER_TOO_LONG) }
}

/// Parses a client's id of a request.
pub(crate) fn request_id(text: &[u8]) -> Result<&[u8]> {
    if !(1..=requests::ID_MAX).contains(&text.len()) {
        return Err(Error::new(format!("ERR request id must have 1 to {} bytes", requests::ID_MAX)));
    }
    Ok(text)
}

/// What ends a grant besides its lease: the session if `SESSION` is given, otherwise nothing.
pub(crate) fn bound(cx: &Context<'_>, session: bool) -> Bound {
    if session { cx.engine.bound_of(cx.session) } else { Bound::Lease }
}

/// Parses milliseconds, at least `min`.
#[inline]
pub(crate) fn milliseconds(text: &[u8], min: i64, what: &str) -> Result<u64> {
    let ms = integer(text)?;
    fail_if!(!(min..=MS_MAX).contains(&ms), Error::new(format!("ERR {what} is out of range, must be at least {min} ms")));
    Ok(ms as u64)
}

/// Parses a wait and returns its deadline; `None` for 0, which waits without limit.
pub(crate) fn parse_wait(cx: &Context<'_>, text: &[u8]) -> Result<Option<u64>> {
    let ms = integer(text)?;
    match ms {
        ..0 => Err(Error::TIMEOUT_NEGATIVE),
        0 => Ok(None),
        1..=MS_MAX => Ok(Some(cx.now.deadline_in(ms as u64))),
        _ => Err(Error::TIMEOUT_RANGE),
    }
}

fn acquire(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check_owner(args[2])?;
    let lease_ms = milliseconds(args[3], 1, "lease")?;
    let options = Options::parse(cx, &args[4..], false)?;
    rebind_unseen_grants(cx, &args[1..2], args[2]);
    let wanted = Wanted {
        mode: if options.shared { Mode::Shared } else { Mode::Exclusive },
        permits: 1,
        limit: 0,
        lease_ms,
        max_hold_ms: options.max_hold_ms,
        delay_ms: options.delay_ms,
        bound: bound(cx, options.session),
    };
    acquire_one(cx, args, wanted, options.wait, options.request)
}

/// Binds grants of an owner to its connection, if it is not known whether their connection lives.
#[inline]
pub(crate) fn rebind_unseen_grants(cx: &mut Context<'_>, names: &[&[u8]], owner: &[u8]) {
    if cx.engine.keyspace().changes.locks.as_ref().is_some_and(|locks| locks.has_unseen()) {
        cx.engine.rebind_unseen_grants(cx.now, cx.session, (cx.db, names), owner);
    }
}

/// Acquires a lock or permits of a semaphore, or blocks the session until they are granted. The first arguments are the name and the
/// owner.
pub(crate) fn acquire_one(
    cx: &mut Context<'_>,
    args: &[&[u8]],
    wanted: Wanted,
    wait: Option<Option<u64>>,
    id: Option<&[u8]>,
) -> Result {
    let wait = if cx.may_block() { wait } else { None };
    let (name, owner) = (args[1], args[2]);
    let (now, key) = (cx.now, cx.key(name));
    let request = Request { owner, client: cx.engine.acquiring_client(cx.session), wanted, id };
    let acquired = cx.engine.keyspace_mut().with_locks(now, |locks, keys| {
        let acquired = locks.acquire(keys, now, key, &request, wait);
        locks.work(keys, now);
        acquired
    });
    match acquired {
        Ok(Acquired::Granted(token)) => cx.reply.integer(token as i64),
        Ok(Acquired::Busy) => cx.reply.null(),
        Ok(Acquired::Waits(waiter)) => cx.engine.block_on_lock(cx.session, waiter),
        Err(refusal) => return Err(refused(cx, args, &refusal, name, owner, wanted.limit)),
    }
    Ok(())
}

/// The error of a refusal. The log tells of a deadlock.
#[cold]
fn refused(cx: &mut Context<'_>, args: &[&[u8]], refusal: &Refusal, name: &[u8], owner: &[u8], limit: u32) -> Error {
    if let Refusal::Deadlock(cycle) = refusal {
        let (now, by) = (cx.now, Some(cx.session));
        cx.engine.notice(now, by, Notice::Deadlock { cycle: &graph::describe(cycle, |_| true) });
        let sight = cx.sight(args);
        return deadlock_error(cycle, |name| sight.sees(name));
    }
    refusal_error(refusal, name, owner, limit)
}

fn acquire_all(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let many = || Error::new(format!("ERR numnames must be between 1 and {NAMES_MAX}"));
    let (names, rest) = counted(args, 1, 1).map_err(|fault| match fault {
        CountFault::NoInteger => Error::NOT_INTEGER,
        CountFault::TooMany(count) if count <= NAMES_MAX => Error::SYNTAX,
        CountFault::NotPositive | CountFault::TooMany(_) => many(),
    })?;
    fail_if!(names.len() > NAMES_MAX, many());
    let [owner, lease, words @ ..] = rest else { return Err(Error::SYNTAX) };
    check_owner(owner)?;
    let lease_ms = milliseconds(lease, 1, "lease")?;
    let options = Options::parse(cx, words, true)?;
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    fail_if!(sorted.windows(2).any(|pair| pair[0] == pair[1]), Error::new("ERR duplicate lock name"));
    rebind_unseen_grants(cx, names, owner);
    let bound = bound(cx, options.session);
    let wanted = Wanted { mode: Mode::Exclusive, permits: 1, limit: 0, lease_ms, max_hold_ms: 0, delay_ms: 0, bound };
    let wait = if cx.may_block() { options.wait } else { None };
    let (now, db) = (cx.now, cx.db);
    let request = Request { owner, client: cx.engine.acquiring_client(cx.session), wanted, id: options.request };
    let acquired = cx.engine.keyspace_mut().with_locks(now, |locks, keys| {
        let acquired = locks.acquire_all(keys, now, db, names, &request, wait);
        locks.work(keys, now);
        acquired
    });
    match acquired {
        Ok(AllAcquired::Granted(tokens)) => {
            cx.reply.array(tokens.len());
            tokens.iter().for_each(|&token| cx.reply.integer(token as i64));
        }
        Ok(AllAcquired::Waits(waiter)) => cx.engine.block_on_lock(cx.session, waiter),
        Ok(AllAcquired::Busy) => cx.reply.null_array(),
        Err(refusal) => return Err(refused(cx, args, &refusal, names[0], owner, 0)),
    }
    Ok(())
}

/// `LOCK.RELEASE` and `SEM.RELEASE`.
pub(crate) fn release(cx: &mut Context<'_>, args: &[&[u8]], semaphore: bool) -> Result {
    check_owner(args[2])?;
    let (mut all, mut held_by, mut id) = (semaphore, None, None);
    let mut rest = Tail(&args[3..]);
    while let Some(word) = rest.next() {
        match &*upper(word) {
            b"ALL" => all = true,
            b"TOKEN" => held_by = Some(token(rest.value()?)?),
            b"REQUEST" => id = Some(request_id(rest.value()?)?),
            _ => return Err(Error::SYNTAX),
        }
    }
    let (now, key) = (cx.now, cx.key(args[1]));
    let claim = Claim { owner: args[2], semaphore, token: held_by };
    let left = cx.engine.keyspace_mut().with_locks(now, |locks, keys| locks.release(keys, now, key, &claim, all, id));
    cx.reply.integer(i64::from(left.map_err(|refusal| refusal_error(&refusal, args[1], args[2], 0))?));
    Ok(())
}

/// `LOCK.RENEW` and `SEM.RENEW`.
pub(crate) fn renew(cx: &mut Context<'_>, args: &[&[u8]], semaphore: bool) -> Result {
    check_owner(args[2])?;
    let keeps = args[3].eq_ignore_ascii_case(b"KEEP");
    let lease_ms = if keeps { None } else { Some(milliseconds(args[3], 1, "lease")?) };
    let held_by = match args[4..] {
        [] => None,
        [word, text] if word.eq_ignore_ascii_case(b"TOKEN") => Some(token(text)?),
        _ => return Err(Error::SYNTAX),
    };
    let (now, key) = (cx.now, cx.key(args[1]));
    let claim = Claim { owner: args[2], semaphore, token: held_by };
    let by = cx.engine.lock_client(cx.session);
    let Parts { keyspace, sessions, .. } = cx.engine.parts();
    let is_connected = |client: Client| sessions.contains(client.session());
    let (renewed, has_unseen) = keyspace.with_locks(now, |locks, keys| {
        let renewed = locks.renew(keys, now, key, &claim, lease_ms, (by, is_connected));
        locks.work(keys, now);
        (renewed, locks.has_unseen())
    });
    let renewed = renewed.map_err(|refusal| refusal_error(&refusal, args[1], args[2], 0))?;
    if renewed.taken_over {
        cx.engine.acquiring_client(cx.session);
    }
    if has_unseen {
        cx.engine.rebind_unseen_grants(now, cx.session, (key.db, &args[1..2]), args[2]);
    }
    cx.reply.integer(renewed.left_ms as i64);
    Ok(())
}

/// Parses a fencing token.
pub(crate) fn token(text: &[u8]) -> Result<u64> {
    parse_i64(text).and_then(|token| u64::try_from(token).ok()).ok_or(Error::NOT_INTEGER)
}

fn check(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let token = token(args[2])?;
    if cx.db().peek(args[1]).is_some_and(|entry| entry.type_name() != "lock" && entry.type_name() != "semaphore") {
        return Err(refusal_error(&Refusal::WrongType, args[1], b"", 0));
    }
    let (now, key) = (cx.now, cx.key(args[1]));
    let held = cx.engine.keyspace_mut().with_locks(now, |locks, keys| {
        locks.look(keys, now, key, |lock| lock.is_some_and(|lock| lock.holders.with_token(token).is_some()))
    });
    cx.reply.integer(i64::from(held));
    Ok(())
}

fn guard(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let token = token(args[2])?;
    let mut db = cx.db();
    let seen = match db.peek(args[1]).map(|entry| entry.value()) {
        None => None,
        Some(ValueRef::Boxed(Value::Guard(seen))) => Some(*seen),
        Some(_) => return Err(Error::WRONG_TYPE),
    };
    if let Some(seen) = seen.filter(|&seen| seen > token) {
        return Err(Error::quoting(&format!("STALE token {token} is behind {seen} for '"), args[1], "'"));
    }
    if seen != Some(token) {
        db.put(args[1], Box::new(Value::Guard(token)), Ttl::Keep, Event::new(Classes::LOCK, "lock.guard"))?;
        db.keyspace.has_natives = true;
    }
    cx.reply.ok();
    Ok(())
}
