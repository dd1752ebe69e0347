//! Ranges of sorted sets by rank, score or member: returning, storing and removing them.

use std::ops::Range;

use crate::base::error::{Error, Result};
use crate::base::number::parse_score_bound;
use crate::commands::elements::{index_range, write_element, write_head};
use crate::commands::sorted_sets::members::{READ, ZSET};
use crate::engine::command::keys::uses;
use crate::engine::command::options::{Tail, integer, upper};
use crate::engine::command::{Command, Flags, Keys, Replies, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::{Classes, Event};
use crate::keyspace::types::zsets::{ScoreRange, ZSetView};
use crate::store::values::zset::{LexBound, ZSet};

const RANGE_COST: &str = "O(log(N)+M) for N members of the sorted set and M returned";
const REMOVE_COST: &str = "O(M*log(N)) for N members of the sorted set and M removed";

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("zrange", |cx, args| zrange(cx, &args[1..], None, None),
        "key start:string stop:string [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]",
        "Returns the members in a range of ranks, scores or names.";
        flags: READ, complexity: RANGE_COST, ..ZSET),
    row!("zrangestore", zrangestore, "dst:key src:key min max [BYSCORE | BYLEX] [REV] [LIMIT offset count]",
        "Stores the members in a range of ranks, scores or names in another key.";
        flags: Flags::WRITE.union(Flags::DENYOOM), keys: Keys::TWO, key_uses: uses::STORED, since: "6.2.0",
        complexity: "O(log(N)+M) for N members of the sorted set and M stored", ..ZSET),
    row!("zrevrange", |cx, args| zrange(cx, &args[1..], Some(By::Rank), Some(true)), "key start stop [WITHSCORES]",
        "Returns the members in a range of ranks, in descending order of scores.";
        flags: READ, complexity: RANGE_COST, ..ZSET),
    row!("zrangebyscore", |cx, args| zrange(cx, &args[1..], Some(By::Score), Some(false)),
        "key min:double max:double [WITHSCORES] [LIMIT offset count]", "Returns the members with scores in a range.";
        flags: READ, since: "1.0.5", complexity: RANGE_COST, ..ZSET),
    row!("zrevrangebyscore", |cx, args| zrange(cx, &args[1..], Some(By::Score), Some(true)),
        "key max:double min:double [WITHSCORES] [LIMIT offset count]",
        "Returns the members with scores in a range, in descending order.";
        flags: READ, since: "2.2.0", complexity: RANGE_COST, ..ZSET),
    row!("zrangebylex", |cx, args| zrange(cx, &args[1..], Some(By::Lex), Some(false)), "key min max [LIMIT offset count]",
        "Returns the members in a lexicographical range. All members must have the same score.";
        flags: READ, since: "2.8.9", complexity: RANGE_COST, ..ZSET),
    row!("zrevrangebylex", |cx, args| zrange(cx, &args[1..], Some(By::Lex), Some(true)), "key max min [LIMIT offset count]",
        "Returns the members in a lexicographical range, in descending order. All members must have the same score.";
        flags: READ, since: "2.8.9", complexity: RANGE_COST, ..ZSET),
    row!("zremrangebyrank", |cx, args| remove(cx, args, By::Rank, "zremrangebyrank"), "key start stop",
        "Removes the members in a range of ranks.";
        replies: Replies::Integer, flags: Flags::WRITE, key_uses: uses::REMOVED_FROM, since: "2.0.0", complexity: REMOVE_COST,
        ..ZSET),
    row!("zremrangebyscore", |cx, args| remove(cx, args, By::Score, "zremrangebyscore"), "key min:double max:double",
        "Removes the members with scores in a range.";
        replies: Replies::Integer, flags: Flags::WRITE, key_uses: uses::REMOVED_FROM, complexity: REMOVE_COST, ..ZSET),
    row!("zremrangebylex", |cx, args| remove(cx, args, By::Lex, "zremrangebylex"), "key min max",
        "Removes the members in a lexicographical range. All members must have the same score.";
        replies: Replies::Integer, flags: Flags::WRITE, key_uses: uses::REMOVED_FROM, since: "2.8.9", complexity: REMOVE_COST,
        ..ZSET),
]);

/// What a range selects by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Lex,
}

/// The parsed bounds of a range.
enum Bounds<'a> {
    Ranks(i64, i64),
    Scores(ScoreRange),
    Members(LexBound<'a>, LexBound<'a>),
}

impl<'a> Bounds<'a> {
    fn parse(by: By, min: &'a [u8], max: &'a [u8]) -> Result<Self> {
        Ok(match by {
            By::Rank => Bounds::Ranks(integer(min)?, integer(max)?),
            By::Score => Bounds::Scores(parse_score_range(min, max)?),
            By::Lex => {
                let (min, max) = parse_lex_range(min, max)?;
                Bounds::Members(min, max)
            }
        })
    }

    /// The selected ranks in ascending order of scores. The functions find the ranks of a range of scores or members.
    fn ranks(
        &self,
        len: usize,
        reverse: bool,
        by_score: impl FnOnce(&ScoreRange) -> Range<usize>,
        by_member: impl FnOnce(LexBound<'a>, LexBound<'a>) -> Range<usize>,
    ) -> Range<usize> {
        match self {
            Bounds::Ranks(start, stop) => {
                let ranks = index_range(*start, *stop, len);
                if reverse { len - ranks.end..len - ranks.start } else { ranks }
            }
            Bounds::Scores(range) => by_score(range),
            Bounds::Members(min, max) => by_member(*min, *max),
        }
    }
}

