//! Native locks in the databases: how they are stored under their names, and how waiters and holders are notified.
//!
//! ```text
//!   LOCK.ACQUIRE ─▶ Keyspace::with_locks ─▶ Locks ⇄ KeyspaceKeys (entries) ─▶ change ─▶ notifications, WATCH, tracking, change log
//!                                             │
//!   expiry, DEL, FLUSHDB, a closed connection ┤
//!                                             └─▶ outcomes ─▶ serve_lock_waiters (after a command) or run_lock_timers (time)
//!                                                                └─▶ reply_to_lock_waiters ─▶ replies, `lock-lost` pushes and messages
//! ```
//!
//! A lock with a single holder is packed into its entry, and its lease is the key's deadline. A contended lock, or one with
//! several holders, has a deadline in [`Locks`]. `Engine::run_lock_timers` handles these deadlines before any later command
//! runs: no command can come between the end of a lease and the grant to the first waiter.

mod ended;
mod errors;
pub mod guard;

use std::collections::BTreeMap;

use crate::base::error::Error;
use crate::base::ids::{Key, KeyBuf, SessionId};
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::command::{Command, Flags, Natives};
use crate::engine::observe::notices::Notice;
use crate::engine::pubsub::publish_lost;
use crate::engine::session::SessionFlags;
use crate::keyspace::change::{Change, Classes, Effect, Event};
use crate::keyspace::databases::{Keyspace, Ttl};
use crate::keyspace::interests::NIL;
use crate::keyspace::natives::lock_in;
use crate::lock::grant::TOKEN_END;
use crate::lock::grant::{self, Client, Owner, Packed, Reason};
use crate::lock::history::What;
use crate::lock::{Bound, Found, Keys, Lock, Locks, Outcome};
use crate::resp::reply::{Protocol, Sink, WireReply};
use crate::store::dict::{KeyHash, Place};
use crate::store::entry::{Entry, NewValue, ValueRef};
use crate::store::values::value::Value;

pub(crate) use errors::{deadlock_error, refusal_error};

/// Maximum number of grants of a closed connection that end in one step.
pub(crate) const ENDED_AT_ONCE: u32 = 1024;

impl Event {
    /// A lock was granted.
    pub const LOCK_GRANTED: Event = Event::new(Classes::LOCK, "lock.granted");
    /// A lock was released.
    pub const LOCK_RELEASED: Event = Event::new(Classes::LOCK, "lock.released");
    /// A lease ended, or a grant ended with its connection.
    pub const LOCK_EXPIRED: Event = Event::new(Classes::LOCK, "lock.expired");
    /// An administrator broke a lock.
    pub const LOCK_BROKEN: Event = Event::new(Classes::LOCK, "lock.broken");
    /// A client began to wait for a lock.
    pub const LOCK_QUEUED: Event = Event::new(Classes::LOCK, "lock.queued");
    /// A wait for a lock timed out.
    pub const LOCK_TIMEOUT: Event = Event::new(Classes::LOCK, "lock.timeout");
    /// A wait was refused because it would have closed a cycle.
    pub const LOCK_DEADLOCK: Event = Event::new(Classes::LOCK, "lock.deadlock");
}

/// Gives [`Locks`] access to the names in the databases.
pub(crate) struct KeyspaceKeys<'a> {
    keyspace: &'a mut Keyspace,
    now: Now,
}

impl KeyspaceKeys<'_> {
    /// Finds the entry of a name and its dictionary. Removes a plain key that has expired.
    #[inline(always)]
    fn find(&mut self, key: Key<'_>) -> (usize, KeyHash, Option<Place>) {
        let dict = self.keyspace.numbers[key.db as usize] as usize;
        let (hash, found) = self.keyspace.space.locate(dict, key.name);
        let Some((place, entry)) = found else { return (dict, hash, None) };
        // With active expiry off, an expired key still blocks its name.
        if entry.is_native() || self.keyspace.keep_expired {
            return (dict, hash, Some(place));
        }
        (dict, hash, self.keyspace.db(key.db, self.now).locate(key.name).1)
    }
}

