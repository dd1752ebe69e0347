//! `LOCK.LIST`: the locks of a database that the user may see, chosen by what they are and by how long they are held or waited for.
//!
//! In a large database it is a job:
//!
//! ```text
//!   all queues ─▶ the best `count` of those with waiters ─▶ keys, until there are `count` ─▶ a part of the reply for each
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use crate::base::error::{Error, Result};
use crate::base::glob;
use crate::base::ids::{Key, SessionId};
use crate::base::time::Now;
use crate::commands::locks::acquire::check_owner;
use crate::commands::locks::info::{Extra, Most, READ, Shown, shown, write};
use crate::engine::Engine;
use crate::engine::command::options::{Tail, upper};
use crate::engine::command::{Command, Flags, Keys, row, rows};
use crate::engine::context::Context;
use crate::engine::jobs::{ReplyKind, Work};
use crate::engine::users::sight::Sight;
use crate::lock::grant::{self, Grant};
use crate::lock::{Lock, Locks};
use crate::resp::reply::WireReply;
use crate::store::entry::{EntryRef, ValueRef};
use crate::store::values::value::Value;

/// Number of locks that are returned without `COUNT`.
const COUNT: usize = 100;
/// Maximum number of locks that are returned.
const COUNT_MAX: usize = 10_000;
/// Maximum number of keys that are scanned for locks without waiters.
const WALK_MAX: usize = 100_000;
/// To show a lock takes as long as to look at so many keys or queues; so do this many of its holders and waiters.
const SHOW_COST: usize = 8;

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("lock.list", list,
    "[MATCH pattern] [CONTENDED] [OWNER owner] [KIND kind] [WAITING milliseconds] [HELD milliseconds] [SHOW most] [COUNT count]",
    "Returns the locks of a database that the user may read: those with the most waiters first, or with WAITING those with the longest wait. SHOW limits how many holders and waiters are shown of each, and adds their numbers. OWNER selects those that an owner holds or waits for, HELD those with a grant of at least this age.";
    flags: Flags::READONLY, keys: Keys::None,
    complexity: "O(N) for N keys, of which at most 100,000 are examined, and N contended locks. No keys are examined with CONTENDED, WAITING or, up to 10,000 semaphores in a database, KIND semaphore.",
    ..READ)]);

/// Which locks are wanted.
struct Filter {
    sight: Sight,
    pattern: Option<Box<[u8]>>,
    contended: bool,
    owner: Option<Box<[u8]>>,
    kind: Option<Box<[u8]>>,
    waiting_ms: Option<u64>,
    held_ms: Option<u64>,
    /// Maximum number of holders, and of waiters, that are shown of each lock.
    most: Option<usize>,
}

