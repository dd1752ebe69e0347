//! The waits-for graph, and whether another wait would close a cycle in it.
//!
//! An owner waits for every holder of a name whose mode conflicts with its own, and for every earlier waiter in the queue that
//! conflicts with it. The edges are not stored: they follow from the queues. The search does not walk them one by one. An earlier
//! waiter in the same queue waits for the same holders, so it leads nowhere else unless its owner waits in another queue, too;
//! queues count such waiters. So a step of the search is a queue, and a queue with many thousand waiters costs no more than its
//! holders.
//!
//! Usually there is nothing to search: a cycle leads back to the owner that is about to wait, and nobody waits for an owner that
//! holds no contended name and waits nowhere yet.
//!
//! Otherwise the search runs from both ends by turns, each time with four times as many steps: whom the owner would wait for, and
//! who waits for the owner already. When either search is exhausted there is no cycle. So a long chain, or a crowd that shares a
//! lock, is expensive only if it is large on both sides; and then only once, see `Queues::put_above`.

pub mod forest;

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

use crate::lock::grant::{Mode, UserKey};
use crate::lock::queue::{Link, Queues};

/// One owner of a cycle, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The owner.
    pub owner: Vec<u8>,
    /// The name that it waits for.
    pub waits_for: Vec<u8>,
    /// Whether the next owner of the cycle holds that name; otherwise it stands before this one in its queue.
    pub held: bool,
}

/// A wait that is about to begin.
#[derive(Clone, Copy, Debug)]
pub struct PendingWait<'a> {
    /// The user of the owner.
    pub user: UserKey,
    /// The owner.
    pub owner: &'a [u8],
    /// The mode in which it wants the names.
    pub mode: Mode,
    /// Whether the owner shares the name already, and will stand before all others.
    pub upgrade: bool,
    /// The queues that it will stand in.
    pub queues: &'a [u32],
}

/// A queue on the path, up to some place in it.
struct Node {
    queue: u32,
    /// Waiters from this order on do not count: they stand behind.
    before: i64,
    mode: Mode,
    /// The owner that waits in it there, and whether that was found as a holder of the previous queue.
    owner: Option<(u32, bool)>,
    /// The index of the previous node.
    from: usize,
}

/// Maximum number of steps of the first turn of the search. Small in tests, so that several turns happen.
const STEPS: u32 = if cfg!(test) { 3 } else { 64 };

/// Maximum number of links of a cycle in words, and of bytes that are shown of a name.
const LINKS_MAX: usize = 16;
const NAME_MAX: usize = 1024;

/// Maximum number of steps for lifting levels after a search. Eight times the bound of the search's last turn is a second
/// maximum.
const LIFTED: u32 = 1 << 16;

/// The cycle that a wait would close, beginning with its owner; `None` if it closes none.
pub fn find_cycle(queues: &mut Queues, pending: PendingWait<'_>) -> Option<Vec<Step>> {
    let wanting = queues.find_owner(pending.user, pending.owner)?;
    let known = queues.owner(wanting)?;
    if known.holds.is_empty() && known.waits.is_empty() {
        return None;
    }
    if queues.is_below(wanting, pending.queues) {
        return None;
    }
    let mut steps = STEPS;
    let cycle = search(queues, pending, wanting, &mut steps);
    if cycle.is_none() && steps > STEPS {
        queues.put_above(wanting, pending.queues, steps.saturating_mul(8).min(LIFTED));
    }
    cycle
}

/// Searches from both ends by turns. Leaves in `steps` the bound of the last turn.
fn search(queues: &Queues, pending: PendingWait<'_>, wanting: u32, steps: &mut u32) -> Option<Vec<Step>> {
    let known = queues.owner(wanting)?;
    // An upgrade goes before all waiters, and they wait for its owner then: the owner's other waits may close the cycle, too.
    let waits = if pending.upgrade { &known.waits[..] } else { &[] };
    let also: Vec<u32> = waits.iter().flat_map(|&waiter| queues.queues_of(waiter)).collect();
    // Both searches start again at each turn: all earlier turns together take a third of the steps of the last one.
    loop {
        let awaited =
            Awaited { queues, pending, wanting, also: &also, seen: HashSet::default(), next: Vec::new(), steps: *steps };
        match awaited.leads_to_pending() {
            Ok(false) => return None,
            Ok(true) => *steps = u32::MAX,
            Err(OutOfSteps) => {}
        }
        match Search::new(queues, pending, wanting, *steps).cycle() {
            Ok(cycle) => return cycle,
            Err(OutOfSteps) => *steps = steps.saturating_mul(4),
        }
    }
}

