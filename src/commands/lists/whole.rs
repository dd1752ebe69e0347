//! Lists: commands that search a list or change its middle.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::commands::elements::index_range;
use crate::commands::lists::ends::{GROW, LIST, index};
use crate::engine::command::keys::uses;
use crate::engine::command::options::{Tail, choice, integer, upper};
use crate::engine::command::{Command, Flags, Replies, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::store::values::list::{End, Needle};

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("lset", lset, "key index element", "Replaces an element of a list by its index.";
        replies: Replies::Scalar, flags: GROW, key_uses: uses::CHANGED,
        complexity: "O(N) for N nodes between the element and the nearer end", ..LIST),
    row!("linsert", linsert, "key <BEFORE | AFTER> pivot element",
        "Inserts an element before or after the first element that equals the pivot.";
        replies: Replies::Integer, flags: GROW, since: "2.2.0", key_uses: uses::EXTENDED,
        complexity: "O(N) for N elements before the pivot", ..LIST),
    row!("lrem", lrem, "key count element",
        "Removes elements of a list that equal the given one, from the beginning or, with a negative count, from the end.";
        replies: Replies::Integer, flags: Flags::WRITE, key_uses: uses::REMOVED_FROM,
        complexity: "O(N) for N elements of the list", ..LIST),
    row!("ltrim", ltrim, "key start stop", "Removes all elements of a list except those between two indexes.";
        replies: Replies::Scalar, flags: Flags::WRITE, key_uses: uses::REMOVED_FROM,
        complexity: "O(N) for N removed nodes. Their memory is freed in steps afterwards.", ..LIST),
    row!("lpos", lpos, "key element [RANK rank] [COUNT num-matches:integer] [MAXLEN len:integer]",
        "Returns the indexes of elements of a list that equal the given one.";
        flags: Flags::READONLY, since: "6.0.6", complexity: "O(N) for N examined elements", ..LIST),
]);

fn lset(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let mut edit = db.edit_list(args[1])?.ok_or(Error::NO_SUCH_KEY)?;
    let len = edit.list().len();
    // An index out of range sets nothing, but the encoding of the list may change as if it did, as in Redis.
    fail_if!(!edit.set(index(args[2], len)?.unwrap_or(len), args[3]), Error::INDEX_RANGE);
    edit.finish(Some(Event::LSET));
    cx.reply.ok();
    Ok(())
}

fn linsert(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let after = choice(args[2], &[("BEFORE", false), ("AFTER", true)]).ok_or(Error::SYNTAX)?;
    let mut db = cx.db();
    let len = match db.edit_list(args[1])? {
        None => 0,
        Some(mut edit) => {
            if edit.insert(args[3], args[4], after) {
                let len = edit.list().len() as i64;
                edit.finish(Some(Event::LINSERT));
                len
            } else {
                -1
            }
        }
    };
    cx.reply.integer(len);
    Ok(())
}

fn lrem(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let count = integer(args[2])?;
    fail_if!(count == i64::MIN, Error::COUNT_RANGE);
    let from = if count < 0 { End::Right } else { End::Left };
    let most = if count == 0 { usize::MAX } else { count.unsigned_abs() as usize };
    let mut db = cx.db();
    let mut removed = 0;
    if let Some(mut edit) = db.edit_list(args[1])? {
        removed = edit.remove(args[3], from, most);
        edit.finish((removed > 0).then_some(Event::LREM));
    }
    cx.reply.integer(removed as i64);
    Ok(())
}

fn ltrim(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (start, stop) = (integer(args[2])?, integer(args[3])?);
    let mut db = cx.db();
    if let Some(mut edit) = db.edit_list(args[1])? {
        let len = edit.list().len();
        let range = index_range(start, stop, len);
        edit.trim(range.start, len - range.end);
        edit.finish(Some(Event::LTRIM));
    }
    cx.reply.ok();
    Ok(())
}

/// The options of `LPOS`.
struct Search {
    /// Number of the first match to return, from 1.
    rank: u64,
    from: End,
    /// Maximum number of matches, 0 for all. Without `COUNT`, the reply is a single index instead of an array.
    count: Option<u64>,
    /// Maximum number of elements to compare.
    most: usize,
}

impl Search {
    fn parse(options: &[&[u8]]) -> Result<Search> {
        let mut search = Search { rank: 1, from: End::Left, count: None, most: usize::MAX };
        let mut rest = Tail(options);
        while let Some(option) = rest.next() {
            let number = parse_i64(rest.value()?);
            match &*upper(option) {
                b"RANK" => match number.ok_or(Error::NOT_INTEGER)? {
                    0 => return Err(Error::RANK_ZERO),
                    i64::MIN => return Err(Error::COUNT_RANGE),
                    rank => {
                        search.from = if rank < 0 { End::Right } else { End::Left };
                        search.rank = rank.unsigned_abs();
                    }
                },
                b"COUNT" => search.count = Some(number.and_then(|n| u64::try_from(n).ok()).ok_or(Error::COUNT_NEGATIVE)?),
                b"MAXLEN" => {
                    let most = number.and_then(|n| usize::try_from(n).ok()).ok_or(Error::MAXLEN_NEGATIVE)?;
                    search.most = if most == 0 { usize::MAX } else { most };
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(search)
    }
}

fn lpos(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let search = Search::parse(&args[3..])?;
    let (mut db, reply) = cx.db_and_reply();
    let mut found = Vec::new();
    if let Some(list) = db.list(args[1])? {
        let (needle, len) = (Needle::new(args[2]), list.len());
        let matches = list.iter(search.from).take(search.most).enumerate().filter(|(_, element)| needle.is(*element));
        let wanted = match search.count {
            None => 1,
            Some(0) => usize::MAX,
            Some(count) => count as usize,
        };
        let given = matches.skip(search.rank as usize - 1).take(wanted);
        found.extend(given.map(|(at, _)| if search.from == End::Left { at } else { len - at - 1 }));
    }
    match (search.count, found.first()) {
        (None, None) => reply.null(),
        (None, Some(&index)) => reply.integer(index as i64),
        (Some(_), _) => {
            reply.array(found.len());
            found.iter().for_each(|&index| reply.integer(index as i64));
        }
    }
    Ok(())
}
