//! Commands that inspect locks: holders, waiters, totals, and the last events, which explain why a client does not have a lock.

use crate::base::error::{Error, Result};
use crate::base::glob;
use crate::base::number::parse_i64;
use crate::base::time::Now;
use crate::commands::locks::acquire::LOCK;
use crate::engine::Engine;
use crate::engine::command::{Access, Command, Flags, Keys, Traits};
use crate::engine::context::Context;
use crate::lock::history::What;
use crate::lock::{Bound, Client, Grant, Lock, Locks};
use crate::resp::reply::Sink;

const READ: Command = Command { flags: Flags::READONLY.union(Flags::FAST), access: Access::Read, ..LOCK };

/// Number of locks that `LOCK.LIST` returns without `COUNT`.
const LIST_COUNT: usize = 100;
/// Maximum number of keys that `LOCK.LIST` scans for locks without waiters.
const LIST_WALK: usize = 100_000;

/// The rows.
pub const COMMANDS: &[Command] = &[
    Command {
        name: "lock.info",
        arity: 2,
        summary: "Returns the holders and the waiters of a lock, and since when they hold it or wait.",
        complexity: "O(N) for N holders and waiters",
        syntax: "key",
        handler: |cx, args| info(cx, args, false),
        ..READ
    },
    Command {
        name: "lock.list",
        arity: -1,
        flags: Flags::READONLY,
        keys: Keys::None,
        summary: "Returns the locks of a database, those with the most waiters first.",
        complexity: "O(N) for N keys, of which at most 100,000 are examined",
        syntax: "[MATCH pattern] [CONTENDED] [COUNT count]",
        handler: list,
        ..READ
    },
    Command {
        name: "lock.stats",
        traits: Traits::SHOWS_NO_KEY,
        arity: 1,
        keys: Keys::None,
        summary: "Returns totals of all locks since the server started, among them how long requests have waited.",
        handler: stats,
        ..READ
    },
    Command {
        name: "lock.why",
        arity: 2,
        summary: "Returns the last events of a lock: grants, refusals and waits, with their owners and times.",
        syntax: "key",
        handler: why,
        ..READ
    },
    Command {
        name: "lock.slowlog",
        arity: -2,
        flags: Flags::ADMIN,
        keys: Keys::None,
        summary: "Returns, counts or clears the last long waits for locks.",
        syntax: "<GET [count] | LEN | RESET>",
        handler: slowlog,
        ..READ
    },
    Command {
        name: "sem.info",
        arity: 2,
        summary: "Returns the holders of permits of a semaphore, the waiters, and since when they hold them or wait.",
        complexity: "O(N) for N holders and waiters",
        syntax: "key",
        handler: |cx, args| info(cx, args, true),
        ..READ
    },
];

/// A holder, as replies show it.
struct Holder {
    grant: Grant,
    addr: String,
    /// Id of the named session that the grant ends with.
    session: Option<Box<[u8]>>,
}

/// A waiter, as replies show it.
struct Waiting {
    owner: Vec<u8>,
    mode: &'static str,
    permits: u32,
    waited_ms: u64,
    left_ms: Option<u64>,
    client: u64,
    addr: String,
}

/// Everything that replies show of a name.
struct Shown {
    limit: u32,
    held_back_ms: u64,
    holders: Vec<Holder>,
    waiting: Vec<Waiting>,
    fence: u64,
}

fn address(engine: &Engine, client: Client) -> String {
    let session = engine.sessions.get(client.slot as usize).filter(|session| session.id == client.id);
    session.map(|session| session.addr.to_string()).unwrap_or_default()
}

