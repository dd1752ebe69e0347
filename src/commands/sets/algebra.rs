//! Intersections, unions and differences of sets.

use std::collections::HashSet;

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::commands::sets::members::{SET, write_member};
use crate::engine::command::keys::{CountFault, counted, uses};
use crate::engine::command::options::Tail;
use crate::engine::command::{Command, Flags, Keys, Replies, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::keyspace::databases::Ttl;
use crate::keyspace::types::sets::SetView;
use crate::store::dict::KeyHasher;
use crate::store::values::set::{Limits, Member, Set};
use crate::store::values::value::Value;

const COMBINE: Command =
    Command { flags: Flags::READONLY, keys: Keys::ALL, syntax: "key [key ...]", tips: &["nondeterministic_output_order"], ..SET };
const STORE: Command = Command {
    flags: Flags::WRITE.union(Flags::DENYOOM),
    keys: Keys::ALL,
    key_uses: uses::STORED,
    syntax: "destination key [key ...]",
    ..SET
};
const INTERSECTION: &str = "O(N*M) in the worst case, for N members of the smallest set and M sets";
const SUM: &str = "O(N) for N members of all sets together";

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("sinter", sinter, "Returns the intersection of sets."; complexity: INTERSECTION, ..COMBINE),
    row!("sintercard", sintercard, "numkeys key [key ...] [LIMIT limit:integer]",
        "Counts the members of the intersection of sets, up to a limit.";
        keys: Keys::Counted { numkeys: 1, step: 1 }, since: "7.0.0", complexity: INTERSECTION, tips: &[], ..COMBINE),
    row!("sinterstore", |cx, args| store(cx, args, Event::SINTERSTORE, intersection),
        "Stores the intersection of sets in another key.";
        replies: Replies::Integer, complexity: INTERSECTION, ..STORE),
    row!("sunion", sunion, "Returns the union of sets."; complexity: SUM, ..COMBINE),
    row!("sunionstore", |cx, args| store(cx, args, Event::SUNIONSTORE, union), "Stores the union of sets in another key.";
        replies: Replies::Integer, complexity: SUM, ..STORE),
    row!("sdiff", sdiff, "Returns the members of the first set that no other one has."; complexity: SUM, ..COMBINE),
    row!("sdiffstore", |cx, args| store(cx, args, Event::SDIFFSTORE, difference),
        "Stores the difference of the first set and all others in another key.";
        replies: Replies::Integer, complexity: SUM, ..STORE),
]);

/// Sets in the order of their keys; `None` for a key that does not exist.
type Sets<'a> = [Option<SetView<'a>>];