impl Keys for KeyspaceKeys<'_> {
    fn take(&mut self, key: Key<'_>, lock: &mut Lock) -> Found {
        let (dict, _, place) = self.find(key);
        let Some(place) = place else { return Found::Free };
        match self.keyspace.space.get(dict, place).value() {
            ValueRef::Grant(bytes) => {
                let Some(grant) = grant::unpack(bytes) else { return Found::Native };
                lock.holders.insert(grant);
                Found::Lock
            }
            ValueRef::Boxed(Value::Lock(_)) => {
                if let Some(Value::Lock(kept)) = self.keyspace.space.get_mut(dict, place).boxed() {
                    *lock = std::mem::take(kept);
                }
                Found::Lock
            }
            ValueRef::Boxed(Value::Latch(_) | Value::Guard(_)) => Found::Native,
            _ => Found::Plain,
        }
    }

    fn put(&mut self, key: Key<'_>, lock: &mut Lock) {
        let now = self.now;
        let (_, hash, place) = self.find(key);
        let mut db = self.keyspace.db(key.db, now);
        if lock.is_free() {
            if let Some(place) = place
                && db.keyspace.space.get(db.dict, place).is_native()
            {
                let entry = db.keyspace.space.remove(db.dict, place);
                db.emit(key.name, Event::SILENT, Effect::Delete);
                db.keyspace.space.free_later(entry);
            }
            return;
        }
        db.keyspace.has_natives = true;
        let deadline = Ttl::At(lock.deadline_ms());
        let alone = if lock.limit == 0 && lock.held_back_ms == 0 { lock.holders.only() } else { None };
        let mut packed = Packed::default();
        if alone.is_some_and(|grant| grant::pack(grant, &mut packed)) {
            db.put_at(hash, place, key.name, NewValue::Grant(packed.bytes()), deadline);
            db.emit(key.name, Event::SILENT, Effect::SetLock { lock });
            return;
        }
        let lock = std::mem::take(lock);
        if let Some(place) = place
            && let Some(Value::Lock(kept)) = db.keyspace.space.get_mut(db.dict, place).boxed()
        {
            let deadline = lock.deadline_ms();
            **kept = lock;
            db.keyspace.space.set_deadline(db.dict, place, Some(deadline));
            db.note_use(place);
        } else {
            db.put_at(hash, place, key.name, NewValue::Boxed(Box::new(Value::Lock(Box::new(lock)))), deadline);
        }
        let Keyspace { space, changes, .. } = &mut *db.keyspace;
        if changes.must_report()
            && let Some(place) = space.find(db.dict, hash, key.name)
            && let ValueRef::Boxed(Value::Lock(lock)) = space.get(db.dict, place).value()
        {
            changes.emit(Change { now, db: db.index, key: key.name, event: Event::SILENT, effect: Effect::SetLock { lock } });
        }
    }

    fn put_back(&mut self, key: Key<'_>, lock: &mut Lock) {
        let (dict, _, place) = self.find(key);
        if let Some(place) = place
            && let Some(Value::Lock(kept)) = self.keyspace.space.get_mut(dict, place).boxed()
        {
            **kept = std::mem::take(lock);
        }
    }

    fn plain_end_ms(&self, key: Key<'_>) -> Option<u64> {
        self.keyspace.end_of(key.db, key.name).filter(|&end_ms| end_ms != u64::MAX)
    }

    #[inline]
    fn happened(&mut self, key: Key<'_>, what: What) {
        let event = match what {
            What::Granted { .. } => Event::LOCK_GRANTED,
            What::Released { .. } => Event::LOCK_RELEASED,
            What::Ended { reason: Reason::Broken, .. } => Event::LOCK_BROKEN,
            What::Ended { .. } => Event::LOCK_EXPIRED,
            What::Queued => Event::LOCK_QUEUED,
            What::TimedOut => Event::LOCK_TIMEOUT,
            What::Deadlock => Event::LOCK_DEADLOCK,
            What::Reentered | What::Left | What::Refused => return,
        };
        self.keyspace.changes.publish(key.db, event, key.name);
    }
}

