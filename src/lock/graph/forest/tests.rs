use super::*;
use crate::base::ids::{Key, KeyBuf};
use crate::lock::grant::{Bound, Client, Mode};
use crate::lock::interface::Request;
use crate::lock::queue::Wanted;

fn all(db: u32) -> Among<'static> {
    Among { db, sees: &|_| true }
}

/// All of the trees, or of their roots, in one slice.
fn whole(mut forest: Forest, queues: &Queues, among: Among<'_>) -> Forest {
    assert!(forest.go_on(queues, among, u32::MAX));
    forest
}

fn asked(name: &str, owners: &[&str]) -> Asked {
    let holders = owners.iter().map(|owner| (UserKey(0), Owner::from_slice(owner.as_bytes())));
    Asked { name: name.as_bytes().into(), holders: holders.collect() }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn hold(queues: &mut Queues, name: &str, owner: &str) {
    hold_in(queues, 0, name, owner);
}

fn hold_in(queues: &mut Queues, db: u32, name: &str, owner: &str) {
    let queue = queues.find_or_make(Key { db, name: name.as_bytes() });
    queues.hold(queue, (UserKey(0), owner.as_bytes()), Mode::Exclusive);
}

fn wait(queues: &mut Queues, name: &str, owner: &str) {
    wait_in(queues, 0, name, owner);
}

fn wait_in(queues: &mut Queues, db: u32, name: &str, owner: &str) {
    let queue = queues.find_or_make(Key { db, name: name.as_bytes() });
    enter(queues, owner, &[queue]);
}

fn enter(queues: &mut Queues, owner: &str, names: &[u32]) {
    let (mode, bound) = (Mode::Exclusive, Bound::Lease);
    let wanted = Wanted { mode, permits: 1, limit: 0, lease_ms: 1, max_hold_ms: 0, delay_ms: 0, bound };
    let request = Request { owner: owner.as_bytes(), client: Client::default(), wanted, id: None };
    queues.enter(&request, (None, 0), (false, false), names);
}

fn shown(queues: &Queues, lock: Option<(&str, &[&str])>, count: usize) -> Vec<String> {
    let asked = lock.map(|(name, owners)| asked(name, owners));
    let line = |node: &Node| {
        let via = node.via.as_ref().map(|via| text(via)).unwrap_or_default();
        let (indent, name, cut) = (" ".repeat(node.depth as usize), text(&node.name), if node.cut { " cut" } else { "" });
        format!("{indent}{name} {via}({}){cut}", node.blocked)
    };
    whole(Forest::new(asked, count), queues, all(0)).nodes.iter().map(line).collect()
}

/// `ann` holds `root`, for which `bob` waits, who holds `mid`, for which `cy` waits, who holds `low`, for which two wait.
fn chain() -> Queues {
    let mut queues = Queues::new(1);
    for (name, owner) in [("root", "ann"), ("mid", "bob"), ("low", "cy"), ("other", "dan")] {
        hold(&mut queues, name, owner);
    }
    for (name, owner) in [("root", "bob"), ("mid", "cy"), ("low", "x"), ("low", "y"), ("root", "z"), ("other", "w")] {
        wait(&mut queues, name, owner);
    }
    queues
}

#[test]
fn roots_come_first_and_what_they_block_below_them() {
    let queues = chain();
    assert_eq!(shown(&queues, None, 100), ["root (5)", " mid bob(3)", "  low cy(2)", "other (1)"]);
    assert_eq!(shown(&queues, None, 2), ["root (5)", " mid bob(3) cut"]);
    assert_eq!(shown(&queues, None, 0), [""; 0]);
    // The path to a lock, and what is below it.
    assert_eq!(shown(&queues, Some(("mid", &["bob"])), 100), ["root (5)", " mid bob(3)", "  low cy(2)"]);
    assert_eq!(shown(&queues, Some(("low", &["cy"])), 100), ["root (5)", " mid bob(3)", "  low cy(2)"]);
    assert_eq!(shown(&queues, Some(("other", &["dan"])), 100), ["other (1)"]);
    // A lock that nobody waits for is below the one that its holder waits for.
    assert_eq!(shown(&queues, Some(("idle", &["x"])), 100), ["root (5)", " mid bob(3)", "  low cy(2)", "   idle x(0)"]);
    assert_eq!(shown(&queues, Some(("idle", &["nobody"])), 100), ["idle (0)"]);
}

#[test]
fn a_lock_below_two_others_is_shown_once_and_counted_once() {
    let mut queues = Queues::new(1);
    // Two share `q`; each waits for another lock, and the holders of both wait for `root`.
    for (name, owner) in [("root", "ann"), ("a", "bob"), ("b", "cy"), ("q", "x"), ("q", "y")] {
        hold(&mut queues, name, owner);
    }
    for (name, owner) in [("root", "bob"), ("root", "cy"), ("a", "x"), ("b", "y"), ("q", "w")] {
        wait(&mut queues, name, owner);
    }
    let whole = ["root (5)", " a bob(2)", "  q x(1)", " b cy(2)", "  q y(1) cut"];
    assert_eq!(shown(&queues, None, 100), whole);
    assert_eq!(shown(&queues, Some(("q", &["x", "y"])), 100), whole);
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn long_chains_and_circles_end() {
    let mut queues = Queues::new(1);
    for n in 0..10_000 {
        hold(&mut queues, &format!("lock{n}"), &format!("owner{n}"));
        wait(&mut queues, &format!("lock{}", n + 1), &format!("owner{n}"));
    }
    hold(&mut queues, "lock10000", "end");
    let nodes = shown(&queues, None, 3);
    assert_eq!(nodes, ["lock10000 (10000)", " lock9999 owner9999(9999)", "  lock9998 owner9998(9998) cut"]);
    assert_eq!(shown(&queues, Some(("lock7", &["owner7"])), 1), ["lock10000 (10000) cut"]);
    let mut circle = Queues::new(1);
    for n in 0..3 {
        hold(&mut circle, &format!("lock{n}"), &format!("owner{n}"));
        wait(&mut circle, &format!("lock{}", (n + 1) % 3), &format!("owner{n}"));
    }
    assert_eq!(shown(&circle, None, 100).len(), 4, "three, and the first one again");
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn too_many_locks_are_shown_in_part() {
    // The holders of 50,000 locks wait for `hub`, whose holder waits for `root`: those two are beyond the bound.
    let mut below = Queues::new(1);
    for n in 0..50_000 {
        hold(&mut below, &format!("lock{n}"), &format!("owner{n}"));
        wait(&mut below, &format!("lock{n}"), &format!("waiter{n}"));
    }
    (0..50_000).for_each(|n| wait(&mut below, "hub", &format!("owner{n}")));
    hold(&mut below, "hub", "middle");
    hold(&mut below, "root", "ann");
    wait(&mut below, "root", "middle");
    let trees = whole(Forest::new(None, 5), &below, all(0));
    assert!(trees.is_partial);
    let names = |nodes: &[Node]| nodes.iter().map(|node| text(&node.name)).collect::<Vec<String>>();
    assert_eq!(names(&trees.nodes)[..2], ["root", "hub"], "the root is found from below");
    assert_eq!(trees.nodes.len(), 5);
    assert!(trees.nodes[0].blocked > 50_000 && trees.nodes[0].blocked < 100_001, "{:?}", trees.nodes[0]);
    let roots = whole(Forest::roots(100), &below, all(0));
    assert_eq!((names(&roots.nodes), roots.is_partial), (vec!["root".to_owned()], true));

    // As many without any chain: each is shown whole.
    let mut apart = Queues::new(1);
    for n in 0..50_000 {
        hold(&mut apart, &format!("lock{n}"), &format!("owner{n}"));
        wait(&mut apart, &format!("lock{n}"), &format!("waiter{n}"));
    }
    let trees = whole(Forest::new(None, 50), &apart, all(0));
    assert!(trees.is_partial && trees.nodes.len() == 50);
    assert!(trees.nodes.iter().all(|node| !node.cut && node.blocked == 1 && node.depth == 0));
    assert!(!whole(Forest::new(None, 50), &chain(), all(0)).is_partial);

    // One lock whose holder waits for more than is looked at.
    let mut one = Queues::new(1);
    hold(&mut one, "one", "boss");
    wait(&mut one, "one", "last");
    let many: Vec<u32> = (0..70_000).map(|n| one.find_or_make(Key { db: 1, name: format!("lock{n}").as_bytes() })).collect();
    enter(&mut one, "boss", &many);
    let trees = whole(Forest::new(None, 50), &one, all(0));
    assert!(trees.is_partial && trees.nodes.len() == 1, "{:?}", trees.nodes);
}

#[test]
fn a_holder_that_waits_in_another_database_is_told() {
    let mut queues = Queues::new(1);
    for (db, name, owner) in [(0, "here", "bob"), (1, "there", "ann"), (0, "alone", "dan")] {
        hold_in(&mut queues, db, name, owner);
    }
    for (db, name, owner) in [(1, "there", "bob"), (0, "here", "x"), (0, "alone", "y")] {
        wait_in(&mut queues, db, name, owner);
    }
    let told = |forest: Forest, db: u32| -> Vec<Option<(u32, String, String)>> {
        let one = |elsewhere: Elsewhere| {
            let KeyBuf { db, name } = elsewhere.lock.unwrap();
            (db, text(&name), text(&elsewhere.owner))
        };
        whole(forest, &queues, all(db)).take_nodes().into_iter().map(|node| node.elsewhere.map(one)).collect()
    };
    let there = Some((1, "there".to_owned(), "bob".to_owned()));
    assert_eq!(told(Forest::new(None, 50), 0), [there.clone(), None]);
    assert_eq!(told(Forest::roots(50), 0), [there.clone(), None]);
    assert_eq!(told(Forest::new(None, 50), 1), [None]);
    // A lock without waiters.
    assert_eq!(told(Forest::new(Some(asked("idle", &["bob"])), 50), 0), [there]);
}

#[test]
fn a_lock_that_is_not_seen_is_only_waited_for() {
    let queues = chain();
    let among = Among { db: 0, sees: &|name| name != b"mid" };
    let lines = |forest: Forest| -> Vec<_> {
        let line = |node: Node| {
            let behind = node.elsewhere.map(|Elsewhere { lock, owner }| (lock.is_none(), text(&owner)));
            (node.depth, text(&node.name), node.blocked, behind)
        };
        whole(forest, &queues, among).take_nodes().into_iter().map(line).collect()
    };
    let named = |depth, lock: &str, blocked, behind| (depth, lock.to_owned(), blocked, behind);
    let all = [named(0, "root", 2, None), named(0, "low", 2, Some((true, "cy".to_owned()))), named(0, "other", 1, None)];
    assert_eq!(lines(Forest::new(None, 100)), all);
    assert_eq!(lines(Forest::roots(100)), all);
    assert_eq!(lines(Forest::new(Some(asked("low", &["cy"])), 100)), all[1..2]);
}

/// A graph of locks in two databases that changes at random.
struct Changing {
    queues: Queues,
    random: u64,
}

const LOCKS: u64 = 30;
const OWNERS: u64 = 25;

impl Changing {
    fn new(seed: u64) -> Changing {
        let mut new = Changing { queues: Queues::new(1), random: seed };
        (0..120).for_each(|_| new.change());
        new
    }

    fn below(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    /// A name: one in ten is hidden.
    fn name(&mut self) -> (u32, String) {
        let number = self.below(LOCKS);
        (u32::from(self.below(5) == 0), format!("{}{number}", if number.is_multiple_of(10) { "hidden" } else { "lock" }))
    }

    fn change(&mut self) {
        let (db, name) = self.name();
        let owner = format!("owner{}", self.below(OWNERS));
        match self.below(9) {
            0..3 => hold_in(&mut self.queues, db, &name, &owner),
            3..6 => {
                let mut names = vec![self.queues.find_or_make(Key { db, name: name.as_bytes() })];
                for _ in 0..self.below(3) {
                    let (db, name) = self.name();
                    let queue = self.queues.find_or_make(Key { db, name: name.as_bytes() });
                    if !names.contains(&queue) {
                        names.push(queue);
                    }
                }
                enter(&mut self.queues, &owner, &names);
            }
            6 => {
                if let Some(queue) = self.queues.find(Key { db, name: name.as_bytes() }) {
                    self.queues.unhold_all(queue);
                    self.queues.forget(queue);
                }
            }
            // A waiter gives up, and waits for this lock, which may get the numbers that the other one had.
            7 => {
                let number = self.queues.find_owner(UserKey(0), owner.as_bytes());
                let found = number.and_then(|number| self.queues.owner(number));
                let Some(waiter) = found.and_then(|found| found.waits.last().copied()) else { return };
                let Some((waiter, queues)) = self.queues.leave(waiter) else { return };
                queues.into_iter().for_each(|queue| self.queues.forget(queue));
                wait_in(&mut self.queues, db, &name, &owner);
                self.queues.forget_owner(waiter.owner);
            }
            // All who wait for a lock leave, so that its number is free for another.
            _ => {
                let Some(queue) = self.queues.find(Key { db, name: name.as_bytes() }) else { return };
                let waiters: Vec<u32> = self.queues.links_of(queue).map(|link| link.waiter).collect();
                for (waiter, queues) in waiters.into_iter().filter_map(|waiter| self.queues.leave(waiter)).collect::<Vec<_>>() {
                    queues.into_iter().for_each(|queue| self.queues.forget(queue));
                    self.queues.forget_owner(waiter.owner);
                }
            }
        }
    }

    /// What is asked for next.
    fn forest(&mut self) -> Forest {
        let count = 1 + self.below(40) as usize;
        match self.below(3) {
            0 => Forest::new(None, count),
            1 => Forest::roots(count),
            _ => {
                let lock = format!("lock{}", self.below(LOCKS));
                let queue = self.queues.find(Key { db: 0, name: lock.as_bytes() }).and_then(|queue| self.queues.get(queue));
                let holders = queue.map(|queue| queue.holders.clone()).unwrap_or_default();
                let owners = holders.iter().filter_map(|&(owner, _)| self.queues.owner(owner));
                let mut owners: Vec<String> = owners.map(|owner| text(&owner.name)).collect();
                owners.push(format!("owner{}", self.below(OWNERS)));
                Forest::new(Some(asked(&lock, &owners.iter().map(String::as_str).collect::<Vec<_>>())), count)
            }
        }
    }

    /// Whether an owner holds a lock and waits for another.
    fn joins(&self, owner: &Owner, above: &[u8], below: &[u8]) -> bool {
        let find = |name| self.queues.find(Key { db: 0, name }).unwrap_or(NIL);
        let Some(node) = self.queues.find_owner(UserKey(0), owner).and_then(|owner| self.queues.owner(owner)) else {
            return false;
        };
        node.holds.contains(find(below))
            && node.waits.iter().flat_map(|&waiter| self.queues.queues_of(waiter)).any(|queue| queue == find(above))
    }
}

const VISIBLE: Among<'static> = Among { db: 0, sees: &|name| !name.starts_with(b"hidden") };

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn slices_of_any_size_find_what_one_step_finds() {
    let (mut nodes, mut deepest) = (0, 0);
    for seed in 0..200 {
        let mut graph = Changing::new(seed);
        let again = graph.random;
        let at_once = whole(graph.forest(), &graph.queues, VISIBLE);
        for steps in [1, 2, 3, 7, 50] {
            graph.random = again;
            let mut forest = graph.forest();
            let mut slices = 1;
            while !forest.go_on(&graph.queues, VISIBLE, steps) {
                slices += 1;
            }
            assert!(slices > 3 || steps > 3 || forest.nodes.len() < 2, "{slices} slices");
            assert_eq!((&forest.nodes, forest.is_partial), (&at_once.nodes, at_once.is_partial), "seed {seed}, {steps} steps");
        }
        nodes += at_once.nodes.len();
        deepest = deepest.max(at_once.nodes.iter().map(|node| node.depth).max().unwrap_or(0));
    }
    assert!(nodes > 1_000 && deepest > 3, "{nodes} nodes, {deepest} deep");
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn each_node_is_true_when_it_is_added_whatever_changes_between_the_slices() {
    let (mut nodes, mut restarts) = (0, 0);
    for seed in 0..600 {
        let mut graph = Changing::new(seed);
        let mut forest = graph.forest();
        let (steps, changes) = (1 + graph.below(20) as u32, 1 + graph.below(6));
        let (mut known, mut slices) = (0, 0);
        loop {
            let done = forest.go_on(&graph.queues, VISIBLE, steps);
            if forest.nodes.len() < known {
                (known, restarts) = (0, restarts + 1);
            }
            let name_of_asked = forest.asked.as_ref().map(|asked| asked.name.clone());
            for (at, node) in forest.nodes.iter().enumerate().skip(known) {
                let is_asked = name_of_asked.as_ref() == Some(&node.name);
                let queue = graph.queues.find(Key { db: 0, name: &node.name }).and_then(|queue| graph.queues.get(queue));
                assert!((VISIBLE.sees)(&node.name), "{node:?} is hidden");
                assert!(is_asked || queue.is_some_and(|queue| queue.len > 0), "nobody waits for {node:?}, seed {seed}");
                let above = forest.nodes[..at].iter().rfind(|above| above.depth < node.depth);
                assert_eq!(above.map_or(0, |above| above.depth + 1), node.depth);
                if let Some(above) = above.filter(|_| !is_asked) {
                    let via = node.via.as_ref().unwrap();
                    assert!(graph.joins(via, &above.name, &node.name), "{node:?} is not below {above:?}, seed {seed}");
                }
                if let Some(Elsewhere { lock: Some(KeyBuf { db, name }), .. }) = &node.elsewhere {
                    assert!(*db == 1 && (VISIBLE.sees)(name), "{node:?}");
                }
            }
            (known, slices) = (forest.nodes.len(), slices + 1);
            if done {
                break;
            }
            assert!(slices < 5_000, "it does not end, seed {seed}");
            (0..changes).for_each(|_| graph.change());
        }
        nodes += known;
        graph.queues.check_invariants();
    }
    assert!(nodes > 1_000 && restarts > 0, "{nodes} nodes, {restarts} restarts");
}

#[test]
fn what_is_below_a_lock_is_cut_if_the_place_in_its_queue_is_lost() {
    let mut queues = Queues::new(1);
    hold(&mut queues, "root", "ann");
    for n in 0..100 {
        hold(&mut queues, &format!("lock{n}"), &format!("owner{n}"));
        wait(&mut queues, &format!("lock{n}"), &format!("waiter{n}"));
        wait(&mut queues, "root", &format!("owner{n}"));
    }
    let mut forest = Forest::new(None, 1_000);
    while !forest.go_on(&queues, all(0), 10) {
        // The waiter where it stands gives up and comes back, as the last one, with the same number.
        let place = forest.down.as_ref().filter(|_| !forest.nodes.is_empty()).and_then(|down| down.place);
        if let Some(link) = place.and_then(|(link, _)| queues.link(link)).filter(|_| forest.nodes.len() == 1) {
            let (waiter, _) = queues.leave(link.waiter).unwrap();
            let owner = text(&queues.owner(waiter.owner).unwrap().name);
            wait(&mut queues, "root", &owner);
        }
    }
    assert!(forest.nodes.len() < 100 && forest.nodes[0].cut, "{} nodes", forest.nodes.len());
}

#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn one_lock_takes_many_slices_if_many_wait_for_it_or_hold_it() {
    let mut queues = Queues::new(1);
    (0..5_000).for_each(|n| hold(&mut queues, "shared", &format!("holder{n}")));
    (0..5_000).for_each(|n| wait(&mut queues, "shared", &format!("waiter{n}")));
    for (forest, least) in [(Forest::new(None, 10), 300), (Forest::new(Some(asked("shared", &[])), 10), 300)] {
        let mut forest = forest;
        let mut slices = 1;
        while !forest.go_on(&queues, all(0), 50) {
            slices += 1;
        }
        assert!(slices > least && forest.nodes.len() == 1 && !forest.nodes[0].cut, "{slices} slices");
    }
}
