//! Whole databases: `FLUSHDB`, `FLUSHALL`, `SWAPDB`.
//!
//! Emptying a database takes constant time. Its memory is freed in steps afterwards, so `ASYNC` and `SYNC` do the same.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::engine::Action;
use crate::engine::command::options::flag;
use crate::engine::command::{Access, Categories, Command, Flags, Group, Natives, row, rows};
use crate::engine::context::Context;
use crate::engine::observe::notices::Notice;

const WHOLE: Command = Command {
    group: Group::Server,
    flags: Flags::WRITE,
    access: Access::Remove,
    categories: Categories::KEYSPACE.union(Categories::DANGEROUS),
    ..Command::DEFAULT
};

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("flushall", |cx, args| flush(cx, args, true), "[ASYNC | SYNC]", "Deletes all keys of all databases.";
        complexity: "O(1) for each database. Memory is freed in steps afterwards.",
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"], natives: Natives::Deleted, ..WHOLE),
    row!("flushdb", |cx, args| flush(cx, args, false), "[ASYNC | SYNC]", "Deletes all keys of the selected database.";
        complexity: "O(1). Memory is freed in steps afterwards.",
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"], natives: Natives::Deleted, ..WHOLE),
    row!("swapdb", swapdb, "index1 index2", "Swaps two databases.";
        flags: Flags::WRITE.union(Flags::FAST), since: "4.0.0", complexity: "O(1)", ..WHOLE),
]);

fn flush(cx: &mut Context<'_>, args: &[&[u8]], all: bool) -> Result {
    flag(&args[1..], &["ASYNC", "SYNC"])?;
    let (now, by, db) = (cx.now, Some(cx.session), (!all).then_some(cx.db));
    let databases = 0..cx.engine.keyspace().databases() as u32;
    let keys = databases.filter(|index| db.is_none_or(|db| db == *index)).map(|index| cx.db_at(index).len() as u64).sum();
    cx.engine.notice(now, by, Notice::Flushed { db, keys });
    if all {
        for index in 0..cx.engine.keyspace().databases() as u32 {
            cx.db_at(index).flush();
        }
        // A restart must not bring back what is in the last snapshot.
        if !cx.engine.config().save.is_empty() {
            cx.engine.ask(Action::Save { session: None, anew: true });
        }
    } else {
        cx.db().flush();
    }
    cx.reply.ok();
    Ok(())
}

fn swapdb(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    fail_if!(cx.engine.in_cluster(), Error::new("ERR SWAPDB is not allowed in cluster mode"));
    let number = |argument: &[u8], error: Error| parse_i64(argument).filter(|&n| i32::try_from(n).is_ok()).ok_or(error);
    let first = number(args[1], Error::FIRST_DB_INVALID)?;
    let second = number(args[2], Error::SECOND_DB_INVALID)?;
    let databases = cx.engine.keyspace().databases();
    let index = |n: i64| u32::try_from(n).ok().filter(|&n| (n as usize) < databases).ok_or(Error::DB_RANGE);
    let (first, second) = (index(first)?, index(second)?);
    if first != second {
        let now = cx.now;
        cx.engine.keyspace_mut().swap(first, second, now);
    }
    cx.reply.ok();
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn flushing_takes_one_database_or_all() {
        let mut h = Harness::new();
        for word in ["FLUSHDB", "FLUSHDB SYNC", "flushdb async"] {
            for words in ["SELECT 1", "SET a 1 PX 5000", "HSET h f v", "SELECT 0", "SET a 1"] {
                h.run(words);
            }
            assert_eq!(h.run(word), "+OK");
            assert_eq!(h.run("DBSIZE"), ":0");
            h.run("SELECT 1");
            assert_eq!(h.run("DBSIZE"), ":2");
            h.run("SELECT 0");
        }
        assert_eq!(h.run("FLUSHALL ASYNC"), "+OK");
        h.run("SELECT 1");
        assert_eq!(h.run("DBSIZE"), ":0");
        assert_eq!(h.run("GET a"), "$-1");
        for wrong in ["FLUSHALL NOW", "FLUSHDB SYNC SYNC"] {
            h.run("SET kept 1");
            assert_eq!(h.run(wrong), "-ERR syntax error");
            assert_eq!(h.run("EXISTS kept"), ":1");
        }
    }

    #[test]
    fn databases_change_places_with_their_deadlines() {
        let mut h = Harness::new();
        for words in ["SET a zero PX 5000", "SELECT 1", "SET a one"] {
            h.run(words);
        }
        assert_eq!(h.run("SWAPDB 0 1"), "+OK");
        assert_eq!(h.run("GET a"), "$4 zero");
        assert_eq!(h.run("PTTL a"), ":5000");
        h.run("SELECT 0");
        assert_eq!(h.run("GET a"), "$3 one");
        assert_eq!(h.run("SWAPDB 1 1"), "+OK");
        assert_eq!(h.run("SWAPDB x 1"), "-ERR invalid first DB index");
        assert_eq!(h.run("SWAPDB 1 99999999999"), "-ERR invalid second DB index");
        assert_eq!(h.run("SWAPDB 1 16"), "-ERR DB index is out of range");
        assert_eq!(h.run("SWAPDB -1 0"), "-ERR DB index is out of range");
    }
}