impl Keyspace {
    /// Sets the first token to unix milliseconds × 2,048: tokens grow across restarts, as long as the system clock does not go
    /// back. A clock that shows a far future leaves half of the tokens below 2^53.
    pub(crate) fn first_token(&mut self, now: Now) {
        if let Some(locks) = &mut self.changes.locks {
            locks.set_next_token((now.unix_ms().max(0) as u64).saturating_mul(2048).min(TOKEN_END / 2));
        }
    }

    /// Runs work on the locks. Waiters are notified of its effects when the running command has ended.
    #[inline(always)]
    pub(crate) fn with_locks<T>(&mut self, now: Now, work: impl FnOnce(&mut Locks, &mut KeyspaceKeys<'_>) -> T) -> T {
        let Some(mut locks) = self.changes.locks.take() else { unreachable!("locks are worked on by one at a time") };
        let waited_for = !locks.queues.is_empty();
        // A grant and the record of its request belong together.
        self.changes.begin();
        // A lock is looked up twice: when it is taken out and when it is put back.
        let remembered = self.space.set_place_caching(true);
        let done = work(&mut locks, &mut KeyspaceKeys { keyspace: self, now });
        self.space.set_place_caching(remembered);
        self.changes.has_follow_up |= locks.has_work() | locks.history.is_over();
        self.changes.locks_due_ms = locks.next_ms();
        let news = locks.has_news();
        let waits = !locks.queues.is_empty();
        self.changes.locks = Some(locks);
        self.changes.update_lock_waits(waited_for, waits);
        if news {
            self.changes.tell_lock_news(now);
        }
        self.changes.end();
        done
    }

    /// Handles a lock whose key has reached its deadline and was taken out: puts back what is left of it.
    #[cold]
    pub(crate) fn lock_lapsed(&mut self, now: Now, db: u32, entry: Entry) {
        let key = KeyBuf { db, name: entry.read().key().into() };
        let Some(lock) = lock_in(entry) else { return };
        self.with_locks(now, |locks, keys| {
            if let Some(mut left) = locks.key_expired(keys, now, key.as_key(), lock) {
                keys.put(key.as_key(), &mut left);
            }
        });
    }

    /// Handles a lock that was deleted and whose entry was taken out.
    #[cold]
    pub(crate) fn lock_deleted(&mut self, now: Now, db: u32, entry: Entry) {
        let key = KeyBuf { db, name: entry.read().key().into() };
        let Some(lock) = lock_in(entry) else { return };
        let by = self.changes.client;
        if let Some(locks) = &mut self.changes.locks {
            locks.deleted(now, key.as_key(), lock, by);
            self.changes.has_follow_up |= locks.has_work();
            if locks.has_news() {
                self.changes.tell_lock_news(now);
            }
        }
    }

    /// Handles the locks that were found in emptied databases.
    pub(crate) fn lose_flushed(&mut self) {
        for (deletion, entry) in self.space.take_lost() {
            let name: Box<[u8]> = entry.read().key().into();
            if let (Some(lock), Some(locks)) = (lock_in(entry), &mut self.changes.locks) {
                locks.lost_with_database(deletion, &name, lock);
                self.changes.has_follow_up |= locks.has_work();
            }
        }
    }

    /// Notifies holders of lost grants, and forgets the history of excess names; at most `budget` of both.
    #[cold]
    pub(crate) fn tell_lost(&mut self, budget: &mut u32) {
        if let Some(locks) = &mut self.changes.locks {
            locks.tell_some(budget);
            locks.history.free_some(budget);
            self.changes.has_follow_up |= locks.has_work();
        }
    }
}

impl Engine {
    /// The session's connection, as locks identify it.
    pub(crate) fn lock_client(&self, id: SessionId) -> Client {
        let session = &self.clients.sessions[id];
        Client { id: session.id, slot: id.number(), user: session.user_key }
    }

