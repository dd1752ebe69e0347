//! `LOCK.LEAKS` and `FAULT LEAKS`: the locks that are still held, native ones and plain keys that look like locks.

use crate::base::error::Result;
use crate::commands::locks::info::READ;
use crate::engine::command::{Categories, Command, Flags, Keys};
use crate::engine::context::Context;
use crate::engine::faults::leaks::Leak;

/// Maximum number of keys that `LOCK.LEAKS` examines, in all databases together.
const WALK_MAX: usize = 100_000;

/// The rows.
pub const COMMANDS: &[Command] = &[Command {
    name: "lock.leaks",
    arity: -1,
    flags: Flags::READONLY,
    keys: Keys::None,
    categories: Categories::LOCKADMIN,
    summary: "Returns the locks that are held in all databases: native locks, and plain keys that match a pattern or, without patterns, look like locks. Shows only locks that the user may read.",
    complexity: "O(N) for N keys, of which at most 100,000 are examined",
    syntax: "[pattern [pattern ...]]",
    handler: |cx, args| {
        leaks(cx, args, &args[1..], WALK_MAX);
        Ok(())
    },
    ..READ
}];

/// `FAULT LEAKS`: examines all keys.
pub(crate) fn all(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    leaks(cx, args, &args[2..], usize::MAX);
    Ok(())
}

fn leaks(cx: &mut Context<'_>, args: &[&[u8]], patterns: &[&[u8]], keys_max: usize) {
    let patterns: Vec<Vec<u8>> = patterns.iter().map(|pattern| pattern.to_vec()).collect();
    let leaks = cx.engine.leaks_among(cx.now, &patterns, &cx.sight(args), keys_max);
    write(cx, leaks);
}

fn write(cx: &mut Context<'_>, leaks: Vec<Leak>) {
    cx.reply.array(leaks.len());
    for leak in leaks {
        cx.reply.map(12);
        let text = leak.to_string();
        let (id, peer, gone_ms) = leak.client.map_or((None, None, None), |client| (Some(client.id), client.peer, client.gone_ms));
        let (addr, client_name) = peer.unzip();
        let addr = addr.map(String::into_bytes);
        let fields = [
            ("db", FieldValue::Count(Some(leak.db.into()))),
            ("name", FieldValue::Text(Some(leak.name))),
            ("type", FieldValue::Text(Some(leak.kind.into()))),
            ("holder", FieldValue::Text(leak.holder)),
            ("token", FieldValue::Count(leak.token)),
            ("age-ms", FieldValue::Count(leak.age_ms)),
            ("ttl-ms", FieldValue::Count(leak.ttl_ms)),
            ("client-id", FieldValue::Count(id)),
            ("client-addr", FieldValue::Text(addr)),
            ("client-name", FieldValue::Text(client_name)),
            ("client-gone-ms", FieldValue::Count(gone_ms)),
            ("text", FieldValue::Text(Some(text.into_bytes()))),
        ];
        for (name, value) in fields {
            cx.reply.bulk(name.as_bytes());
            match value {
                FieldValue::Text(Some(bytes)) => cx.reply.bulk(&bytes),
                FieldValue::Count(Some(number)) => cx.reply.integer(i64::try_from(number).unwrap_or(i64::MAX)),
                FieldValue::Text(None) | FieldValue::Count(None) => cx.reply.null(),
            }
        }
    }
}

/// The value of a field in a reply; `None` if it is unknown.
enum FieldValue {
    Text(Option<Vec<u8>>),
    Count(Option<u64>),
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    #[test]
    fn leaks_are_shown_outside_of_test_mode() {
        let mut h = Harness::new();
        h.engine.test_mode = false;
        h.run("LOCK.ACQUIRE door ann 1000");
        assert!(h.run("FAULT LEAKS").starts_with("-ERR FAULT works only in test mode"), "{}", h.run("FAULT LEAKS"));
        assert!(h.run("LOCK.LEAKS").starts_with("*1 *24 $2 db :0 $4 name $4 door "), "{}", h.run("LOCK.LEAKS"));
    }
}