/// Visits the members of the intersection in the order of the smallest set, while `visit` returns true. Returns the smallest set;
/// `None` if a set is empty.
fn intersect<'a>(sets: &Sets<'a>, mut visit: impl FnMut(Member<'a>) -> bool) -> Option<SetView<'a>> {
    let mut sets: Vec<SetView<'a>> = sets.iter().copied().collect::<Option<_>>()?;
    sets.sort_by_cached_key(SetView::len);
    let (smallest, others) = sets.split_first()?;
    for member in smallest.iter() {
        let everywhere = others.iter().all(|set| std::ptr::eq(set.set(), smallest.set()) || set.contains(member));
        if everywhere && !visit(member) {
            break;
        }
    }
    Some(*smallest)
}

fn intersection(sets: &Sets<'_>, hasher: &KeyHasher, limits: Limits) -> Set {
    let mut members = Vec::new();
    let smallest = intersect(sets, |member| {
        members.push(member);
        true
    });
    let mut stored = if smallest.is_some_and(|set| set.set().is_ints()) { Set::default() } else { Set::packed() };
    for member in &members {
        stored.add(hasher, limits, *member);
    }
    if members.iter().all(|member| member.integer().is_some()) {
        stored.make_ints(limits);
    }
    stored
}

fn union(sets: &Sets<'_>, hasher: &KeyHasher, limits: Limits) -> Set {
    let mut stored = Set::default();
    for member in sets.iter().flatten().flat_map(SetView::iter) {
        stored.add(hasher, limits, member);
    }
    stored
}

/// Whether the first set is also one of those that are subtracted from it.
fn subtracts_itself(sets: &Sets<'_>) -> bool {
    let same = |set: &SetView<'_>| sets[0].is_some_and(|first| std::ptr::eq(first.set(), set.set()));
    sets[1..].iter().flatten().any(same)
}

/// Whether looking up each member of the first set in all others is cheaper than iterating over all of them.
fn prefers_lookups(sets: &Sets<'_>) -> bool {
    let first = sets[0].map_or(0, |set| set.len());
    let there = sets.iter().flatten();
    let asked = first * there.clone().count() / 2;
    asked <= there.map(SetView::len).sum()
}

fn difference(sets: &Sets<'_>, hasher: &KeyHasher, limits: Limits) -> Set {
    let mut stored = Set::default();
    let Some(first) = sets[0] else { return stored };
    if subtracts_itself(sets) {
        return stored;
    }
    if prefers_lookups(sets) {
        for member in first.iter() {
            if !sets[1..].iter().flatten().any(|set| set.contains(member)) {
                stored.add(hasher, limits, member);
            }
        }
        return stored;
    }
    // As in Redis, because the encoding of the stored set depends on the order of insertions.
    for member in first.iter() {
        stored.add(hasher, limits, member);
    }
    for member in sets[1..].iter().flatten().flat_map(SetView::iter) {
        if stored.is_empty() {
            break;
        }
        stored.remove(hasher, member);
    }
    stored
}

fn sinter(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let sets = db.sets(&args[1..])?;
    let mut members = Vec::new();
    intersect(&sets, |member| {
        members.push(member);
        true
    });
    reply.set(members.len());
    members.iter().for_each(|member| write_member(reply, member));
    Ok(())
}

fn sintercard(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (keys, options) = counted(args, 1, 1).map_err(|fault| match fault {
        CountFault::NoInteger | CountFault::NotPositive => Error::NUMKEYS_POSITIVE,
        CountFault::TooMany(_) => Error::MORE_KEYS_THAN_ARGUMENTS,
    })?;
    let mut limit = 0;
    let mut rest = Tail(options);
    while let Some(number) = rest.value_of("LIMIT")? {
        limit = parse_i64(number).and_then(|n| u64::try_from(n).ok()).ok_or(Error::LIMIT_NEGATIVE)?;
    }
    let mut db = cx.db();
    let sets = db.sets(keys)?;
    let mut count = 0;
    intersect(&sets, |_| {
        count += 1;
        limit == 0 || count < limit
    });
    cx.reply.integer(count as i64);
    Ok(())
}

fn sunion(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let state = db.hasher().state();
    let sets = db.sets(&args[1..])?;
    let sets: Vec<SetView<'_>> = sets.into_iter().flatten().collect();
    if let [set] = sets[..] {
        reply.set(set.len());
        set.iter().for_each(|member| write_member(reply, &member));
        return Ok(());
    }
    let mut seen = HashSet::with_hasher(state);
    let mut members: Vec<Member<'_>> = Vec::new();
    members.extend(sets.iter().flat_map(SetView::iter).filter(|member| seen.insert(member.normal())));
    if sets.iter().all(|set| set.set().is_ints()) {
        members.sort_unstable_by_key(Member::integer);
    }
    reply.set(members.len());
    members.iter().for_each(|member| write_member(reply, member));
    Ok(())
}

fn sdiff(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let state = db.hasher().state();
    let sets = db.sets(&args[1..])?;
    let mut members: Vec<Member<'_>> = Vec::new();
    if let Some(first) = sets[0]
        && !subtracts_itself(&sets)
    {
        let others = || sets[1..].iter().flatten();
        if prefers_lookups(&sets) {
            members.extend(first.iter().filter(|member| !others().any(|set| set.contains(*member))));
        } else {
            let mut taken = HashSet::with_hasher(state);
            taken.extend(others().flat_map(SetView::iter).filter(|member| first.contains(*member)).map(Member::normal));
            members.extend(first.iter().filter(|member| !taken.contains(&member.normal())));
        }
    }
    reply.set(members.len());
    members.iter().for_each(|member| write_member(reply, member));
    Ok(())
}

/// Stores the set that `compute` returns for the source sets, and replies with its size. An empty set deletes the key.
fn store(
    cx: &mut Context<'_>,
    args: &[&[u8]],
    event: Event,
    compute: impl FnOnce(&Sets<'_>, &KeyHasher, Limits) -> Set,
) -> Result {
    let mut db = cx.db();
    let limits = db.set_limits();
    let hasher = db.hasher().clone();
    let set = compute(&db.sets(&args[2..])?, &hasher, limits);
    let len = set.len();
    if len == 0 {
        db.delete(args[1], Event::DEL)?;
    } else {
        db.put(args[1], Box::new(Value::Set(set)), Ttl::Clear, event)?;
    }
    cx.reply.integer(len as i64);
    Ok(())
}