impl Filter {
    fn has_name(&self, name: &[u8]) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, name, false)) && self.sight.sees(name)
    }

    fn has_kind(&self, kind: &str) -> bool {
        self.kind.as_ref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(kind.as_bytes()))
    }

    /// Whether the holders in an entry are as wanted. `waits`: whether the wanted owner waits for the name.
    fn has_holders(&self, now: Now, entry: Option<EntryRef<'_>>, waits: bool) -> bool {
        let by_owner = self.owner.as_ref().is_none_or(|owner| waits || has_grant(entry, |lock| lock.holders.get(owner), owner));
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

fn parse(sight: Sight, words: &[&[u8]]) -> Result<(Filter, usize)> {
    let (pattern, contended, owner, kind, waiting_ms, held_ms, most) = (None, false, None, None, None, None, None);
    let mut filter = Filter { sight, pattern, contended, owner, kind, waiting_ms, held_ms, most };
    let mut count = COUNT;
    let mut rest = Tail(words);
    let number = |number: i64| u64::try_from(number).map_err(|_| Error::SYNTAX);
    let positive = |number: i64| usize::try_from(number).ok().filter(|&number| number > 0).ok_or(Error::SYNTAX);
    while let Some(word) = rest.next() {
        match &*upper(word) {
            b"CONTENDED" => filter.contended = true,
            b"MATCH" => {
                let pattern = rest.value()?;
                check_pattern(pattern)?;
                filter.pattern = Some(pattern.into());
            }
            b"OWNER" => {
                let owner = rest.value()?;
                check_owner(owner)?;
                filter.owner = Some(owner.into());
            }
            b"KIND" => filter.kind = Some(rest.value()?.into()),
            b"WAITING" => filter.waiting_ms = Some(number(rest.integer()?)?),
            b"HELD" => filter.held_ms = Some(number(rest.integer()?)?),
            b"SHOW" => filter.most = Some(positive(rest.integer()?)?),
            b"COUNT" => count = positive(rest.integer()?)?,
            _ => return Err(Error::SYNTAX),
        }
    }
    fail_if!(count > COUNT_MAX, Error::new(format!("ERR count must be between 1 and {COUNT_MAX}")));
    Ok((filter, count))
}

/// A contended lock. The greatest is the first of the reply: by the number of waiters, or with `WAITING` by the longest wait; then by
/// the longest wait.
type Rank = (u32, Reverse<u64>, Reverse<u32>, Box<[u8]>);

/// The greatest length of a pattern, in bytes.
const PATTERN_MAX: usize = 1024;

/// Checks the length of a pattern, which may be matched with very many names.
pub(super) fn check_pattern(pattern: &[u8]) -> Result {
    fail_if!(pattern.len() > PATTERN_MAX, Error::new("ERR pattern is too long"));
    Ok(())
}

/// Where the work is.
enum Stage {
    /// At the queue of this number.
    Queues(u32),
    /// At a semaphore of which the name is known. Those that are left.
    Semaphores(std::vec::IntoIter<Box<[u8]>>),
    /// At this cursor, after so many keys.
    Keys { cursor: u64, walked: usize },
    /// At this name.
    Show(usize),
}

/// The work of the command.
struct Search {
    db: u32,
    filter: Filter,
    count: usize,
    stage: Stage,
    /// The best contended locks so far, the worst of them first.
    best: BinaryHeap<Reverse<Rank>>,
    /// The names to show. The contended ones are in `contended`, too, once all are known.
    names: Vec<Box<[u8]>>,
    contended: BTreeSet<Box<[u8]>>,
    /// Number of locks that were shown.
    shown: usize,
}

impl Search {
    fn new(db: u32, filter: Filter, count: usize) -> Search {
        let (best, names, contended) = (BinaryHeap::new(), Vec::new(), BTreeSet::new());
        Search { db, filter, count, stage: Stage::Queues(0), best, names, contended, shown: 0 }
    }

    /// Whether locks without waiters are wanted.
    fn wants_idle(&self, engine: &Engine) -> bool {
        !self.filter.contended && self.filter.waiting_ms.is_none() && engine.keyspace().has_natives
    }

    /// An upper bound for the number of queues and keys to look at, and of locks to show as as many of them.
    fn elements(&self, engine: &mut Engine, now: Now) -> usize {
        let queues = engine.keyspace().changes.locks.as_ref().map_or(0, |locks| locks.queues.numbers() as usize);
        let keys = if self.wants_idle(engine) { engine.keyspace_mut().db(self.db, now).len().min(WALK_MAX) } else { 0 };
        queues + keys + self.count.min(queues + keys) * SHOW_COST
    }

    fn extra(&self) -> Extra {
        if self.filter.most.is_some() { Extra::NameAndNumbers } else { Extra::Name }
    }

    /// Looks at about so many queues and keys more. Returns whether all names are found.
    fn find(&mut self, engine: &mut Engine, now: Now, budget: usize) -> bool {
        let budget = (budget / self.filter.pattern.as_deref().map_or(1, glob::cost)).max(1);
        match &mut self.stage {
            Stage::Queues(_) => self.find_contended(engine, now, budget),
            Stage::Semaphores(_) => self.find_semaphores(engine, now, budget),
            Stage::Keys { .. } => self.find_idle(engine, now, budget),
            Stage::Show(_) => {}
        }
        matches!(self.stage, Stage::Show(_))
    }

    fn find_contended(&mut self, engine: &mut Engine, now: Now, budget: usize) {
        let Stage::Queues(next) = &mut self.stage else { return };
        let keyspace = engine.keyspace_mut();
        let places = keyspace.changes.locks.as_ref().map_or(0, |locks| locks.queues.numbers());
        let end = places.min(next.saturating_add(u32::try_from(budget).unwrap_or(u32::MAX)));
        for number in *next..end {
            let Some(locks) = &keyspace.changes.locks else { break };
            let Some(rank) = rank(locks, now, self.db, number, &self.filter) else { continue };
            if self.best.len() >= self.count && self.best.peek().is_some_and(|Reverse(worst)| rank < *worst) {
                continue;
            }
            let waits = self.filter.owner.as_ref().is_some_and(|owner| waits_in(locks, owner, number));
            let mut db = keyspace.db(self.db, now);
            let entry = db.peek(&rank.3);
            let kind = entry.map_or("lock", EntryRef::type_name);
            if self.filter.has_kind(kind) && self.filter.has_holders(now, entry, waits) {
                self.best.push(Reverse(rank));
                if self.best.len() > self.count {
                    self.best.pop();
                }
            }
        }
        *next = end;
        if end == places {
            let best = std::mem::take(&mut self.best).into_sorted_vec();
            self.names = best.into_iter().map(|Reverse((.., name))| name).collect();
            self.stage = self.after_contended(engine);
        }
    }

    fn after_contended(&mut self, engine: &Engine) -> Stage {
        if !self.wants_idle(engine) || self.names.len() >= self.count {
            return Stage::Show(0);
        }
        self.contended = self.names.iter().cloned().collect();
        if self.filter.kind.as_ref().is_some_and(|kind| kind.eq_ignore_ascii_case(b"semaphore"))
            && let Some(known) = engine.keyspace().changes.locks.as_ref().and_then(|locks| locks.held.semaphores(self.db))
        {
            return Stage::Semaphores(known.map(Box::from).collect::<Vec<_>>().into_iter());
        }
        Stage::Keys { cursor: 0, walked: 0 }
    }

    /// Looks at semaphores, if all of them are known by name.
    fn find_semaphores(&mut self, engine: &mut Engine, now: Now, budget: usize) {
        let Stage::Semaphores(left) = &mut self.stage else { return };
        let mut db = engine.keyspace_mut().db(self.db, now);
        for name in left.by_ref().take(budget) {
            let is_wanted = self.filter.has_name(&name) && self.filter.has_holders(now, db.peek(&name), false);
            if is_wanted && !self.contended.contains(&name) {
                self.names.push(name);
            }
        }
        if left.len() == 0 || self.names.len() >= self.count {
            self.stage = Stage::Show(0);
        }
    }

    /// Looks at keys, in no order. Without `KIND`, only locks and semaphores are wanted.
    fn find_idle(&mut self, engine: &mut Engine, now: Now, budget: usize) {
        let Stage::Keys { cursor, walked } = &mut self.stage else { return };
        let db = engine.keyspace_mut().db(self.db, now);
        let end = walked.saturating_add(budget).min(WALK_MAX);
        while *walked < end {
            *cursor = db.scan(*cursor, (end - *walked).min(100), |entry| {
                *walked += 1;
                let native = if self.filter.kind.is_some() { entry.is_native() } else { entry.is_lock() };
                if native
                    && self.filter.has_kind(entry.type_name())
                    && self.filter.has_name(entry.key())
                    && self.filter.has_holders(now, Some(entry), false)
                    && !self.contended.contains(entry.key())
                {
                    self.names.push(entry.key().into());
                }
            });
            if *cursor == 0 || self.names.len() >= self.count {
                self.stage = Stage::Show(0);
                return;
            }
        }
        if *walked >= WALK_MAX {
            self.stage = Stage::Show(0);
        }
    }

    /// The next lock to show.
    fn next(&mut self, engine: &mut Engine, now: Now) -> Option<(Box<[u8]>, Shown)> {
        let Stage::Show(at) = &mut self.stage else { return None };
        let most = self.filter.most.map_or(Most::ALL, |most| Most { holders: most, waiters: most });
        while self.shown < self.count {
            let name = std::mem::take(self.names.get_mut(*at)?);
            *at += 1;
            if let Some(shown) = shown(engine, now, Key { db: self.db, name: &name }, most) {
                self.shown += 1;
                return Some((name, shown));
            }
        }
        None
    }
}

impl Work for Search {
    fn go_on(&mut self, engine: &mut Engine, now: Now, id: SessionId, count: u32, reply: &mut Vec<u8>) -> bool {
        let mut budget = count as usize;
        if !self.find(engine, now, budget) {
            return false;
        }
        while let Some((name, shown)) = self.next(engine, now) {
            let mut reply = WireReply::new(reply, engine.sessions()[id].protocol);
            write(&mut reply, now, &name, &shown, self.extra());
            budget = budget.saturating_sub(SHOW_COST + shown.elements());
            if budget == 0 {
                return false;
            }
        }
        true
    }

    fn kind(&self) -> ReplyKind {
        ReplyKind::Array(self.shown)
    }
}

fn list(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (filter, count) = parse(cx.sight(args), &args[1..])?;
    let mut search = Search::new(cx.db, filter, count);
    let elements = search.elements(cx.engine, cx.now);
    if cx.may_start_job(elements) {
        cx.start_job(search);
        return Ok(());
    }
    while !search.find(cx.engine, cx.now, usize::MAX) {}
    let mut all = Vec::new();
    while let Some(one) = search.next(cx.engine, cx.now) {
        all.push(one);
    }
    cx.reply.array(all.len());
    for (name, shown) in &all {
        write(&mut *cx.reply, cx.now, name, shown, search.extra());
    }
    Ok(())
}

/// The rank of a queue, if it has waiters and its name is wanted.
fn rank(locks: &Locks, now: Now, db: u32, number: u32, filter: &Filter) -> Option<Rank> {
    let queue = locks.queues.get(number).filter(|queue| queue.db == db && queue.len > 0 && filter.has_name(&queue.name))?;
    let since_us = locks.queues.oldest_since_us(number).unwrap_or(u64::MAX);
    let waits_enough = filter.waiting_ms.is_none_or(|ms| now.mono_us().saturating_sub(since_us) / 1000 >= ms);
    let waiters = if filter.waiting_ms.is_some() { 0 } else { queue.len };
    waits_enough.then(|| (waiters, Reverse(since_us), Reverse(number), queue.name.clone()))
}

fn waits_in(locks: &Locks, owner: &[u8], queue: u32) -> bool {
    locks.queues.waits_of(owner).into_iter().any(|waiter| locks.queues.queues_of(waiter).any(|of| of == queue))
}
