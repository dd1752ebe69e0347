//! `LOCK.INFO` and `SEM.INFO`: everything that is known of a name, and how replies show it. `LOCK.LIST` and `LOCK.GRAPH` show the
//! same.

use crate::base::error::{Error, Result};
use crate::base::ids::Key;
use crate::base::time::Now;
use crate::base::words::{long, pasteable};
use crate::commands::locks::acquire::LOCK;
use crate::commands::locks::plain::Plain;
use crate::engine::Engine;
use crate::engine::command::{Command, Flags, row, rows};
use crate::engine::context::Context;
use crate::keyspace::lru::idle_seconds;
use crate::keyspace::waits::Wake;
use crate::lock::grant::{Owner, Reason};
use crate::lock::history::{Counts, What};
use crate::lock::{Bound, Client, Grant, Locks, UserKey};
use crate::resp::reply::Sink;
use crate::store::entry::{EntryRef, ValueRef};
use crate::store::values::value::Value;

pub(crate) const READ: Command = Command { flags: Flags::READONLY.union(Flags::FAST), ..LOCK };

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("lock.info", |cx, args| info(cx, args, false), "key",
        "Returns the holders and the waiters of a lock, since when they hold it or wait, and how its last grant ended. Shows semaphores, latches, guards and plain keys, too.";
        complexity: "O(N) for N holders and waiters", ..READ),
    row!("sem.info", |cx, args| info(cx, args, true), "key",
        "Returns the holders of permits of a semaphore, the waiters, and since when they hold them or wait.";
        complexity: "O(N) for N holders and waiters", ..READ),
]);

/// A holder, as replies show it.
pub(super) struct Holder {
    grant: Grant,
    /// Id of the named session that the grant ends with.
    session: Option<Box<[u8]>>,
    client_name: Box<[u8]>,
    addr: Box<str>,
    user: Box<[u8]>,
    gone_ms: Option<u64>,
    /// Whether it is not known if its connection lives.
    unseen: bool,
}

impl Holder {
    /// The owner.
    pub(super) fn owner(&self) -> &Owner {
        &self.grant.owner
    }

    /// The owner as the graph of waits knows it.
    pub(super) fn owner_of_user(&self) -> (UserKey, Owner) {
        (self.grant.client.user, self.grant.owner.clone())
    }

    /// The connection that it is known by.
    pub(super) fn client(&self) -> Client {
        self.grant.client
    }

    /// Whether its connection has ended.
    pub(super) fn is_gone(&self) -> bool {
        self.gone_ms.is_some()
    }

    /// The fencing token.
    pub(super) fn token(&self) -> u64 {
        self.grant.token
    }

    /// Who it is, since when it has the grant and until when, and whether it is connected.
    pub(super) fn in_words(&self, now: Now) -> String {
        let held = long(now.mono_ms().saturating_sub(self.grant.granted_ms));
        let left = long(now.left_ms(self.grant.end_ms));
        let name = if self.client_name.is_empty() { String::new() } else { format!(", named {}", pasteable(&self.client_name)) };
        let (addr, client) = (&self.addr, self.grant.client.id);
        let connection = match self.gone_ms {
            _ if self.unseen => {
                "it is not known whether its connection lives: a former leader had it, or this one had no majority".to_owned()
            }
            Some(gone_ms) => format!("its connection ({addr}, client {client}{name}) ended {} ago", long(gone_ms)),
            None if !addr.is_empty() => format!("its connection ({addr}, client {client}{name}) is connected"),
            // Its grant was read from a file, or very many connections have ended since.
            None if self.grant.bound == Bound::Lease => "nothing is known of its connection".to_owned(),
            None => "its session has no connection, and some time to come back".to_owned(),
        };
        // Another connection of the owner may have renewed it since.
        let renewed = match self.grant.renewed {
            0 => String::new(),
            1 => ", renewed once".to_owned(),
            times => format!(", renewed {times} times"),
        };
        let owner = pasteable(&self.grant.owner);
        format!("{owner} for {held}{renewed}; {connection}; its lease ends in {left}")
    }
}

/// A waiter, as replies show it.
struct Waiting {
    owner: Vec<u8>,
    mode: &'static str,
    permits: u32,
    waited_ms: u64,
    left_ms: Option<u64>,
    client: u64,
    addr: Box<str>,
    client_name: Box<[u8]>,
}

