//! FAULT: what goes wrong between a client and the server, as a test orders it. Only in test mode.

use crate::commands::help;
use crate::engine::command::{Command, Flags, Group};
use crate::engine::context::Context;
use crate::engine::error::{Error, Result};
use crate::engine::faults::{Fault, Rule};
use crate::engine::gates::Pace;
use crate::engine::number::{parse_f64, parse_i64};
use crate::engine::test_mode::FAR_MS;

const ANY_TIME: Flags = Flags::LOADING.union(Flags::STALE).union(Flags::NOSCRIPT).union(Flags::NO_MULTI);

/// A trickle has at most so many bytes at a time: as many as a reply may be long.
const TRICKLE_MAX: u64 = 1 << 40;

const ROW: Command = Command {
    group: Group::Server,
    since: "Portcullis 0.1.0",
    arity: 2,
    flags: Flags::ADMIN.union(ANY_TIME).union(Flags::TEST_MODE),
    ..Command::DEFAULT
};

/// The rows.
pub const COMMANDS: &[Command] = &[Command {
    name: "fault",
    arity: -2,
    flags: Flags::empty(),
    summary: "Has requests to a server in test mode go wrong.",
    complexity: "Depends on subcommand.",
    subcommands: &[
        Command {
            name: "add",
            arity: -4,
            summary: "Adds a rule by which requests meet a fault, or replaces the one of that name.",
            complexity: "O(N) for N rules",
            syntax: "name <ERROR text | DELAY milliseconds | DELAY-REPLY milliseconds | TRICKLE bytes milliseconds | DROP | \
                     DROP-REPLY | CLOSE | RESET | CLOSE-AFTER | RESET-AFTER> \
                     [ON command-pattern] [CLIENT client-pattern] [PROBABILITY probability] [TIMES times] [AFTER after]",
            handler: add,
            ..ROW
        },
        Command {
            name: "del",
            arity: 3,
            summary: "Removes a rule.",
            complexity: "O(N) for N rules",
            syntax: "name",
            handler: del,
            ..ROW
        },
        Command { name: "help", flags: ANY_TIME, summary: "Lists the subcommands.", handler: help::from_rows, ..ROW },
        Command {
            name: "list",
            summary: "The rules, for how many requests each was, and how often it has fired.",
            complexity: "O(N) for N rules",
            handler: list,
            ..ROW
        },
        Command {
            name: "reset",
            summary: "Removes all rules; gives how many there were.",
            complexity: "O(N) for N rules",
            handler: reset,
            ..ROW
        },
        Command {
            name: "seed",
            arity: 3,
            summary: "Begins the sequence anew from which chance is drawn, so that a run repeats.",
            syntax: "seed:integer",
            handler: seed,
            ..ROW
        },
    ],
    ..ROW
}];

fn check(cx: &Context<'_>) -> Result {
    match cx.engine.test_mode {
        true => Ok(()),
        false => Err(Error::new("ERR FAULT works only in test mode: start the server with --test-mode")),
    }
}

fn add(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check(cx)?;
    let (fault, mut rest) = fault(args[3], &args[4..])?;
    let mut rule = Rule {
        name: args[2].to_vec(),
        fault,
        on: None,
        client: None,
        probability: 1.0,
        times: None,
        after: 0,
        matched: 0,
        fired: 0,
    };
    while let [option, value, behind @ ..] = rest {
        rest = behind;
        if option.eq_ignore_ascii_case(b"ON") {
            rule.on = Some(value.to_vec());
        } else if option.eq_ignore_ascii_case(b"CLIENT") {
            rule.client = Some(value.to_vec());
        } else if option.eq_ignore_ascii_case(b"PROBABILITY") {
            let likely = parse_f64(value).filter(|p| (0.0..=1.0).contains(p));
            rule.probability = likely.ok_or_else(|| Error::new("ERR PROBABILITY is a number from 0 to 1"))?;
        } else if option.eq_ignore_ascii_case(b"TIMES") {
            rule.times = Some(count(value)?);
        } else if option.eq_ignore_ascii_case(b"AFTER") {
            rule.after = count(value)?;
        } else {
            return Err(Error::SYNTAX);
        }
    }
    if !rest.is_empty() {
        return Err(Error::SYNTAX);
    }
    if !cx.engine.faults.add(rule) {
        return Err(Error::new("ERR too many faults"));
    }
    cx.reply.ok();
    Ok(())
}

fn count(text: &[u8]) -> Result<u64> {
    parse_i64(text).and_then(|n| u64::try_from(n).ok()).ok_or(Error::NOT_INTEGER)
}

fn milliseconds(text: &[u8]) -> Result<u64> {
    count(text).and_then(|ms| if ms <= FAR_MS { Ok(ms) } else { Err(Error::OUT_OF_RANGE) })
}

