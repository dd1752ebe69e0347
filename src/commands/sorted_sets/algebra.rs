//! Unions, intersections and differences of sorted sets.

use std::collections::HashMap;

use foldhash::quality::FixedState;

use crate::base::error::{Error, Result};
use crate::base::number::{parse_i64, parse_score};
use crate::commands::elements::{write_element, write_head};
use crate::commands::sorted_sets::members::{READ, ZSET};
use crate::engine::command::keys::{CountFault, Counted, STORE_OF_COUNTED, counted};
use crate::engine::command::options::{Tail, choice, upper};
use crate::engine::command::{Access, Command, Flags, Keys, Replies, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::{Classes, Event};
use crate::keyspace::types::zsets::Source;
use crate::store::values::zset::{Item, ZSet, compare};

const COMBINE: Command = Command { flags: READ, keys: Keys::Counted { numkeys: 1, step: 1 }, since: "6.2.0", ..ZSET };
const STORE: Command = Command {
    flags: Flags::WRITE.union(Flags::DENYOOM),
    keys: Keys::Specified(STORE_OF_COUNTED),
    access: Access::Overwrite,
    since: "2.0.0",
    ..ZSET
};

const UNION_COST: &str = "O(N)+O(M*log(M)) for N members of all sets and M of the result";
const INTER_COST: &str = "O(N*K)+O(M*log(M)) for K sets, N members of the smallest and M of the result";
const DIFF_COST: &str = "O(N)+O(M*log(M)) for N members of all sets and M of the result";

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("zunion", |cx, args| reply_combined(cx, args, Operation::Union),
        "numkeys key [key ...] [WEIGHTS weight:integer [weight:integer ...]] [AGGREGATE <SUM | MIN | MAX>] [WITHSCORES]",
        "Returns the union of sorted sets.";
        complexity: UNION_COST, ..COMBINE),
    row!("zinter", |cx, args| reply_combined(cx, args, Operation::Inter),
        "numkeys key [key ...] [WEIGHTS weight:integer [weight:integer ...]] [AGGREGATE <SUM | MIN | MAX>] [WITHSCORES]",
        "Returns the intersection of sorted sets.";
        complexity: INTER_COST, ..COMBINE),
    row!("zdiff", |cx, args| reply_combined(cx, args, Operation::Diff), "numkeys key [key ...] [WITHSCORES]",
        "Returns the members of the first sorted set that no other one has.";
        complexity: DIFF_COST, ..COMBINE),
    row!("zunionstore", |cx, args| store(cx, args, Operation::Union, "zunionstore"),
        "destination numkeys key [key ...] [WEIGHTS weight:integer [weight:integer ...]] [AGGREGATE <SUM | MIN | MAX>]",
        "Stores the union of sorted sets in another key.";
        complexity: UNION_COST, ..STORE),
    row!("zinterstore", |cx, args| store(cx, args, Operation::Inter, "zinterstore"),
        "destination numkeys key [key ...] [WEIGHTS weight:integer [weight:integer ...]] [AGGREGATE <SUM | MIN | MAX>]",
        "Stores the intersection of sorted sets in another key.";
        replies: Replies::Integer, complexity: INTER_COST, ..STORE),
    row!("zdiffstore", |cx, args| store(cx, args, Operation::Diff, "zdiffstore"), "destination numkeys key [key ...]",
        "Stores the difference of the first sorted set and all others in another key.";
        since: "6.2.0", complexity: DIFF_COST, ..STORE),
    row!("zintercard", zintercard, "numkeys key [key ...] [LIMIT limit:integer]",
        "Counts the members of the intersection of sorted sets, up to a limit.";
        since: "7.0.0", complexity: "O(N*K) for K sets and N members of the smallest", ..COMBINE),
]);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Inter,
    Diff,
}

