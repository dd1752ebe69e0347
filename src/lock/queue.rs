//! The queues of all names that have waiters: who waits for what, in which order.
//!
//! ```text
//!   (database, name) ─▶ queue ─▶ link ─▶ link ─▶ …        first come, first served
//!                         │       │
//!              holders ───┤       └── waiter ── links in other queues (LOCK.ACQUIREALL)
//!                         │             │
//!                       owner ──────────┘  what it waits for, and what it holds of what others wait for
//! ```
//!
//! A name without waiters usually has no queue, and its holders are not known here: an uncontended lock costs nothing.

mod levels;

use std::collections::BTreeSet;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use crate::base::chunks::Chunks;
use crate::base::ids::Key;
use crate::base::segments::Segments;
use crate::lock::grant::{Bound, Client, Mode, Owner, UserKey};
use crate::lock::interface::Request;
use crate::lock::owner_queues::OwnerQueues;

/// End of a list, and a number that refers to nothing.
pub const NIL: u32 = u32::MAX;

/// What a waiter wants to be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Exclusive or shared.
    pub mode: Mode,
    /// Permits of a semaphore; 1 for a lock.
    pub permits: u32,
    /// Total permits of the semaphore; 0 for a lock.
    pub limit: u32,
    /// Milliseconds of the lease, counted from the grant.
    pub lease_ms: u64,
    /// Maximum milliseconds that renewals may carry the grant; 0 without a limit.
    pub max_hold_ms: u64,
    /// Delay before the next grant, in milliseconds, if this one ends without a release.
    pub delay_ms: u32,
    /// What the grant ends with besides its lease.
    pub bound: Bound,
}

/// A waiting connection.
#[derive(Clone, Debug)]
pub struct Waiter {
    /// The number of its owner.
    pub owner: u32,
    /// The connection.
    pub client: Client,
    /// What it wants.
    pub wanted: Wanted,
    /// The end of its wait, in monotonic milliseconds.
    pub deadline_ms: Option<u64>,
    /// The start of its wait, in monotonic microseconds.
    pub since_us: u64,
    /// Whether it wants all of its names at once, and an array as its reply.
    pub all: bool,
    /// Its places in queues, in the order of its names.
    pub links: SmallVec<[u32; 1]>,
    /// Increases with every new waiter.
    pub serial: i64,
    /// The client's id of the attempt.
    pub request: Option<Box<[u8]>>,
    /// Whether its owner waits for more than this one name.
    complex: bool,
    /// Neighbours among all waiters, in the order in which they began to wait.
    older: u32,
    newer: u32,
}

/// A waiter's place in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The waiter.
    pub waiter: u32,
    /// The queue.
    pub queue: u32,
    /// Increases from the first to the last.
    pub order: i64,
    prev: u32,
    next: u32,
}

/// The waiters of a name.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Index of the database.
    pub db: u32,
    /// The name.
    pub name: Box<[u8]>,
    hash: u32,
    first: u32,
    last: u32,
    /// Number of waiters.
    pub len: u32,
    /// Number of waiters that want exclusive mode.
    pub exclusive: u32,
    /// Number of waiters whose owners wait for more than this name.
    pub complex: u32,
    /// The holders of the name and their modes.
    pub holders: Vec<(u32, Mode)>,
    /// The next change of the name that happens on its own, in monotonic milliseconds; 0 if none is tracked here.
    pub due_ms: u64,
    /// Whether the queue is kept without waiters, because the leases of several holders end one by one.
    pub pinned: bool,
    /// At most the level of every node that it leads to.
    level: u32,
}

impl Queue {
    /// The lock.
    #[inline]
    pub fn key(&self) -> Key<'_> {
        Key { db: self.db, name: &self.name }
    }
}

/// An owner that waits, or that holds names that have a queue.
#[derive(Clone, Debug)]
pub struct OwnerNode {
    /// Its name, which other users' owners may have, too.
    pub name: Owner,
    /// Its user.
    pub user: UserKey,
    hash: u32,
    /// The numbers of its waiters.
    pub waits: SmallVec<[u32; 1]>,
    /// The queues of the names it holds.
    pub holds: OwnerQueues,
    /// At most the level of every node that it leads to.
    level: u32,
}

/// All queues.
pub struct Queues {
    hasher: FixedState,
    names: Segments,
    queues: Chunks<Queue>,
    links: Chunks<Link>,
    waiters: Chunks<Waiter>,
    owner_names: Segments,
    owners: Chunks<OwnerNode>,
    /// Number of owners besides the first of each name.
    namesakes: usize,
    order: i64,
    /// Number of queues with waiters.
    contended: usize,
    /// The waiter that began first, and the one that began last.
    oldest: u32,
    newest: u32,
}

