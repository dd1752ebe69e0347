//! Members of sorted sets: adding, removing, scores, ranks, counts, random members and scans. Ranges are in
//! [`crate::commands::sorted_sets::ranges`], pops in [`crate::commands::sorted_sets::pops`], set operations in
//! [`crate::commands::sorted_sets::algebra`].

use smallvec::SmallVec;

use crate::base::error::{Error, Result};
use crate::base::number::parse_score;
use crate::commands::elements::{self, Draw, Element, Scanned};
use crate::commands::keys::scan::{VISITED_MAX, parse_cursor};
use crate::commands::sorted_sets::ranges::{parse_lex_range, parse_score_range};
use crate::engine::command::keys::uses;
use crate::engine::command::options::{flag, upper};
use crate::engine::command::{Access, Command, Flags, Group, Keys, Replies, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::keyspace::types::zsets::ZSetView;
use crate::resp::double::{DOUBLE_MAX, format_double, format_seventeen};
use crate::resp::reply::Sink;
use crate::store::values::zset::Item;

/// What the rows of sorted set commands have in common.
pub(crate) const ZSET: Command =
    Command { group: Group::SortedSet, keys: Keys::ONE, access: Access::ReadWrite, since: "1.2.0", ..Command::DEFAULT };
pub(crate) const READ: Flags = Flags::READONLY;
pub(crate) const READ_FAST: Flags = Flags::READONLY.union(Flags::FAST);
pub(crate) const WRITE_FAST: Flags = Flags::WRITE.union(Flags::FAST);
pub(crate) const GROW_FAST: Flags = WRITE_FAST.union(Flags::DENYOOM);

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("zadd", |cx, args| zadd(cx, args, false), "key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]",
        "Adds members to a sorted set or updates their scores. Creates the sorted set if it does not exist.";
        replies: Replies::Scalar, flags: GROW_FAST, key_uses: uses::CHANGED,
        complexity: "O(log(N)) for each member, for N members of the sorted set", ..ZSET),
    row!("zincrby", |cx, args| zadd(cx, args, true), "key increment member",
        "Increments the score of a member. A missing member counts as 0.";
        replies: Replies::Scalar, flags: GROW_FAST, complexity: "O(log(N)) for N members of the sorted set", ..ZSET),
    row!("zrem", zrem, "key member [member ...]", "Removes members of a sorted set. Deletes the sorted set with its last member.";
        replies: Replies::Integer, flags: WRITE_FAST, key_uses: uses::REMOVED_FROM,
        complexity: "O(M*log(N)) for M members to remove and N members of the sorted set", ..ZSET),
    row!("zscore", zscore, "key member", "Returns the score of a member."; replies: Replies::Scalar, flags: READ_FAST, ..ZSET),
    row!("zmscore", zmscore, "key member [member ...]", "Returns the scores of several members.";
        flags: READ_FAST, since: "6.2.0", complexity: "O(N) for N requested members", ..ZSET),
    row!("zcard", |cx, args| {
            let len = cx.db().zset(args[1])?.map_or(0, |zset| zset.len());
            cx.reply.integer(len as i64);
            Ok(())
        }, "key", "Returns the number of members of a sorted set.";
        replies: Replies::Integer, flags: READ_FAST, key_uses: uses::EXAMINED, ..ZSET),
    row!("zcount", |cx, args| {
            let range = parse_score_range(args[2], args[3])?;
            let count = cx.db().zset(args[1])?.map_or(0, |zset| zset.score_ranks(&range).len());
            cx.reply.integer(count as i64);
            Ok(())
        }, "key min:double max:double", "Counts the members with scores in a range.";
        replies: Replies::Integer, flags: READ_FAST, since: "2.0.0", complexity: "O(log(N)) for N members of the sorted set",
        ..ZSET),
    row!("zlexcount", |cx, args| {
            let (min, max) = parse_lex_range(args[2], args[3])?;
            let count = cx.db().zset(args[1])?.map_or(0, |zset| zset.lex_ranks(min, max, false).len());
            cx.reply.integer(count as i64);
            Ok(())
        }, "key min max", "Counts the members in a lexicographical range. All members must have the same score.";
        replies: Replies::Integer, flags: READ_FAST, since: "2.8.9", complexity: "O(log(N)) for N members of the sorted set",
        ..ZSET),
    row!("zrank", |cx, args| zrank(cx, args, false), "key member [WITHSCORE]",
        "Returns the rank of a member in ascending order of scores. The first rank is 0.";
        flags: READ_FAST, since: "2.0.0", complexity: "O(log(N)) for N members of the sorted set", ..ZSET),
    row!("zrevrank", |cx, args| zrank(cx, args, true), "key member [WITHSCORE]",
        "Returns the rank of a member in descending order of scores. The first rank is 0.";
        flags: READ_FAST, since: "2.0.0", complexity: "O(log(N)) for N members of the sorted set", ..ZSET),
    row!("zrandmember", zrandmember, "key [count [WITHSCORES]]",
        "Returns random members of a sorted set: different ones, or with a negative count possibly the same one several times.";
        flags: READ, since: "6.2.0", complexity: "O(N*log(M)) for N returned members and M members of the sorted set",
        tips: &["nondeterministic_output"], ..ZSET),
    row!("zscan", zscan, "key cursor [MATCH pattern] [COUNT count]", "Iterates over the members and scores of a sorted set.";
        flags: READ, since: "2.8.0", complexity: "O(N) for N members visited per call", tips: &["nondeterministic_output"],
        ..ZSET),
]);

