//! CLOCK: controls the server's clock over the wire, in test mode only.

use crate::base::error::{Error, Result};
use crate::commands::reference::help;
use crate::engine::Action;
use crate::engine::command::options::integer;
use crate::engine::command::{Command, Flags, Group, row, rows, subrows};
use crate::engine::context::Context;
use crate::engine::faults::test_mode::{ClockOrder, FAR_MS};

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE).union(Flags::NOSCRIPT).union(Flags::NO_MULTI);

const ROW: Command = Command {
    group: Group::Server,
    since: "Portcullis 0.1.0",
    // The time in which the driver moves the clock does not count as execution time.
    flags: Flags::ADMIN.union(ANY_TIME).union(Flags::SKIP_SLOWLOG).union(Flags::TEST_MODE),
    ..Command::DEFAULT
};

const PASSING: &str = "O(N) for N keys, leases and waits that end meanwhile";

/// The rows.
pub const COMMANDS: &[Command] = &rows([
    row!("clock", "A container for commands that control the clock of a server in test mode.";
    flags: Flags::empty(), complexity: "Depends on subcommand.", subcommands: &subrows([
        row!("advance", |cx, args| order(cx, ClockOrder::Advance(within(args[2], 0)? as u64)), "milliseconds",
            "Moves the clock forward, frozen or not. Everything that becomes due meanwhile happens in order before the reply.";
            complexity: PASSING, ..ROW),
        row!("freeze", |cx, _| order(cx, ClockOrder::Freeze), "Stops the clock at the next whole millisecond."; ..ROW),
        Command { flags: ANY_TIME, ..help::row(Group::Server, ROW.since) },
        row!("info", |cx, _| order(cx, ClockOrder::Info),
            "Returns whether the clock is frozen, its Unix time, the offset of its wall clock, and the number of waiting clients.";
            ..ROW),
        row!("resume", |cx, _| order(cx, ClockOrder::Resume), "Lets the clock run on from its current time."; ..ROW),
        row!("set", |cx, args| order(cx, ClockOrder::Set(within(args[2], 0)?)), "unix-time-milliseconds",
            "Moves the clock forward to a Unix time as ADVANCE does, or sets the wall clock back to it as SKEW does.";
            complexity: PASSING, ..ROW),
        row!("skew", |cx, args| order(cx, ClockOrder::Skew(within(args[2], -(FAR_MS as i64))?)), "milliseconds",
            "Shifts only the wall clock, forward or back. Leases and expirations do not change.";
            ..ROW),
    ]), ..ROW),
]);

/// Parses milliseconds, which must be at least `least`.
fn within(text: &[u8], least: i64) -> Result<i64> {
    let ms = integer(text)?;
    if (least..=FAR_MS as i64).contains(&ms) { Ok(ms) } else { Err(Error::OUT_OF_RANGE) }
}

/// Passes an order to the driver, which replies.
fn order(cx: &mut Context<'_>, order: ClockOrder) -> Result {
    fail_if!(!cx.engine.test_mode(), Error::new("ERR CLOCK works only in test mode: start the server with --test-mode"));
    let session = cx.session;
    cx.engine.ask(Action::Clock(session, order));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::Action;
    use crate::engine::faults::test_mode::ClockOrder;
    use crate::engine::harness::Harness;

    const REFUSED: &str = "-ERR CLOCK works only in test mode: start the server with --test-mode";

    #[test]
    fn clock_is_refused_outside_of_test_mode() {
        let mut h = Harness::new();
        for request in ["CLOCK FREEZE", "CLOCK RESUME", "CLOCK ADVANCE 1", "CLOCK SET 1", "CLOCK SKEW 1", "CLOCK INFO"] {
            assert_eq!(h.run(request), REFUSED, "{request}");
        }
        assert!(h.run("CLOCK HELP").contains("+ADVANCE milliseconds"), "{}", h.run("CLOCK HELP"));
        assert_eq!(h.engine.take_actions(), []);
    }

    #[test]
    fn orders_go_to_the_driver_which_replies() {
        let mut h = Harness::new();
        h.engine.set_test_mode(true);
        h.script(&[
            ("CLOCK ADVANCE -1", "-ERR value is out of range"),
            ("CLOCK ADVANCE 9223372036854775807", "-ERR value is out of range"),
            ("CLOCK ADVANCE x", "-ERR value is not an integer or out of range"),
            ("CLOCK SET -1", "-ERR value is out of range"),
            ("CLOCK SKEW 1.5", "-ERR value is not an integer or out of range"),
            ("CLOCK", "-ERR wrong number of arguments for 'clock' command"),
            ("CLOCK ADVANCE", "-ERR wrong number of arguments for 'clock|advance' command"),
            ("CLOCK STOP", "-ERR unknown subcommand 'STOP'. Try CLOCK HELP."),
        ]);
        assert_eq!(h.engine.take_actions(), []);
        h.script(&[("CLOCK FREEZE", ""), ("CLOCK ADVANCE 30000", ""), ("CLOCK SKEW -5", "")]);
        let orders = [ClockOrder::Freeze, ClockOrder::Advance(30_000), ClockOrder::Skew(-5)];
        assert_eq!(h.engine.take_actions(), orders.map(|order| Action::Clock(h.session, order)));
    }

    #[test]
    fn neither_a_transaction_nor_a_script_nor_a_pause_is_in_its_way() {
        let mut h = Harness::new();
        h.engine.set_test_mode(true);
        h.script(&[("CLIENT PAUSE 1000 ALL", "+OK"), ("CLOCK ADVANCE 1000", "")]);
        assert_eq!(h.engine.take_actions().len(), 1);
        h.pass(1000);
        h.script(&[("MULTI", "+OK"), ("CLOCK FREEZE", "-ERR Command not allowed inside a transaction"), ("DISCARD", "+OK")]);
        let script: &[&[u8]] = &[b"EVAL", b"return redis.call('CLOCK', 'FREEZE')", b"0"];
        assert!(h.args(script).starts_with(b"-ERR This Redis command is not allowed from script"));
    }
}
