//! Sets and their members. Intersections, unions and differences are in [`crate::commands::sets::algebra`].

use crate::base::error::{Error, Result};
use crate::commands::elements::{self, Draw, Element, Scanned, Sequence, pop_count};
use crate::commands::keys::scan::parse_cursor;
use crate::engine::command::keys::uses;
use crate::engine::command::options::{integer, optional};
use crate::engine::command::{Access, Command, Flags, Group, Keys, Replies, Traits, row, rows};
use crate::engine::context::Context;
use crate::keyspace::change::Event;
use crate::keyspace::types::sets::SetView;
use crate::resp::reply::Sink;
use crate::store::values::set::Member;

/// What the rows of set commands have in common.
pub(crate) const SET: Command =
    Command { group: Group::Set, keys: Keys::ONE, access: Access::ReadWrite, since: "1.0.0", ..Command::DEFAULT };
const READ_FAST: Flags = Flags::READONLY.union(Flags::FAST);
const WRITE_FAST: Flags = Flags::WRITE.union(Flags::FAST);

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("sadd", sadd, "key member [member ...]", "Adds members to a set. Creates the set if it does not exist.";
        replies: Replies::Integer, flags: WRITE_FAST.union(Flags::DENYOOM), key_uses: uses::EXTENDED,
        complexity: "O(N) for N members", ..SET),
    row!("srem", srem, "key member [member ...]", "Removes members of a set. Deletes the set with its last member.";
        replies: Replies::Integer, flags: WRITE_FAST, key_uses: uses::REMOVED_FROM, complexity: "O(N) for N members to remove",
        ..SET),
    row!("smove", smove, "source destination member", "Moves a member from one set to another.";
        replies: Replies::Integer, flags: WRITE_FAST, keys: Keys::TWO, key_uses: uses::MOVED, ..SET),
    row!("sismember", |cx, args| {
            let found = cx.db().set(args[1])?.is_some_and(|set| set.contains(Member::Bytes(args[2])));
            cx.reply.integer(i64::from(found));
            Ok(())
        }, "key member", "Checks whether a set has a member.";
        replies: Replies::Integer, flags: READ_FAST, key_uses: uses::EXAMINED, ..SET),
    row!("smismember", smismember, "key member [member ...]", "Checks which of several members a set has.";
        flags: READ_FAST, since: "6.2.0", complexity: "O(N) for N requested members", ..SET),
    row!("scard", |cx, args| {
            let len = cx.db().set(args[1])?.map_or(0, |set| set.len());
            cx.reply.integer(len as i64);
            Ok(())
        }, "key", "Returns the number of members of a set.";
        replies: Replies::Integer, flags: READ_FAST, key_uses: uses::EXAMINED, ..SET),
    row!("smembers", smembers, "key", "Returns all members of a set.";
        traits: Traits::BOUNDED_COST, flags: Flags::READONLY, complexity: "O(N) for N members of the set",
        tips: &["nondeterministic_output_order"], ..SET),
    row!("spop", spop, "key [count]", "Removes and returns random members of a set. Deletes the set with its last member.";
        replies: Replies::ScalarWithoutCount, flags: WRITE_FAST, key_uses: uses::TAKEN, complexity: "O(N) for N removed members",
        tips: &["nondeterministic_output"], ..SET),
    row!("srandmember", srandmember, "key [count]",
        "Returns random members of a set: different ones, or with a negative count possibly the same one several times.";
        replies: Replies::ScalarWithoutCount, flags: Flags::READONLY, complexity: "O(N) for N returned members",
        tips: &["nondeterministic_output"], ..SET),
    row!("sscan", sscan, "key cursor [MATCH pattern] [COUNT count]", "Iterates over the members of a set.";
        flags: Flags::READONLY, since: "2.8.0", complexity: "O(N) for N members visited per call",
        tips: &["nondeterministic_output"], ..SET),
]);

impl Element for Member<'_> {
    fn name<'b>(&'b self, digits: &'b mut itoa::Buffer) -> &'b [u8] {
        self.text(digits)
    }

    fn write_value(&self, _: &mut dyn Sink) {}
}