/// Reads what is to happen, and gives what follows it.
fn fault<'a, 'b>(word: &[u8], rest: &'a [&'b [u8]]) -> Result<(Fault, &'a [&'b [u8]])> {
    let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
    let fault = match rest {
        [text, rest @ ..] if is("ERROR") => {
            let line: Vec<u8> = text.iter().map(|&b| if b == b'\r' || b == b'\n' { b' ' } else { b }).collect();
            return Ok((Fault::Error(String::from_utf8_lossy(&line).into_owned()), rest));
        }
        [ms, rest @ ..] if is("DELAY") => return Ok((Fault::Delay(milliseconds(ms)?), rest)),
        [ms, rest @ ..] if is("DELAY-REPLY") => return Ok((Fault::PaceReply(Pace::Late(milliseconds(ms)?)), rest)),
        [bytes, ms, rest @ ..] if is("TRICKLE") => {
            let bytes = count(bytes)?;
            if !(1..=TRICKLE_MAX).contains(&bytes) {
                return Err(Error::OUT_OF_RANGE);
            }
            return Ok((Fault::PaceReply(Pace::Trickle { bytes, every_ms: milliseconds(ms)? }), rest));
        }
        _ if is("DROP") => Fault::Drop,
        _ if is("DROP-REPLY") => Fault::DropReply,
        _ if is("CLOSE") => Fault::Close { reset: false },
        _ if is("RESET") => Fault::Close { reset: true },
        _ if is("CLOSE-AFTER") => Fault::CloseAfter { reset: false },
        _ if is("RESET-AFTER") => Fault::CloseAfter { reset: true },
        _ => return Err(Error::SYNTAX),
    };
    Ok((fault, rest))
}

fn del(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check(cx)?;
    let removed = cx.engine.faults.remove(args[2]);
    cx.reply.integer(removed.into());
    Ok(())
}

fn list(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    check(cx)?;
    let rules = cx.engine.faults.rules();
    cx.reply.array(rules.len());
    for rule in rules {
        cx.reply.map(9);
        cx.reply.bulk(b"name");
        cx.reply.bulk(&rule.name);
        cx.reply.bulk(b"what");
        let what = match &rule.fault {
            Fault::Error(text) => format!("ERROR {text}"),
            Fault::Delay(ms) => format!("DELAY {ms}"),
            Fault::PaceReply(Pace::Late(ms)) => format!("DELAY-REPLY {ms}"),
            Fault::PaceReply(Pace::Trickle { bytes, every_ms }) => format!("TRICKLE {bytes} {every_ms}"),
            Fault::Drop => "DROP".to_owned(),
            Fault::DropReply => "DROP-REPLY".to_owned(),
            Fault::Close { reset } => (if *reset { "RESET" } else { "CLOSE" }).to_owned(),
            Fault::CloseAfter { reset } => (if *reset { "RESET-AFTER" } else { "CLOSE-AFTER" }).to_owned(),
        };
        cx.reply.bulk(what.as_bytes());
        for (field, pattern) in [("on", &rule.on), ("client", &rule.client)] {
            cx.reply.bulk(field.as_bytes());
            cx.reply.bulk(pattern.as_deref().unwrap_or(b"*"));
        }
        cx.reply.bulk(b"probability");
        cx.reply.double(rule.probability);
        cx.reply.bulk(b"times");
        match rule.times {
            Some(times) => cx.reply.integer(times as i64),
            None => cx.reply.null(),
        }
        for (field, count) in [("after", rule.after), ("matched", rule.matched), ("fired", rule.fired)] {
            cx.reply.bulk(field.as_bytes());
            cx.reply.integer(count as i64);
        }
    }
    Ok(())
}

fn reset(cx: &mut Context<'_>, _: &[&[u8]]) -> Result {
    check(cx)?;
    let count = cx.engine.faults.clear();
    cx.reply.integer(count as i64);
    Ok(())
}

fn seed(cx: &mut Context<'_>, args: &[&[u8]]) -> Result {
    check(cx)?;
    let seed = parse_i64(args[2]).ok_or(Error::NOT_INTEGER)?;
    cx.engine.faults.seed(seed as u64);
    cx.reply.ok();
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::engine::harness::Harness;

    /// Which of so many requests fail.
    fn failures(h: &mut Harness, requests: usize) -> Vec<usize> {
        (0..requests)
            .filter(|_| {
                h.engine.execute_with_faults(h.now, h.session, None, &[b"PING"]);
                std::mem::take(&mut h.engine.sessions[h.session.0 as usize].out).starts_with(b"-")
            })
            .collect()
    }

    #[test]
    fn rules_are_added_listed_and_removed_in_test_mode_only() {
        let mut h = Harness::new();
        for request in ["FAULT ADD f DROP", "FAULT LIST", "FAULT DEL f", "FAULT RESET", "FAULT SEED 1"] {
            assert_eq!(h.run(request), "-ERR FAULT works only in test mode: start the server with --test-mode");
        }
        h.engine.test_mode = true;
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
        assert!(!h.engine.faults.armed());
        for i in 0..crate::engine::faults::RULES_MAX {
            assert_eq!(h.run(&format!("FAULT ADD f{i} DROP")), "+OK");
        }
        h.script(&[("FAULT ADD more DROP", "-ERR too many faults"), ("FAULT ADD f0 CLOSE", "+OK")]);
    }

    #[test]
    fn chance_follows_from_the_seed() {
        let mut h = Harness::new();
        h.engine.test_mode = true;
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
        h.engine.test_mode = true;
        h.script(&[("FAULT ADD other ERROR x ON config|get", "+OK"), ("FAULT ADD f ERROR y ON p?ng AFTER 3 TIMES 2", "+OK")]);
        assert_eq!(failures(&mut h, 10), [3, 4]);
        assert!(h.engine.faults.armed());
        h.run("FAULT DEL other");
        assert!(!h.engine.faults.armed(), "what is spent is asked no more");
        h.script(&[("FAULT ADD f ERROR y CLIENT worker-*", "+OK")]);
        assert_eq!(failures(&mut h, 2), [] as [usize; 0]);
        h.run("CLIENT SETNAME worker-1");
        assert_eq!(failures(&mut h, 2), [0, 1]);
    }
}
