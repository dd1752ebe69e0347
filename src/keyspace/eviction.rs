//! Eviction: which keys are removed when memory is used up.
//!
//! As in Redis, the least recently used key, the least often used one, or the one that expires next is approximated by sampling:
//! some keys from a random place of each database, and the best of earlier samples. Keys that a `volatile` policy must spare are
//! never considered, nor are locks, semaphores, latches and guards under any policy: what is held is not a cache.
//!
//! ```text
//!   wheel (volatile) or tables (all keys) ─ samples ─▶ pool of the best 16 ─ still there, not used since? ─▶ gone, event `evicted`
//! ```

use crate::base::time::Now;
use crate::keyspace::change::Event;
use crate::keyspace::databases::Keyspace;
use crate::keyspace::lru::idle_seconds;
use crate::store::dict::{KeyHash, Place};
use crate::store::entry::{EntryRef, ValueRef};
use crate::store::frequency::{self, Rules};

/// Maximum number of candidates.
const POOL_MAX: usize = 16;
/// Maximum number of wheel nodes, or of keys, that are examined for one evictable key.
const SAMPLE_STEPS: u32 = 64;
/// Bytes of a key's slot in its table.
const SLOT_BYTES: usize = 8;

/// The values of `maxmemory-policy`, in the order in which Redis lists them.
pub const POLICY_NAMES: [&str; 8] = [
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "noeviction",
];

/// Which keys are evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The least recently used.
    Lru,
    /// The least frequently used.
    Lfu,
    /// The one that expires next.
    Ttl,
    /// A random one.
    Random,
}

/// A value of `maxmemory-policy` that evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether only keys with a deadline are evicted.
    pub volatile: bool,
    /// The order of eviction.
    pub order: Order,
}

impl Policy {
    /// The policy of this name; `None` for `noeviction`.
    pub fn named(name: &str) -> Option<Policy> {
        let (scope, order) = name.split_once('-')?;
        let order = match order {
            "lru" => Order::Lru,
            "lfu" => Order::Lfu,
            "ttl" => Order::Ttl,
            _ => Order::Random,
        };
        Some(Policy { volatile: scope == "volatile", order })
    }
}

/// A candidate for eviction.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// The highest score is evicted first.
    score: u64,
    dict: usize,
    hash: KeyHash,
}

/// Chooses keys to evict.
#[derive(Debug, Default)]
pub struct Evictor {
    /// The policy; `None` evicts no key.
    pub policy: Option<Policy>,
    /// Number of keys that are sampled for each evicted key.
    pub samples: usize,
    /// The best candidates so far, in the order of their scores.
    pool: Vec<Candidate>,
    /// The dictionary after the one that the last random key came from.
    next: usize,
    /// Where the search in the wheel continues after an unsuccessful one.
    sweep: Option<u64>,
}

/// Result of an attempt to evict a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evicted {
    /// A key was evicted. Its size in bytes, if that was asked for.
    Key(usize),
    /// No key was found this time.
    NotFound,
    /// There is no evictable key.
    Nothing,
}

impl Evictor {
    fn offer(&mut self, candidate: Candidate) {
        if self
            .pool
            .iter()
            .any(|held| held.dict == candidate.dict && held.hash == candidate.hash && held.score >= candidate.score)
        {
            return;
        }
        if self.pool.len() == POOL_MAX {
            if self.pool[0].score >= candidate.score {
                return;
            }
            self.pool.remove(0);
        }
        let at = self.pool.partition_point(|held| held.score <= candidate.score);
        self.pool.insert(at, candidate);
    }

    /// Forgets all candidates.
    pub(crate) fn forget(&mut self) {
        self.pool.clear();
    }
}

/// The score of a key for eviction.
fn score(entry: EntryRef<'_>, order: Order, now: Now, rules: Rules) -> u64 {
    match order {
        Order::Lru => u64::from(idle_seconds(entry, now.second())),
        Order::Lfu => u64::from(u8::MAX - frequency::counter(entry.access(), now.minute(), rules)),
        Order::Ttl => u64::MAX - entry.deadline().unwrap_or(u64::MAX),
        Order::Random => 0,
    }
}