/// How the last grant ended.
struct LastEnd {
    event: &'static str,
    owner: Vec<u8>,
    token: u64,
    ago_ms: u64,
    by: Option<u64>,
    reason: Option<Box<[u8]>>,
}

/// All holders of a lock, of which a reply may show some.
#[derive(Clone, Copy, Default)]
struct AllHolders {
    count: u64,
    permits: u64,
    last_token: Option<u64>,
}

/// Maximum numbers of holders and of waiters that are collected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    pub(super) holders: usize,
    pub(super) waiters: usize,
}

impl Most {
    /// All of them.
    pub(super) const ALL: Most = Most { holders: usize::MAX, waiters: usize::MAX };
}

/// What an entry has besides what is known of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    /// Nothing: the client asked by the name.
    None,
    /// The name.
    Name,
    /// The name, and the numbers of holders and of waiters, of which the entry may not show all.
    NameAndNumbers,
}

/// What a name holds.
enum Held {
    /// A lock or a semaphore, or nothing while clients wait.
    Lock { limit: u32, held_back_ms: u64, holders: Vec<Holder>, all: AllHolders, fence: u64, counts: Counts },
    /// A latch, with its count.
    Latch(u64),
    /// A guard, with its token.
    Guard(u64),
    /// A plain key.
    Plain(Plain),
}

/// Everything that replies show of a name.
pub(super) struct Shown {
    kind: &'static str,
    held: Held,
    /// Milliseconds until the key expires; `None` if it does not.
    ttl_ms: Option<u64>,
    waiting: Vec<Waiting>,
    /// Number of waiters, of which `waiting` may have only the first.
    waiters: u64,
    oldest_wait_ms: u64,
    last_end: Option<LastEnd>,
}

impl Shown {
    /// How long the longest present wait lasts, in milliseconds.
    pub(super) fn oldest_wait_ms(&self) -> u64 {
        self.oldest_wait_ms
    }

    /// Number of holders, of which [`Shown::holders`] may have only the first.
    pub(super) fn holding(&self) -> u64 {
        if let Held::Lock { all, .. } = &self.held { all.count } else { 0 }
    }

    /// Why there are waiters though nobody holds a lock of this name.
    pub(super) fn without_holder(&self, name: &str, now: Now) -> String {
        match &self.held {
            Held::Lock { held_back_ms: 0, .. } => {
                format!("{name} is free: its waiters want more permits or other locks as well.")
            }
            Held::Lock { held_back_ms, .. } => {
                format!(
                    "{name} is free, and held back for {} more by the DELAY of its last holder.",
                    long(now.left_ms(*held_back_ms))
                )
            }
            _ => {
                let end = self.ttl_ms.map_or("never expires".to_owned(), |ms| format!("expires in {}", long(ms)));
                let kind = self.kind;
                let writer = if let Held::Plain(plain) = &self.held { plain.writer_in_words() } else { String::new() };
                format!(
                    "{name} is a plain key of type {kind}, which {end}.{writer} LOCK.INFO {name} shows it, and DEL {name} ends it."
                )
            }
        }
    }

    /// Number of holders and waiters that are shown.
    pub(super) fn elements(&self) -> usize {
        self.holders().len() + self.waiting.len()
    }

    /// The holders.
    pub(super) fn holders(&self) -> &[Holder] {
        if let Held::Lock { holders, .. } = &self.held { holders } else { &[] }
    }

    fn is_semaphore(&self) -> bool {
        matches!(self.held, Held::Lock { limit: 1.., .. })
    }

    /// Whether nothing is there: neither a value nor a waiter.
    fn is_nothing(&self) -> bool {
        let free = matches!(&self.held, Held::Lock { held_back_ms: 0, all, .. } if all.count == 0);
        free && self.waiters == 0
    }
}