impl Queues {
    /// Creates an empty set of queues. The seed keeps clients from choosing names whose hashes collide.
    pub fn new(seed: u64) -> Self {
        Queues {
            hasher: FixedState::with_seed(seed),
            names: Segments::default(),
            queues: Chunks::default(),
            links: Chunks::default(),
            waiters: Chunks::default(),
            owner_names: Segments::default(),
            owners: Chunks::default(),
            namesakes: 0,
            order: 0,
            contended: 0,
            oldest: NIL,
            newest: NIL,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Number of names that have waiters.
    pub fn contended(&self) -> usize {
        self.contended
    }

    /// Number of waiting connections.
    pub fn waiters(&self) -> usize {
        self.waiters.len()
    }

    fn hash(&self, key: Key<'_>) -> u32 {
        self.hasher.hash_one(key) as u32
    }

    /// The queue of a name.
    #[inline]
    pub fn find(&self, key: Key<'_>) -> Option<u32> {
        if self.queues.is_empty() { None } else { self.find_among(key) }
    }

    #[inline(never)]
    fn find_among(&self, key: Key<'_>) -> Option<u32> {
        self.names.find(self.hash(key), |number| self.queues.get(number).is_some_and(|queue| queue.key() == key))
    }

    /// The queue of a name, created if there is none. The caller must see to it that [`Queues::forget`] is called.
    pub fn find_or_make(&mut self, key: Key<'_>) -> u32 {
        if let Some(queue) = self.find(key) {
            return queue;
        }
        let hash = self.hash(key);
        let queue = Queue {
            db: key.db,
            name: key.name.into(),
            hash,
            first: NIL,
            last: NIL,
            len: 0,
            exclusive: 0,
            complex: 0,
            holders: Vec::new(),
            due_ms: 0,
            pinned: false,
            level: 0,
        };
        let number = self.queues.insert(queue);
        self.names.insert(hash, number);
        number
    }

    /// A queue.
    pub fn get(&self, queue: u32) -> Option<&Queue> {
        self.queues.get(queue)
    }

    /// A queue, to change its `due_ms` and `pinned`.
    pub fn get_mut(&mut self, queue: u32) -> Option<&mut Queue> {
        self.queues.get_mut(queue)
    }

    /// All queues with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Queue)> {
        self.queues.iter()
    }

    /// An upper bound: the numbers of all queues are below this.
    pub fn numbers(&self) -> u32 {
        u32::try_from(self.queues.places()).unwrap_or(NIL)
    }

    /// Drops a queue without waiters, unless it is pinned.
    pub fn forget(&mut self, queue: u32) {
        let Some(found) = self.queues.get(queue) else { return };
        if found.len > 0 || found.pinned {
            return;
        }
        self.unhold_all(queue);
        if let Some(queue_hash) = self.queues.get(queue).map(|found| found.hash) {
            self.names.remove(queue_hash, queue);
            self.queues.try_remove(queue);
        }
    }

    /// An owner with waits or holds here.
    pub fn owner(&self, owner: u32) -> Option<&OwnerNode> {
        self.owners.get(owner)
    }

    /// The number of a user's owner, if it has waits or holds here.
    pub fn find_owner(&self, user: UserKey, name: &[u8]) -> Option<u32> {
        if self.owners.is_empty() {
            return None;
        }
        self.look_for_owner(self.hash(Key { db: NIL, name }), user, name).0
    }

    /// The number of a user's owner, and whether an owner of this name and another user was met.
    fn look_for_owner(&self, hash: u32, user: UserKey, name: &[u8]) -> (Option<u32>, bool) {
        let mut namesake = false;
        let is_it = |number: u32| {
            let is_named = |owner: &&OwnerNode| owner.name[..] == *name;
            self.owners.get(number).filter(is_named).is_some_and(|owner| {
                namesake |= owner.user != user;
                owner.user == user
            })
        };
        (self.owner_names.find(hash, is_it), namesake)
    }

    /// The numbers of the owners of this name, each of another user.
    fn owners_named(&self, name: &[u8]) -> SmallVec<[u32; 1]> {
        let mut owners = SmallVec::new();
        if self.owners.is_empty() {
            return owners;
        }
        self.owner_names.find(self.hash(Key { db: NIL, name }), |number| {
            if self.owners.get(number).is_some_and(|owner| owner.name[..] == *name) {
                owners.push(number);
            }
            // Where names are unique, the first is the only one.
            self.namesakes == 0 && !owners.is_empty()
        });
        owners
    }

    /// The numbers of the waiters of all owners of this name.
    pub fn waits_of(&self, name: &[u8]) -> SmallVec<[u32; 1]> {
        let owners = self.owners_named(name);
        owners.into_iter().filter_map(|owner| self.owners.get(owner)).flat_map(|owner| owner.waits.iter().copied()).collect()
    }

    /// Whether owners of different users have the same name.
    pub fn has_namesakes(&self) -> bool {
        self.namesakes > 0
    }

    fn owner_of(&mut self, user: UserKey, name: &[u8]) -> u32 {
        let hash = self.hash(Key { db: NIL, name });
        let (found, namesake) = self.look_for_owner(hash, user, name);
        if let Some(owner) = found {
            return owner;
        }
        self.namesakes += usize::from(namesake);
        let (waits, holds) = (SmallVec::new(), OwnerQueues::default());
        let node = OwnerNode { name: Owner::from_slice(name), user, hash, waits, holds, level: 0 };
        let number = self.owners.insert(node);
        self.owner_names.insert(hash, number);
        number
    }

    /// Drops an owner without waits and holds.
    fn release_owner(&mut self, owner: u32) {
        let Some(node) = self.owners.get(owner) else { return };
        if node.waits.is_empty() && node.holds.is_empty() {
            if self.namesakes > 0 && self.owners_named(&node.name).len() > 1 {
                self.namesakes -= 1;
            }
            self.owner_names.remove(node.hash, owner);
            self.owners.try_remove(owner);
        }
    }

    /// Records that a user's owner holds a name that has a queue.
    pub fn hold(&mut self, queue: u32, (user, name): (UserKey, &[u8]), mode: Mode) {
        let owner = self.owner_of(user, name);
        let (Some(node), Some(queue_of)) = (self.owners.get_mut(owner), self.queues.get_mut(queue)) else { return };
        match queue_of.holders.iter_mut().find(|holder| holder.0 == owner) {
            Some(holder) => holder.1 = mode,
            None => {
                queue_of.holders.push((owner, mode));
                node.holds.insert(queue);
                if queue_of.level > node.level {
                    self.order_holder(queue, owner);
                }
            }
        }
    }

    /// Records that an owner does not hold a name any more.
    pub fn unhold(&mut self, queue: u32, (user, name): (UserKey, &[u8])) {
        let Some(owner) = self.find_owner(user, name) else { return };
        if let Some(found) = self.queues.get_mut(queue)
            && let Some(at) = found.holders.iter().position(|holder| holder.0 == owner)
        {
            found.holders.swap_remove(at);
            self.let_go(owner, queue);
        }
    }

    /// Records that nobody holds a name any more.
    pub fn unhold_all(&mut self, queue: u32) {
        let holders = self.queues.get_mut(queue).map(|queue| std::mem::take(&mut queue.holders)).unwrap_or_default();
        holders.into_iter().for_each(|(owner, _)| self.let_go(owner, queue));
    }

    fn let_go(&mut self, owner: u32, queue: u32) {
        if let Some(node) = self.owners.get_mut(owner) {
            node.holds.remove(queue);
        }
        self.release_owner(owner);
    }

    /// A waiter.
    pub fn waiter(&self, waiter: u32) -> Option<&Waiter> {
        self.waiters.get(waiter)
    }

    /// A waiter, to change its connection, its deadline or the bound of its grant.
    pub fn waiter_mut(&mut self, waiter: u32) -> Option<&mut Waiter> {
        self.waiters.get_mut(waiter)
    }

    /// A link.
    pub fn link(&self, link: u32) -> Option<Link> {
        self.links.get(link).copied()
    }

    /// The first link of a queue.
    pub fn first(&self, queue: u32) -> Option<u32> {
        self.queues.get(queue).map(|queue| queue.first).filter(|&link| link != NIL)
    }

    /// The link behind one.
    pub fn behind(&self, link: u32) -> Option<u32> {
        self.links.get(link).map(|link| link.next).filter(|&next| next != NIL)
    }

    /// The links of a queue in order.
    pub fn links_of(&self, queue: u32) -> impl Iterator<Item = Link> {
        let mut next = self.first(queue);
        std::iter::from_fn(move || {
            let link = self.links.get(next?).copied()?;
            next = Some(link.next);
            Some(link)
        })
    }

    /// The links of a queue in reverse order.
    pub fn links_back(&self, queue: u32) -> impl Iterator<Item = Link> {
        let mut next = self.queues.get(queue).map(|queue| queue.last);
        std::iter::from_fn(move || {
            let link = self.links.get(next?).copied()?;
            next = Some(link.prev);
            Some(link)
        })
    }

    /// The queues of a waiter, in the order of its names.
    pub fn queues_of(&self, waiter: u32) -> impl Iterator<Item = u32> {
        let links = self.waiters.get(waiter).map(|waiter| &waiter.links[..]).unwrap_or_default();
        links.iter().filter_map(|&link| self.links.get(link).map(|link| link.queue))
    }

    /// All waiters, the one that waits longest first.
    pub fn waiters_by_age(&self) -> impl Iterator<Item = &Waiter> {
        let mut next = self.oldest;
        std::iter::from_fn(move || {
            let waiter = self.waiters.get(next)?;
            next = waiter.newer;
            Some(waiter)
        })
    }

    /// When the longest wait in a queue began, in monotonic microseconds.
    pub fn oldest_since_us(&self, queue: u32) -> Option<u64> {
        // Only upgrades stand before older waiters, and their orders are negative. There are few: two owners cannot both upgrade.
        let mut upgrades = true;
        let links = self.links_of(queue).take_while(|link| std::mem::replace(&mut upgrades, link.order < 0));
        links.filter_map(|link| self.waiters.get(link.waiter)).map(|waiter| waiter.since_us).min()
    }

    /// Adds a waiter to the end of these queues. An upgrade from shared to exclusive goes to the front.
    pub fn enter(
        &mut self,
        &Request { owner, client, wanted, id }: &Request<'_>,
        (deadline_ms, since_us): (Option<u64>, u64),
        (upgrade, all): (bool, bool),
        queues: &[u32],
    ) -> u32 {
        let owner = self.owner_of(client.user, owner);
        let links = SmallVec::new();
        let serial = self.order + 1;
        let request = id.map(Box::from);
        let (older, newer) = (self.newest, NIL);
        let waiter =
            Waiter { owner, client, wanted, deadline_ms, since_us, all, links, serial, request, complex: false, older, newer };
        let number = self.waiters.insert(waiter);
        self.newest = number;
        match self.waiters.get_mut(older) {
            Some(before) => before.newer = number,
            None => self.oldest = number,
        }
        for &queue in queues {
            let link = self.join(number, queue, upgrade, wanted.mode);
            if let Some(waiter) = self.waiters.get_mut(number) {
                waiter.links.push(link);
            }
        }
        if let Some(node) = self.owners.get_mut(owner) {
            node.waits.push(number);
        }
        self.note_complex(owner);
        self.order_waits(owner);
        number
    }

    fn join(&mut self, waiter: u32, queue: u32, upgrade: bool, mode: Mode) -> u32 {
        self.order += 1;
        let order = if upgrade { -self.order } else { self.order };
        let link = self.links.insert(Link { waiter, queue, order, prev: NIL, next: NIL });
        let Some(found) = self.queues.get_mut(queue) else { return link };
        self.contended += usize::from(found.len == 0);
        found.len += 1;
        found.exclusive += u32::from(mode == Mode::Exclusive);
        let (prev, next) = if upgrade { (NIL, found.first) } else { (found.last, NIL) };
        if prev == NIL {
            found.first = link;
        }
        if next == NIL {
            found.last = link;
        }
        if let Some(before) = self.links.get_mut(prev) {
            before.next = link;
        }
        if let Some(behind) = self.links.get_mut(next) {
            behind.prev = link;
        }
        if let Some(new) = self.links.get_mut(link) {
            (new.prev, new.next) = (prev, next);
        }
        link
    }

    /// Updates the `complex` mark of an owner's waiters: whether it waits in more than one queue.
    fn note_complex(&mut self, owner: u32) {
        let Some(node) = self.owners.get(owner) else { return };
        if let [only] = node.waits[..]
            && self.waiters.get(only).is_some_and(|waiter| waiter.links.len() <= 1 && !waiter.complex)
        {
            return;
        }
        let links: usize = node.waits.iter().filter_map(|&w| self.waiters.get(w)).map(|waiter| waiter.links.len()).sum();
        let complex = links > 1;
        for waiter in node.waits.clone() {
            let Some(found) = self.waiters.get_mut(waiter) else { continue };
            if found.complex == complex {
                continue;
            }
            found.complex = complex;
            for link in found.links.clone() {
                let queue = self.links.get(link).and_then(|link| self.queues.get_mut(link.queue));
                if let Some(queue) = queue {
                    queue.complex = if complex { queue.complex + 1 } else { queue.complex - 1 };
                }
            }
        }
    }

    /// Takes a waiter out of its queues. Returns it with those queues, which may have to be served.
    pub fn leave(&mut self, waiter: u32) -> Option<(Waiter, SmallVec<[u32; 1]>)> {
        let found = self.waiters.try_remove(waiter)?;
        match self.waiters.get_mut(found.older) {
            Some(before) => before.newer = found.newer,
            None => self.oldest = found.newer,
        }
        match self.waiters.get_mut(found.newer) {
            Some(behind) => behind.older = found.older,
            None => self.newest = found.older,
        }
        let mut queues = SmallVec::new();
        for &number in &found.links {
            let Some(link) = self.links.try_remove(number) else { continue };
            queues.push(link.queue);
            if let Some(before) = self.links.get_mut(link.prev) {
                before.next = link.next;
            }
            if let Some(behind) = self.links.get_mut(link.next) {
                behind.prev = link.prev;
            }
            let Some(queue) = self.queues.get_mut(link.queue) else { continue };
            if link.prev == NIL {
                queue.first = link.next;
            }
            if link.next == NIL {
                queue.last = link.prev;
            }
            queue.len -= 1;
            self.contended -= usize::from(queue.len == 0);
            queue.exclusive -= u32::from(found.wanted.mode == Mode::Exclusive);
            queue.complex -= u32::from(found.complex);
        }
        if let Some(node) = self.owners.get_mut(found.owner) {
            node.waits.retain(|wait| *wait != waiter);
        }
        self.note_complex(found.owner);
        Some((found, queues))
    }

    /// Must be called for the owner of a waiter that has left, once its name is not needed any more.
    pub fn forget_owner(&mut self, owner: u32) {
        self.release_owner(owner);
    }

    /// Panics if an invariant is broken. Walks everything.
    pub fn check_invariants(&self) {
        let mut links = 0;
        for (number, queue) in self.queues.iter() {
            assert_eq!(self.find(queue.key()), Some(number), "a queue is found by its name");
            let of: Vec<Link> = self.links_of(number).collect();
            links += of.len();
            assert_eq!(queue.len as usize, of.len(), "a queue knows how many wait");
            assert!(of.is_sorted_by(|a, b| a.order < b.order), "a queue is in order");
            let waiters: Vec<&Waiter> = of.iter().filter_map(|link| self.waiters.get(link.waiter)).collect();
            assert_eq!(waiters.len(), of.len(), "a link has a waiter");
            let exclusive = waiters.iter().filter(|waiter| waiter.wanted.mode == Mode::Exclusive).count();
            assert_eq!(queue.exclusive as usize, exclusive);
            assert_eq!(queue.complex as usize, waiters.iter().filter(|waiter| waiter.complex).count());
            for (owner, _) in &queue.holders {
                let node = self.owners.get(*owner);
                assert!(node.is_some_and(|node| node.holds.contains(number)), "an owner knows what it holds");
            }
        }
        self.check_levels();
        assert_eq!(links, self.links.len());
        assert_eq!(self.contended, self.queues.iter().filter(|(_, queue)| queue.len > 0).count());
        let by_age: Vec<i64> = self.waiters_by_age().map(|waiter| waiter.serial).collect();
        assert_eq!(by_age.len(), self.waiters.len(), "all waiters are in line");
        assert!(by_age.is_sorted_by(|a, b| a < b), "waiters are in the order in which they began");
        let names: BTreeSet<&[u8]> = self.owners.iter().map(|(_, owner)| &owner.name[..]).collect();
        assert_eq!(self.owners.iter().count() - names.len(), self.namesakes, "namesakes are counted");
        for (number, waiter) in self.waiters.iter() {
            let owner = self.owners.get(waiter.owner);
            assert!(owner.is_some_and(|owner| owner.waits.contains(&number)), "an owner knows what it waits for");
        }
        for (number, owner) in self.owners.iter() {
            assert_eq!(self.find_owner(owner.user, &owner.name), Some(number));
            assert!(!owner.waits.is_empty() || !owner.holds.is_empty(), "nothing is known of others");
            for held in owner.holds.iter() {
                let queue = self.queues.get(held);
                assert!(queue.is_some_and(|queue| queue.holders.iter().any(|holder| holder.0 == number)));
            }
        }
    }
}