/// Parses `min max`. A `(` before a bound excludes it.
pub(crate) fn parse_score_range(min: &[u8], max: &[u8]) -> Result<ScoreRange> {
    let bound = |text: &[u8]| {
        let (exclusive, number) = text.strip_prefix(b"(").map_or((false, text), |rest| (true, rest));
        Ok((parse_score_bound(number).ok_or(Error::MIN_MAX_NOT_FLOAT)?, exclusive))
    };
    let ((min, min_exclusive), (max, max_exclusive)) = (bound(min)?, bound(max)?);
    Ok(ScoreRange { min, min_exclusive, max, max_exclusive })
}

/// Parses `min max`, each `-`, `+`, `[member` or `(member`.
pub(crate) fn parse_lex_range<'a>(min: &'a [u8], max: &'a [u8]) -> Result<(LexBound<'a>, LexBound<'a>)> {
    let bound = |text: &'a [u8]| match text {
        [b'-'] | [b'-', 0, ..] => Ok(LexBound::Least),
        [b'+'] | [b'+', 0, ..] => Ok(LexBound::Greatest),
        [b'[', member @ ..] => Ok(LexBound::Inclusive(member)),
        [b'(', member @ ..] => Ok(LexBound::Exclusive(member)),
        _ => Err(Error::MIN_MAX_NOT_STRING),
    };
    Ok((bound(min)?, bound(max)?))
}

/// A range and its options.
struct Query<'a> {
    bounds: Bounds<'a>,
    reverse: bool,
    with_scores: bool,
    offset: i64,
    /// Maximum number of members; negative for no limit.
    count: i64,
}

impl<'a> Query<'a> {
    /// Parses `key min max` and the options after them. `by` and `reverse` are set if the command's name implies them, and are no
    /// options then.
    fn parse(args: &[&'a [u8]], by: Option<By>, reverse: Option<bool>, store: bool) -> Result<Self> {
        let (mut chosen, mut reversed, mut with_scores) = (by, reverse, false);
        let (mut offset, mut count) = (0, -1);
        let mut rest = Tail(&args[3..]);
        while let Some(option) = rest.next() {
            match &*upper(option) {
                b"WITHSCORES" if !store => with_scores = true,
                b"LIMIT" if rest.left() >= 2 => (offset, count) = (rest.integer()?, rest.integer()?),
                b"REV" if reversed.is_none() => reversed = Some(true),
                b"BYLEX" if chosen.is_none() => chosen = Some(By::Lex),
                b"BYSCORE" if chosen.is_none() => chosen = Some(By::Score),
                _ => return Err(Error::SYNTAX),
            }
        }
        let (by, reverse) = (chosen.unwrap_or(By::Rank), reversed.unwrap_or(false));
        fail_if!(count != -1 && by == By::Rank, Error::LIMIT_WITH_RANKS);
        fail_if!(with_scores && by == By::Lex, Error::WITHSCORES_BYLEX);
        let (min, max) = if reverse && by != By::Rank { (args[2], args[1]) } else { (args[1], args[2]) };
        Ok(Query { bounds: Bounds::parse(by, min, max)?, reverse, with_scores, offset, count })
    }

    /// The ranks of the selected members.
    fn ranks(&self, zset: &ZSetView<'_>) -> Range<usize> {
        let by_score = |range: &ScoreRange| zset.score_ranks(range);
        let by_member = |min, max| zset.lex_ranks(min, max, self.reverse);
        let all = self.bounds.ranks(zset.len(), self.reverse, by_score, by_member);
        if matches!(self.bounds, Bounds::Ranks(..)) {
            return all;
        }
        let Ok(offset) = usize::try_from(self.offset) else { return 0..0 };
        let left = all.len().saturating_sub(offset);
        let count = usize::try_from(self.count).map_or(left, |count| count.min(left));
        if self.reverse {
            let end = all.end - offset.min(all.len());
            end - count..end
        } else {
            let start = all.start + offset.min(all.len());
            start..start + count
        }
    }
}

/// Replies with a range. `args` begins with the key.
fn zrange(cx: &mut Context<'_>, args: &[&[u8]], by: Option<By>, reverse: Option<bool>) -> Result {
    let query = Query::parse(args, by, reverse, false)?;
    let (mut db, reply) = cx.db_and_reply();
    let Some(zset) = db.zset(args[0])? else {
        reply.array(0);
        return Ok(());
    };
    let ranks = query.ranks(&zset);
    write_head(reply, ranks.len(), query.with_scores);
    zset.items(ranks, query.reverse).for_each(|item| write_element(reply, &item, query.with_scores));
    Ok(())
}

fn zrangestore(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let query = Query::parse(&args[2..], None, None, true)?;
    let mut db = cx.db();
    let (hasher, limits) = db.zset_form();
    let stored = match db.zset(args[2])? {
        Some(zset) => {
            let items: Vec<_> = zset.items(query.ranks(&zset), false).collect();
            ZSet::from_sorted(&hasher, limits, &items)
        }
        None => ZSet::default(),
    };
    let len = stored.len();
    db.store_zset(args[1], stored, Event::new(Classes::ZSET, "zrangestore"))?;
    cx.reply.integer(len as i64);
    Ok(())
}

fn remove(cx: &mut Context<'_>, args: &[&[u8]], by: By, event: &'static str) -> Result {
    let bounds = Bounds::parse(by, args[2], args[3])?;
    let mut db = cx.db();
    let mut removed = 0;
    if let Some(mut edit) = db.edit_zset(args[1])? {
        let ranks = bounds.ranks(edit.len(), false, |range| edit.score_ranks(range), |min, max| edit.lex_ranks(min, max));
        removed = edit.take(ranks, |_| ());
        let event = Event::new(Classes::ZSET, event);
        edit.finish(if removed > 0 { std::slice::from_ref(&event) } else { &[] });
    }
    cx.reply.integer(removed as i64);
    Ok(())
}
