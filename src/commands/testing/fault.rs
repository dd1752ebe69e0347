//! FAULT: fault injection between clients and the server, in test mode only.

use crate::base::error::{Error, Result};
use crate::base::number::parse_i64;
use crate::commands::locks::leaks;
use crate::commands::reference::help;
use crate::engine::Action;
use crate::engine::command::options::integer;
use crate::engine::command::{Command, Flags, Group, row, rows, subrows};
use crate::engine::context::Context;
use crate::engine::faults::rules::{Rule, lost};
use crate::keyspace::journal::WRITES_MAX;

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE).union(Flags::NOSCRIPT).union(Flags::NO_MULTI);

const ROW: Command = Command {
    group: Group::Server,
    since: "Portcullis 0.1.0",
    flags: Flags::ADMIN.union(ANY_TIME).union(Flags::TEST_MODE),
    ..Command::DEFAULT
};

/// The rows.
pub const COMMANDS: &[Command] = &rows([row!("fault", "A container for fault injection commands of a server in test mode.";
    flags: Flags::empty(), complexity: "Depends on subcommand.", subcommands: &subrows([
        row!("add", add,
            "name <ERROR text | DELAY milliseconds | DELAY-REPLY milliseconds | TRICKLE bytes:integer milliseconds | DROP | \
                     DROP-REPLY | CLOSE | RESET | CLOSE-AFTER | RESET-AFTER | \
                     <RESTART | RESTART-AFTER | RESTART-AFTER-REPLY> [LOSE writes:integer]> \
                     [ON command-pattern:pattern] [CLIENT client-pattern:pattern] [PROBABILITY probability:double] \
                     [TIMES times:integer] [AFTER after:integer]",
            "Adds a fault injection rule, or replaces the rule of that name.";
            complexity: "O(N) for N rules", ..ROW),
        row!("del", del, "name", "Deletes a fault injection rule."; complexity: "O(N) for N rules", ..ROW),
        Command { flags: ANY_TIME, ..help::row(Group::Server, ROW.since) },
        row!("journal", journal, "writes:integer",
            "Sets the number of last writes that the server keeps from now on, so that RESTART can lose them; 0 for none.";
            complexity: "O(N) for N keys. Afterwards each write also copies the value that it changes.", ..ROW),
        row!("leaks", leaks, "[pattern [pattern ...]]",
            "Returns the locks that are still held in all databases: native locks, and keys that match a pattern or look like locks.";
            complexity: "O(N) for N keys", ..ROW),
        row!("list", list,
            "Returns the fault injection rules, with the number of requests that each matched and how often it fired.";
            complexity: "O(N) for N rules", ..ROW),
        row!("reset", reset, "Deletes all fault injection rules and ends a pause of clients. Returns the number of rules.";
            complexity: "O(N) for N rules", ..ROW),
        row!("restart", restart, "[LOSE writes:integer]",
            "Simulates that the server was killed and started again, without its data or without the last writes. Returns the number of lost writes.";
            complexity: "O(N) for N keys", ..ROW),
        row!("seed", seed, "seed:integer", "Restarts the random sequence of fault injection, so that a run can be repeated.";
            ..ROW),
    ]), ..ROW)]);

fn check(cx: &Context<'_>) -> Result {
    match cx.engine.test_mode() {
        true => Ok(()),
        false => Err(Error::new("ERR FAULT works only in test mode: start the server with --test-mode")),
    }
}

fn add(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check(cx)?;
    let rule = Rule::parse(&args[2..])?;
    fail_if!(!cx.engine.faults_mut().add(rule), Error::new("ERR too many fault injection rules"));
    cx.engine.update_journal();
    cx.reply.ok();
    Ok(())
}

fn del(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check(cx)?;
    let removed = cx.engine.faults_mut().remove(args[2]);
    cx.engine.update_journal();
    cx.reply.integer(removed.into());
    Ok(())
}