/// Collects everything shown of a name; `None` if it has neither a lock nor waiters.
fn shown(cx: &mut Context<'_>, name: &[u8]) -> Option<Shown> {
    let (now, db) = (cx.now, cx.db);
    let lock: Option<Lock> = cx.engine.keyspace.with_locks(now, |locks, keys| {
        let lock = locks.look(keys, now, (db, name), |lock| lock.cloned());
        locks.work(keys, now);
        lock
    });
    let engine = &*cx.engine;
    let locks = engine.keyspace.changes.locks.as_ref()?;
    let waiting = waiting(engine, locks, now, db, name);
    if lock.is_none() && waiting.is_empty() {
        return None;
    }
    let lock = lock.unwrap_or_default();
    let holder = |grant: &Grant| {
        let client = locks.client_of(grant);
        let session = if let Bound::Session(number) = grant.bound { locks.sessions.get(number.get()) } else { None };
        let session = session.map(|session| session.id.clone());
        Holder { grant: Grant { client, ..grant.clone() }, addr: address(engine, client), session }
    };
    let holders: Vec<Holder> = lock.holders.iter().map(holder).collect();
    let last = locks.history.events(db, name).rev().find_map(|event| match event.what {
        What::Granted { token, .. } => Some(token),
        _ => None,
    });
    let fence = holders.last().map(|holder| holder.grant.token).or(last).unwrap_or(0);
    Some(Shown { limit: lock.limit, held_back_ms: lock.held_back_ms, holders, waiting, fence })
}

fn waiting(engine: &Engine, locks: &Locks, now: Now, db: u32, name: &[u8]) -> Vec<Waiting> {
    let Some(queue) = locks.queues.find(db, name) else { return Vec::new() };
    let of = |waiter: u32| {
        let waiter = locks.queues.waiter(waiter)?;
        Some(Waiting {
            owner: locks.queues.owner(waiter.owner).map(|owner| owner.name.to_vec()).unwrap_or_default(),
            mode: waiter.wanted.mode.name(),
            permits: waiter.wanted.permits,
            waited_ms: now.mono_us.saturating_sub(waiter.since_us) / 1000,
            left_ms: waiter.deadline_ms.map(|deadline| now.left_ms(deadline)),
            client: waiter.client.id,
            addr: address(engine, waiter.client),
        })
    };
    locks.queues.links_of(queue).filter_map(|link| of(link.waiter)).collect()
}

fn field(reply: &mut dyn Sink, name: &str, value: u64) {
    reply.bulk(name.as_bytes());
    reply.integer(i64::try_from(value).unwrap_or(i64::MAX));
}

fn text(reply: &mut dyn Sink, name: &str, value: &[u8]) {
    reply.bulk(name.as_bytes());
    reply.bulk(value);
}

/// Replies with a map that describes a name. `named` includes the name, for callers that did not ask by it.
fn write(cx: &mut Context<'_>, name: &[u8], shown: &Shown, named: bool) {
    let counts = cx.engine.keyspace.changes.locks.as_ref().map(|locks| locks.history.counts(cx.db, name)).unwrap_or_default();
    let (now, reply) = (cx.now, &mut *cx.reply);
    let semaphore = shown.limit > 0;
    reply.map(7 + usize::from(named) + 2 * usize::from(semaphore) + usize::from(shown.held_back_ms > 0));
    if named {
        text(reply, "name", name);
    }
    let mode = match shown.holders.first() {
        None => "free",
        Some(_) if semaphore => "semaphore",
        Some(holder) => holder.grant.mode.name(),
    };
    text(reply, "mode", mode.as_bytes());
    if semaphore {
        field(reply, "limit", u64::from(shown.limit));
        field(reply, "permits", shown.holders.iter().map(|holder| u64::from(holder.grant.permits)).sum());
    }
    if shown.held_back_ms > 0 {
        field(reply, "held-back", now.left_ms(shown.held_back_ms));
    }
    field(reply, "fence", shown.fence);
    reply.bulk(b"holders");
    reply.array(shown.holders.len());
    for Holder { grant, addr, session } in &shown.holders {
        reply.map(9 + usize::from(semaphore) + usize::from(session.is_some()));
        text(reply, "owner", &grant.owner);
        field(reply, "token", grant.token);
        field(reply, "holds", u64::from(grant.holds));
        text(reply, "mode", grant.mode.name().as_bytes());
        if semaphore {
            field(reply, "permits", u64::from(grant.permits));
        }
        field(reply, "lease", now.left_ms(grant.end_ms));
        field(reply, "held", now.mono_ms().saturating_sub(grant.granted_ms));
        reply.bulk(b"session");
        reply.boolean(grant.bound != Bound::Lease);
        if let Some(id) = session {
            text(reply, "session-id", id);
        }
        field(reply, "client", grant.client.id);
        text(reply, "addr", addr.as_bytes());
    }
    reply.bulk(b"waiters");
    reply.array(shown.waiting.len());
    for waiting in &shown.waiting {
        reply.map(6 + usize::from(semaphore));
        text(reply, "owner", &waiting.owner);
        text(reply, "mode", waiting.mode.as_bytes());
        if semaphore {
            field(reply, "permits", u64::from(waiting.permits));
        }
        field(reply, "waited", waiting.waited_ms);
        reply.bulk(b"left");
        match waiting.left_ms {
            Some(left_ms) => reply.integer(left_ms as i64),
            None => reply.null(),
        }
        field(reply, "client", waiting.client);
        text(reply, "addr", waiting.addr.as_bytes());
    }
    field(reply, "granted", counts.granted);
    field(reply, "contended", counts.contended);
    field(reply, "expired", counts.expired);
}

