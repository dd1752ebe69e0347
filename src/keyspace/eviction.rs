//! Which keys give way when memory is used up.
//!
//! As in Redis, the key that was used longest ago, or least often, or that ends next, is looked for among samples: some keys from a random
//! place of each database, and the best of those seen before. Keys that a `volatile` policy must leave alone are never considered, nor
//! are locks, semaphores, latches and guards under any policy: what is held is not a cache.
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

/// Candidates that are remembered.
const POOL_MAX: usize = 16;
/// Nodes of the wheel, or keys, that are looked at for one key that may go.
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

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// What was used longest ago.
    Lru,
    /// What is used least often.
    Lfu,
    /// What ends next.
    Ttl,
    /// Anybody.
    Random,
}

/// A value of `maxmemory-policy` that has keys give way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Only keys with a deadline.
    pub volatile: bool,
    /// Which of them.
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

/// A key that may be the next to go.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// The higher, the sooner it goes.
    score: u64,
    dict: usize,
    hash: KeyHash,
}

/// Chooses keys.
#[derive(Debug, Default)]
pub struct Evictor {
    /// How; `None` where no key ever gives way.
    pub policy: Option<Policy>,
    /// Keys that are looked at for each that goes.
    pub samples: usize,
    /// The best that were seen, in the order of their scores.
    pool: Vec<Candidate>,
    /// The dictionary after the one from which a random key went last.
    next: usize,
    /// Where to look on in the wheel after nothing was found there.
    sweep: Option<u64>,
}

/// What came of trying to evict a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evicted {
    /// One went, and with it so many bytes of memory, if they were asked for.
    Key(usize),
    /// None was met this time.
    NotFound,
    /// There is none that may go.
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

    /// Forgets what was seen.
    pub(crate) fn forget(&mut self) {
        self.pool.clear();
    }
}

/// How soon a key is to go.
fn score(entry: EntryRef<'_>, order: Order, now: Now, rules: Rules) -> u64 {
    match order {
        Order::Lru => u64::from(idle_seconds(entry, now.second())),
        Order::Lfu => u64::from(u8::MAX - frequency::counter(entry.access(), now.minute(), rules)),
        Order::Ttl => u64::MAX - entry.deadline().unwrap_or(u64::MAX),
        Order::Random => 0,
    }
}

impl Keyspace {
    /// Has one key give way, chosen by the policy. With `weigh`, its bytes are counted, which takes longer the more it holds.
    pub(crate) fn evict_one(&mut self, now: Now, weigh: bool) -> Evicted {
        let Some(policy) = self.evictor.policy else { return Evicted::Nothing };
        if (0..self.space.dicts()).all(|dict| self.space.plain(dict, policy.volatile) == 0) {
            self.evictor.forget();
            return Evicted::Nothing;
        }
        let found = match policy.order {
            Order::Random => self.random_key(policy),
            _ => self.best_key(policy, now),
        };
        let Some((dict, place)) = found else { return Evicted::NotFound };
        let entry = self.space.get(dict, place);
        assert!(!entry.is_native(), "what is held does not give way");
        let bytes = if weigh { bytes_of(entry) } else { 0 };
        let ended = entry.deadline().is_some_and(|deadline| now.reached(deadline));
        let event = if ended { Event::EXPIRED } else { Event::EVICTED };
        *(if ended { &mut self.stats.expired } else { &mut self.stats.evicted }) += 1;
        let index = self.index_of(dict);
        // No client has deleted it.
        self.changes.client = Default::default();
        if ended {
            self.changes.expired(index, self.space.get(dict, place).key());
        }
        self.db(index, now).drop_key(place, event);
        Evicted::Key(bytes)
    }

    /// Any key that may go. Databases take turns, unless only keys with deadlines may.
    fn random_key(&mut self, policy: Policy) -> Option<(usize, Place)> {
        if policy.volatile {
            return self.sample_volatile().map(|(dict, _, place)| (dict, place));
        }
        let dicts = self.space.dicts();
        let next = self.evictor.next;
        let dict = (0..dicts).map(|turn| (next + turn) % dicts).find(|&dict| self.space.plain(dict, false) > 0)?;
        self.evictor.next = dict + 1;
        let random = self.uses.random();
        let (space, mut hash) = (&self.space, None);
        space.dict(dict).sample(random, self.keys_for(dict, 1), |entry| {
            if hash.is_none() && !entry.is_native() {
                hash = Some(space.hash(entry.key()));
            }
        });
        Some((dict, space.dict(dict).find_hash(hash?)?))
    }

    /// How many keys of a dictionary to look at for so many that may go: more, where most are native.
    fn keys_for(&self, dict: usize, wanted: usize) -> usize {
        let (all, plain) = (self.space.dict(dict).len(), self.space.plain(dict, false).max(1));
        wanted.saturating_mul(all / plain).clamp(wanted, wanted.max(SAMPLE_STEPS as usize))
    }

    /// A plain key with a deadline.
    fn sample_volatile(&mut self) -> Option<(usize, KeyHash, Place)> {
        let from = match self.evictor.sweep.take() {
            Some(from) => from,
            // Far from the end of the numbers, so that looking on from there does not wrap.
            None => self.uses.random() >> 8,
        };
        let found = self.space.sample_volatile(from, SAMPLE_STEPS);
        if found.is_none() {
            self.evictor.sweep = Some(from + u64::from(SAMPLE_STEPS));
        }
        found
    }

    fn best_key(&mut self, policy: Policy, now: Now) -> Option<(usize, Place)> {
        let (rules, samples) = (self.uses.rules, self.evictor.samples.max(1));
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
                let (random, count) = (self.uses.random(), self.keys_for(dict, samples));
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
            // It may have lost its deadline since it was seen, or have been used.
            let may_go = !policy.volatile || entry.deadline().is_some();
            if !entry.is_native() && may_go && score(entry, policy.order, now, rules) >= candidate.score {
                return Some((candidate.dict, place));
            }
        }
        None
    }

    /// Bytes of all keys and values and of the tables that find them. Walks everything.
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
