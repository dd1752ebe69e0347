//! Leaks: locks that are still held at the end of a test.

use std::collections::BTreeMap;
use std::fmt;

use crate::base::glob;
use crate::base::time::Now;
use crate::engine::Engine;
use crate::engine::users::sight::Sight;
use crate::keyspace::databases::ended;
use crate::keyspace::lru::idle_seconds;
use crate::keyspace::natives::lock_of;
use crate::lock::Client;
use crate::store::entry::{EntryRef, ValueRef};
use crate::store::values::hash::digits;
use crate::store::values::value::Value;

/// Words in a key's name that mark it as a lock.
const WORDS: [&[u8]; 9] = [b"lock", b"locks", b"rlock", b"lease", b"mutex", b"redlock", b"rwlock", b"semaphore", b"spinlock"];

/// Maximum number of bytes of a value shown as its holder.
const SHOWN_MAX: usize = 200;

/// A held lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leak {
    /// Index of its database.
    pub db: u32,
    /// Its name.
    pub name: Vec<u8>,
    /// Its type, as `TYPE` names it.
    pub kind: &'static str,
    /// The owner that holds it; for a plain key, its string, or the fields of its hash: what a client stores to recognize its own
    /// lock. `None` for keys of other types.
    pub holder: Option<Vec<u8>>,
    /// The fencing token; `None` for plain keys.
    pub token: Option<u64>,
    /// Milliseconds since the grant; `None` for plain keys.
    pub age_ms: Option<u64>,
    /// Whole seconds since a plain key was last used; `None` for locks, and under LFU, which counts uses instead.
    pub unused_s: Option<u32>,
    /// Milliseconds until it ends by itself, if it does.
    pub ttl_ms: Option<u64>,
    /// The connection that acquired it or, of a plain key, wrote it last; `None` if that is not known.
    pub client: Option<LeakClient>,
}

/// The connection that acquired or wrote a leaked lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeakClient {
    /// Its client id (`CLIENT ID`).
    pub id: u64,
    /// Its address and name; `None` if it is closed and forgotten.
    pub peer: Option<(String, Vec<u8>)>,
    /// Milliseconds since it was closed; `None` while it is connected, and if it is forgotten.
    pub gone_ms: Option<u64>,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.name.escape_ascii(), self.kind)?;
        if self.db != 0 {
            write!(f, " in database {}", self.db)?;
        }
        f.write_str(")")?;
        if let Some(holder) = &self.holder {
            write!(f, " held by '{}'", holder.escape_ascii())?;
        }
        if let Some(age_ms) = self.age_ms {
            write!(f, " for {age_ms} ms")?;
        }
        if let Some(token) = self.token {
            write!(f, ", token {token}")?;
        }
        if let Some(unused_s) = self.unused_s {
            write!(f, ", last used {unused_s} s ago")?;
        }
        match self.ttl_ms {
            Some(ttl_ms) => write!(f, ", ends in {ttl_ms} ms")?,
            None => f.write_str(", never ends by itself")?,
        }
        let Some(LeakClient { id, peer, gone_ms }) = &self.client else { return Ok(()) };
        write!(f, ", {}by client {id}", if self.token.is_none() { "last written " } else { "" })?;
        let Some((addr, name)) = peer else { return f.write_str(", which is closed") };
        write!(f, " at {addr}")?;
        if !name.is_empty() {
            write!(f, ", '{}'", name.escape_ascii())?;
        }
        if let Some(gone_ms) = gone_ms { write!(f, ", which closed {gone_ms} ms ago") } else { Ok(()) }
    }
}

/// Whether a word of the name marks it as a lock: `lock:order:7`, `job-7.mutex`, `orderLock`, but not `block:7` or `unlocked`.
pub fn looks_like_a_lock(name: &[u8]) -> bool {
    let mut words: Vec<Vec<u8>> = vec![Vec::new()];
    let mut before = b' ';
    for &byte in name {
        let begins = byte.is_ascii_uppercase() && before.is_ascii_lowercase();
        if begins || byte.is_ascii_digit() != before.is_ascii_digit() || !byte.is_ascii_alphanumeric() {
            words.push(Vec::new());
        }
        if let (true, Some(word)) = (byte.is_ascii_alphanumeric(), words.last_mut()) {
            word.push(byte.to_ascii_lowercase());
        }
        before = byte;
    }
    words.iter().any(|word| WORDS.contains(&&word[..]))
}