/// Refuses a name that holds another native type. A plain key is accepted: it blocks its name, and clients may wait for a lock
/// there.
fn check_type(cx: &mut Context<'_>, name: &[u8], semaphore: bool) -> Result {
    let other = if semaphore { "lock" } else { "semaphore" };
    let wrong = |kind: &str| kind == other || kind == "latch" || kind == "guard";
    match cx.db().peek(name).map(|entry| entry.type_name()) {
        Some(kind) if wrong(kind) => Err(Error::WRONG_TYPE),
        _ => Ok(()),
    }
}

fn info(cx: &mut Context<'_>, args: &[&[u8]], semaphore: bool) -> Result {
    check_type(cx, args[1], semaphore)?;
    match shown(cx, args[1]) {
        Some(shown) => write(cx, args[1], &shown, false),
        None => cx.reply.null(),
    }
    Ok(())
}

fn list(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut pattern, mut contended, mut count): (Option<&[u8]>, bool, usize) = (None, false, LIST_COUNT);
    let mut rest = args[1..].iter();
    while let Some(word) = rest.next() {
        if word.eq_ignore_ascii_case(b"MATCH") {
            pattern = Some(rest.next().ok_or(Error::SYNTAX)?);
        } else if word.eq_ignore_ascii_case(b"CONTENDED") {
            contended = true;
        } else if word.eq_ignore_ascii_case(b"COUNT") {
            let number = parse_i64(rest.next().ok_or(Error::SYNTAX)?).ok_or(Error::NOT_INTEGER)?;
            count = usize::try_from(number).ok().filter(|&count| count > 0).ok_or(Error::SYNTAX)?;
        } else {
            return Err(Error::SYNTAX);
        }
    }
    let wanted = |name: &[u8]| pattern.is_none_or(|pattern| glob::matches(pattern, name, false));
    let mut names: Vec<(u32, Vec<u8>)> = Vec::new();
    let queues = cx.engine.keyspace.changes.locks.as_ref().into_iter().flat_map(|locks| locks.queues.iter());
    for (_, queue) in queues.filter(|(_, queue)| queue.db == cx.db && queue.len > 0 && wanted(&queue.name)) {
        names.push((queue.len, queue.name.to_vec()));
    }
    names.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    names.truncate(count);
    if !contended && names.len() < count && cx.engine.keyspace.natives {
        let db = cx.db();
        let (mut cursor, mut seen) = (0, 0);
        while names.len() < count && seen < LIST_WALK {
            cursor = db.scan(cursor, 100, |entry| {
                seen += 1;
                let kind = entry.type_name();
                if (kind == "lock" || kind == "semaphore")
                    && wanted(entry.key())
                    && names.iter().all(|name| name.1 != entry.key())
                {
                    names.push((0, entry.key().to_vec()));
                }
            });
            if cursor == 0 {
                break;
            }
        }
        names.truncate(count);
    }
    let all: Vec<(Vec<u8>, Shown)> =
        names.into_iter().filter_map(|(_, name)| shown(cx, &name).map(|shown| (name, shown))).collect();
    cx.reply.array(all.len());
    for (name, shown) in &all {
        write(cx, name, shown, true);
    }
    Ok(())
}

