//! Which sessions are interested in which keys: the structure behind `WATCH`, blocking commands and client tracking.
//!
//! A link is one owner's interest in one key, and a node of two lists: that of its key, ordered by arrival, and that of its
//! owner, so that removing an owner costs only as much as it has links. Keys are names in a database by its index, whether such a
//! key exists or not.
//!
//! ```text
//!   (database, name) ─▶ key ─▶ link ─▶ link ─▶ …      oldest first
//!                               │
//!                      owner ───┴─▶ link ─▶ …
//! ```
//!
//! An owner of many links is retired in one step, and its links are removed in batches: [`Interests::free_some`].

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use slab::Slab;

use crate::base::chunks::Chunks;
use crate::base::ids::Key;
use crate::base::segments::Segments;

/// End of a list, and a number that refers to no key, link or owner.
pub const NIL: u32 = u32::MAX;

/// Approximate bytes of a key and a link in the tables that find them.
const FOUND_BYTES: usize = 32;

/// An owner with at most this many links is removed at once.
pub const AT_ONCE: u32 = 64;

struct KeyNode {
    db: u32,
    name: Box<[u8]>,
    hash: u32,
    first: u32,
    last: u32,
    count: u32,
    /// Kept even without links.
    pinned: bool,
}

struct Link {
    owner: u32,
    key: u32,
    /// Neighbours among the key's links.
    key_prev: u32,
    key_next: u32,
    /// Neighbours among the owner's links.
    owner_prev: u32,
    owner_next: u32,
    marked: bool,
}

struct Owner<T> {
    what: T,
    first: u32,
    last: u32,
    count: u32,
    /// Bytes of its keys' names.
    name_bytes: usize,
    /// The owner is gone, and its links are being removed.
    retired: bool,
}

/// Owners, keys and the links between them. `T` is the state of an owner.
pub struct Interests<T> {
    hasher: FixedState,
    names: Segments,
    keys: Chunks<KeyNode>,
    pairs: Segments,
    links: Chunks<Link>,
    owners: Slab<Owner<T>>,
    retired: VecDeque<u32>,
}

impl<T> Interests<T> {
    /// Creates an empty set. The seed keeps clients from choosing names whose hashes collide.
    pub fn new(seed: u64) -> Self {
        Interests {
            hasher: FixedState::with_seed(seed),
            names: Segments::default(),
            keys: Chunks::default(),
            pairs: Segments::default(),
            links: Chunks::default(),
            owners: Slab::new(),
            retired: VecDeque::new(),
        }
    }