fn journal(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check(cx)?;
    let writes = parse_i64(args[2]).and_then(|n| u64::try_from(n).ok()).ok_or(Error::NOT_INTEGER)?;
    fail_if!(writes > WRITES_MAX, Error::OUT_OF_RANGE);
    cx.engine.faults_mut().journal = writes;
    cx.engine.update_journal();
    cx.reply.ok();
    Ok(())
}

fn restart(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check(cx)?;
    let (lose, rest) = lost(&args[2..])?;
    fail_if!(!rest.is_empty(), Error::SYNTAX);
    let last = cx.session;
    match lose {
        None => cx.reply.ok(),
        Some(writes) => {
            let journal = cx.engine.keyspace().changes.journal.as_ref();
            if writes > cx.engine.journal_limit() as u64 {
                let kept = cx.engine.journal_limit();
                return Err(Error::new(format!("ERR only the last {kept} writes are kept; FAULT JOURNAL sets their number")));
            }
            let kept = journal.map_or(0, |journal| journal.len());
            cx.reply.integer(kept.min(writes as usize) as i64);
        }
    }
    cx.engine.ask(Action::Restart { last, lose });
    Ok(())
}

fn leaks(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check(cx)?;
    leaks::all(cx, args)
}

fn list(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    check(cx)?;
    let rules = cx.engine.faults().rules();
    cx.reply.array(rules.len());
    for rule in rules {
        cx.reply.map(9);
        cx.reply.entry("name", &rule.name);
        cx.reply.entry("what", &rule.fault.words());
        for (field, pattern) in [("on", &rule.on), ("client", &rule.client)] {
            cx.reply.entry(field, pattern.as_deref().unwrap_or(b"*"));
        }
        cx.reply.entry("probability", rule.probability);
        cx.reply.entry("times", rule.times);
        for (field, count) in [("after", rule.after), ("matched", rule.matched), ("fired", rule.fired)] {
            cx.reply.entry(field, count);
        }
    }
    Ok(())
}

fn reset(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    check(cx)?;
    let count = cx.engine.faults_mut().clear();
    cx.engine.update_journal();
    // CLIENT UNPAUSE would itself wait for the end of the pause, as in Redis.
    cx.engine.unpause();
    cx.reply.integer(count as i64);
    Ok(())
}