fn stats(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let Some(locks) = &cx.engine.keyspace.changes.locks else { return Ok(()) };
    let stats = &locks.stats;
    let totals = [
        ("grants", stats.grants),
        ("immediate-grants", stats.immediate),
        ("queued-grants", stats.queued),
        ("releases", stats.releases),
        ("expiries", stats.expiries),
        ("session-ends", stats.session_ends),
        ("deletions", stats.deletions),
        ("timeouts", stats.timeouts),
        ("deadlocks-refused", stats.deadlocks),
        ("longest-queue", u64::from(stats.longest_queue)),
        ("waiting", locks.queues.waiters() as u64),
        ("sessions", locks.sessions.count() as u64),
        ("requests-remembered", locks.requests.len() as u64),
        ("requests-forgotten-early", locks.requests.forgotten_early),
        ("wait-us-p50", stats.wait_percentile_us(50.0)),
        ("wait-us-p99", stats.wait_percentile_us(99.0)),
        ("wait-us-p99.9", stats.wait_percentile_us(99.9)),
        ("wait-us-max", stats.wait_percentile_us(100.0)),
    ];
    cx.reply.map(totals.len());
    for (name, value) in totals {
        field(&mut *cx.reply, name, value);
    }
    Ok(())
}

fn why(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let Some(locks) = &cx.engine.keyspace.changes.locks else { return Ok(()) };
    let events: Vec<_> = locks.history.events(cx.db, args[1]).collect();
    let (now, reply) = (cx.now, &mut *cx.reply);
    reply.array(events.len());
    for event in events {
        let (token, waited_ms) = match event.what {
            What::Granted { token, waited_ms } => (Some(token), Some(waited_ms)),
            _ => (None, None),
        };
        reply.map(4 + 2 * usize::from(token.is_some()));
        text(reply, "event", event.what.name().as_bytes());
        text(reply, "owner", &event.owner);
        field(reply, "client", event.client.id);
        field(reply, "ago", now.mono_ms().saturating_sub(event.at_ms));
        if let (Some(token), Some(waited_ms)) = (token, waited_ms) {
            field(reply, "token", token);
            field(reply, "waited", waited_ms);
        }
    }
    Ok(())
}

fn slowlog(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let now = cx.now;
    let Some(locks) = &mut cx.engine.keyspace.changes.locks else { return Ok(()) };
    let reply = &mut *cx.reply;
    let is = |word: &[u8]| args[1].eq_ignore_ascii_case(word);
    match args[2..] {
        [] if is(b"LEN") => reply.integer(locks.stats.long_waits().len() as i64),
        [] if is(b"RESET") => {
            locks.stats.forget_long_waits();
            reply.ok();
        }
        [] | [_] if is(b"GET") => {
            let count = match args.get(2) {
                None => 10,
                Some(count) => match parse_i64(count).ok_or(Error::NOT_INTEGER)? {
                    -1 => usize::MAX,
                    count => usize::try_from(count).map_err(|_| Error::new("ERR count should be greater than or equal to -1"))?,
                },
            };
            let waits: Vec<_> = locks.stats.long_waits().take(count).collect();
            reply.array(waits.len());
            for wait in waits {
                reply.map(8);
                field(reply, "id", wait.id);
                field(reply, "time", now.unix_of(wait.at_ms).max(0) as u64 / 1000);
                field(reply, "waited", wait.waited_ms);
                field(reply, "db", u64::from(wait.db));
                text(reply, "name", &wait.name);
                text(reply, "owner", &wait.owner);
                field(reply, "client", wait.client);
                reply.bulk(b"granted");
                reply.boolean(wait.granted);
            }
        }
        _ => return Err(Error::subcommand_syntax(args)),
    }
    Ok(())
}
