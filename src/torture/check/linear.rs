//! Linearizability of plain commands: whether each can have been carried out at one moment between its call and its reply.
//!
//! The search is that of Wing and Gong with the memory of Lowe: a set of carried out operations with the same state is not looked at
//! twice. Keys are independent, so each key is searched alone. No crate does this with operations whose outcome is unknown and without
//! a runtime of its own.

use std::collections::{BTreeMap, HashSet};

/// What is asked of a key. A key has a number, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `GET`.
    Get,
    /// `SET` to a number.
    Set(i64),
    /// `INCR`.
    Increment,
    /// Set to the second number, if it has the first one: by a script.
    Swap(i64, i64),
    /// Delete.
    Delete,
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The number of the key, or nothing.
    Number(Option<i64>),
    /// Done.
    Done,
}

/// An operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The key.
    pub key: u32,
    /// What was asked.
    pub call: Call,
    /// When it was asked.
    pub called_us: u64,
    /// When it was answered, and what. `None` if the answer was lost: then it was carried out at any time since, or never.
    pub answer: Option<(u64, Reply)>,
}

/// A key's number.
type State = Option<i64>;

/// What a call does to a key.
fn apply(state: State, call: Call) -> (State, Reply) {
    match call {
        Call::Get => (state, Reply::Number(state)),
        Call::Set(number) => (Some(number), Reply::Done),
        Call::Increment => {
            let number = state.unwrap_or(0) + 1;
            (Some(number), Reply::Number(Some(number)))
        }
        Call::Swap(from, to) if state == Some(from) => (Some(to), Reply::Number(Some(1))),
        Call::Swap(..) => (state, Reply::Number(Some(0))),
        Call::Delete => (None, Reply::Done),
    }
}

/// Whether a call leaves nothing of what there was, and does not tell what that was.
fn overwrites(call: Call) -> bool {
    matches!(call, Call::Set(_) | Call::Delete)
}

/// The first key whose operations cannot be brought into an order, if there is one. All keys have nothing at first.
pub fn violation(operations: &[Operation]) -> Option<u32> {
    let mut by_key: BTreeMap<u32, Vec<Operation>> = BTreeMap::new();
    // A read without a reply says nothing.
    for operation in operations.iter().filter(|operation| operation.answer.is_some() || operation.call != Call::Get) {
        by_key.entry(operation.key).or_default().push(*operation);
    }
    by_key.into_iter().find(|(_, of_key)| !has_order(of_key)).map(|(key, _)| key)
}

/// A call or an answer, in a list.
#[derive(Clone, Copy)]
struct Link {
    operation: usize,
    is_call: bool,
    before: usize,
    after: usize,
}

/// The calls and answers in the order of time that are yet to be carried out. Place 0 is before all, and the last place behind all.
struct List {
    links: Vec<Link>,
    /// The places of each operation's call and answer.
    places: Vec<(usize, usize)>,
}

impl List {
    fn new(operations: &[Operation]) -> List {
        let mut events: Vec<(u64, bool, usize)> = Vec::new();
        for (at, operation) in operations.iter().enumerate() {
            // Of what happens at one moment, calls come first: then they overlap.
            events.push((operation.called_us, false, at));
            events.push((operation.answer.map_or(u64::MAX, |(at_us, _)| at_us), true, at));
        }
        events.sort_unstable();
        let end = events.len() + 1;
        let mut places = vec![(0, 0); operations.len()];
        let mut links = vec![Link { operation: usize::MAX, is_call: false, before: 0, after: 1 }];
        for (at, (_, answers, operation)) in events.into_iter().enumerate() {
            let place = at + 1;
            if answers {
                places[operation].1 = place
            } else {
                places[operation].0 = place
            }
            links.push(Link { operation, is_call: !answers, before: place - 1, after: place + 1 });
        }
        links.push(Link { operation: usize::MAX, is_call: false, before: end - 1, after: end });
        List { links, places }
    }

    fn take(&mut self, place: usize) {
        let Link { before, after, .. } = self.links[place];
        self.links[before].after = after;
        self.links[after].before = before;
    }

    fn put_back(&mut self, place: usize) {
        let Link { before, after, .. } = self.links[place];
        self.links[before].after = place;
        self.links[after].before = place;
    }

    /// Whether an operation that was never answered stands before this place, and asks for the same as the one at this place.
    fn has_twin(&self, place: usize, operations: &[Operation]) -> bool {
        let before = std::iter::successors(Some(self.first()), |at| Some(self.links[*at].after)).take_while(|at| *at != place);
        let call = operations[self.links[place].operation].call;
        before.map(|at| self.links[at]).any(|link| {
            let of = &operations[link.operation];
            link.is_call && of.answer.is_none() && of.call == call
        })
    }

    fn first(&self) -> usize {
        self.links[0].after
    }
}