/// Options of `ZADD`.
#[derive(Default)]
struct AddOptions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
    /// Count updated members, too.
    ch: bool,
    /// Add the given score to the existing one.
    incr: bool,
}

impl AddOptions {
    /// Parses the options before the first score. Returns the number of arguments.
    fn parse(&mut self, args: &[&[u8]]) -> usize {
        for (at, arg) in args.iter().enumerate() {
            match &*upper(arg) {
                b"NX" => self.nx = true,
                b"XX" => self.xx = true,
                b"GT" => self.gt = true,
                b"LT" => self.lt = true,
                b"CH" => self.ch = true,
                b"INCR" => self.incr = true,
                _ => return at,
            }
        }
        args.len()
    }

    fn check(&self, pairs: usize) -> Result {
        match self {
            AddOptions { nx: true, xx: true, .. } => Err(Error::ZADD_NX_XX),
            AddOptions { gt: true, lt: true, .. }
            | AddOptions { nx: true, gt: true, .. }
            | AddOptions { nx: true, lt: true, .. } => Err(Error::ZADD_GT_LT_NX),
            AddOptions { incr: true, .. } if pairs > 1 => Err(Error::ZADD_INCR_PAIRS),
            _ => Ok(()),
        }
    }

    /// The new score of a member whose score was `old`; `None` if it stays unchanged.
    fn score(&self, old: Option<f64>, given: f64) -> Result<Option<f64>> {
        let Some(old) = old else { return Ok((!self.xx).then_some(given)) };
        if self.nx {
            return Ok(None);
        }
        let new = if self.incr { old + given } else { given };
        fail_if!(new.is_nan(), Error::SCORE_NAN);
        Ok(Some(new).filter(|new| !(self.lt && *new >= old || self.gt && *new <= old)))
    }
}

