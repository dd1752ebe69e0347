//! `LOCK.LIST`: the locks of a database that the user may see, chosen by what they are and by how long they are held or waited for.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::base::error::{Error, Result};
use crate::base::glob;
use crate::base::number::parse_i64;
use crate::base::time::Now;
use crate::commands::locks::acquire::check_owner;
use crate::commands::locks::info::{Extra, Most, READ, Shown, shown, write};
use crate::engine::command::{Command, Flags, Keys};
use crate::engine::context::Context;
use crate::engine::users::sight::Sight;
use crate::lock::grant::{self, Grant};
use crate::lock::{Lock, Locks};
use crate::store::entry::{EntryRef, ValueRef};
use crate::store::values::value::Value;

/// Number of locks that are returned without `COUNT`.
const COUNT: usize = 100;
/// Maximum number of keys that are scanned for locks without waiters.
const WALK_MAX: usize = 100_000;

/// The rows.
pub const COMMANDS: &[Command] = &[Command {
    name: "lock.list",
    arity: -1,
    flags: Flags::READONLY,
    keys: Keys::None,
    summary: "Returns the locks of a database that the user may read: those with the most waiters first, or with WAITING those with the longest wait. SHOW limits how many holders and waiters are shown of each, and adds their numbers. OWNER selects those that an owner holds or waits for, HELD those with a grant of at least this age.",
    complexity: "O(N) for N keys, of which at most 100,000 are examined, and N contended locks. No keys are examined with CONTENDED, WAITING or, up to 10,000 semaphores in a database, KIND semaphore.",
    syntax: "[MATCH pattern] [CONTENDED] [OWNER owner] [KIND kind] [WAITING milliseconds] [HELD milliseconds] [SHOW most] [COUNT count]",
    handler: list,
    ..READ
}];

/// Which locks are wanted.
struct Filter<'a> {
    sight: Sight,
    pattern: Option<&'a [u8]>,
    contended: bool,
    owner: Option<&'a [u8]>,
    kind: Option<&'a [u8]>,
    waiting_ms: Option<u64>,
    held_ms: Option<u64>,
    /// Maximum number of holders, and of waiters, that are shown of each lock.
    most: Option<usize>,
}

impl Filter<'_> {
    fn has_name(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name, false)) && self.sight.sees(name)
    }

    fn has_kind(&self, kind: &str) -> bool {
        self.kind.is_none_or(|wanted| wanted.eq_ignore_ascii_case(kind.as_bytes()))
    }

    /// Whether the holders in an entry are as wanted. `waits`: whether the wanted owner waits for the name.
    fn has_holders(&self, now: Now, entry: Option<EntryRef<'_>>, waits: bool) -> bool {
        let by_owner = self.owner.is_none_or(|owner| waits || has_grant(entry, |lock| lock.holders.get(owner), owner));
        // Holders are in the order of their grants.
        let is_old = |grant: &Grant| self.held_ms.is_none_or(|ms| now.mono_ms().saturating_sub(grant.granted_ms) >= ms);
        by_owner && (self.held_ms.is_none() || first_grant(entry).is_some_and(|grant| is_old(&grant)))
    }
}

/// Whether an owner has a grant in an entry.
fn has_grant(entry: Option<EntryRef<'_>>, of: impl Fn(&Lock) -> Option<&Grant>, owner: &[u8]) -> bool {
    match entry.map(EntryRef::value) {
        Some(ValueRef::Grant(bytes)) => grant::unpack(bytes).is_some_and(|grant| grant.owner[..] == *owner),
        Some(ValueRef::Boxed(Value::Lock(lock))) => of(lock).is_some(),
        _ => false,
    }
}

fn first_grant(entry: Option<EntryRef<'_>>) -> Option<Grant> {
    match entry?.value() {
        ValueRef::Grant(bytes) => grant::unpack(bytes),
        ValueRef::Boxed(Value::Lock(lock)) => lock.holders.iter().next().cloned(),
        _ => None,
    }
}

fn parse<'a>(sight: Sight, words: &[&'a [u8]]) -> Result<(Filter<'a>, usize)> {
    let (pattern, contended, owner, kind, waiting_ms, held_ms, most) = (None, false, None, None, None, None, None);
    let mut filter = Filter { sight, pattern, contended, owner, kind, waiting_ms, held_ms, most };
    let mut count = COUNT;
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        if is(b"CONTENDED") {
            filter.contended = true;
            continue;
        }
        let option = [&b"MATCH"[..], b"OWNER", b"KIND", b"WAITING", b"HELD", b"SHOW", b"COUNT"].into_iter().find(|name| is(name));
        let (option, value) = (option.ok_or(Error::SYNTAX)?, *rest.next().ok_or(Error::SYNTAX)?);
        let number = || {
            let number = parse_i64(value).ok_or(Error::NOT_INTEGER)?;
            u64::try_from(number).map_err(|_| Error::SYNTAX)
        };
        let positive = || usize::try_from(number()?).ok().filter(|&number| number > 0).ok_or(Error::SYNTAX);
        match option {
            b"MATCH" => filter.pattern = Some(value),
            b"OWNER" => {
                check_owner(value)?;
                filter.owner = Some(value);
            }
            b"KIND" => filter.kind = Some(value),
            b"WAITING" => filter.waiting_ms = Some(number()?),
            b"HELD" => filter.held_ms = Some(number()?),
            b"SHOW" => filter.most = Some(positive()?),
            _ => count = positive()?,
        }
    }
    Ok((filter, count))
}