/// The search for leaks, which may go on in steps. Of keys that come or go meanwhile it may or may not find those that are locks.
pub(crate) struct Search {
    patterns: Vec<Vec<u8>>,
    sight: Sight,
    /// Maximum number of leaks that are kept: the first in the order of the reply.
    most: usize,
    /// The database and the cursor where it is.
    db: u32,
    cursor: u64,
    /// Number of keys that it may still visit.
    keys_left: usize,
    /// By database, name and token.
    found: BTreeMap<(u32, Vec<u8>, Option<u64>), Leak>,
    /// The clients that may have written plain keys, by the last 32 bits of their numbers, which is all that keys tell.
    writers: Option<BTreeMap<u32, Client>>,
}

impl Search {
    /// A search among the keys that are seen, which visits about so many of them at most and keeps so many leaks.
    pub(crate) fn new(patterns: Vec<Vec<u8>>, sight: Sight, keys_max: usize, most: usize) -> Search {
        Search { patterns, sight, most, db: 0, cursor: 0, keys_left: keys_max, found: BTreeMap::new(), writers: None }
    }

    /// Number of leaks found that were not returned by [`Search::next`].
    pub(crate) fn len(&self) -> usize {
        self.found.len()
    }

    /// Visits about so many keys more. Returns whether it has visited all.
    pub(crate) fn go_on(&mut self, engine: &Engine, now: Now, count: usize) -> bool {
        let cost: usize = self.patterns.iter().map(|pattern| glob::cost(pattern)).sum();
        let mut count = (count / cost.max(1)).max(1);
        while let Some(&dict) = engine.keyspace.numbers.get(self.db as usize).filter(|_| self.keys_left > 0) {
            if count == 0 {
                return false;
            }
            let mut visited = 0;
            let mut found = Vec::new();
            self.cursor =
                engine.keyspace.space.dict(dict as usize).scan(self.cursor, count.min(self.keys_left).min(100), |entry| {
                    visited += 1;
                    if !ended(entry, now) && self.sight.sees(entry.key()) {
                        engine.find_leaks(now, self.db, entry, &self.patterns, &mut found);
                    }
                });
            for leak in found {
                self.found.insert((leak.db, leak.name.clone(), leak.token), leak);
                if self.found.len() > self.most {
                    self.found.pop_last();
                }
            }
            // Empty databases cost something, too.
            count = count.saturating_sub(visited.max(1));
            self.keys_left = self.keys_left.saturating_sub(visited);
            if self.cursor == 0 {
                self.db += 1;
            }
        }
        true
    }

    /// The next leak, in the order of databases, names and tokens.
    pub(crate) fn next(&mut self, engine: &Engine, now: Now) -> Option<Leak> {
        let (_, mut leak) = self.found.pop_first()?;
        if let Some(writer) = leak.client.as_mut().filter(|_| leak.token.is_none()) {
            let writers = self.writers.get_or_insert_with(|| engine.writers());
            if let Some(client) = writers.get(&(writer.id as u32)) {
                *writer = engine.leak_client(now, *client);
            }
        }
        Some(leak)
    }
}

/// The part of a text that is shown.
fn cut(text: &[u8]) -> &[u8] {
    &text[..text.len().min(SHOWN_MAX)]
}

impl Engine {
    /// All held native locks and semaphores, with each of their holders, and all plain keys that are locks: those whose names
    /// match one of the patterns or, without patterns, look like locks. Ordered by name. Visits all keys.
    pub fn leaks(&self, now: Now, patterns: &[Vec<u8>]) -> Vec<Leak> {
        let mut search = Search::new(patterns.to_vec(), Sight::ALL, usize::MAX, usize::MAX);
        while !search.go_on(self, now, usize::MAX) {}
        std::iter::from_fn(|| search.next(self, now)).collect()
    }