    /// As [`Engine::lock_client`] for a session that acquires a lock: its name and address are remembered when it ends.
    #[inline]
    pub(crate) fn acquiring_client(&mut self, id: SessionId) -> Client {
        let session = &mut self.clients.sessions[id];
        session.flags |= SessionFlags::ACQUIRED;
        Client { id: session.id, slot: id.number(), user: session.user_key }
    }

    /// Binds grants of an owner that has come back on this session's connection, if it is not known whether their connection lives:
    /// see [`Locks::come_back`].
    #[cold]
    pub(crate) fn rebind_unseen_grants(&mut self, now: Now, id: SessionId, (db, names): (u32, &[&[u8]]), owner: &[u8]) {
        let by = self.acquiring_client(id);
        let user = self.users.name(self.clients.sessions[id].user).unwrap_or_default().to_vec();
        self.keyspace.with_locks(now, |locks, keys| {
            names.iter().for_each(|name| locks.come_back(keys, now, Key { db, name }, owner, (by, &user)));
            locks.work(keys, now);
        });
    }

    /// Takes a session's connection for one of which nobody knows whether it lives, before the driver closes it without having seen its
    /// end: its grants do not end with it. See [`Locks::lose_sight`].
    #[cfg_attr(not(feature = "quorum"), allow(dead_code, reason = "only a leader without a majority does so"))]
    pub(crate) fn lose_sight(&mut self, now: Now, id: SessionId) {
        self.forget_lock_wait(now, id);
        let client = self.clients.sessions[id].id;
        self.keyspace.with_locks(now, |locks, _| locks.lose_sight(client));
    }

    /// Whether a session has grants that end with it.
    #[cfg_attr(not(feature = "quorum"), allow(dead_code, reason = "only a leader without a majority asks"))]
    pub(crate) fn has_session_grants(&self, id: SessionId) -> bool {
        let client = self.clients.sessions[id].id;
        self.keyspace.changes.locks.as_ref().is_some_and(|locks| {
            let named = locks.sessions.of_client(client).and_then(|number| locks.sessions.get(number));
            locks.has_bound(client) || named.is_some_and(|session| session.grants > 0)
        })
    }

    /// What ends a grant that the session acquires with `SESSION`.
    pub(crate) fn bound_of(&self, id: SessionId) -> Bound {
        let locks = self.keyspace.changes.locks.as_ref();
        locks.map_or(Bound::Connection, |locks| locks.bound_of(self.lock_client(id)))
    }

    /// Applies the configured bounds to the history of locks.
    pub(super) fn bound_lock_records(&mut self) {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let config = &self.config;
        if let Some(locks) = &mut self.keyspace.changes.locks {
            locks.long_wait_ms = u64::try_from(config.lock_slowlog_log_slower_than).ok();
            locks.stats.set_long_max(size(config.lock_slowlog_max_len));
            locks.history.set_bounds(size(config.lock_history_max_names), size(config.lock_history_max_events));
            locks.requests.set_bound(size(config.lock_requests_max));
        }
    }

    /// Blocks a session on locks, as this waiter.
    pub(crate) fn block_on_lock(&mut self, id: SessionId, waiter: u32) {
        let session = &mut self.clients.sessions[id];
        session.lock_waiter = waiter;
        session.flags |= SessionFlags::BLOCKED;
        // A plain key may hold the name that it waits for: commands must watch for that one too.
        self.keyspace.has_natives = true;
    }

    /// Settles leases and waits that have ended and that have waiters, in their order and in at most `budget` steps, before
    /// a command that might come in between. If there are more, [`Engine::run_lock_timers_of`] settles those of the command's
    /// keys.
    #[cold]
    pub(super) fn run_lock_timers(&mut self, now: Now, budget: &mut u32) {
        self.keyspace.with_locks(now, |locks, keys| locks.end_due(keys, now, budget));
        self.reply_to_lock_waiters(now);
    }