/// How the scores of a member in several sets are combined.
#[derive(Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            Aggregate::Sum => number(a + b),
            Aggregate::Min => {
                if b < a {
                    b
                } else {
                    a
                }
            }
            Aggregate::Max => {
                if b > a {
                    b
                } else {
                    a
                }
            }
        }
    }
}

/// The score, or 0 if it is NaN, as for infinity times 0 and the sum of opposite infinities.
fn number(score: f64) -> f64 {
    if score.is_nan() { 0.0 } else { score }
}

/// Splits `numkeys key [key ...] …` into the keys and the options after them; `at` is the position of the number.
fn split<'r, 'a>(cx: &Context<'_>, args: &'r [&'a [u8]], at: usize) -> Result<Counted<'r, 'a>> {
    counted(args, at, 1).map_err(|fault| match fault {
        CountFault::NoInteger => Error::NOT_INTEGER,
        CountFault::NotPositive => Error::no_input_keys(cx.command.name),
        CountFault::TooMany(_) => Error::SYNTAX,
    })
}

/// Options of a set operation.
struct Options {
    operation: Operation,
    /// One weight per key; 1 if it is missing.
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
}

impl Options {
    fn parse(operation: Operation, keys: usize, args: &[&[u8]], store: bool) -> Result<Self> {
        let mut options = Options { operation, weights: Vec::new(), aggregate: Aggregate::Sum, with_scores: false };
        let scored = operation != Operation::Diff;
        let mut rest = Tail(args);
        while let Some(option) = rest.next() {
            match &*upper(option) {
                b"WEIGHTS" if scored && rest.left() >= keys => {
                    let weights = rest.by_ref().take(keys).map(|weight| parse_score(weight).ok_or(Error::WEIGHT_NOT_FLOAT));
                    options.weights = weights.collect::<Result<_>>()?;
                }
                b"AGGREGATE" if scored => {
                    let known = [("SUM", Aggregate::Sum), ("MIN", Aggregate::Min), ("MAX", Aggregate::Max)];
                    options.aggregate = choice(rest.value()?, &known).ok_or(Error::SYNTAX)?;
                }
                b"WITHSCORES" if !store => options.with_scores = true,
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(options)
    }

    /// The result in the order of scores.
    fn combine<'a>(&self, sources: &[Option<Source<'a>>], state: FixedState) -> Vec<Item<'a>> {
        let weight = |at: usize| self.weights.get(at).copied().unwrap_or(1.0);
        let mut items = match self.operation {
            Operation::Diff => diff(sources, state),
            operation => {
                // In ascending order of size, as in Redis: the sum of floating point numbers depends on the order.
                let mut weighted: Vec<_> = sources.iter().enumerate().map(|(at, source)| (*source, weight(at))).collect();
                weighted.sort_by_key(|(source, _)| source.map_or(0, |source| source.len()));
                match operation {
                    Operation::Union => union(&weighted, self.aggregate, state),
                    _ => inter(&weighted, self.aggregate).collect(),
                }
            }
        };
        items.sort_unstable_by(|a, b| compare(*a, *b));
        items
    }
}

/// The union of the sets, which are in ascending order of size, in no particular order.
fn union<'a>(sources: &[(Option<Source<'a>>, f64)], aggregate: Aggregate, state: FixedState) -> Vec<Item<'a>> {
    let largest = sources.last().and_then(|(source, _)| *source).map_or(0, |source| source.len());
    let mut scores: HashMap<&[u8], f64, FixedState> = HashMap::with_capacity_and_hasher(largest, state);
    for (source, weight) in sources {
        for item in source.iter().flat_map(Source::iter) {
            let score = number(weight * item.score);
            scores.entry(item.member).and_modify(|old| *old = aggregate.of(*old, score)).or_insert(score);
        }
    }
    scores.into_iter().map(|(member, score)| Item { member, score }).collect()
}

