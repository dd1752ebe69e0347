//! `LOCK.STATS`, `LOCK.WHY`, `LOCK.RECENT` and `LOCK.SLOWLOG`: totals of all locks, and the last events, which explain why a client
//! does not have a lock.

use crate::base::error::{Error, Result};
use crate::base::ids::Key;
use crate::commands::locks::info::READ;
use crate::engine::command::options::{integer, option, upper};
use crate::engine::command::{Access, Categories, Command, Flags, Keys, Traits, row, rows};
use crate::engine::context::Context;
use crate::lock::Locks;
use crate::lock::grant::Reason;
use crate::lock::history::breaks::Breaker;
use crate::lock::history::recent::Notable;
use crate::lock::history::{Event, What};
use crate::lock::stats::LongWait;
use crate::resp::reply::Sink;

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("lock.stats", stats,
        "Returns totals of all locks since the server started, and what is held and waited for now. The percentiles of waits count those that last.";
        traits: Traits::SHOWS_NO_KEY.union(Traits::COUNTS_KEYS), keys: Keys::None,
        complexity: "O(W) for W waiters, of which the 10,000 that wait longest are counted", ..READ),
    row!("lock.why", why, "key",
        "Returns the last events of a lock: grants, refusals and waits, with their owners and times. The grants of present holders and the last end of a grant are always among them.";
        complexity: "O(N) for N holders", ..READ),
    row!("lock.recent", recent, "[COUNT count]",
        "Returns the latest events of the locks of all databases that an operator asks about, the latest first: broken grants, refused deadlocks, ended leases and sessions. Shows only locks that the user may read.";
        // It shows the names of all databases, and who broke grants.
        categories: Categories::LOCKADMIN,
        flags: Flags::READONLY, keys: Keys::None, complexity: "O(N) for N events, of which there are at most 256", ..READ),
    row!("lock.slowlog", slowlog, "<GET [count] | LEN | RESET>",
        "Returns, counts or clears the last long waits for locks that the user may read.";
        flags: Flags::ADMIN, keys: Keys::None, access: Access::Read, ..READ),
]);

fn stats(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    let Some(locks) = &cx.engine.keyspace().changes.locks else { return Ok(()) };
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
        ("contended", locks.queues.contended() as u64),
        ("sessions", locks.sessions.count() as u64),
        ("requests-remembered", locks.requests.len() as u64),
        ("requests-forgotten-early", locks.requests.forgotten_early),
    ];
    let waits = ["wait-us-p50", "wait-us-p99", "wait-us-p99.9", "wait-us-max"];
    let percentiles = locks.wait_percentiles_us(cx.now, [50.0, 99.0, 99.9, 100.0]);
    let all = totals.into_iter().chain(locks.figures(cx.now)).chain(waits.into_iter().zip(percentiles));
    let all: Vec<(&str, u64)> = all.collect();
    cx.reply.map(all.len());
    for (name, value) in all {
        cx.reply.entry(name, value);
    }
    Ok(())
}

/// An event, as replies show it.
struct Shown {
    event: Event,
    /// How long the owner waited for a grant, where that is known.
    waited_ms: Option<u64>,
    /// Who broke the lock.
    by: Option<Breaker>,
}

fn why(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (now, key) = (cx.now, cx.key(args[1]));
    let mut events = grants(cx, key.name);
    let Some(locks) = &cx.engine.keyspace().changes.locks else { return Ok(()) };
    let of = |event: &Event| Shown {
        waited_ms: if let What::Granted { waited_ms, .. } = event.what { Some(waited_ms) } else { None },
        by: breaker(locks, event),
        event: event.clone(),
    };
    // Of present grants, those whose events were forgotten.
    let is_known = |token: Option<u64>| {
        let granted = |event: &Event| matches!(event.what, What::Granted { .. }) && event.what.token() == token;
        locks.history.events(key).any(granted)
    };
    events.retain(|grant| !is_known(grant.event.what.token()));
    events.extend(locks.history.events(key).map(of));
    events.sort_by_key(|shown| shown.event.at_ms);
    let reply = &mut *cx.reply;
    reply.array(events.len());
    for Shown { event, waited_ms, by } in &events {
        let grant = matches!(event.what, What::Granted { .. });
        reply.map(4 + 2 * usize::from(grant) + 6 * usize::from(by.is_some()));
        reply.entry("event", event.what.name());
        reply.entry("owner", &event.owner);
        reply.entry("client", event.client.id);
        reply.entry("ago", now.mono_ms().saturating_sub(event.at_ms));
        if grant {
            reply.entry("token", event.what.token().unwrap_or(0));
            reply.entry("waited", *waited_ms);
        }
        if let Some(by) = by {
            reply.entry("token", event.what.token().unwrap_or(0));
            write_breaker(reply, by);
        }
    }
    Ok(())
}

