//! `LOCK.LEAKS` and `FAULT LEAKS`: the locks that are still held, native ones and plain keys that look like locks.

use crate::base::error::Result;
use crate::base::ids::SessionId;
use crate::base::time::Now;
use crate::commands::locks::info::READ;
use crate::commands::locks::list::check_pattern;
use crate::engine::Engine;
use crate::engine::command::{Categories, Command, Flags, Keys, row, rows};
use crate::engine::context::Context;
use crate::engine::faults::leaks::{Leak, Search};
use crate::engine::jobs::{ReplyKind, Work};
use crate::resp::reply::{Sink, WireReply};

/// Maximum number of keys that `LOCK.LEAKS` examines, in all databases together.
const WALK_MAX: usize = 100_000;
/// Maximum number of locks that `LOCK.LEAKS` returns.
const SHOWN_MAX: usize = 10_000;
/// To show a lock takes as long as to look at so many keys.
const SHOW_COST: usize = 8;

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("lock.leaks", leaks, "[pattern [pattern ...]]",
    "Returns the locks that are held in all databases: native locks, and plain keys that match a pattern or, without patterns, look like locks. Shows only locks that the user may read.";
    flags: Flags::READONLY, keys: Keys::None, categories: Categories::LOCKADMIN,
    complexity: "O(N) for N keys, of which at most 100,000 are examined. At most 10,000 locks are returned, the first by name.",
    ..READ)]);

/// `FAULT LEAKS`: examines all keys.
pub(crate) fn all(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    let search = search(cx, args, &args[2..], usize::MAX, usize::MAX);
    in_one_step(cx, search);
    Ok(())
}

fn leaks(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    args[1..].iter().try_for_each(|pattern| check_pattern(pattern))?;
    let search = search(cx, args, &args[1..], WALK_MAX, SHOWN_MAX);
    let space = &cx.engine.keyspace().space;
    let keys: usize = cx.engine.keyspace().numbers.iter().map(|&dict| space.dict(dict as usize).len()).sum();
    if cx.may_start_job(keys.min(WALK_MAX)) {
        cx.start_job(Listing { search, shown: 0 });
    } else {
        in_one_step(cx, search);
    }
    Ok(())
}

fn search(cx: &Context<'_>, args: &[&[u8]], patterns: &[&[u8]], keys_max: usize, most: usize) -> Search {
    Search::new(patterns.iter().map(|pattern| pattern.to_vec()).collect(), cx.sight(args), keys_max, most)
}

fn in_one_step(cx: &mut Context<'_>, mut search: Search) {
    while !search.go_on(cx.engine, cx.now, usize::MAX) {}
    cx.reply.array(search.len());
    while let Some(leak) = search.next(cx.engine, cx.now) {
        write(&mut *cx.reply, leak);
    }
}

/// The command in a large database, as a job.
struct Listing {
    search: Search,
    shown: usize,
}

impl Work for Listing {
    fn go_on(&mut self, engine: &mut Engine, now: Now, id: SessionId, count: u32, reply: &mut Vec<u8>) -> bool {
        if !self.search.go_on(engine, now, count as usize) {
            return false;
        }
        let mut reply = WireReply::new(reply, engine.sessions()[id].protocol);
        for _ in 0..(count as usize).div_ceil(SHOW_COST) {
            let Some(leak) = self.search.next(engine, now) else { break };
            write(&mut reply, leak);
            self.shown += 1;
        }
        self.search.len() == 0
    }

    fn kind(&self) -> ReplyKind {
        ReplyKind::Array(self.shown)
    }
}

fn write(reply: &mut dyn Sink, leak: Leak) {
    reply.map(12);
    let text = leak.to_string();
    let (id, peer, gone_ms) = leak.client.map_or((None, None, None), |client| (Some(client.id), client.peer, client.gone_ms));
    let (addr, client_name) = peer.unzip();
    reply.entry("db", u64::from(leak.db));
    reply.entry("name", &leak.name);
    reply.entry("type", leak.kind);
    reply.entry("holder", leak.holder.as_ref());
    reply.entry("token", leak.token);
    reply.entry("age-ms", leak.age_ms);
    reply.entry("ttl-ms", leak.ttl_ms);
    reply.entry("client-id", id);
    reply.entry("client-addr", addr.as_ref());
    reply.entry("client-name", client_name.as_ref());
    reply.entry("client-gone-ms", gone_ms);
    reply.entry("text", &text);
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn leaks_are_shown_outside_of_test_mode() {
        let mut h = Harness::new();
        h.engine.set_test_mode(false);
        h.run("LOCK.ACQUIRE door ann 1000");
        assert!(h.run("FAULT LEAKS").starts_with("-ERR FAULT works only in test mode"), "{}", h.run("FAULT LEAKS"));
        assert!(h.run("LOCK.LEAKS").starts_with("*1 *24 $2 db :0 $4 name $4 door "), "{}", h.run("LOCK.LEAKS"));
    }
}