fn seed(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check(cx)?;
    let seed = integer(args[2])?;
    cx.engine.faults_mut().seed(seed as u64);
    cx.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;
    use crate::engine::request::Request;
    use crate::engine::session::Peer;

    /// The indexes of the failing requests among the first `requests`.
    fn failures(h: &mut Harness, requests: usize) -> Vec<usize> {
        (0..requests)
            .filter(|_| {
                h.engine.execute_with_faults(h.now, h.session, Request::new(&[b"PING"]));
                std::mem::take(&mut h.engine.sessions_mut()[h.session].out).starts_with(b"-")
            })
            .collect()
    }

    #[test]
    fn rules_are_added_listed_and_removed_in_test_mode_only() {
        let mut h = Harness::new();
        for request in ["FAULT ADD f DROP", "FAULT LIST", "FAULT DEL f", "FAULT RESET", "FAULT SEED 1"] {
            assert_eq!(h.run(request), "-ERR FAULT works only in test mode: start the server with --test-mode");
        }
        h.engine.set_test_mode(true);
        h.script(&[
            ("FAULT ADD f", "-ERR wrong number of arguments for 'fault|add' command"),
            ("FAULT ADD f EXPLODE", "-ERR syntax error"),
            ("FAULT ADD f ERROR", "-ERR syntax error"),
            ("FAULT ADD f DELAY x", "-ERR value is not an integer or out of range"),
            ("FAULT ADD f DELAY 9223372036854775807", "-ERR value is out of range"),
            ("FAULT ADD f DELAY-REPLY -1", "-ERR value is not an integer or out of range"),
            ("FAULT ADD f TRICKLE 5", "-ERR syntax error"),
            ("FAULT ADD f TRICKLE 0 5", "-ERR value is out of range"),
            ("FAULT ADD f TRICKLE 5 9223372036854775807", "-ERR value is out of range"),
            ("FAULT ADD f DROP ON", "-ERR syntax error"),
            ("FAULT ADD f DROP TIMES -1", "-ERR value is not an integer or out of range"),
            ("FAULT ADD f DROP PROBABILITY 1.5", "-ERR PROBABILITY is a number from 0 to 1"),
            ("FAULT ADD f DROP PROBABILITY nan", "-ERR PROBABILITY is a number from 0 to 1"),
            ("FAULT LIST", "*0"),
            ("FAULT ADD f DROP-REPLY ON set TIMES 1", "+OK"),
            ("FAULT ADD g DELAY 5 CLIENT worker-* PROBABILITY 0.5 AFTER 2", "+OK"),
            ("FAULT ADD f CLOSE", "+OK"),
            (
                "FAULT LIST",
                "*2 *18 $4 name $1 f $4 what $5 CLOSE $2 on $1 * $6 client $1 * $11 probability $1 1 $5 times $-1 $5 after :0 $7 \
                 matched :0 $5 fired :0 *18 $4 name $1 g $4 what $7 DELAY 5 $2 on $1 * $6 client $8 worker-* $11 probability $3 0.5 \
                 $5 times $-1 $5 after :2 $7 matched :0 $5 fired :0",
            ),
            ("FAULT DEL f", ":1"),
            ("FAULT DEL f", ":0"),
            ("FAULT RESET", ":1"),
        ]);
        assert!(!h.engine.faults().armed());
        for i in 0..crate::engine::faults::RULES_MAX {
            assert_eq!(h.run(&format!("FAULT ADD f{i} DROP")), "+OK");
        }
        h.script(&[("FAULT ADD more DROP", "-ERR too many fault injection rules"), ("FAULT ADD f0 CLOSE", "+OK")]);
    }

    #[test]
    fn a_pause_ends_with_the_rules() {
        let mut h = Harness::new();
        h.engine.set_test_mode(true);
        let other = h.engine.connect(h.now, Peer::default());
        h.script(&[("CLIENT PAUSE 100000 ALL", "+OK")]);
        h.engine.execute(h.now, other, &[b"SET", b"k", b"v"]);
        assert_eq!(h.engine.blocked_clients(), 1);
        h.script(&[("FAULT RESET", ":0"), ("GET k", "$1 v")]);
        assert_eq!(h.engine.sessions()[other].out, b"+OK\r\n");
    }

    #[test]
    fn chance_follows_from_the_seed() {
        let mut h = Harness::new();
        h.engine.set_test_mode(true);
        h.script(&[("FAULT ADD f ERROR no PROBABILITY 0.25", "+OK"), ("FAULT SEED 7", "+OK")]);
        let first = failures(&mut h, 1000);
        assert!((200..300).contains(&first.len()), "{}", first.len());
        h.run("FAULT SEED 7");
        assert_eq!(failures(&mut h, 1000), first);
        h.run("FAULT SEED 8");
        assert_ne!(failures(&mut h, 1000), first);
    }

    #[test]
    fn a_rule_fires_after_some_and_so_often_for_those_it_names() {
        let mut h = Harness::new();
        h.engine.set_test_mode(true);
        h.script(&[("FAULT ADD other ERROR x ON config|get", "+OK"), ("FAULT ADD f ERROR y ON p?ng AFTER 3 TIMES 2", "+OK")]);
        assert_eq!(failures(&mut h, 10), [3, 4]);
        assert!(h.engine.faults().armed());
        h.run("FAULT DEL other");
        assert!(!h.engine.faults().armed(), "what is spent is asked no more");
        h.script(&[("FAULT ADD f ERROR y CLIENT worker-*", "+OK")]);
        assert_eq!(failures(&mut h, 2), [] as [usize; 0]);
        h.run("CLIENT SETNAME worker-1");
        assert_eq!(failures(&mut h, 2), [0, 1]);
    }
}