/// Whether operations on one key can be brought into an order.
fn has_order(operations: &[Operation]) -> bool {
    let mut list = List::new(operations);
    let end = list.links.len() - 1;
    let mut done = vec![0u64; operations.len().div_ceil(64)];
    let mut state: State = None;
    let mut seen: HashSet<(Vec<u64>, State)> = HashSet::new();
    // What was carried out, with the state before it.
    let mut stack: Vec<(usize, State)> = Vec::new();
    // What was never answered is tried last: there is always an order without most of it.
    let mut lost = false;
    let mut at = list.first();
    loop {
        let Link { operation, is_call, .. } = list.links[at];
        // What is behind all answers was never answered, and need not have been carried out.
        if at == end || (!is_call && operations[operation].answer.is_none()) {
            return true;
        }
        if is_call {
            let Operation { call, answer, .. } = operations[operation];
            let (next, reply) = apply(state, call);
            let follows_lost = stack.last().is_some_and(|(before, _)| operations[*before].answer.is_none());
            // What was never answered is needed only if it changes what the next operation finds. Of several such operations that are
            // alike, the first is as good as the others.
            let is_needed = !(follows_lost && overwrites(call)) && (!lost || (next != state && !list.has_twin(at, operations)));
            let fits = answer.is_none() == lost && is_needed && answer.is_none_or(|(_, answered)| answered == reply);
            let (word, bit) = (operation / 64, 1 << (operation % 64));
            done[word] |= bit;
            if fits && seen.insert((done.clone(), next)) {
                stack.push((operation, std::mem::replace(&mut state, next)));
                let (call, answer) = list.places[operation];
                list.take(call);
                list.take(answer);
                (lost, at) = (false, list.first());
                continue;
            }
            done[word] &= !bit;
            at = list.links[at].after;
            continue;
        }
        // It was answered before any order in which it comes now.
        if !lost {
            (lost, at) = (true, list.first());
            continue;
        }
        let Some((operation, before)) = stack.pop() else { return false };
        state = before;
        done[operation / 64] &= !(1 << (operation % 64));
        let (call, answer) = list.places[operation];
        list.put_back(answer);
        list.put_back(call);
        (lost, at) = (operations[operation].answer.is_none(), list.links[call].after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(call: Call, called_us: u64, answer: Option<(u64, Reply)>) -> Operation {
        Operation { key: 0, call, called_us, answer }
    }

    fn read(from_us: u64, to_us: u64, number: Option<i64>) -> Operation {
        operation(Call::Get, from_us, Some((to_us, Reply::Number(number))))
    }

    fn write(from_us: u64, to_us: u64, number: i64) -> Operation {
        operation(Call::Set(number), from_us, Some((to_us, Reply::Done)))
    }

    #[test]
    fn a_stale_read_has_no_place() {
        assert_eq!(violation(&[write(0, 10, 1), read(5, 6, None), read(11, 12, Some(1))]), None);
        assert_eq!(violation(&[write(0, 10, 1), read(11, 12, None)]), Some(0));
        // Two readers that see two writes in two orders.
        let writes = [write(0, 100, 1), write(0, 100, 2)];
        let seen = |first, second| [read(10, 20, Some(first)), read(30, 40, Some(second))];
        assert_eq!(violation(&[&writes[..], &seen(1, 2)].concat()), None);
        assert_eq!(violation(&[&writes[..], &seen(1, 2), &[read(50, 60, Some(1))]].concat()), Some(0));
    }

    #[test]
    fn what_was_not_answered_may_have_happened_later_or_never() {
        let lost = operation(Call::Set(7), 0, None);
        assert_eq!(violation(&[lost, read(50, 60, None), read(70, 80, Some(7)), read(90, 95, Some(7))]), None);
        assert_eq!(violation(&[lost, read(50, 60, None)]), None);
        assert_eq!(violation(&[lost, read(70, 80, Some(7)), read(90, 95, None)]), Some(0));
    }

    #[test]
    fn counters_count_and_swaps_swap_once() {
        let increment = |from, to, number| operation(Call::Increment, from, Some((to, Reply::Number(Some(number)))));
        assert_eq!(violation(&[increment(0, 10, 2), increment(0, 10, 1), read(11, 12, Some(2))]), None);
        assert_eq!(violation(&[increment(0, 10, 1), increment(20, 30, 1)]), Some(0));
        let swap = |from, to, done| operation(Call::Swap(1, 5), from, Some((to, Reply::Number(Some(done)))));
        assert_eq!(violation(&[write(0, 5, 1), swap(10, 20, 1), swap(10, 20, 0), read(21, 22, Some(5))]), None);
        assert_eq!(violation(&[write(0, 5, 1), swap(10, 20, 1), swap(10, 20, 1)]), Some(0));
    }

    #[test]
    fn keys_are_independent() {
        let other = Operation { key: 9, ..read(11, 12, Some(3)) };
        assert_eq!(violation(&[write(0, 10, 1), read(11, 12, Some(1)), other]), Some(9));
    }
}