/// Collects everything shown of a name of a database, with at most so many holders and waiters; `None` if it holds nothing and nobody
/// waits for it.
pub(super) fn shown(engine: &mut Engine, now: Now, key: Key<'_>, most: Most) -> Option<Shown> {
    let lock = engine.keyspace_mut().with_locks(now, |locks, keys| {
        let lock = locks.look(keys, now, key, |lock| {
            lock.map(|lock| {
                let grants: Vec<Grant> = lock.holders.iter().take(most.holders).cloned().collect();
                let last_token = lock.holders.iter().next_back().map(|grant| grant.token);
                let all = AllHolders { count: lock.holders.len() as u64, permits: lock.holders.permits(), last_token };
                (lock.limit, lock.held_back_ms, grants, all)
            })
        });
        locks.work(keys, now);
        lock
    });
    let second = now.second();
    let counted = engine.keyspace().lru.counted;
    let mut keys = engine.keyspace_mut().db(key.db, now);
    let other = keys.peek(key.name).filter(|entry| !entry.is_lock()).map(|entry| {
        let idle_s = (!counted).then(|| idle_seconds(entry, second));
        (entry.type_name(), of_entry(entry, now, idle_s), entry.deadline())
    });
    let writer = keys.writer_of(key.name);
    let engine = &*engine;
    let locks = engine.keyspace().changes.locks.as_ref()?;
    let queue = locks.queues.find(key);
    let mut waiting = waiting(engine, locks, now, queue, most.waiters);
    let mut waiters = queue.and_then(|queue| locks.queues.get(queue)).map_or(0, |queue| u64::from(queue.len));
    let mut oldest_wait_ms = queue.map_or(0, |queue| locks.oldest_wait_ms(now, queue));
    let (kind, held, deadline) = match other {
        Some((kind, mut held, deadline)) => {
            if let Held::Plain(plain) = &mut held {
                plain.find_writer(engine, now, writer);
            }
            (kind, held, deadline)
        }
        None => {
            let is_free = lock.is_none();
            let (limit, held_back_ms, grants, all) = lock.unwrap_or_default();
            let holders = grants.iter().map(|grant| holder(engine, locks, now, grant)).collect();
            let semaphore = limit > 0 || is_free && first_wants_permits(locks, queue);
            let fence = fence(locks, key, all.last_token);
            let counts = locks.history.counts(key);
            let held = Held::Lock { limit, held_back_ms, holders, all, fence, counts };
            (if semaphore { "semaphore" } else { "lock" }, held, None)
        }
    };
    if let Held::Latch(_) = held {
        waiting = waiting_for_latch(engine, now, key);
        waiters = waiting.len() as u64;
        oldest_wait_ms = waiting.iter().map(|waiting| waiting.waited_ms).max().unwrap_or(0);
        waiting.truncate(most.waiters);
    }
    let ttl_ms = deadline.map(|deadline| now.left_ms(deadline));
    let last_end = last_end(locks, now, key);
    let shown = Shown { kind, held, ttl_ms, waiting, waiters, oldest_wait_ms, last_end };
    (!shown.is_nothing()).then_some(shown)
}

fn of_entry(entry: EntryRef<'_>, now: Now, idle_s: Option<u32>) -> Held {
    match entry.value() {
        ValueRef::Boxed(Value::Latch(left)) => Held::Latch(*left),
        ValueRef::Boxed(Value::Guard(token)) => Held::Guard(*token),
        _ => Held::Plain(Plain::of(entry, now, idle_s)),
    }
}

fn first_wants_permits(locks: &Locks, queue: Option<u32>) -> bool {
    let link = queue.and_then(|queue| locks.queues.first(queue)).and_then(|link| locks.queues.link(link));
    link.and_then(|link| locks.queues.waiter(link.waiter)).is_some_and(|waiter| waiter.wanted.limit > 0)
}

/// The last token of a lock: that of its last holder, or of the last grant that is remembered.
fn fence(locks: &Locks, key: Key<'_>, held: Option<u64>) -> u64 {
    let last = || {
        locks.history.events(key).rev().find_map(|event| match event.what {
            What::Granted { token, .. } => Some(token),
            _ => None,
        })
    };
    held.or_else(last).unwrap_or(0)
}

fn holder(engine: &Engine, locks: &Locks, now: Now, grant: &Grant) -> Holder {
    let client = locks.client_of(grant);
    let session = if let Bound::Session(number) = grant.bound { locks.sessions.get(number.get()) } else { None };
    let session = session.map(|session| session.id.clone());
    // While a named session has no connection, the one that acquired the lock is the one that is known.
    let known = engine.known_client(if client == Client::default() { grant.client } else { client });
    let unseen = locks.is_unseen_grant(grant);
    let gone_ms = known.ended_ms.filter(|_| !unseen).map(|ended_ms| now.mono_ms().saturating_sub(ended_ms));
    let grant = Grant { client: client.as_user(grant.client.user), ..grant.clone() };
    Holder { grant, session, client_name: known.name, addr: known.addr, user: known.user, gone_ms, unseen }
}