    /// Grants what has become free to waiters, and notifies them.
    #[cold]
    pub(super) fn serve_lock_waiters(&mut self, now: Now) {
        for client in std::mem::take(&mut self.clients.closed_meanwhile) {
            self.end_grants_of(now, client, ENDED_AT_ONCE);
        }
        while self.keyspace.changes.locks.as_ref().is_some_and(|locks| locks.has_work()) {
            self.keyspace.with_locks(now, |locks, keys| locks.work(keys, now));
            self.reply_to_lock_waiters(now);
        }
        self.keyspace.changes.update_locks_due();
    }

    fn reply_to_lock_waiters(&mut self, now: Now) {
        let Some(locks) = &mut self.keyspace.changes.locks else { return };
        // Of each connection that has ended: the number of its grants that ended now, and one of them.
        let mut over: BTreeMap<u64, (usize, Box<[u8]>, Owner)> = BTreeMap::new();
        for outcome in std::mem::take(&mut locks.outcomes) {
            match outcome {
                Outcome::Ended { reason: Reason::Session, client, name, owner, .. } => {
                    over.entry(client.id).or_insert((0, name, owner)).0 += 1;
                }
                Outcome::Ended { db, name, owner, token, client, waiters, .. } => {
                    let (lock, owner, of) = (&name[..], &owner[..], client.id);
                    self.notice(now, None, Notice::LeaseEnded { db, lock, owner, token, of, waiters });
                }
                Outcome::Granted { client, tokens, all, waited_ms } => self.end_lock_wait(now, client, waited_ms, |reply| {
                    if all {
                        reply.array(tokens.len());
                    }
                    tokens.iter().for_each(|&token| reply.integer(token as i64));
                }),
                Outcome::TimedOut { client, all, waited_ms } => {
                    self.end_lock_wait(now, client, waited_ms, |reply| if all { reply.null_array() } else { reply.null() })
                }
                Outcome::Refused { client, refusal, name, wanted } => {
                    let error = refusal_error(&refusal, &name, b"", wanted.limit);
                    self.diagnosis.stats.error(&error);
                    self.end_lock_wait(now, client, 0, |reply| reply.error(error.text()));
                }
                Outcome::Lost { client, name, owner, token, reason } => {
                    self.tell_lock_lost(client, &name, &owner, token, reason.name());
                }
            }
        }
        for (of, (locks, lock, owner)) in over {
            self.notice(now, None, Notice::SessionEnded { of, locks, lock: &lock, owner: &owner });
        }
    }

    /// Replies to a session whose wait for locks has ended.
    fn end_lock_wait(&mut self, now: Now, client: Client, waited_ms: u64, reply_with: impl FnOnce(&mut dyn Sink)) {
        let id = client.session();
        let Some(session) = self.clients.sessions.get_mut(id) else { return };
        session.lock_waiter = NIL;
        session.flags.remove(SessionFlags::BLOCKED);
        if !session.silenced() {
            let mut reply = WireReply::new(&mut session.out, session.protocol);
            reply_with(&mut reply);
        }
        let threshold_ms = self.config.latency_monitor_threshold;
        if threshold_ms > 0 && waited_ms >= threshold_ms {
            self.diagnosis.latency.add("lock-wait", now, waited_ms);
        }
        self.wake_up(now, id);
    }

    /// Notifies a connection that one of its grants has ended: by a push if it speaks RESP3, and by a message on its channel.
    fn tell_lock_lost(&mut self, client: Client, name: &[u8], owner: &[u8], token: u64, reason: &str) {
        publish_lost(self, client, name, token, reason);
        let Some(session) = self.clients.sessions.get_mut(client.session()) else { return };
        if session.protocol != Protocol::Resp3 {
            return;
        }
        let mut push = WireReply::new(&mut session.out, session.protocol);
        push.push(5);
        push.bulk(b"lock-lost");
        push.bulk(name);
        push.bulk(owner);
        push.integer(token as i64);
        push.bulk(reason.as_bytes());
        self.mark_pending_write(client.session());
    }