/// Who broke the lock, if the event is a break.
fn breaker(locks: &Locks, event: &Event) -> Option<Breaker> {
    let What::Ended { reason: Reason::Broken, token } = event.what else { return None };
    let unknown = || Breaker { client: event.client.id, ..Breaker::default() };
    Some(locks.history.breaks.of(token).cloned().unwrap_or_else(unknown))
}

/// Writes five fields: who broke a grant, and why.
fn write_breaker(reply: &mut dyn Sink, by: &Breaker) {
    reply.entry("by", by.client);
    reply.entry("by-user", &by.user);
    reply.entry("by-name", &by.name);
    reply.entry("by-addr", &*by.addr);
    reply.entry("reason", &by.reason);
}

fn recent(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let count = match option(&args[1..], "COUNT")? {
        None => usize::MAX,
        Some(count) => usize::try_from(integer(count)?).ok().filter(|&count| count > 0).ok_or(Error::SYNTAX)?,
    };
    let sight = cx.sight(args);
    let Some(locks) = &cx.engine.keyspace().changes.locks else { return Ok(()) };
    let events: Vec<_> = locks.history.recent.latest().filter(|event| sight.sees(&event.name)).take(count).collect();
    let reply = &mut *cx.reply;
    reply.array(events.len());
    for Notable { db, name, event } in events {
        let (token, by) = (event.what.token(), breaker(locks, event));
        reply.map(6 + usize::from(token.is_some()) + 5 * usize::from(by.is_some()));
        reply.entry("event", event.what.name());
        reply.entry("db", u64::from(*db));
        reply.entry("name", name);
        reply.entry("owner", &event.owner);
        reply.entry("client", event.client.id);
        reply.entry("ago", cx.now.mono_ms().saturating_sub(event.at_ms));
        if let Some(token) = token {
            reply.entry("token", token);
        }
        if let Some(by) = by {
            write_breaker(reply, &by);
        }
    }
    Ok(())
}

/// Number of present grants that `LOCK.WHY` shows without their events: the oldest.
const GRANTS_MAX: usize = 100;

/// The oldest present grants of a name as events.
fn grants(cx: &mut Context<'_>, name: &[u8]) -> Vec<Shown> {
    let (now, db) = (cx.now, cx.db);
    cx.engine.keyspace_mut().with_locks(now, |locks, keys| {
        let grants = locks.look(keys, now, Key { db, name }, |lock| {
            let grants = lock.into_iter().flat_map(|lock| lock.holders.iter()).take(GRANTS_MAX);
            let of = grants.map(|grant| Shown {
                event: Event {
                    at_ms: grant.granted_ms,
                    what: What::Granted { token: grant.token, waited_ms: 0 },
                    owner: grant.owner.clone(),
                    client: grant.client,
                },
                waited_ms: None,
                by: None,
            });
            of.collect()
        });
        locks.work(keys, now);
        grants
    })
}

fn slowlog(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (now, sight) = (cx.now, cx.sight(args));
    let Some(locks) = &mut cx.engine.keyspace_mut().changes.locks else { return Ok(()) };
    let reply = &mut *cx.reply;
    let seen = |wait: &&LongWait| sight.sees(&wait.name);
    match (&*upper(args[1]), &args[2..]) {
        (b"LEN", []) => reply.integer(locks.stats.long.latest().filter(seen).count() as i64),
        (b"RESET", []) => {
            locks.stats.long.retain(|wait| !sight.sees(&wait.name));
            reply.ok();
        }
        (b"GET", [] | [_]) => {
            let count = match args.get(2) {
                None => 10,
                Some(count) => match integer(count)? {
                    -1 => usize::MAX,
                    count => usize::try_from(count).map_err(|_| Error::new("ERR count should be greater than or equal to -1"))?,
                },
            };
            let waits: Vec<_> = locks.stats.long.latest().filter(seen).take(count).collect();
            reply.array(waits.len());
            for wait in waits {
                reply.map(8);
                reply.entry("id", wait.id);
                reply.entry("time", now.unix_of(wait.at_ms).max(0) as u64 / 1000);
                reply.entry("waited", wait.waited_ms);
                reply.entry("db", u64::from(wait.db));
                reply.entry("name", &wait.name);
                reply.entry("owner", &wait.owner);
                reply.entry("client", wait.client);
                reply.entry("granted", wait.granted);
            }
        }
        _ => return Err(Error::subcommand_syntax(args)),
    }
    Ok(())
}