fn waiting(engine: &Engine, locks: &Locks, now: Now, queue: Option<u32>, most: usize) -> Vec<Waiting> {
    let of = |waiter: u32| {
        let waiter = locks.queues.waiter(waiter)?;
        let known = engine.known_client(waiter.client);
        Some(Waiting {
            owner: locks.queues.owner(waiter.owner).map(|owner| owner.name.to_vec()).unwrap_or_default(),
            mode: waiter.wanted.mode.name(),
            permits: waiter.wanted.permits,
            waited_ms: now.mono_us().saturating_sub(waiter.since_us) / 1000,
            left_ms: waiter.deadline_ms.map(|deadline| now.left_ms(deadline)),
            client: waiter.client.id,
            addr: known.addr,
            client_name: known.name,
        })
    };
    let links = queue.into_iter().flat_map(|queue| locks.queues.links_of(queue));
    links.take(most).filter_map(|link| of(link.waiter)).collect()
}

fn waiting_for_latch(engine: &Engine, now: Now, key: Key<'_>) -> Vec<Waiting> {
    let waiters =
        engine.keyspace().changes.waits.waiters_for(key.db, key.name).filter(|waiter| waiter.wake.contains(Wake::LATCH));
    let of = |waiter: &crate::keyspace::waits::Waiter| {
        let session = engine.sessions().get(waiter.session)?;
        Some(Waiting {
            owner: Vec::new(),
            mode: "latch",
            permits: 1,
            // Its last command is the one that waits.
            waited_ms: now.mono_ms().saturating_sub(session.last_ms),
            left_ms: waiter.deadline.map(|deadline| now.left_ms(deadline)),
            client: waiter.client,
            addr: session.addr.clone(),
            client_name: session.brief_name().into(),
        })
    };
    waiters.filter_map(of).collect()
}

fn last_end(locks: &Locks, now: Now, key: Key<'_>) -> Option<LastEnd> {
    let event = locks.history.last_end(key)?;
    let token = event.what.token().unwrap_or(0);
    let (by, reason) = match event.what {
        What::Ended { reason: Reason::Broken, token } => {
            (Some(event.client.id), locks.history.breaks.of(token).map(|by| by.reason.clone()))
        }
        What::Ended { reason: Reason::Deleted, .. } => (Some(event.client.id), None),
        _ => (None, None),
    };
    let ago_ms = now.mono_ms().saturating_sub(event.at_ms);
    Some(LastEnd { event: event.what.name(), owner: event.owner.to_vec(), token, ago_ms, by, reason })
}

/// Replies with a map that describes a name.
pub(super) fn write(reply: &mut dyn Sink, now: Now, name: &[u8], shown: &Shown, extra: Extra) {
    let begin = |reply: &mut dyn Sink, fields: usize| {
        let more = match extra {
            Extra::None => 0,
            Extra::Name => 1,
            Extra::NameAndNumbers => 3,
        };
        reply.map(fields + more);
        if extra != Extra::None {
            reply.entry("name", name);
        }
        reply.entry("kind", shown.kind);
        if extra == Extra::NameAndNumbers {
            reply.entry("holding", if let Held::Lock { all, .. } = &shown.held { all.count } else { 0 });
            reply.entry("waiting", shown.waiters);
        }
    };
    let ttl = |reply: &mut dyn Sink| {
        reply.entry("ttl", shown.ttl_ms.map_or(-1, |ms| i64::try_from(ms).unwrap_or(i64::MAX)));
    };
    match &shown.held {
        Held::Lock { limit, held_back_ms, holders, all, fence, counts } => {
            let semaphore = *limit > 0;
            begin(reply, 10 + 2 * usize::from(semaphore) + usize::from(*held_back_ms > 0));
            let mode = match holders.first() {
                None => "free",
                Some(_) if semaphore => "semaphore",
                Some(holder) => holder.grant.mode.name(),
            };
            reply.entry("mode", mode);
            if semaphore {
                reply.entry("limit", u64::from(*limit));
                reply.entry("permits", all.permits);
            }
            if *held_back_ms > 0 {
                reply.entry("held-back", now.left_ms(*held_back_ms));
            }
            reply.entry("fence", *fence);
            write_holders(reply, now, shown);
            write_waiting(reply, shown);
            write_last_end(reply, shown);
            reply.entry("granted", counts.granted);
            reply.entry("contended", counts.contended);
            reply.entry("expired", counts.expired);
        }
        Held::Latch(count) => {
            begin(reply, 5);
            reply.entry("count", *count);
            ttl(reply);
            write_waiting(reply, shown);
        }
        Held::Guard(token) => {
            begin(reply, 3);
            reply.entry("token", *token);
            ttl(reply);
        }
        Held::Plain(plain) => {
            begin(reply, 7 + usize::from(plain.has_value()));
            plain.write_value(reply);
            ttl(reply);
            plain.write_writer(reply);
            write_waiting(reply, shown);
            write_last_end(reply, shown);
        }
    }
}