    /// Whether there are neither owners nor keys.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.keys.is_empty()
    }

    /// Number of owners, without retired ones.
    pub fn owners(&self) -> usize {
        self.owners.len() - self.retired.len()
    }

    /// Number of different keys.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Number of links, including those of retired owners.
    pub fn links(&self) -> usize {
        self.links.len()
    }

    /// A key with links, the first one found from the place `from`; `None` if the next `probes` places have none.
    pub fn some_key(&self, from: usize, probes: usize) -> Option<u32> {
        let places = self.keys.places();
        let from = from.checked_rem(places)?;
        let (end, again) = (places.min(from + probes), probes.saturating_sub(places - from).min(from));
        let all = (from..end).chain(0..again);
        all.map(|place| place as u32).find(|&place| self.keys.get(place).is_some_and(|key| key.count > 0))
    }

    /// Adds an owner without links.
    pub fn enter(&mut self, what: T) -> u32 {
        self.owners.insert(Owner { what, first: NIL, last: NIL, count: 0, name_bytes: 0, retired: false }) as u32
    }

    /// The state of an owner; `None` if it is gone.
    pub fn owner(&self, owner: u32) -> Option<&T> {
        self.owners.get(owner as usize).filter(|owner| !owner.retired).map(|owner| &owner.what)
    }

    /// As [`Interests::owner`], mutable.
    pub fn owner_mut(&mut self, owner: u32) -> Option<&mut T> {
        self.owners.get_mut(owner as usize).filter(|owner| !owner.retired).map(|owner| &mut owner.what)
    }

    /// All owners and their states.
    pub fn all_owners(&self) -> impl Iterator<Item = (u32, &T)> {
        self.owners.iter().filter(|(_, owner)| !owner.retired).map(|(number, owner)| (number as u32, &owner.what))
    }

    /// The states of all owners, mutable.
    pub fn all_owners_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.owners.iter_mut().filter(|(_, owner)| !owner.retired).map(|(_, owner)| &mut owner.what)
    }

    /// Number of keys that an owner is interested in.
    pub fn count(&self, owner: u32) -> u32 {
        self.owners.get(owner as usize).map_or(0, |owner| owner.count)
    }

    /// Approximate bytes of an owner's links.
    pub fn bytes(&self, owner: u32) -> usize {
        let Some(owner) = self.owners.get(owner as usize) else { return 0 };
        owner.name_bytes + owner.count as usize * (size_of::<KeyNode>() + size_of::<Link>() + FOUND_BYTES)
    }

    /// Links an owner to a key, behind all other owners. Returns false if the link exists already.
    pub fn link(&mut self, owner: u32, db: u32, name: &[u8], marked: bool) -> bool {
        let key = match self.find(db, name) {
            Some(key) if self.find_pair(owner, key).is_some() => return false,
            Some(key) => key,
            None => self.add_key(db, name),
        };
        let (at, of) = (&mut self.keys[key], &mut self.owners[owner as usize]);
        let link = Link { owner, key, key_prev: at.last, key_next: NIL, owner_prev: of.last, owner_next: NIL, marked };
        let link = self.links.insert(link);
        match self.links.get_mut(at.last) {
            Some(before) => before.key_next = link,
            None => at.first = link,
        }
        at.last = link;
        at.count += 1;
        match self.links.get_mut(of.last) {
            Some(before) => before.owner_next = link,
            None => of.first = link,
        }
        of.last = link;
        of.count += 1;
        of.name_bytes += name.len();
        let hash = self.pair_hash(owner, key);
        self.pairs.insert(hash, link);
        true
    }

    /// The number of a key that has links or is pinned.
    pub fn find(&self, db: u32, name: &[u8]) -> Option<u32> {
        let hash = self.name_hash(db, name);
        self.names.find(hash, |number| {
            let key = &self.keys[number];
            key.db == db && *key.name == *name
        })
    }

    /// The key of this number.
    pub fn key(&self, key: u32) -> Key<'_> {
        let key = &self.keys[key];
        Key { db: key.db, name: &key.name }
    }

    /// All keys. Their order has no meaning, but is the same for the same history.
    pub fn all_keys(&self) -> impl Iterator<Item = (u32, u32, &[u8])> {
        self.keys.iter().map(|(number, key)| (number, key.db, &*key.name))
    }

    /// Number of links of a key.
    pub fn interested(&self, key: u32) -> u32 {
        self.keys.get(key).map_or(0, |key| key.count)
    }

    /// The oldest link of a key; [`NIL`] if there is none.
    pub fn first(&self, key: u32) -> u32 {
        self.keys.get(key).map_or(NIL, |key| key.first)
    }

    /// The next link of the same key.
    pub fn next(&self, link: u32) -> u32 {
        self.links.get(link).map_or(NIL, |link| link.key_next)
    }

    /// The links of a key, oldest first.
    pub fn links_to(&self, key: u32) -> impl Iterator<Item = u32> {
        let mut at = self.first(key);
        std::iter::from_fn(move || {
            let link = self.links.get(at)?;
            Some(std::mem::replace(&mut at, link.key_next))
        })
    }

    /// The owner of a link; `None` if the owner is retired.
    pub fn owner_of(&self, link: u32) -> Option<u32> {
        let owner = self.links.get(link)?.owner;
        (!self.owners[owner as usize].retired).then_some(owner)
    }

    /// The links of an owner, oldest first.
    pub fn links_of(&self, owner: u32) -> impl Iterator<Item = u32> {
        let mut at = self.owners.get(owner as usize).map_or(NIL, |owner| owner.first);
        std::iter::from_fn(move || {
            let link = self.links.get(at)?;
            Some(std::mem::replace(&mut at, link.owner_next))
        })
    }

    /// The key of a link.
    pub fn key_of(&self, link: u32) -> u32 {
        self.links[link].key
    }

    /// Whether a link is marked.
    pub fn marked(&self, link: u32) -> bool {
        self.links[link].marked
    }

    /// Sets or clears the mark of a link.
    pub fn mark(&mut self, link: u32, marked: bool) {
        self.links[link].marked = marked;
    }

    /// Pins a key: it is kept even without links.
    pub fn pin(&mut self, key: u32) {
        self.keys[key].pinned = true;
    }

    /// Whether a key is pinned.
    pub fn pinned(&self, key: u32) -> bool {
        self.keys[key].pinned
    }

    /// Unpins a key, and removes it if it has no links. Returns whether it has links.
    pub fn unpin(&mut self, key: u32) -> bool {
        self.keys[key].pinned = false;
        let interested = self.keys[key].count > 0;
        if !interested {
            self.remove_key(key);
        }
        interested
    }

    /// Removes an owner. Returns its state. If it has many links, they stay for a while without an owner.
    pub fn leave(&mut self, owner: u32) -> T
    where
        T: Default,
    {
        let of = &mut self.owners[owner as usize];
        let what = std::mem::take(&mut of.what);
        of.retired = true;
        self.retired.push_back(owner);
        if of.count <= AT_ONCE {
            // Owners retired before it may have many links; this one goes before them.
            self.retired.rotate_right(1);
            let mut budget = AT_ONCE + 1;
            self.free_some(&mut budget);
        }
        what
    }

    /// Whether links of retired owners wait to be removed.
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Removes links of retired owners, at most `budget` of them.
    pub fn free_some(&mut self, budget: &mut u32) {
        while let Some(&owner) = self.retired.front() {
            while self.owners[owner as usize].first != NIL {
                if *budget == 0 {
                    return;
                }
                *budget -= 1;
                self.unlink(self.owners[owner as usize].first);
            }
            self.owners.remove(owner as usize);
            self.retired.pop_front();
            *budget = budget.saturating_sub(1);
            if *budget == 0 {
                break;
            }
        }
    }

    /// Removes a link from both its lists; with its last link, an unpinned key is removed, too.
    pub fn unlink(&mut self, link: u32) {
        let gone = self.links.remove(link);
        let hash = self.pair_hash(gone.owner, gone.key);
        self.pairs.remove(hash, link);
        let key = &mut self.keys[gone.key];
        match self.links.get_mut(gone.key_prev) {
            Some(before) => before.key_next = gone.key_next,
            None => key.first = gone.key_next,
        }
        match self.links.get_mut(gone.key_next) {
            Some(after) => after.key_prev = gone.key_prev,
            None => key.last = gone.key_prev,
        }
        key.count -= 1;
        let unused = key.count == 0 && !key.pinned;
        let owner = &mut self.owners[gone.owner as usize];
        match self.links.get_mut(gone.owner_prev) {
            Some(before) => before.owner_next = gone.owner_next,
            None => owner.first = gone.owner_next,
        }
        match self.links.get_mut(gone.owner_next) {
            Some(after) => after.owner_prev = gone.owner_prev,
            None => owner.last = gone.owner_prev,
        }
        owner.count -= 1;
        owner.name_bytes -= key.name.len();
        if unused {
            self.remove_key(gone.key);
        }
    }

    fn add_key(&mut self, db: u32, name: &[u8]) -> u32 {
        let hash = self.name_hash(db, name);
        let key = KeyNode { db, name: name.into(), hash, first: NIL, last: NIL, count: 0, pinned: false };
        let number = self.keys.insert(key);
        self.names.insert(hash, number);
        number
    }

    fn remove_key(&mut self, number: u32) {
        let gone = self.keys.remove(number);
        self.names.remove(gone.hash, number);
    }

    fn find_pair(&self, owner: u32, key: u32) -> Option<u32> {
        let hash = self.pair_hash(owner, key);
        self.pairs.find(hash, |number| {
            let link = &self.links[number];
            link.owner == owner && link.key == key
        })
    }

    fn name_hash(&self, db: u32, name: &[u8]) -> u32 {
        self.hasher.hash_one((db, name)) as u32
    }

    fn pair_hash(&self, owner: u32, key: u32) -> u32 {
        self.hasher.hash_one(u64::from(owner) << 32 | u64::from(key)) as u32
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        assert_eq!(self.names.len(), self.keys.len(), "a name for each key");
        assert_eq!(self.pairs.len(), self.links.len(), "a pair for each link");
        let mut linked = 0;
        self.keys.check_invariants();
        self.links.check_invariants();
        self.names.check_invariants();
        self.pairs.check_invariants();
        for (number, key) in self.keys.iter() {
            assert_eq!(self.find(key.db, &key.name), Some(number), "a key under its name");
            assert!(key.count > 0 || key.pinned, "a key of interest to no session");
            let (mut at, mut before, mut count) = (key.first, NIL, 0);
            while at != NIL {
                let link = &self.links[at];
                assert_eq!((link.key, link.key_prev), (number, before), "a link knows its key and the one before it");
                assert_eq!(self.find_pair(link.owner, link.key), Some(at), "a pair leads to its link");
                (before, at, count) = (at, link.key_next, count + 1);
            }
            assert_eq!((key.last, key.count), (before, count), "a key knows its last link and counts them");
            linked += count as usize;
        }
        assert_eq!(linked, self.links.len(), "each link in its key's list");
        let mut linked = 0;
        for (number, owner) in &self.owners {
            let (mut before, mut count, mut name_bytes) = (NIL, 0, 0);
            for at in self.links_of(number as u32) {
                let link = &self.links[at];
                assert_eq!((link.owner as usize, link.owner_prev), (number, before), "a link knows its owner");
                (before, count) = (at, count + 1);
                name_bytes += self.keys[link.key].name.len();
            }
            assert_eq!((owner.last, owner.count), (before, count), "an owner knows its last link and counts them");
            assert_eq!(owner.name_bytes, name_bytes, "an owner counts its bytes");
            assert_eq!(owner.retired, self.retired.contains(&(number as u32)), "who is retired waits to be freed");
            linked += count as usize;
        }
        assert_eq!(linked, self.links.len(), "each link in its owner's list");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::base::scaled;
    use proptest::prelude::*;

    fn interested(all: &Interests<u32>, db: u32, name: &[u8]) -> Vec<u32> {
        let Some(key) = all.find(db, name) else { return Vec::new() };
        let mut found = Vec::new();
        let mut at = all.first(key);
        while at != NIL {
            found.extend(all.owner_of(at).and_then(|owner| all.owner(owner)));
            at = all.next(at);
        }
        found
    }

    #[derive(Clone, Debug)]
    enum Step {
        Enter,
        Link(usize, u32, u8),
        Unlink(usize, usize),
        Leave(usize),
        Free(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            Just(Step::Enter),
            (any::<usize>(), 0..2u32, 0..100u8).prop_map(|(owner, db, name)| Step::Link(owner, db, name)),
            (any::<usize>(), 0..2u32, 0..100u8).prop_map(|(owner, db, name)| Step::Link(owner, db, name)),
            (any::<usize>(), any::<usize>()).prop_map(|(owner, nth)| Step::Unlink(owner, nth)),
            any::<usize>().prop_map(Step::Leave),
            (0..20u32).prop_map(Step::Free),
        ];
        proptest::collection::vec(step, 0..scaled(400, 30))
    }

    proptest! {
        #[test]
        fn it_is_what_lists_of_pairs_are(steps in steps()) {
            let mut all = Interests::new(1);
            let mut owners: Vec<u32> = Vec::new();
            // (owner, database, name), oldest first.
            let mut model: Vec<(u32, u32, u8)> = Vec::new();
            let mut serial = 0;
            let mut whose = std::collections::HashMap::new();
            for step in steps {
                match step {
                    Step::Enter => {
                        serial += 1;
                        let owner = all.enter(serial);
                        whose.insert(owner, serial);
                        owners.push(owner);
                    }
                    Step::Link(nth, db, name) if !owners.is_empty() => {
                        let owner = owners[nth % owners.len()];
                        let new = all.link(owner, db, &[name], false);
                        prop_assert_eq!(new, !model.contains(&(owner, db, name)));
                        if new {
                            model.push((owner, db, name));
                        }
                    }
                    Step::Unlink(nth, which) if !owners.is_empty() => {
                        let owner = owners[nth % owners.len()];
                        let links: Vec<u32> = all.links_of(owner).collect();
                        if let Some(&link) = links.get(which % links.len().max(1)) {
                            let Key { db, name } = all.key(all.key_of(link));
                            let gone = (owner, db, name[0]);
                            all.unlink(link);
                            model.retain(|pair| *pair != gone);
                        }
                    }
                    Step::Leave(nth) if !owners.is_empty() => {
                        let owner = owners.swap_remove(nth % owners.len());
                        prop_assert_eq!(all.leave(owner), whose[&owner]);
                        prop_assert!(all.owner(owner).is_none());
                        model.retain(|pair| pair.0 != owner);
                    }
                    Step::Free(mut budget) => all.free_some(&mut budget),
                    _ => {}
                }
                all.check_invariants();
                prop_assert_eq!(all.owners(), owners.len());
            }
            for db in 0..2 {
                for name in 0..100 {
                    let expected: Vec<u32> =
                        model.iter().filter(|pair| (pair.1, pair.2) == (db, name)).map(|pair| whose[&pair.0]).collect();
                    prop_assert_eq!(interested(&all, db, &[name]), expected);
                }
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn many_links_go_bit_by_bit_and_a_few_at_once() {
        let mut all = Interests::new(1);
        let (many, few) = (all.enter(1), all.enter(2));
        for i in 0..10_000u32 {
            assert!(all.link(many, 0, &i.to_le_bytes(), false));
        }
        assert!(all.link(few, 0, b"k", false));
        assert!(!all.link(few, 0, b"k", false));
        assert_eq!((all.leave(many), all.keys(), all.owners()), (1, 10_001, 1));
        assert_eq!(all.leave(few), 2);
        assert_eq!((all.owners(), all.has_retired()), (0, true));
        assert!((9_000..10_001).contains(&all.keys()), "owners of few keys are gone, owners of many are going");
        let mut turns = 0;
        while all.has_retired() {
            let mut budget = 512;
            all.free_some(&mut budget);
            all.check_invariants();
            turns += 1;
        }
        assert_eq!(turns, 20);
        assert!(all.is_empty());
    }

    #[test]
    fn a_pinned_key_outlives_its_links() {
        let mut all = Interests::new(1);
        let owner = all.enter(1);
        all.link(owner, 3, b"k", false);
        let key = all.find(3, b"k").unwrap();
        all.pin(key);
        all.leave(owner);
        all.check_invariants();
        assert_eq!((all.key(key), all.interested(key)), (Key { db: 3, name: b"k" }, 0));
        assert!(!all.unpin(key));
        assert!(all.is_empty());
    }
}
