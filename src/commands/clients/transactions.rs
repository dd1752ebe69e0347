//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`. How requests are queued and run: [`crate::engine::transaction`].

use crate::base::error::{Error, Result};
use crate::engine::command::keys::uses;
use crate::engine::command::{Command, Flags, Group, Keys, Traits, row, rows};
use crate::engine::context::Context;
use crate::engine::session::SessionFlags;
use crate::engine::transaction;

const ANY_TIME: Flags = Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE).union(Flags::FAST).union(Flags::ALLOW_BUSY);

const TRANSACTION: Command = Command { group: Group::Transactions, flags: ANY_TIME, ..Command::DEFAULT };

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("discard", discard, "Discards the queued requests of a transaction and stops watching keys.";
        traits: Traits::AT_ONCE, since: "2.0.0", complexity: "O(1) for the queue, and O(N) where N is the number of watched keys",
        ..TRANSACTION),
    row!("exec", |cx, _| transaction::exec::execute(cx),
        "Executes the queued requests of a transaction atomically, unless a watched key has changed.";
        traits: Traits::AT_ONCE.union(Traits::EXEC),
        flags: Flags::NOSCRIPT.union(Flags::LOADING).union(Flags::STALE).union(Flags::SKIP_SLOWLOG), since: "1.2.0",
        complexity: "Depends on commands in the transaction", ..TRANSACTION),
    row!("multi", multi, "Starts a transaction. Requests are queued until EXEC.";
        traits: Traits::AT_ONCE, since: "1.2.0", ..TRANSACTION),
    row!("unwatch", unwatch, "Stops watching keys.";
        since: "2.2.0", complexity: "O(N) where N is the number of watched keys", ..TRANSACTION),
    row!("watch", watch, "key [key ...]", "Watches keys: the next EXEC does nothing if one of them changes first.";
        traits: Traits::AT_ONCE, keys: Keys::ALL, key_uses: uses::EXAMINED, since: "2.2.0", complexity: "O(1) for every key.",
        ..TRANSACTION),
]);

fn multi(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    transaction::exec::begin(cx)?;
    cx.reply.ok();
    Ok(())
}

fn discard(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    fail_if!(!cx.session().flags.contains(SessionFlags::MULTI), Error::DISCARD_WITHOUT_MULTI);
    cx.engine.end_transaction(cx.session);
    cx.reply.ok();
    Ok(())
}

fn watch(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    transaction::exec::watch(cx, &args[1..])?;
    cx.reply.ok();
    Ok(())
}

fn unwatch(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    cx.engine.unwatch(cx.session);
    cx.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;
    use crate::engine::session::Peer;

    #[test]
    fn resetting_statistics_leaves_queued_commands_as_they_are() {
        let mut h = Harness::new();
        let other = h.engine.connect(h.now, Peer::default());
        h.script(&[("MULTI", "+OK"), ("SET k v", "+QUEUED"), ("CONFIG RESETSTAT", "+QUEUED"), ("GET k", "+QUEUED")]);
        h.engine.execute(h.now, other, &[b"CONFIG", b"RESETSTAT"]);
        h.script(&[("EXEC", "*3 +OK +OK $1 v")]);
    }
}