    fn find_leaks(&self, now: Now, db: u32, entry: EntryRef<'_>, patterns: &[Vec<u8>], leaks: &mut Vec<Leak>) {
        let name = entry.key();
        if let Some(lock) = lock_of(entry) {
            let held = lock.holders.iter().filter(|grant| !now.reached(grant.end_ms));
            leaks.extend(held.map(|grant| Leak {
                db,
                name: name.to_vec(),
                kind: lock.type_name(),
                holder: Some(grant.owner.to_vec()),
                token: Some(grant.token),
                age_ms: Some(now.mono_ms().saturating_sub(grant.granted_ms)),
                unused_s: None,
                ttl_ms: Some(now.left_ms(grant.end_ms)),
                client: Some(self.leak_client(now, grant.client)),
            }));
            return;
        }
        let is_lock = match patterns {
            [] => looks_like_a_lock(name),
            patterns => patterns.iter().any(|pattern| glob::matches(pattern, name, false)),
        };
        if !is_lock || entry.is_native() {
            return;
        }
        let (kind, holder) = match entry.value() {
            ValueRef::Boxed(Value::Hash(hash)) => {
                let fields = hash.iter().take(SHOWN_MAX).filter(|field| !field.is_expired(now.ended_ms()));
                let mut text = Vec::new();
                for field in fields {
                    if text.len() >= SHOWN_MAX {
                        break;
                    }
                    text.extend_from_slice(if text.is_empty() { b"" } else { b", " });
                    [cut(field.name), b"=", cut(field.value)].iter().for_each(|part| text.extend_from_slice(part));
                }
                ("hash", Some(cut(&text).to_vec()))
            }
            ValueRef::Count { field, count } => ("hash", Some(cut(&[cut(field), b"=", digits(count)].concat()).to_vec())),
            ValueRef::Boxed(Value::Bytes(bytes)) => ("string", Some(cut(bytes).to_vec())),
            ValueRef::Boxed(value) => (value.type_name(), None),
            ValueRef::Bytes(bytes) | ValueRef::Grant(bytes) => ("string", Some(cut(bytes).to_vec())),
        };
        let unused_s = (!self.keyspace.lru.counted).then(|| idle_seconds(entry, now.second()));
        let ttl_ms = entry.deadline().map(|deadline| now.left_ms(deadline));
        let writer = self.keyspace.space.writer_of(entry);
        let client = writer.map(|number| LeakClient { id: number.into(), peer: None, gone_ms: None });
        leaks.push(Leak { db, name: name.to_vec(), kind, holder, token: None, age_ms: None, unused_s, ttl_ms, client });
    }

    /// The clients that may have written a key, by the last 32 bits of their numbers.
    fn writers(&self) -> BTreeMap<u32, Client> {
        let ended = self.clients.ended.ids().map(|id| (id as u32, Client { id, slot: u32::MAX, ..Client::default() }));
        let connected = self
            .clients
            .sessions
            .iter()
            .map(|(id, session)| (session.id as u32, Client { id: session.id, slot: id.number(), ..Client::default() }));
        ended.chain(connected).collect()
    }