fn list(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (filter, count) = parse(cx.sight(args), &args[1..])?;
    let most = filter.most.map_or(Most::ALL, |most| Most { holders: most, waiters: most });
    let names = contended(cx, &filter, count);
    let mut all: Vec<(Vec<u8>, Shown)> = Vec::new();
    let mut seen: BTreeSet<Vec<u8>> = BTreeSet::new();
    let may_be_idle = !filter.contended && filter.waiting_ms.is_none() && cx.engine.keyspace.natives;
    let idle = if may_be_idle && names.len() < count { uncontended(cx, &filter, count) } else { Vec::new() };
    for name in names.into_iter().chain(idle) {
        if all.len() >= count {
            break;
        }
        if seen.insert(name.clone())
            && let Some(shown) = shown(cx.engine, cx.now, (cx.db, &name), most)
        {
            all.push((name, shown));
        }
    }
    cx.reply.array(all.len());
    let extra = if filter.most.is_some() { Extra::NameAndNumbers } else { Extra::Name };
    for (name, shown) in &all {
        write(&mut *cx.reply, cx.now, name, shown, extra);
    }
    Ok(())
}

/// Up to `count` wanted names with waiters, in the order of the reply.
fn contended(cx: &mut Context<'_>, filter: &Filter<'_>, count: usize) -> Vec<Vec<u8>> {
    let (now, db) = (cx.now, cx.db);
    let mut ranked = match &cx.engine.keyspace.changes.locks {
        Some(locks) => ranked(locks, now, db, filter),
        None => return Vec::new(),
    };
    let mut wanted = Vec::new();
    while wanted.len() < count
        && let Some((.., Reverse(queue))) = ranked.pop()
    {
        let Some(locks) = &cx.engine.keyspace.changes.locks else { break };
        let Some(name) = locks.queues.get(queue).map(|queue| queue.name.to_vec()) else { continue };
        let waits = filter.owner.is_some_and(|owner| waits_in(locks, owner, queue));
        let mut db = cx.db();
        let entry = db.peek(&name);
        let kind = entry.map_or("lock", EntryRef::type_name);
        if filter.has_kind(kind) && filter.has_holders(now, entry, waits) {
            wanted.push(name);
        }
    }
    wanted
}

/// The queues of wanted names with waiters: by the number of waiters, or with `WAITING` by the longest wait; then by the longest
/// wait. Only the first ones are usually taken, so they are not sorted.
fn ranked(locks: &Locks, now: Now, db: u32, filter: &Filter<'_>) -> BinaryHeap<(u32, u64, Reverse<u32>)> {
    let queues = locks.queues.iter().filter(|(_, queue)| queue.db == db && queue.len > 0 && filter.has_name(&queue.name));
    let ranked = queues.filter_map(|(number, queue)| {
        let wait_us = locks.oldest_wait_us(now, number);
        let waits_enough = filter.waiting_ms.is_none_or(|ms| wait_us / 1000 >= ms);
        let waiters = if filter.waiting_ms.is_some() { 0 } else { queue.len };
        waits_enough.then_some((waiters, wait_us, Reverse(number)))
    });
    ranked.collect()
}

fn waits_in(locks: &Locks, owner: &[u8], queue: u32) -> bool {
    locks.queues.waits_of(owner).into_iter().any(|waiter| locks.queues.queues_of(waiter).any(|of| of == queue))
}

/// Wanted semaphores, if all of them are known by name.
fn semaphores(cx: &mut Context<'_>, filter: &Filter<'_>, count: usize) -> Option<Vec<Vec<u8>>> {
    let now = cx.now;
    let known = cx.engine.keyspace.changes.locks.as_ref()?.held.semaphores(cx.db)?;
    let names: Vec<Vec<u8>> = known.filter(|name| filter.has_name(name)).map(<[u8]>::to_vec).collect();
    let mut db = cx.db();
    let is_wanted = |name: &Vec<u8>| filter.has_holders(now, db.peek(name), false);
    Some(names.into_iter().filter(is_wanted).take(count).collect())
}

/// Wanted locks among the keys, in no order. Without `KIND`, only locks and semaphores. There may be some with waiters among
/// them: so many more may be found than are wanted.
fn uncontended(cx: &mut Context<'_>, filter: &Filter<'_>, count: usize) -> Vec<Vec<u8>> {
    let now = cx.now;
    let contended = cx.engine.keyspace.changes.locks.as_ref().map_or(0, |locks| locks.queues.contended());
    let most = count.saturating_add(contended.min(count));
    if filter.kind.is_some_and(|kind| kind.eq_ignore_ascii_case(b"semaphore"))
        && let Some(names) = semaphores(cx, filter, most)
    {
        return names;
    }
    let db = cx.db();
    let mut names = Vec::new();
    let (mut cursor, mut seen) = (0, 0);
    while names.len() < most && seen < WALK_MAX {
        cursor = db.scan(cursor, 100, |entry| {
            seen += 1;
            let native = if filter.kind.is_some() { entry.is_native() } else { entry.is_lock() };
            if native
                && filter.has_kind(entry.type_name())
                && filter.has_name(entry.key())
                && filter.has_holders(now, Some(entry), false)
            {
                names.push(entry.key().to_vec());
            }
        });
        if cursor == 0 {
            break;
        }
    }
    names
}