impl Scanned for SetView<'_> {
    const VALUES: bool = false;
}

/// Writes a member.
pub(crate) fn write_member(reply: &mut dyn Sink, member: &Member<'_>) {
    reply.bulk(member.text(&mut itoa::Buffer::new()));
}

fn sadd(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let mut edit = db.edit_or_create_set(args[1], args[2], args.len() - 2)?;
    let added = args[2..].iter().filter(|member| edit.add(member)).count();
    edit.finish(if added > 0 { &[Event::SADD] } else { &[] });
    cx.reply.integer(added as i64);
    Ok(())
}

fn srem(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let mut db = cx.db();
    let mut removed = 0;
    if let Some(mut edit) = db.edit_set(args[1])? {
        removed = args[2..].iter().filter(|member| edit.remove(member)).count();
        edit.finish(if removed > 0 { &[Event::SREM] } else { &[] });
    }
    cx.reply.integer(removed as i64);
    Ok(())
}

fn smove(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (source, destination, member) = (args[1], args[2], args[3]);
    let mut db = cx.db();
    let Some(edit) = db.edit_set(source)? else {
        cx.reply.integer(0);
        return Ok(());
    };
    let found = edit.view().contains(Member::Bytes(member));
    if source != destination {
        db.check_set(destination)?;
        if found && let Some(mut edit) = db.edit_set(source)? {
            edit.remove(member);
            edit.finish(&[Event::SREM]);
            let mut edit = db.edit_or_create_set(destination, member, 1)?;
            let new = edit.add(member);
            edit.finish(if new { &[Event::SADD] } else { &[] });
        }
    }
    cx.reply.integer(i64::from(found));
    Ok(())
}

fn smismember(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let set = db.set(args[1])?;
    reply.array(args.len() - 2);
    for member in &args[2..] {
        reply.integer(i64::from(set.is_some_and(|set| set.contains(Member::Bytes(member)))));
    }
    Ok(())
}

fn smembers(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let (mut db, reply) = cx.db_and_reply();
    let Some(set) = db.set(args[1])? else {
        reply.set(0);
        return Ok(());
    };
    reply.set(set.len());
    set.iter().for_each(|member| write_member(reply, &member));
    Ok(())
}

fn spop(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let count = optional(&args[2..])?.map(pop_count).transpose()?;
    let mut sequence = Sequence(cx.engine.random());
    let (mut db, reply) = cx.db_and_reply();
    let Some(mut edit) = db.edit_set(args[1])? else {
        if count.is_some() {
            reply.set(0)
        } else {
            reply.null()
        }
        return Ok(());
    };
    let len = edit.view().len();
    match count {
        Some(0) => reply.set(0),
        Some(count) if count >= len => {
            reply.set(len);
            edit.view().iter().for_each(|member| write_member(reply, &member));
            edit.finish(&[Event::SPOP]);
            let before = db.keyspace.changes.count;
            db.delete(args[1], Event::DEL)?;
            db.keyspace.changes.count_as(before, len as u64);
        }
        _ => {
            if let Some(count) = count {
                reply.set(count);
            }
            edit.pop(count.unwrap_or(1), || sequence.next_u64(), |member| reply.bulk(member));
            edit.finish(&[Event::SPOP]);
        }
    }
    Ok(())
}

fn srandmember(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let count = optional(&args[2..])?.map(integer).transpose()?;
    fail_if!(count == Some(i64::MIN), Error::COUNT_RANGE);
    let draw = Draw::new(cx, count, false);
    let (mut db, reply) = cx.db_and_reply();
    draw.reply(reply, db.set(args[1])?)
}

fn sscan(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let cursor = parse_cursor(args[2])?;
    let (mut db, reply) = cx.db_and_reply();
    elements::scan(reply, db.set(args[1])?, cursor, &args[3..])
}

#[cfg(test)]
#[path = "sets_tests.rs"]
mod tests;