impl Keyspace {
    /// Evicts one key, chosen by the policy. With `weigh`, its bytes are counted, which takes time in proportion to its size.
    pub(crate) fn evict_one(&mut self, now: Now, weigh: bool) -> Evicted {
        let Some(policy) = self.evictor.policy else { return Evicted::Nothing };
        if (0..self.space.dicts()).all(|dict| self.space.plain(dict, policy.volatile) == 0) {
            self.evictor.forget();
            return Evicted::Nothing;
        }
        let found = if let Order::Random = policy.order { self.random_key(policy) } else { self.best_key(policy, now) };
        let Some((dict, place)) = found else { return Evicted::NotFound };
        let entry = self.space.get(dict, place);
        assert!(!entry.is_native(), "what is held does not give way");
        let bytes = if weigh { bytes_of(entry) } else { 0 };
        let ended = entry.deadline().is_some_and(|deadline| now.reached(deadline));
        let event = if ended { Event::EXPIRED } else { Event::EVICTED };
        *(if ended { &mut self.stats.expired } else { &mut self.stats.evicted }) += 1;
        let index = self.index_of(dict);
        // No client is responsible for the deletion.
        self.changes.client = Default::default();
        if ended {
            self.changes.expired(index, self.space.get(dict, place).key());
        }
        self.db(index, now).drop_key(place, event);
        Evicted::Key(bytes)
    }

    /// A random evictable key. Databases take turns, unless only keys with deadlines are evictable.
    fn random_key(&mut self, policy: Policy) -> Option<(usize, Place)> {
        if policy.volatile {
            return self.sample_volatile().map(|(dict, _, place)| (dict, place));
        }
        let dicts = self.space.dicts();
        let next = self.evictor.next;
        let dict = (0..dicts).map(|turn| (next + turn) % dicts).find(|&dict| self.space.plain(dict, false) > 0)?;
        self.evictor.next = dict + 1;
        let random = self.lru.random();
        let (space, mut hash) = (&self.space, None);
        space.dict(dict).sample(random, self.keys_for(dict, 1), |entry| {
            if hash.is_none() && !entry.is_native() {
                hash = Some(space.hash(entry.key()));
            }
        });
        Some((dict, space.dict(dict).find_hash(hash?)?))
    }

    /// How many keys of a dictionary to sample for `wanted` evictable ones: more if most are native.
    fn keys_for(&self, dict: usize, wanted: usize) -> usize {
        let (all, plain) = (self.space.dict(dict).len(), self.space.plain(dict, false).max(1));
        wanted.saturating_mul(all / plain).clamp(wanted, wanted.max(SAMPLE_STEPS as usize))
    }

    /// A plain key with a deadline.
    fn sample_volatile(&mut self) -> Option<(usize, KeyHash, Place)> {
        let from = match self.evictor.sweep.take() {
            Some(from) => from,
            // Far from the largest number, so that continuing from there does not wrap.
            None => self.lru.random() >> 8,
        };
        let found = self.space.sample_volatile(from, SAMPLE_STEPS);
        if found.is_none() {
            self.evictor.sweep = Some(from + u64::from(SAMPLE_STEPS));
        }
        found
    }

    fn best_key(&mut self, policy: Policy, now: Now) -> Option<(usize, Place)> {
        let (rules, samples) = (self.lru.rules, self.evictor.samples.max(1));
        if policy.volatile {
            for _ in 0..samples {
                let Some((dict, hash, place)) = self.sample_volatile() else { continue };
                let score = score(self.space.get(dict, place), policy.order, now, rules);
                self.evictor.offer(Candidate { score, dict, hash });
            }
        } else {
            for dict in 0..self.space.dicts() {
                if self.space.plain(dict, false) == 0 {
                    continue;
                }
                let (random, count) = (self.lru.random(), self.keys_for(dict, samples));
                let Keyspace { space, evictor, .. } = self;
                space.dict(dict).sample(random, count, |entry| {
                    if entry.is_native() {
                        return;
                    }
                    let hash = space.hash(entry.key());
                    evictor.offer(Candidate { score: score(entry, policy.order, now, rules), dict, hash });
                });
            }
        }
        while let Some(candidate) = self.evictor.pool.pop() {
            let Some(place) = self.space.dict(candidate.dict).find_hash(candidate.hash) else { continue };
            let entry = self.space.get(candidate.dict, place);
            // It may have lost its deadline or been used since it was sampled.
            let may_go = !policy.volatile || entry.deadline().is_some();
            if !entry.is_native() && may_go && score(entry, policy.order, now, rules) >= candidate.score {
                return Some((candidate.dict, place));
            }
        }
        None
    }

    /// Bytes of all keys, values and hash tables. Walks everything.
    pub(crate) fn bytes(&self) -> usize {
        let entries = |dict| self.space.dict(dict).iter().map(|entry| bytes_of(entry) - SLOT_BYTES).sum::<usize>();
        self.table_bytes() + (0..self.space.dicts()).map(entries).sum::<usize>()
    }
}

fn bytes_of(entry: EntryRef<'_>) -> usize {
    let boxed = match entry.value() {
        ValueRef::Boxed(value) => value.allocated(),
        ValueRef::Bytes(_) | ValueRef::Grant(_) | ValueRef::Count { .. } => 0,
    };
    SLOT_BYTES + entry.allocated() + boxed
}