    fn leak_client(&self, now: Now, client: Client) -> LeakClient {
        let known = self.known_client(client);
        let is_connected = self.clients.sessions.contains(client.session());
        let peer = (is_connected || known.ended_ms.is_some()).then(|| (known.addr.to_string(), known.name.to_vec()));
        let gone_ms = known.ended_ms.map(|ended_ms| now.mono_ms().saturating_sub(ended_ms));
        LeakClient { id: client.id, peer, gone_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::harness::Harness;

    #[test]
    fn names_say_what_they_are() {
        for name in [
            "lock",
            "lock:order:7",
            "order:7:lock",
            "job-7.mutex",
            "orderLock",
            "{a}:Semaphore",
            "LOCK_7",
            "lock7",
            "my rwlock",
            "locks/a",
        ] {
            assert!(looks_like_a_lock(name.as_bytes()), "{name}");
        }
        for name in ["", "block:7", "clock", "unlocked", "user:lockheed", "lockers", "mutexes", "released", "\u{00ff}"] {
            assert!(!looks_like_a_lock(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn what_is_held_is_found_and_what_is_over_is_not() {
        let mut h = Harness::new();
        for request in [
            "LOCK.ACQUIRE door ann 1000",
            "LOCK.ACQUIRE shared a 500 SHARED",
            "LOCK.ACQUIRE shared b 2000 SHARED",
            "SEM.ACQUIRE pool x 1000 LIMIT 3 PERMITS 2",
            "LATCH.SET latch 2",
            "LOCK.GUARD lock:guard 5",
            "SET lock:a me PX 700",
            "HSET b:lock uuid:1 2",
            "RPUSH mutex x",
            "SET block x",
            "LOCK.ACQUIRE brief x 100",
        ] {
            assert!(!h.run(request).starts_with('-'), "{request}");
        }
        h.pass(600);
        let shown = |h: &Harness, patterns: &[Vec<u8>]| -> Vec<String> {
            let leaks = h.engine.leaks(h.now, patterns);
            let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            let line = |leak: Leak| {
                let holder = leak.holder.map(text).unwrap_or_default();
                format!("{} {} {holder} {:?} {:?}", text(leak.name), leak.kind, leak.age_ms, leak.ttl_ms)
            };
            leaks.into_iter().map(line).collect()
        };
        let native =
            ["door lock ann Some(600) Some(400)", "pool semaphore x Some(600) Some(400)", "shared lock b Some(600) Some(1400)"];
        let plain = ["b:lock hash uuid:1=2 None None", "lock:a string me None Some(100)", "mutex list  None None"];
        let mut all = [native, plain].concat();
        all.sort_unstable();
        assert_eq!(shown(&h, &[]), all);
        let mut some = [&native[..], &["block string x None None"]].concat();
        some.sort_unstable();
        assert_eq!(shown(&h, &[b"blo*".to_vec()]), some);
        let leak = h.engine.leaks(h.now, &[]).into_iter().find(|leak| leak.name == b"door").unwrap();
        let client = leak.client.unwrap();
        assert_eq!(client.peer, Some((String::new(), Vec::new())));
        h.run("CLIENT SETNAME worker");
        h.engine.disconnect(h.now, h.session);
        h.now.advance_us(20_000);
        let gone = LeakClient { id: client.id, peer: Some((String::new(), b"worker".to_vec())), gone_ms: Some(20) };
        let leak = h.engine.leaks(h.now, &[]).swap_remove(1);
        assert_eq!(leak.client, Some(gone));
        assert!(leak.to_string().ends_with(", 'worker', which closed 20 ms ago"), "{leak}");
        assert!(Search::new(Vec::new(), Sight::ALL, 0, 9).go_on(&h.engine, h.now, 1));
        // Of more leaks than are kept, the first ones are.
        let mut search = Search::new(Vec::new(), Sight::ALL, 100, 2);
        let mut steps = 1;
        while !search.go_on(&h.engine, h.now, 2) {
            steps += 1;
        }
        let names: Vec<_> = std::iter::from_fn(|| search.next(&h.engine, h.now)).map(|leak| leak.name).collect();
        assert!(names == [&b"b:lock"[..], b"door"] && steps > 2, "{names:?} in {steps}");

        // A plain key tells who wrote it.
        let mut h = Harness::new();
        h.run("CLIENT SETNAME cart");
        h.run("SET lock:cart me NX");
        h.run("SET lock:plain me");
        h.engine.disconnect(h.now, h.session);
        h.now.advance_us(20_000);
        let leaks = h.engine.leaks(h.now, &[]);
        let ends: Vec<String> = leaks.iter().map(ToString::to_string).collect();
        assert!(
            ends[0].ends_with(", 'cart', which closed 20 ms ago") && ends[0].contains(", last written by client "),
            "{ends:?}"
        );
        assert!(ends[1].ends_with(", never ends by itself"), "{ends:?}");
    }
}
