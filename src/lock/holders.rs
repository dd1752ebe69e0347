//! The holders of a lock: usually one owner, and up to thousands that share it or have permits of a semaphore.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use crate::lock::grant::{Grant, Owner};
use crate::lock::grant::{Mode, TOKEN_END};

/// Maximum number of holders that are searched linearly.
const FEW: usize = 16;

/// The grants of a lock, each of a different owner.
#[derive(Clone, Debug)]
pub enum Holders {
    /// A few, in the order of their tokens.
    Few(SmallVec<[Grant; 1]>),
    /// More of them.
    Many(Box<Many>),
}

/// The place of a holder, valid until a holder is removed or added.
#[derive(Clone, Copy, Debug)]
pub enum Holder {
    /// The one at this index.
    Nth(usize),
    /// The one with this token.
    Token(u64),
}

/// Grants indexed by owner and by the end of the lease.
#[derive(Clone, Debug, Default)]
pub struct Many {
    grants: BTreeMap<u64, Grant>,
    owners: BTreeMap<Owner, u64>,
    ends: BTreeSet<(u64, u64)>,
    permits: u64,
}

impl Default for Holders {
    fn default() -> Self {
        Holders::Few(SmallVec::new())
    }
}

impl Holders {
    /// Number of holders.
    pub fn len(&self) -> usize {
        match self {
            Holders::Few(few) => few.len(),
            Holders::Many(many) => many.grants.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them in the order of their tokens.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Grant> {
        let (few, many) = match self {
            Holders::Few(few) => (Some(few.iter()), None),
            Holders::Many(many) => (None, Some(many.grants.values())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    /// The place of an owner's grant.
    #[inline]
    pub fn find(&self, owner: &[u8]) -> Option<Holder> {
        match self {
            Holders::Few(few) => few.iter().position(|grant| grant.owner[..] == *owner).map(Holder::Nth),
            Holders::Many(many) => many.owners.get(owner).copied().map(Holder::Token),
        }
    }

    /// An owner's grant.
    #[inline(always)]
    pub fn get(&self, owner: &[u8]) -> Option<&Grant> {
        match self {
            Holders::Few(few) => few.iter().find(|grant| grant.owner[..] == *owner),
            Holders::Many(many) => many.grants.get(many.owners.get(owner)?),
        }
    }

    /// The grant with a token.
    pub fn with_token(&self, token: u64) -> Option<&Grant> {
        match self {
            Holders::Few(few) => few.iter().find(|grant| grant.token == token),
            Holders::Many(many) => many.grants.get(&token),
        }
    }

    /// The grant of the only holder.
    pub fn only(&self) -> Option<&Grant> {
        match self {
            Holders::Few(few) => {
                if let [grant] = &few[..] {
                    Some(grant)
                } else {
                    None
                }
            }
            Holders::Many(many) if many.grants.len() == 1 => many.grants.values().next(),
            Holders::Many(_) => None,
        }
    }

    /// Number of permits that are out; each holder of a lock counts as one.
    pub fn permits(&self) -> u64 {
        match self {
            Holders::Few(few) => few.iter().map(|grant| u64::from(grant.permits)).sum(),
            Holders::Many(many) => many.permits,
        }
    }

    /// The first end of a lease, in monotonic milliseconds.
    pub fn first_end_ms(&self) -> Option<u64> {
        match self {
            Holders::Few(few) => few.iter().map(|grant| grant.end_ms).min(),
            Holders::Many(many) => many.ends.first().map(|end| end.0),
        }
    }

    /// The last end of a lease, in monotonic milliseconds.
    pub fn last_end_ms(&self) -> Option<u64> {
        match self {
            Holders::Few(few) => few.iter().map(|grant| grant.end_ms).max(),
            Holders::Many(many) => many.ends.last().map(|end| end.0),
        }
    }

    /// Adds a grant. Its owner has none yet, and its token is larger than all others.
    #[inline]
    pub fn insert(&mut self, grant: Grant) {
        debug_assert!(self.get(&grant.owner).is_none(), "an owner has one grant");
        match self {
            Holders::Few(few) if few.len() < FEW => few.push(grant),
            Holders::Few(few) => {
                let mut many = Box::<Many>::default();
                few.drain(..).chain([grant]).for_each(|grant| many.insert(grant));
                *self = Holders::Many(many);
            }
            Holders::Many(many) => many.insert(grant),
        }
    }

    /// Removes an owner's grant.
    pub fn remove(&mut self, owner: &[u8]) -> Option<Grant> {
        self.find(owner).and_then(|holder| self.take(holder))
    }

    /// Removes the grant of a holder; `None` if it is gone.
    #[inline]
    pub fn take(&mut self, holder: Holder) -> Option<Grant> {
        match (self, holder) {
            (Holders::Few(few), Holder::Nth(at)) if at < few.len() => Some(few.remove(at)),
            (Holders::Many(many), Holder::Token(token)) => {
                let grant = many.grants.remove(&token)?;
                many.owners.remove(&grant.owner);
                many.ends.remove(&(grant.end_ms, token));
                many.permits -= u64::from(grant.permits);
                Some(grant)
            }
            _ => None,
        }
    }

    /// Removes the grant with the smallest token.
    pub fn pop(&mut self) -> Option<Grant> {
        match self {
            Holders::Few(few) if few.is_empty() => None,
            Holders::Few(few) => Some(few.remove(0)),
            Holders::Many(many) => {
                let token = *many.grants.first_key_value()?.0;
                self.take(Holder::Token(token))
            }
        }
    }

    /// Changes a holder's grant, but neither its owner nor its token nor its permits; `None` if it is gone.
    #[inline]
    pub fn change<T>(&mut self, holder: Holder, change: impl FnOnce(&mut Grant) -> T) -> Option<T> {
        match (self, holder) {
            (Holders::Few(few), Holder::Nth(at)) => few.get_mut(at).map(change),
            (Holders::Many(many), Holder::Token(token)) => {
                let grant = many.grants.get_mut(&token)?;
                many.ends.remove(&(grant.end_ms, token));
                let changed = change(grant);
                many.ends.insert((grant.end_ms, token));
                Some(changed)
            }
            _ => None,
        }
    }

    /// Removes a grant whose lease has ended, the one that ended first.
    pub fn take_ended(&mut self, now_ms: u64) -> Option<Grant> {
        match self {
            Holders::Few(few) => {
                let ended = few.iter().enumerate().filter(|(_, grant)| grant.ended(now_ms));
                let at = ended.min_by_key(|(_, grant)| (grant.end_ms, grant.token))?.0;
                Some(few.remove(at))
            }
            Holders::Many(many) => {
                let (end_ms, token) = *many.ends.first()?;
                if end_ms > now_ms {
                    return None;
                }
                self.take(Holder::Token(token))
            }
        }
    }

    /// Frees up to `budget` grants that nothing needs any more. Returns true when none is left.
    pub fn free_some(&mut self, budget: &mut u32) -> bool {
        if let Holders::Many(many) = self {
            while *budget > 0 && many.grants.pop_first().is_some() {
                many.ends.pop_first();
                many.owners.pop_first();
                *budget -= 1;
            }
            return many.grants.is_empty();
        }
        true
    }

    /// Panics if an invariant is broken.
    pub fn check_invariants(&self) {
        let tokens: Vec<u64> = self.iter().map(|grant| grant.token).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "holders stand in the order of their tokens");
        for grant in self.iter() {
            assert!(grant.holds > 0 && grant.permits > 0, "what is held is held");
            assert_eq!(self.get(&grant.owner), Some(grant), "an owner has one grant");
        }
        if let Holders::Many(many) = self {
            assert_eq!(many.owners.len(), many.grants.len());
            let ends: BTreeSet<_> = many.grants.values().map(|grant| (grant.end_ms, grant.token)).collect();
            assert_eq!(many.ends, ends, "ends of leases are known");
            assert_eq!(many.permits, many.grants.values().map(|grant| u64::from(grant.permits)).sum::<u64>());
        }
    }
}

impl Many {
    fn insert(&mut self, grant: Grant) {
        self.owners.insert(grant.owner.clone(), grant.token);
        self.ends.insert((grant.end_ms, grant.token));
        self.permits += u64::from(grant.permits);
        self.grants.insert(grant.token, grant);
    }
}

/// A lock or semaphore as it is stored under its name.
#[derive(Clone, Debug, Default)]
pub struct Lock {
    /// Permits of a semaphore; 0 for a lock.
    pub limit: u32,
    /// Nothing is granted before this, in monotonic milliseconds; 0 without a delay.
    pub held_back_ms: u64,
    /// The holders.
    pub holders: Holders,
}

impl Lock {
    /// The lock with these parts, which may come from a file. `None` if no operation makes such a lock: it is free, an exclusive
    /// holder is not alone, a grant of a lock has several permits, holders of a semaphore have more than its limit, a grant has
    /// no holds or permits, an owner comes twice, or tokens do not grow or reach [`TOKEN_END`].
    pub fn from_parts(limit: u32, held_back_ms: u64, grants: Vec<Grant>) -> Option<Lock> {
        let alone = grants.len() == 1;
        let mut lock = Lock { limit, held_back_ms, holders: Holders::default() };
        let mut last_token = None;
        for grant in grants {
            let counts = grant.holds > 0 && grant.permits > 0;
            let fits = limit > 0 || grant.permits == 1 && (alone || grant.mode == Mode::Shared);
            let follows = last_token < Some(grant.token) && grant.token < TOKEN_END;
            if !counts || !fits || !follows || lock.holders.get(&grant.owner).is_some() {
                return None;
            }
            last_token = Some(grant.token);
            lock.holders.insert(grant);
        }
        let within = limit == 0 || lock.holders.permits() <= u64::from(limit);
        (within && !lock.is_free()).then_some(lock)
    }

    /// The next change that happens on its own, in monotonic milliseconds: a lease or the delay ends.
    pub fn due_ms(&self) -> Option<u64> {
        let held_back = (self.held_back_ms != 0).then_some(self.held_back_ms);
        self.holders.first_end_ms().into_iter().chain(held_back).min()
    }

    /// The deadline of its key, in monotonic milliseconds: the last lease or the delay has ended by then.
    pub fn deadline_ms(&self) -> u64 {
        self.holders.last_end_ms().unwrap_or(0).max(self.held_back_ms)
    }

    /// Whether there is nothing left that needs a key.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.held_back_ms == 0
    }

    /// What `TYPE` answers.
    pub fn type_name(&self) -> &'static str {
        if self.limit == 0 { "lock" } else { "semaphore" }
    }

    /// Approximate number of bytes allocated outside of itself.
    pub fn allocated(&self) -> usize {
        match &self.holders {
            Holders::Few(few) if few.spilled() => few.capacity() * size_of::<Grant>(),
            Holders::Few(_) => 0,
            Holders::Many(many) => many.grants.len() * (size_of::<Grant>() + size_of::<Owner>() + 64),
        }
    }
}