/// The search ran out of steps.
struct OutOfSteps;

fn step(steps: &mut u32) -> Result<(), OutOfSteps> {
    *steps = steps.checked_sub(1).ok_or(OutOfSteps)?;
    Ok(())
}

/// The search from the end: the queues whose waiters may all wait, directly or not, for the owner that is about to wait. It
/// ignores modes, so it may find too many queues, but never too few.
struct Awaited<'a> {
    queues: &'a Queues,
    pending: PendingWait<'a>,
    wanting: u32,
    /// The owner's present queues, if an upgrade makes others wait for it.
    also: &'a [u32],
    seen: HashSet<u32, FixedState>,
    next: Vec<u32>,
    steps: u32,
}

impl Awaited<'_> {
    /// Whether any of those waiters holds, or stands in the queue of, a name that the owner wants. Only then a cycle is possible.
    fn leads_to_pending(mut self) -> Result<bool, OutOfSteps> {
        let mut found = self.add(self.wanting)?;
        while let Some(queue) = self.next.pop().filter(|_| !found) {
            for link in self.queues.links_of(queue) {
                step(&mut self.steps)?;
                if let Some(waiter) = self.queues.waiter(link.waiter).filter(|waiter| waiter.owner != self.wanting) {
                    found |= self.add(waiter.owner)?;
                }
                if found {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Adds the queues of all names that an owner holds, and those it stands in.
    fn add(&mut self, owner: u32) -> Result<bool, OutOfSteps> {
        let Some(node) = self.queues.owner(owner) else { return Ok(false) };
        // An upgrade goes before all other waiters in the queue of the name that it shares.
        let own = owner == self.wanting && self.pending.upgrade;
        for queue in node.holds.iter() {
            step(&mut self.steps)?;
            if (self.pending.queues.contains(&queue) || self.also.contains(&queue)) && !own {
                return Ok(true);
            }
            self.enter(queue);
        }
        for queue in node.waits.iter().flat_map(|&waiter| self.queues.queues_of(waiter)) {
            step(&mut self.steps)?;
            if self.pending.queues.contains(&queue) && !self.pending.upgrade
                || self.also.contains(&queue) && owner != self.wanting
            {
                return Ok(true);
            }
            self.enter(queue);
        }
        Ok(false)
    }

    fn enter(&mut self, queue: u32) {
        if self.seen.insert(queue) {
            self.next.push(queue);
        }
    }
}

/// The search from the beginning, which knows the path once it finds the end.
struct Search<'a> {
    queues: &'a Queues,
    pending: PendingWait<'a>,
    wanting: u32,
    nodes: Vec<Node>,
    /// How far each queue was searched, separately for exclusive and for shared waits.
    seen: HashMap<(u32, bool), i64, FixedState>,
    steps: u32,
}

impl<'a> Search<'a> {
    fn new(queues: &'a Queues, pending: PendingWait<'a>, wanting: u32, steps: u32) -> Self {
        let before = if pending.upgrade { i64::MIN } else { i64::MAX };
        let root = |&queue| Node { queue, before, mode: pending.mode, owner: None, from: usize::MAX };
        let mut nodes: Vec<Node> = pending.queues.iter().map(root).collect();
        for &waiter in queues.owner(wanting).filter(|_| pending.upgrade).map(|owner| &owner.waits[..]).unwrap_or_default() {
            let Some(waiter) = queues.waiter(waiter).filter(|waiter| waiter.wanted.limit <= 1) else { continue };
            let links = waiter.links.iter().filter_map(|&link| queues.link(link));
            let node = |link: Link| Node {
                queue: link.queue,
                before: link.order,
                mode: waiter.wanted.mode,
                owner: None,
                from: usize::MAX,
            };
            nodes.extend(links.map(node));
        }
        Search { queues, pending, wanting, nodes, seen: HashMap::default(), steps }
    }

    fn cycle(mut self) -> Result<Option<Vec<Step>>, OutOfSteps> {
        let roots = self.nodes.len();
        let mut at = 0;
        while at < self.nodes.len() {
            if let Some(held) = self.visit(at, at < roots)? {
                return Ok(Some(self.path(at, held)));
            }
            at += 1;
        }
        Ok(None)
    }

    /// Looks for the wanting owner among those that a node waits for. Returns whether it was found as a holder or as a waiter.
    /// Appends the queues of all others that wait themselves to the nodes.
    fn visit(&mut self, at: usize, root: bool) -> Result<Option<bool>, OutOfSteps> {
        let Node { queue: number, before, mode, .. } = self.nodes[at];
        let Some(queue) = self.queues.get(number) else { return Ok(None) };
        step(&mut self.steps)?;
        if !root && self.pending.upgrade && self.pending.queues.contains(&number) {
            // The upgrade will stand before all of them, and shares the name with others until then.
            return Ok(Some(true));
        }
        // A shared wait depends on the last exclusive waiter before it, and on everything before that one.
        let bound = match mode {
            Mode::Exclusive => Some(before),
            Mode::Shared if queue.exclusive == 0 => None,
            Mode::Shared => self.last_exclusive(number, before)?,
        };
        let for_all = mode == Mode::Exclusive || bound.is_some();
        for &(holder, held) in &queue.holders {
            step(&mut self.steps)?;
            if !for_all && held == Mode::Shared {
                continue;
            }
            if holder == self.wanting {
                // At the root, the name that it holds and wants is the one it shares.
                if root {
                    continue;
                }
                return Ok(Some(true));
            }
            self.follow(holder, true, at)?;
        }
        let Some(bound) = bound else { return Ok(None) };
        let stands_before = |link: &Link| link.queue == number && link.order < bound;
        for &waiter in self.queues.owner(self.wanting).map(|owner| &owner.waits[..]).unwrap_or_default() {
            let Some(waiter) = self.queues.waiter(waiter) else { continue };
            let mut links = waiter.links.iter().filter_map(|&link| self.queues.link(link));
            if !root && links.any(|link| stands_before(&link)) {
                return Ok(Some(false));
            }
        }
        // If the owner shares the name, or waits to share it, and now wants it exclusively along with other names, it also waits
        // for the waiters that stand before it.
        let known = self.queues.owner(self.wanting);
        let twice = root && known.is_some_and(|owner| owner.holds.contains(number) || self.waits_in(&owner.waits, number));
        if queue.complex > 0 || twice {
            let before: Vec<u32> = self.queues.links_of(number).take_while(stands_before).map(|link| link.waiter).collect();
            for waiter in before {
                step(&mut self.steps)?;
                if let Some(owner) = self.queues.waiter(waiter).map(|waiter| waiter.owner)
                    && owner != self.wanting
                {
                    self.follow(owner, false, at)?;
                }
            }
        }
        Ok(None)
    }

    fn waits_in(&self, waiters: &[u32], queue: u32) -> bool {
        waiters.iter().any(|&waiter| self.queues.queues_of(waiter).any(|of| of == queue))
    }

    /// The order right behind the last exclusive waiter before some place.
    fn last_exclusive(&mut self, queue: u32, before: i64) -> Result<Option<i64>, OutOfSteps> {
        for link in self.queues.links_back(queue).skip_while(|link| link.order >= before) {
            step(&mut self.steps)?;
            if self.queues.waiter(link.waiter).is_some_and(|waiter| waiter.wanted.mode == Mode::Exclusive) {
                return Ok(Some(link.order + 1));
            }
        }
        Ok(None)
    }

    /// Appends all that an owner waits for to the nodes, as far as it was not searched yet.
    fn follow(&mut self, owner: u32, held: bool, from: usize) -> Result<(), OutOfSteps> {
        let Some(node) = self.queues.owner(owner) else { return Ok(()) };
        for &waiter in &node.waits {
            // A waiter for one of several permits waits for no particular holder.
            let Some(waiter) = self.queues.waiter(waiter).filter(|waiter| waiter.wanted.limit <= 1) else { continue };
            for link in waiter.links.iter().filter_map(|&link| self.queues.link(link)) {
                step(&mut self.steps)?;
                let exclusive = waiter.wanted.mode == Mode::Exclusive;
                let seen = self.seen.entry((link.queue, exclusive)).or_insert(i64::MIN);
                if *seen < link.order {
                    *seen = link.order;
                    let (mode, before) = (waiter.wanted.mode, link.order);
                    self.nodes.push(Node { queue: link.queue, before, mode, owner: Some((owner, held)), from });
                }
            }
        }
        Ok(())
    }

    /// The path to a node whose queue the wanting owner holds or stands in.
    fn path(&self, mut at: usize, mut held: bool) -> Vec<Step> {
        let mut steps = Vec::new();
        loop {
            let node = &self.nodes[at];
            let waits_for = self.queues.get(node.queue).map(|queue| queue.name.to_vec()).unwrap_or_default();
            let owner = match node.owner {
                Some((owner, _)) => self.queues.owner(owner).map(|owner| owner.name.to_vec()).unwrap_or_default(),
                None => self.pending.owner.to_vec(),
            };
            steps.push(Step { owner, waits_for, held });
            if let Some((_, found_as_holder)) = node.owner { (at, held) = (node.from, found_as_holder) } else { break }
        }
        steps.reverse();
        steps
    }
}

/// A cycle in words: `'x' waits for 'a' held by 'y', who waits for 'b' held by 'x'`. Of locks that are not seen, and of owners that
/// have to do with no others, it says only that there are any: `'y', who waits for a lock that you may not see behind 'x'`. The middle of
/// a long cycle is one link: `'y', who waits for locks that are not shown here behind 'z'`.
pub fn describe(cycle: &[Step], sees: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let seen: Vec<bool> = cycle.iter().map(|step| sees(&step.waits_for)).collect();
    // A link begins here; steps to several locks that are not seen, one after the other, are one.
    let links: Vec<usize> = (0..cycle.len()).filter(|&at| at == 0 || seen[at] || seen[at - 1]).collect();
    let left_out = if links.len() > LINKS_MAX { LINKS_MAX / 2..links.len() + 1 - LINKS_MAX / 2 } else { 0..0 };
    let mut text = Vec::new();
    let mut put = |part: &[u8]| text.extend_from_slice(part);
    for (number, &at) in links.iter().enumerate() {
        if left_out.contains(&number) && number > left_out.start {
            continue;
        }
        let Step { owner, waits_for, held } = &cycle[at];
        if number == 0 {
            put(b"'");
            put(owner);
            put(b"' waits for ");
        } else {
            put(b", who waits for ");
        }
        let mut next = number + 1;
        if number == left_out.start && !left_out.is_empty() {
            put(b"locks that are not shown here behind '");
            next = left_out.end;
        } else if seen[at] {
            put(b"'");
            put(&waits_for[..waits_for.len().min(NAME_MAX)]);
            put(if *held { b"' held by '" } else { b"' asked for before by '" });
        } else {
            put(b"a lock that you may not see behind '");
        }
        put(&cycle[links.get(next).copied().unwrap_or(0)].owner);
        put(b"'");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::Key;
    use crate::base::scaled;
    use crate::lock::grant::{Bound, Client};
    use crate::lock::interface::Request;
    use crate::lock::queue::Wanted;

    const WANTED: Wanted =
        Wanted { mode: Mode::Exclusive, permits: 1, limit: 0, lease_ms: 1, max_hold_ms: 0, delay_ms: 0, bound: Bound::Lease };

    fn name(kind: &str, number: usize) -> Vec<u8> {
        format!("{kind}{number}").into_bytes()
    }

    const NOBODY: UserKey = UserKey(0);

    fn hold(queues: &mut Queues, what: &[u8], owner: &[u8], mode: Mode) {
        let queue = queues.find_or_make(Key { db: 0, name: what });
        queues.hold(queue, (NOBODY, owner), mode);
    }

    fn wait(queues: &mut Queues, what: &[u8], owner: &[u8]) {
        let queue = queues.find_or_make(Key { db: 0, name: what });
        let request = Request { owner, client: Client::default(), wanted: WANTED, id: None };
        queues.enter(&request, (None, 0), (false, false), &[queue]);
    }

    fn cycle_of(queues: &mut Queues, what: &[u8], owner: &[u8]) -> Option<Vec<Step>> {
        let queue = queues.find_or_make(Key { db: 0, name: what });
        find_cycle(queues, PendingWait { user: NOBODY, owner, mode: Mode::Exclusive, upgrade: false, queues: &[queue] })
    }

    /// Whether at most this many steps suffice to see that there is no cycle.
    fn is_seen_within(queues: &mut Queues, what: &[u8], owner: &[u8], steps: u32) -> bool {
        let wanted = [queues.find_or_make(Key { db: 0, name: what })];
        let pending = PendingWait { user: NOBODY, owner, mode: Mode::Exclusive, upgrade: false, queues: &wanted };
        let Some(wanting) = queues.find_owner(NOBODY, owner) else { return true };
        let awaited = Awaited { queues, pending, wanting, also: &[], seen: HashSet::default(), next: Vec::new(), steps };
        matches!(awaited.leads_to_pending(), Ok(false))
            || matches!(Search::new(queues, pending, wanting, steps).cycle(), Ok(None))
    }

    #[test]
    fn every_ring_is_refused_at_the_closing_wait_wherever_that_is() {
        for size in 2..=scaled(100, 7) {
            // The order in which they begin to wait; 101 is a prime.
            let order: Vec<usize> = (1..=100).map(|n| n * (size % 99 + 2) % 101 - 1).filter(|&n| n < size).collect();
            assert_eq!(order.len(), size);
            let mut queues = Queues::new(1);
            (0..size).for_each(|n| hold(&mut queues, &name("lock", n), &name("owner", n), Mode::Exclusive));
            for (at, &n) in order.iter().enumerate() {
                let (wanted, owner) = (name("lock", (n + 1) % size), name("owner", n));
                let cycle = cycle_of(&mut queues, &wanted, &owner);
                if at + 1 < size {
                    assert_eq!(cycle, None, "ring of {size}, wait {at}");
                    wait(&mut queues, &wanted, &owner);
                    continue;
                }
                let named = (0..size).map(|step| {
                    let owner = (n + step) % size;
                    Step { owner: name("owner", owner), waits_for: name("lock", (owner + 1) % size), held: true }
                });
                assert_eq!(cycle, Some(named.collect()), "ring of {size}");
            }
            queues.check_invariants();
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn what_is_long_on_one_side_only_is_not_walked_through() {
        const MANY: usize = 10_000;
        const STEPS: u32 = 16;
        let mut queues = Queues::new(1);
        // The owner that is about to wait holds a contended name.
        hold(&mut queues, b"own", b"x", Mode::Exclusive);
        wait(&mut queues, b"own", b"y");
        // A chain; and its other end.
        for n in 0..MANY {
            hold(&mut queues, &name("chain", n), &name("link", n), Mode::Exclusive);
            wait(&mut queues, &name("chain", n + 1), &name("link", n));
        }
        hold(&mut queues, &name("chain", MANY), b"end", Mode::Exclusive);
        assert!(is_seen_within(&mut queues, &name("chain", 0), b"x", STEPS));
        hold(&mut queues, b"other", b"boss", Mode::Exclusive);
        assert!(is_seen_within(&mut queues, b"other", b"end", STEPS));
        // Many owners share the wanted name and each waits for another one; and all wait for one name.
        for n in 0..MANY {
            hold(&mut queues, b"shared", &name("reader", n), Mode::Shared);
            hold(&mut queues, &name("book", n), b"boss", Mode::Exclusive);
            wait(&mut queues, &name("book", n), &name("reader", n));
        }
        assert!(is_seen_within(&mut queues, b"shared", b"x", STEPS));
        hold(&mut queues, b"apart", b"nobody", Mode::Exclusive);
        assert!(is_seen_within(&mut queues, b"apart", b"boss", STEPS));
        // Where it is much on both sides it is walked through once: then the levels tell.
        for n in 0..MANY / 4 {
            wait(&mut queues, b"own", &name("asking", n));
            hold(&mut queues, &name("asked", n), &name("asking", n), Mode::Exclusive);
            wait(&mut queues, &name("asked", n), &name("last", n));
            hold(&mut queues, b"own", &name("sharer", n), Mode::Shared);
        }
        let shared = [queues.find_or_make(Key { db: 0, name: b"shared" })];
        for n in 0..3 {
            let owner = name("sharer", n);
            let number = queues.find_owner(NOBODY, &owner).expect("it holds");
            assert_eq!(queues.is_below(number, &shared), n > 0, "{n}");
            assert_eq!(cycle_of(&mut queues, b"shared", &owner), None);
            wait(&mut queues, b"shared", &owner);
            queues.check_invariants();
        }
        // One that closes the cycle is found all the same.
        assert_eq!(cycle_of(&mut queues, &name("chain", 0), b"end").map(|cycle| cycle.len()), Some(MANY + 1));
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes Miri too long")]
    fn the_middle_of_a_long_cycle_is_left_out() {
        let cycle = |len: usize| -> Vec<Step> {
            (0..len).map(|n| Step { owner: name("o", n), waits_for: name("l", n), held: true }).collect()
        };
        let text = |len, sees: fn(&[u8]) -> bool| String::from_utf8(describe(&cycle(len), sees)).unwrap();
        let links = |text: &str| text.matches(" waits for ").count();
        assert_eq!([2, 16, 17, 10_000].map(|len| links(&text(len, |_| true))), [2, 16, 16, 16]);
        let end = ", who waits for locks that are not shown here behind 'o11', who waits for 'l11' held by 'o12'";
        assert!(text(18, |_| true).contains(&format!(", who waits for 'l7' held by 'o8'{end}")), "{}", text(18, |_| true));
        assert!(text(18, |_| true).ends_with(", who waits for 'l17' held by 'o0'"));
        let long = Step { owner: name("o", 0), waits_for: vec![b'x'; 5_000], held: true };
        assert!(describe(&[long.clone(), long], |_| true).len() < 2_200);
        // What is not seen is one link, however long.
        let all = "'o0' waits for a lock that you may not see behind 'o0'";
        assert_eq!(text(10_000, |_| false), all);
        let one = "'o0' waits for a lock that you may not see behind 'o500', who waits for 'l500' held by 'o501', \
                   who waits for a lock that you may not see behind 'o0'";
        assert_eq!(text(10_000, |name| name == b"l500"), one);
    }

    #[test]
    fn owners_of_different_users_are_different_owners() {
        // A stranger holds one of its own locks as `alice`, and waits for it as `bob`.
        let stranger = UserKey(7);
        let mut queues = Queues::new(1);
        let own = queues.find_or_make(Key { db: 0, name: b"own" });
        queues.hold(own, (stranger, b"alice"), Mode::Exclusive);
        let client = Client::default().as_user(stranger);
        queues.enter(&Request { owner: b"bob", client, wanted: WANTED, id: None }, (None, 0), (false, false), &[own]);
        hold(&mut queues, b"work", b"bob", Mode::Exclusive);
        assert_eq!(cycle_of(&mut queues, b"work", b"alice"), None);
        wait(&mut queues, b"work", b"alice");
        assert!(queues.has_namesakes());
        queues.check_invariants();
        // Whoever shares names of locks is found all the same.
        let step = |owner: &[u8], lock: &[u8]| Step { owner: owner.to_vec(), waits_for: lock.to_vec(), held: true };
        hold(&mut queues, b"shared", b"alice", Mode::Exclusive);
        let shared = queues.find_or_make(Key { db: 0, name: b"shared" });
        queues.enter(&Request { owner: b"alice", client, wanted: WANTED, id: None }, (None, 0), (false, false), &[shared]);
        queues.check_invariants();
        let cycle = cycle_of(&mut queues, b"own", b"bob");
        assert_eq!(cycle, Some(vec![step(b"bob", b"own"), step(b"alice", b"shared"), step(b"alice", b"work")]));
        queues.unhold_all(own);
        assert_eq!(queues.waits_of(b"alice").len(), 2);
        queues.check_invariants();
    }

    #[test]
    fn a_cycle_names_what_is_seen() {
        let step = |owner: &str, lock: &str, held| Step { owner: owner.into(), waits_for: lock.into(), held };
        let cycle = [
            step("x", "a:1", true),
            step("y", "v:1", true),
            step("secret", "v:2", false),
            step("z", "a:2", false),
            step("w", "v:3", true),
        ];
        let text = |sees: fn(&[u8]) -> bool, cycle: &[Step]| String::from_utf8(describe(cycle, sees)).unwrap();
        let of_a = |name: &[u8]| name.starts_with(b"a:");
        assert_eq!(
            text(|_| true, &cycle[..3]),
            "'x' waits for 'a:1' held by 'y', who waits for 'v:1' held by 'secret', who waits for 'v:2' asked for before by 'x'"
        );
        assert_eq!(
            text(of_a, &cycle),
            "'x' waits for 'a:1' held by 'y', who waits for a lock that you may not see behind 'z', who waits for 'a:2' asked for \
             before by 'w', who waits for a lock that you may not see behind 'x'"
        );
        assert_eq!(text(of_a, &cycle[1..3]), "'y' waits for a lock that you may not see behind 'y'");
        assert_eq!(
            text(of_a, &cycle[1..4]),
            "'y' waits for a lock that you may not see behind 'z', who waits for 'a:2' asked for before by 'y'"
        );
    }
}