/// Adds members. With `incr`, adds to a score and returns the new one.
pub(crate) fn zadd(cx: &mut Context<'_>, args: &[&[u8]], incr: bool) -> Result {
    let mut options = AddOptions { incr, ..AddOptions::default() };
    let pairs = &args[2 + options.parse(&args[2..])..];
    fail_if!(pairs.is_empty() || pairs.len() % 2 == 1, Error::SYNTAX);
    options.check(pairs.len() / 2)?;
    let scores: SmallVec<[Option<f64>; 8]> = pairs.iter().step_by(2).map(|score| parse_score(score)).collect();
    let (mut added, mut updated, mut score) = (0, 0, None);
    let (mut db, reply) = cx.db_and_reply();
    let scores: SmallVec<[f64; 8]> = scores.into_iter().collect::<Option<_>>().ok_or(Error::NOT_FLOAT)?;
    let edit = if options.xx { db.edit_zset(args[1])? } else { Some(db.edit_or_create_zset(args[1])?) };
    if let Some(mut edit) = edit {
        edit.make_room(scores.len());
        for (pair, given) in pairs.chunks_exact(2).zip(scores) {
            let old = edit.score(pair[1]);
            score = options.score(old, given)?;
            let Some(score) = score else { continue };
            if old != Some(score) {
                edit.insert(pair[1], score);
                *(if old.is_none() { &mut added } else { &mut updated }) += 1;
            }
        }
        let event = if options.incr { Event::ZINCR } else { Event::ZADD };
        edit.finish(if added + updated > 0 { std::slice::from_ref(&event) } else { &[] });
    }
    match score {
        Some(score) if options.incr => reply.double(score),
        None if options.incr => reply.null(),
        _ => reply.integer(if options.ch { added + updated } else { added }),
    }
    Ok(())
}

fn zrem(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let mut removed = 0;
    if let Some(mut edit) = db.edit_zset(args[1])? {
        removed = args[2..].iter().filter(|member| edit.remove(member)).count();
        edit.finish(if removed > 0 { &[Event::ZREM] } else { &[] });
    }
    cx.reply.integer(removed as i64);
    Ok(())
}

fn zscore(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    match db.zset(args[1])?.and_then(|zset| zset.score(args[2])) {
        Some(score) => reply.double(score),
        None => reply.null(),
    }
    Ok(())
}

fn zmscore(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let zset = db.zset(args[1])?;
    reply.array(args.len() - 2);
    for member in &args[2..] {
        if let Some(score) = zset.and_then(|zset| zset.score(member)) { reply.double(score) } else { reply.null() }
    }
    Ok(())
}

fn zrank(cx: &mut Context<'_>, args: &[&[u8]], reverse: bool) -> Result {
    fail_if!(args.len() > 4, Error::arity(cx.command.name));
    let with_score = flag(&args[3..], &["WITHSCORE"])?;
    let (mut db, reply) = cx.db_and_reply();
    let zset = db.zset(args[1])?;
    match zset.and_then(|zset| Some((zset.len(), zset.rank(args[2])?))) {
        Some((len, (rank, score))) => {
            if with_score {
                reply.array(2);
            }
            reply.integer(if reverse { len - 1 - rank } else { rank } as i64);
            if with_score {
                reply.double(score);
            }
        }
        None if with_score => reply.null_array(),
        None => reply.null(),
    }
    Ok(())
}

impl Element for Item<'_> {
    fn name<'b>(&'b self, _: &'b mut itoa::Buffer) -> &'b [u8] {
        self.member
    }

    fn write_value(&self, reply: &mut dyn Sink) {
        reply.double(self.score);
    }
}

impl Scanned for ZSetView<'_> {
    /// Writing a member with its score takes twice as long as writing a key.
    const VISITED_MAX: usize = VISITED_MAX / 2;

    fn write_scanned_value(&self, item: &Item<'_>, reply: &mut dyn Sink) {
        if self.is_small() {
            reply.bulk(format_double(item.score, &mut [0; DOUBLE_MAX]));
        } else {
            reply.bulk(format_seventeen(item.score).as_bytes());
        }
    }
}

fn zrandmember(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let draw = Draw::parse(cx, args, "WITHSCORES")?;
    let (mut db, reply) = cx.db_and_reply();
    draw.reply(reply, db.zset(args[1])?)
}

fn zscan(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let cursor = parse_cursor(args[2])?;
    let (mut db, reply) = cx.db_and_reply();
    elements::scan(reply, db.zset(args[1])?, cursor, &args[3..])
}

#[cfg(test)]
#[path = "zset_tests.rs"]
mod tests;