/// The field `holders`.
pub(super) fn write_holders(reply: &mut dyn Sink, now: Now, shown: &Shown) {
    let (holders, semaphore) = (shown.holders(), shown.is_semaphore());
    reply.bulk(b"holders");
    reply.array(holders.len());
    for Holder { grant, session, client_name, addr, user, gone_ms, .. } in holders {
        reply.map(13 + usize::from(semaphore) + usize::from(session.is_some()));
        reply.entry("owner", &grant.owner);
        reply.entry("token", grant.token);
        reply.entry("holds", u64::from(grant.holds));
        reply.entry("mode", grant.mode.name());
        if semaphore {
            reply.entry("permits", u64::from(grant.permits));
        }
        reply.entry("lease", now.left_ms(grant.end_ms));
        reply.entry("held", now.mono_ms().saturating_sub(grant.granted_ms));
        reply.entry("session", grant.bound != Bound::Lease);
        if let Some(id) = session {
            reply.entry("session-id", id);
        }
        reply.entry("client", grant.client.id);
        reply.entry("addr", &**addr);
        reply.entry("client-name", client_name);
        reply.entry("gone", *gone_ms);
        reply.entry("user", user);
        reply.entry("renewed", u64::from(grant.renewed));
    }
}

/// The fields `oldest-wait` and `waiters`.
fn write_waiting(reply: &mut dyn Sink, shown: &Shown) {
    let semaphore = shown.is_semaphore();
    reply.entry("oldest-wait", shown.oldest_wait_ms);
    reply.bulk(b"waiters");
    reply.array(shown.waiting.len());
    for waiting in &shown.waiting {
        reply.map(7 + usize::from(semaphore));
        reply.entry("owner", &waiting.owner);
        reply.entry("mode", waiting.mode);
        if semaphore {
            reply.entry("permits", u64::from(waiting.permits));
        }
        reply.entry("waited", waiting.waited_ms);
        reply.entry("left", waiting.left_ms);
        reply.entry("client", waiting.client);
        reply.entry("addr", &*waiting.addr);
        reply.entry("client-name", &waiting.client_name);
    }
}

fn write_last_end(reply: &mut dyn Sink, shown: &Shown) {
    reply.bulk(b"last-end");
    let Some(end) = &shown.last_end else {
        reply.null();
        return;
    };
    reply.map(6);
    reply.entry("event", end.event);
    reply.entry("owner", &end.owner);
    reply.entry("token", end.token);
    reply.entry("ago", end.ago_ms);
    reply.entry("by", end.by);
    reply.entry("reason", end.reason.as_ref());
}

fn info(cx: &mut Context<'_>, args: &[&[u8]], semaphore: bool) -> Result {
    if semaphore {
        // A plain key is accepted: it blocks its name, and clients may wait for permits there.
        let kind = cx.db().peek(args[1]).map(|entry| entry.type_name());
        fail_if!(kind.is_some_and(|kind| ["lock", "latch", "guard"].contains(&kind)), Error::WRONG_TYPE);
    }
    match shown(cx.engine, cx.now, cx.key(args[1]), Most::ALL) {
        Some(shown) => write(&mut *cx.reply, cx.now, args[1], &shown, Extra::None),
        None => cx.reply.null(),
    }
    Ok(())
}