    /// Ends a session's wait for locks, for any reason except a grant.
    pub(crate) fn forget_lock_wait(&mut self, now: Now, id: SessionId) {
        let waiter = std::mem::replace(&mut self.clients.sessions[id].lock_waiter, NIL);
        if waiter != NIL {
            self.keyspace.with_locks(now, |locks, keys| locks.leave(keys, now, waiter));
        }
    }

    /// Handles a closed or reset (`RESET`) connection: ends the grants that are bound to it, and starts the grace of its named
    /// session.
    pub(crate) fn end_lock_session(&mut self, now: Now, id: SessionId, begins_anew: bool) {
        self.forget_lock_wait(now, id);
        let client = self.clients.sessions[id].id;
        let ends =
            |locks: &Locks| (locks.has_bound(client) && !locks.is_unseen(client)) || locks.sessions.of_client(client).is_some();
        if let Some(locks) = &mut self.keyspace.changes.locks
            && ends(locks)
        {
            locks.stats.session_ends_held += u64::from(locks.has_bound(client));
            if self.scripting.long_run.is_some() {
                // A script must not see a change of state while it runs.
                self.clients.closed_meanwhile.push(client);
                self.keyspace.changes.has_follow_up = true;
            } else {
                // All grants of a reset connection end at once, because it may acquire others before the rest has ended.
                self.end_grants_of(now, client, if begins_anew { u32::MAX } else { ENDED_AT_ONCE });
            }
        }
    }

    fn end_grants_of(&mut self, now: Now, client: u64, mut budget: u32) {
        self.keyspace.changes.begin();
        let all = self.keyspace.with_locks(now, |locks, keys| {
            locks.leave_session(now, client);
            let all = locks.end_bound(keys, now, client, &mut budget);
            locks.end_over(keys, now, &mut budget);
            all
        });
        self.keyspace.changes.end();
        if !all {
            self.clients.ending.push_back(client);
        }
    }

    /// Continues to end the grants of a closed connection that has more than end in one step.
    #[cold]
    pub(super) fn end_more_grants(&mut self, now: Now) {
        if let Some(client) = self.clients.ending.pop_front() {
            self.end_grants_of(now, client, ENDED_AT_ONCE);
            self.reply_to_lock_waiters(now);
        }
    }

    /// Ends a session's wait for locks with an error, or as if it timed out. Returns false if the session does not wait for
    /// locks.
    pub(crate) fn unblock_from_locks(&mut self, now: Now, id: SessionId, error: Option<&Error>) -> bool {
        let waiter = self.clients.sessions[id].lock_waiter;
        if waiter == NIL {
            return false;
        }
        let all = self.keyspace.changes.locks.as_ref().and_then(|locks| locks.queues.waiter(waiter)).is_some_and(|w| w.all);
        let client = self.lock_client(id);
        self.forget_lock_wait(now, id);
        if let Some(error) = error {
            self.diagnosis.stats.error(error);
        }
        self.end_lock_wait(now, client, 0, |reply| match error {
            Some(error) => reply.error(error.text()),
            None if all => reply.null_array(),
            None => reply.null(),
        });
        true
    }

    /// Settles, before their turn, the ended leases that a command would notice: it must not come between the end of a lease and
    /// the grant to the first waiter. Lock commands do that themselves.
    #[cold]
    pub(super) fn run_lock_timers_of(&mut self, now: Now, db: u32, command: &'static Command, args: &[&[u8]]) {
        self.keyspace.leases_overdue = now.reached(self.keyspace.changes.locks_due_ms);
        if !self.keyspace.leases_overdue || self.keyspace.keep_expired {
            return;
        }
        let mut names = command.key_positions(args).into_iter().flatten().map(|key| args[key.position]).peekable();
        if names.peek().is_none() && command.flags.intersects(Flags::WRITE.union(Flags::READONLY)) {
            self.keyspace.with_locks(now, |locks, keys| locks.end_due(keys, now, &mut { u32::MAX }));
        } else if command.natives != Natives::Own {
            self.keyspace.with_locks(now, |locks, keys| {
                for name in names {
                    locks.look(keys, now, Key { db, name }, |_| ());
                    locks.work(keys, now);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests;