/// The intersection of the sets, in the order of the first.
fn inter<'a, 's>(sources: &'s [(Option<Source<'a>>, f64)], aggregate: Aggregate) -> impl Iterator<Item = Item<'a>> + use<'a, 's> {
    // The first set is the smallest. If it exists, all sets exist.
    let (first, others) = match sources {
        [(Some(first), weight), others @ ..] => (Some((*first, *weight)), others),
        _ => (None, &[][..]),
    };
    first.into_iter().flat_map(move |(first, weight)| {
        first.iter().filter_map(move |item| {
            let mut score = number(weight * item.score);
            for (other, weight) in others {
                let other = other.as_ref()?;
                let found = if other.is(&first) { item.score } else { other.score(item.member)? };
                score = aggregate.of(score, found * weight);
            }
            Some(Item { member: item.member, score })
        })
    })
}

/// The members of the first set that no other set has, in no particular order.
fn diff<'a>(sources: &[Option<Source<'a>>], state: FixedState) -> Vec<Item<'a>> {
    let [Some(first), others @ ..] = sources else { return Vec::new() };
    let others: Vec<_> = others.iter().flatten().collect();
    if others.iter().any(|other| other.is(first)) {
        return Vec::new();
    }
    // Either looks up every member in every other set, or removes the members of all others from a copy.
    let all = first.len() + others.iter().map(|other| other.len()).sum::<usize>();
    if first.len() * others.len() / 2 <= all {
        return first.iter().filter(|item| others.iter().all(|other| other.score(item.member).is_none())).collect();
    }
    let mut left: HashMap<&[u8], f64, FixedState> = HashMap::with_capacity_and_hasher(first.len(), state);
    left.extend(first.iter().map(|item| (item.member, item.score)));
    for item in others.iter().flat_map(|other| other.iter()) {
        left.remove(item.member);
        if left.is_empty() {
            break;
        }
    }
    left.into_iter().map(|(member, score)| Item { member, score }).collect()
}

fn reply_combined(cx: &mut Context<'_>, args: &[&[u8]], operation: Operation) -> Result {
    let (keys, options) = split(cx, args, 1)?;
    let (mut db, reply) = cx.db_and_reply();
    let state = db.zset_form().0.state();
    let mut digits = Vec::new();
    let sources = db.sources(keys, &mut digits)?;
    let options = Options::parse(operation, keys.len(), options, false)?;
    let items = options.combine(&sources, state);
    write_head(reply, items.len(), options.with_scores);
    items.iter().for_each(|item| write_element(reply, item, options.with_scores));
    Ok(())
}

fn store(cx: &mut Context<'_>, args: &[&[u8]], operation: Operation, event: &'static str) -> Result {
    let (keys, options) = split(cx, args, 2)?;
    let mut db = cx.db();
    let (hasher, limits) = db.zset_form();
    let mut digits = Vec::new();
    let sources = db.sources(keys, &mut digits)?;
    let options = Options::parse(operation, keys.len(), options, true)?;
    let stored = ZSet::from_sorted(&hasher, limits, &options.combine(&sources, hasher.state()));
    let len = stored.len();
    db.store_zset(args[1], stored, Event::new(Classes::ZSET, event))?;
    cx.reply.integer(len as i64);
    Ok(())
}

fn zintercard(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (keys, options) = split(cx, args, 1)?;
    let (mut db, reply) = cx.db_and_reply();
    let mut digits = Vec::new();
    let sources = db.sources(keys, &mut digits)?;
    let mut limit = 0;
    let mut rest = Tail(options);
    while let Some(number) = rest.value_of("LIMIT")? {
        limit = parse_i64(number).and_then(|n| usize::try_from(n).ok()).ok_or(Error::LIMIT_NEGATIVE)?;
    }
    let mut weighted: Vec<_> = sources.into_iter().map(|source| (source, 1.0)).collect();
    weighted.sort_by_key(|(source, _)| source.map_or(0, |source| source.len()));
    let limit = if limit == 0 { usize::MAX } else { limit };
    reply.integer(inter(&weighted, Aggregate::Sum).take(limit).count() as i64);
    Ok(())
}
